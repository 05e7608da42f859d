import pytest
from vocabulary_invariants import DOMAIN_TEXTS, make_wordpiece

from hf_domain.tokenization import compare_lengths, expand_vocabulary, plot_curve, plot_lengths


@pytest.fixture(scope="module")
def expansion():
    tokenizer = make_wordpiece()
    return tokenizer, *expand_vocabulary(tokenizer, DOMAIN_TEXTS, min_frequency=2, step=15, progress=False)


def test_lengths_are_compared_text_by_text(expansion):
    tokenizer, new_tokenizer, _, _ = expansion
    assert tokenizer.tokenize("lymphoma") == ["lymph", "##oma"]
    texts = ["lymphoma lymphoma", "the bone"]
    lengths = compare_lengths(tokenizer, new_tokenizer, texts)
    assert lengths.tokens_before == (4 + 2) / 2 and lengths.tokens_after == (2 + 2) / 2
    assert lengths.saved == pytest.approx(1 / 3) and lengths.longer == 0 and lengths.texts == 2


def test_texts_that_become_longer_are_reported(expansion):
    tokenizer, new_tokenizer, _, _ = expansion
    lengths = compare_lengths(new_tokenizer, tokenizer, ["lymphoma", "bone", "bone", "bone"])
    assert lengths.longer == 0.25


def test_no_texts_are_refused(expansion):
    with pytest.raises(ValueError, match="there is none"):
        compare_lengths(expansion[0], expansion[1], [])


def test_plots_are_written(expansion, tmp_path):
    tokenizer, new_tokenizer, _, report = expansion
    report.lengths["held-out"] = compare_lengths(tokenizer, new_tokenizer, DOMAIN_TEXTS)
    plot_curve(report, tmp_path / "curve.png")
    plot_lengths(report, tmp_path / "lengths.png")
    assert all((tmp_path / name).read_bytes().startswith(b"\x89PNG") for name in ("curve.png", "lengths.png"))
