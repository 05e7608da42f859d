import json
import math
import random
from collections import Counter
from itertools import chain
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import TokenizersBackend
from vocabulary_invariants import (
    DOMAIN_TEXTS,
    MIXED_TEXTS,
    TOKENIZERS,
    assert_loads_elsewhere,
    assert_vocabulary_grew,
    make_byte_level_bpe,
    make_wordpiece,
    make_xlm_roberta,
)

from hf_domain.tokenization import (
    ExposureLimit,
    WordCounts,
    compare_lengths,
    count_words,
    expand_vocabulary,
    expansion,
    wordpiece,
)
from hf_domain.tokenization.expansion import Domain
from hf_domain.tokenization.texts import read_texts


def expand(tokenizer, texts=DOMAIN_TEXTS, **options):
    return expand_vocabulary(tokenizer, texts, **{"min_frequency": 2, "step": 15, "progress": False, **options})


@pytest.mark.parametrize("name", TOKENIZERS)
def test_invariants_hold(name):
    tokenizer = TOKENIZERS[name]()
    new_tokenizer, delta, report = expand(tokenizer)
    assert len(delta.pieces) >= 20 and report.unreachable == []
    assert_vocabulary_grew(tokenizer, new_tokenizer, delta, [*MIXED_TEXTS, *DOMAIN_TEXTS])
    counts = Counter(chain.from_iterable(new_tokenizer(DOMAIN_TEXTS, add_special_tokens=False)["input_ids"]))
    assert delta.counts == [counts[id_] for id_ in range(delta.new_size)]


def test_a_process_without_the_package_loads_what_was_saved(tmp_path):
    expanded = {name: expand(make())[0] for name, make in TOKENIZERS.items()}
    assert_loads_elsewhere(expanded, tmp_path, [*MIXED_TEXTS, *DOMAIN_TEXTS])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_an_expanded_tokenizer_can_be_expanded(name):
    once, _, _ = expand(TOKENIZERS[name](), DOMAIN_TEXTS[:2] * 4)
    twice, delta, report = expand(once, DOMAIN_TEXTS)
    assert delta.old_size == len(once) and delta.pieces and report.unreachable == []
    assert_vocabulary_grew(once, twice, delta, [*MIXED_TEXTS, *DOMAIN_TEXTS])


@pytest.mark.parametrize("name", TOKENIZERS)
def test_log_probability_equals_the_one_over_documents(name):
    tokenizer = TOKENIZERS[name]()
    new_tokenizer, _, report = expand(tokenizer)
    for used, point in ((tokenizer, report.curve[0]), (new_tokenizer, report.curve[report.chosen])):
        documents = used(DOMAIN_TEXTS, add_special_tokens=False)["input_ids"]
        counts = Counter(id_ for ids in documents for id_ in ids)
        total = sum(counts.values())
        log_probabilities = [sum(math.log(counts[id_] / total) for id_ in ids) for ids in documents]
        assert point.log_probability == pytest.approx(sum(log_probabilities) / len(documents), rel=1e-12)
        assert point.tokens == total


@pytest.mark.parametrize("name", [*TOKENIZERS, "exbert"])
def test_every_entry_is_used_often_enough_and_ids_follow_use(name):
    options = {"method": "exbert", "size": 250} if name == "exbert" else {}
    new_tokenizer, delta, _ = expand(TOKENIZERS.get(name, make_wordpiece)(), min_frequency=3, **options)
    ids = new_tokenizer(DOMAIN_TEXTS, add_special_tokens=False)["input_ids"]
    counts = Counter(id_ for row in ids for id_ in row)
    use = [counts[delta.old_size + number] for number in range(len(delta.pieces))]
    assert min(use) >= 3 and use == sorted(use, reverse=True)


@pytest.mark.parametrize(("least_use", "left"), [(None, []), (2, ["abc", "##de"]), (1, ["abc", "##de"])])
def test_an_entry_may_become_rare_when_another_is_dropped(least_use, left):
    vocab = {piece: id_ for id_, piece in enumerate(["[UNK]", "x", "ab", "##cd", "##d", "##e"])}
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "vocab": vocab}
    words = WordCounts("", Counter({"abcde": 2, "xde": 1}), documents=1)
    domain = Domain(wordpiece, model | {"max_input_chars_per_word": 100}, len(vocab), words, 3, 50)
    tried = domain.try_entries(["abc", "##de"])  # abc ##de, x ##de; without abc it is ab ##cd ##e
    assert tried.use.tolist() == [2, 3]
    assert domain.settle(tried, least_use).entries == left


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_planned_training_shows_each_entry_often_enough(name):
    proposed, _, proposed_report = expand(TOKENIZERS[name](), CURVE_TEXTS)
    assert proposed_report.exposure is None
    new_tokenizer, delta, report = expand(TOKENIZERS[name](), CURVE_TEXTS, training_tokens=1500, min_exposures=4)
    ids = [id_ for row in new_tokenizer(CURVE_TEXTS, add_special_tokens=False)["input_ids"] for id_ in row]
    counts = Counter(ids)
    use = [counts[delta.old_size + number] for number in range(len(delta.pieces))]
    assert min(use) * 1500 / len(ids) >= 4 and use == sorted(use, reverse=True)
    before = proposed_report.curve[0].tokens
    assert report.exposure == ExposureLimit(
        training_tokens=1500,
        min_exposures=4,
        proposed=len(proposed) - delta.old_size,
        proposed_saving=proposed_report.saved,
        kept=len(delta.pieces),
        saving=1 - len(ids) / before,
    )
    assert (
        0 < report.saved == report.exposure.saving < proposed_report.saved
        and 0 < len(delta.pieces) < len(proposed) - delta.old_size
    )
    text = str(report.exposure)
    assert f"with the other {len(proposed) - len(new_tokenizer)} entries" in text
    assert f"{len(delta.pieces)} of {len(proposed) - delta.old_size} entries" in text and "1,500 training" in text
    # Nothing is left out of a long training.
    assert expand(TOKENIZERS[name](), CURVE_TEXTS, training_tokens=10**9)[0].get_vocab() == proposed.get_vocab()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_order_of_the_texts_changes_nothing(name):
    shuffled = random.Random(0).sample(DOMAIN_TEXTS, len(DOMAIN_TEXTS))
    first, _, first_report = expand(TOKENIZERS[name]())
    second, _, second_report = expand(TOKENIZERS[name](), shuffled)
    assert first.get_vocab() == second.get_vocab() and first_report == second_report


def make_curve_texts():
    """Texts of words with falling frequencies, long enough for several steps."""
    generator = random.Random(7)
    syllables = ["lym", "pho", "ma", "cy", "te", "blas", "to", "ge", "nic", "otro", "pin", "immu", "no"]
    words = ["".join(generator.choices(syllables, k=generator.randint(2, 4))) for _ in range(400)]
    weights = [1 / rank for rank in range(1, 401)]
    return [" ".join(generator.choices(words, weights, k=20)) for _ in range(150)]


CURVE_TEXTS = make_curve_texts()


def test_the_two_conventions_are_one_step_apart():
    printed = expand(make_wordpiece(), CURVE_TEXTS, threshold=0.05)[2]
    accepted = expand(make_wordpiece(), CURVE_TEXTS, threshold=0.05, select="last_accepted")[2]
    rises = [point.improvement for point in printed.curve[1:]]
    assert printed.stopped_by == "threshold" and printed.curve == accepted.curve
    assert all(rise >= 0.05 for rise in rises[:-1]) and rises[-1] < 0.05
    assert printed.chosen == accepted.chosen + 1 == len(printed.curve) - 1
    assert rises[0] == pytest.approx(
        (printed.curve[1].log_probability - printed.curve[0].log_probability) / -printed.curve[0].log_probability
    )


def test_the_curve_continues_to_max_size_without_changing_the_choice():
    short, _, short_report = expand(make_wordpiece(), CURVE_TEXTS, threshold=0.05)
    long, _, long_report = expand(make_wordpiece(), CURVE_TEXTS, threshold=0.05, max_size=330)
    assert len(long_report.curve) > len(short_report.curve) and long_report.curve[-1].size == pytest.approx(330, abs=3)
    assert long_report.chosen == short_report.chosen and long.get_vocab() == short.get_vocab()
    assert long_report.stopped_by == "threshold"


def test_sizes_are_round():
    report = expand(make_wordpiece(), CURVE_TEXTS, step=20, max_size=250)[2]
    assert [point.size for point in report.curve] == [153, 180, 200, 220, 240, 250]


def test_a_fixed_size_is_reached():
    tokenizer = make_wordpiece()
    new_tokenizer, delta, report = expand(tokenizer, CURVE_TEXTS, size=211)
    assert len(new_tokenizer) == delta.new_size == 211 and report.stopped_by == "size"


def test_a_corpus_that_runs_out_says_so():
    report = expand(make_wordpiece(), size=1000)[2]
    assert report.stopped_by == "corpus" and report.curve[report.chosen].size < 300


def test_counts_do_for_texts():
    tokenizer = make_wordpiece()
    counts = count_words([DOMAIN_TEXTS[:7], DOMAIN_TEXTS[7:]], tokenizer.backend_tokenizer, progress=False)
    assert expand(tokenizer, counts)[1] == expand(tokenizer)[1]


def test_minimum_frequency_and_word_length_bound_the_entries():
    _, rare, _ = expand(make_wordpiece(), size=230)
    _, frequent, _ = expand(make_wordpiece(), size=230, min_frequency=8)
    _, short, _ = expand(make_wordpiece(), size=230, max_word_length=12)
    assert 0 < len(frequent.pieces) < len(rare.pieces)
    for length in (7, 8):
        pieces = expand(make_wordpiece(), size=230, max_word_length=length)[1].pieces
        assert ("lymphoma" in pieces) == (length == len("lymphoma"))
    assert "immunohistochemistry" in rare.pieces
    assert not [entry for entry in short.pieces if "histochem" in entry] and "lymphoma" in short.pieces


def test_the_report_names_what_saves_most():
    _, delta, report = expand(make_wordpiece())
    counts = count_words([DOMAIN_TEXTS], make_wordpiece().backend_tokenizer, progress=False).words
    best = report.useful_entries[0]
    assert best["entry"] == "immunohistochemistry" and best["frequency"] == 8
    assert best["tokens_saved"] == 8 * (len(delta.pieces["immunohistochemistry"]) - 1)
    assert best["pieces"] == delta.pieces["immunohistochemistry"]
    assert best["id"] == delta.old_size + list(delta.pieces).index("immunohistochemistry")
    assert report.documents == len(DOMAIN_TEXTS) and report.words == sum(counts.values())
    assert report.distinct_words == len(counts)
    many = expand(make_wordpiece(), CURVE_TEXTS, size=300)[2].useful_entries
    saved = [row["tokens_saved"] for row in many]
    assert len(many) == 100 and saved == sorted(saved, reverse=True) and saved[0] > saved[-1] > 0


def test_entries_that_the_tokenizer_does_not_make_are_named(monkeypatch):
    monkeypatch.setattr("hf_domain.tokenization.expansion.replace_model", lambda tokenizer, state, model: tokenizer)
    _, delta, report = expand(make_wordpiece())
    assert report.unreachable == list(delta.pieces) != []


@pytest.mark.parametrize("name", ["wordpiece", "byte-level bpe"])
def test_an_added_token_keeps_its_id(name):
    tokenizer = TOKENIZERS[name]()
    tokenizer.add_tokens(["<e1>", "<e2>"])
    new_tokenizer, delta, _ = expand(tokenizer)
    assert delta.old_size == len(tokenizer) and delta.pieces
    assert new_tokenizer.convert_tokens_to_ids(["<e1>", "<e2>"]) == [len(tokenizer) - 2, len(tokenizer) - 1]
    text = "<e1> of the <e2>"
    assert new_tokenizer(text)["input_ids"] == tokenizer(text)["input_ids"]


def test_a_corpus_of_one_known_word():
    report = expand(make_wordpiece(), ["patient", "patient patient"])[2]
    assert [point.log_probability for point in report.curve] == [0.0] and report.saved == 0


def test_exbert_appends_what_a_learned_wordpiece_has_new():
    tokenizer = make_wordpiece()
    new_tokenizer, delta, report = expand(tokenizer, method="exbert", size=150)
    assert (
        max(map(len, expand(tokenizer, method="exbert", size=150, max_word_length=6)[1].pieces))
        <= 8
        < max(map(len, delta.pieces))
    )  # `##` begins a part of a word
    assert 10 < len(delta.pieces) <= 150 and report.unreachable == []
    assert {entry.startswith("##") for entry in delta.pieces} == {True, False}
    assert_vocabulary_grew(tokenizer, new_tokenizer, delta, [*MIXED_TEXTS, *DOMAIN_TEXTS])
    own = expand(tokenizer, method="exbert", size=150, words=["xylotriose"])[1].pieces
    assert own.keys() == {"xylotriose", *delta.pieces}
    with pytest.raises(ValueError, match="needs a WordPiece tokenizer"):
        expand(make_xlm_roberta(), method="exbert")
    with pytest.raises(ValueError, match=r"max_size, 150, limits the steps .* Use size"):
        expand(tokenizer, method="exbert", max_size=150)


@pytest.mark.parametrize("method", ["words", "adalm"])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_own_words_are_entries_however_rare(name, method):
    tokenizer = TOKENIZERS[name]()
    texts = [*DOMAIN_TEXTS, "a glioblastoma"]  # less often than the minimum of 2
    words = ["glioblastoma", " xylotriose\n", "glioblastoma", "two words", ""]
    new_tokenizer, delta, report = expand(tokenizer, texts, method=method, words=words)
    assert_vocabulary_grew(tokenizer, new_tokenizer, delta, [*MIXED_TEXTS, *texts])
    for word in ("glioblastoma", "xylotriose"):
        assert len(new_tokenizer(f"a {word}", add_special_tokens=False)["input_ids"]) == 1 + len(
            new_tokenizer("a", add_special_tokens=False)["input_ids"]
        )
    assert [(row["word"], row["new"], row["frequency"]) for row in report.own_words] == [
        *(("glioblastoma", True, 1), ("xylotriose", True, 0), ("two words", False, 0))
    ]
    assert (len(delta.pieces) == 2) == (method == "words")
    assert "2 of your 3 words are new entries" in report.describe()[0] and "xylotriose" in report.describe()[0]
    again = expand(new_tokenizer, texts, method="words", words=words)
    assert again[0] is new_tokenizer and [row["frequency"] for row in again[2].own_words] == [1, 0, 0]


def test_no_new_word_leaves_the_tokenizer_alone():
    tokenizer = make_wordpiece()
    new_tokenizer, delta, report = expand(tokenizer, ["the patient has a lesion"] * 5)
    assert new_tokenizer is tokenizer and delta.pieces == {} and delta.new_size == len(tokenizer)
    assert report.stopped_by == "corpus" and report.chosen == 0 and report.unreachable == []


@pytest.mark.parametrize(
    ("corpus", "found"),
    [
        ("lymphoma", "type str"),
        (Path("corpus.txt"), "type PosixPath|type WindowsPath"),
        ({"text": DOMAIN_TEXTS}, "type dict with the keys text"),
        (pd.DataFrame({"body": DOMAIN_TEXTS, "title": DOMAIN_TEXTS}), "type DataFrame with the columns body, title"),
        (pd.DataFrame({"text": [1.5]}), "type DataFrame with the columns text"),
        (
            Dataset.from_dict({"body": DOMAIN_TEXTS, "title": DOMAIN_TEXTS}),
            "type Dataset with the columns body, title",
        ),
        ([{"text": text} for text in DOMAIN_TEXTS], "document 0 is of type dict"),
        ([*DOMAIN_TEXTS, 3.5], "document 20 is of type float"),
        (7, "type int"),
    ],
)
def test_a_corpus_that_is_no_texts_is_refused(corpus, found):
    for call in (expand, lambda tokenizer, texts: compare_lengths(tokenizer, tokenizer, texts)):
        with pytest.raises(TypeError, match=found):
            call(make_wordpiece(), corpus)


def test_columns_of_texts_are_texts():
    expected = expand(make_wordpiece())[1]
    table = {"label": [0] * len(DOMAIN_TEXTS), "text": DOMAIN_TEXTS}
    dataset, frame = Dataset.from_dict(table), pd.DataFrame(table)
    splits = DatasetDict(validation=dataset.select([0]), train=dataset)
    for corpus in (dataset, dataset["text"], dataset.to_iterable_dataset(), splits, frame, frame["text"]):
        assert expand(make_wordpiece(), corpus)[1] == expected


def test_a_missing_text_is_an_empty_one():
    assert list(read_texts(pd.DataFrame({"text": ["one", None]}))) == ["one", ""]


CHINESE_TEXTS = ["患者有淋巴瘤的病史。", "没有发现淋巴瘤,建议复查。"] * 10


@pytest.mark.parametrize("name", ["wordpiece", "byte-level bpe"])
@pytest.mark.parametrize("texts", [CHINESE_TEXTS, ["ผู้ป่วยเป็นมะเร็งต่อมน้ำเหลือง"] * 10], ids=["chinese", "thai"])
def test_word_piece_and_bpe_refuse_languages_without_blanks(name, texts):
    with pytest.raises(ValueError, match="Use an encoder with a Unigram tokenizer"):
        expand(TOKENIZERS[name](), texts)


def test_some_text_without_blanks_is_reported(caplog):
    report = expand(make_wordpiece(), [*DOMAIN_TEXTS, *CHINESE_TEXTS])[2]
    assert ["Unigram" in warning for warning in report.warnings] == [True]
    assert report.warnings[0] in caplog.text
    assert expand(make_wordpiece())[2].warnings == []


def test_an_expansion_that_saves_little_advises_against_itself():
    known = ["the patient has a lesion and the doctor has a plan"] * 40
    report = expand(make_wordpiece(), [*known, "lymphomas lymphomas"], size=154)[2]
    assert 0 < report.saved < 0.02 and len(report.warnings) == 1
    assert report.warnings[0].startswith("The new entries save") and "keep the original" in report.warnings[0]
    assert "keep the original" in expand(make_wordpiece(), known)[2].warnings[0]


@pytest.mark.parametrize("texts", [[], ["", "  \n"], ["\u200b"]])
def test_an_empty_corpus_is_refused(texts):
    with pytest.raises(ValueError, match="empty"):
        expand(make_wordpiece(), texts)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"step": 0}, "`step`"),
        ({"threshold": 0.0}, "`threshold`"),
        ({"threshold": 1.0}, "`threshold`"),
        ({"threshold": math.nan}, "`threshold`"),
        ({"min_frequency": 0}, "`min_frequency`"),
        ({"select": "first"}, "`select`"),
        ({"method": "bert"}, "`method`"),
        ({"size": 10}, "must exceed .* but its size is 10"),
        ({"size": 153}, "must exceed .* but its size is 153"),
        ({"size": 0}, "`size`"),
        ({"method": "words"}, "needs `words`"),
        ({"method": "words", "words": ["a"], "size": 300}, "Leave out size"),
        ({"size": 300, "max_size": 300}, "`max_size`"),
        ({"training_tokens": 0}, "`training_tokens`"),
        ({"training_tokens": 9, "min_exposures": 0}, "`min_exposures`"),
        ({"max_size": 10}, "must exceed .* but its size is 10"),
    ],
)
def test_options_out_of_range_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        expand(make_wordpiece(), **options)


def test_options_at_their_limits_are_taken():
    limits = {"min_frequency": 1, "training_tokens": 1, "min_exposures": 1e-9, "threshold": 0.999, "step": 1}
    report = expand(make_wordpiece(), **limits, max_size=154)[2]
    assert report.curve[-1].size == 154 and len(expand(make_wordpiece(), size=154)[0]) == 154


def test_counts_of_another_tokenizer_are_refused():
    counts = count_words([DOMAIN_TEXTS], make_byte_level_bpe().backend_tokenizer, progress=False)
    with pytest.raises(ValueError, match="fingerprint"):
        expand(make_wordpiece(), counts)


def make_unsupported(model, pre_tokenizer):
    backend = Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizer
    return TokenizersBackend(tokenizer_object=backend)


def test_other_models_are_refused():
    whitespace = pre_tokenizers.Whitespace()
    with pytest.raises(ValueError, match="WordLevel"):
        expand(make_unsupported(models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]"), whitespace))
    with pytest.raises(ValueError, match="byte-level"):
        expand(make_unsupported(models.BPE({"a": 0, "b": 1}, []), whitespace))
    with pytest.raises(ValueError, match="pre-tokenizer"):
        expand(make_unsupported(models.Unigram([("<unk>", 0.0), ("a", -1.0)], unk_id=0), None))


def test_a_tokenizer_without_a_fast_backend_is_refused():
    with pytest.raises(TypeError, match="fast"):
        expand(object())


def test_the_report_is_json(tmp_path):
    report = expand(make_wordpiece())[2]
    report.save(tmp_path / "report.json")
    saved = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert saved["curve"][0]["size"] == 153 and saved["stopped_by"] == report.stopped_by


def test_long_words_are_named_and_read_if_they_should_be():
    """Names of compounds have more characters than WordPiece reads, 100 by default."""
    texts = [f"the compound {'methylethyl' * 10} was {'ethylpropyl' * 11} again"] * 4
    _, _, report = expand(make_wordpiece(), texts)
    assert "33.3% of the corpus' words have more than max_word_length=50 characters" in report.warnings[-1]
    tokenizer, delta, report = expand(make_wordpiece(), texts, max_word_length=130)
    assert not any("max_word_length" in warning for warning in report.warnings)
    assert tokenizer.unk_token_id not in tokenizer(texts[0])["input_ids"]
    assert any("methylethyl" in entry for entry in delta.pieces)


def test_no_larger_vocabulary_is_made_once_the_corpus_has_no_more_entries(monkeypatch):
    """Each takes as long as the one before: minutes on a large corpus."""
    asked = []

    def grow(before, size):
        asked.append(size)
        return SimpleNamespace(size=min(size, 250))

    domain = SimpleNamespace(begin=lambda: [SimpleNamespace(size=100)], grow=grow)
    monkeypatch.setattr(expansion, "_improve", lambda before, after: 1.0)
    history, failed = expansion._follow_curve(domain, [200, 251, 300, 400, 500], 0.01, False)
    assert asked == [200, 251, 300] and [each.size for each in history] == [100, 200, 250] and failed is None
    asked.clear()
    history, _ = expansion._follow_curve(domain, [200, 300, 400], 0.01, False)
    assert asked == [200, 300] and history[-1].size == 250
