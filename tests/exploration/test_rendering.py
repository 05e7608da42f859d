"""What is shown holds every value, and no markup of a user or a model."""

import re

import pytest

from hf_domain.exploration import rendering
from hf_domain.exploration.views import Gates, Piece

EVIL = "<script>alert(1)</script>"


def read(page):
    """The text of a page as a reader sees it."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", page)).strip()


@pytest.mark.parametrize(
    "page",
    [
        rendering.format_mistake(EVIL),
        rendering.format_sides({EVIL: ""}),
        rendering.format_words([[Piece(EVIL, True)]]),
        rendering.format_bars([(EVIL, 1.0)]),
        rendering.format_gates([Gates(EVIL, [EVIL], {EVIL: [0.5]})]),
        rendering.format_losses({EVIL: [(EVIL, 1.0)], "after": [(EVIL, 2.0)]}),
        rendering.format_labels({"prediction": EVIL, "probabilities": {EVIL: 1.0}}),
        rendering.format_labels({"tokens": [EVIL, "b"], "prediction": [EVIL, "O"], "probabilities": [1.0, 1.0]}),
        rendering.format_labels({"prediction": EVIL, "probabilities": 0.5}),
        rendering.format_report(EVIL),
    ],
)
def test_markup_is_escaped(page):
    assert "<script" not in page and "script&gt;" in page


def test_figures_are_split_from_their_text(tmp_path):
    """Markdown cannot show files of this machine; one that is gone leaves no hole."""
    (tmp_path / "cost.png").write_bytes(b"png")
    text = "# A\n\n![Cost <b>](cost.png)\n\n![gone](gone.png)\n\nThe end, ![no](figure.png).\n"
    parts = rendering.split_figures(text, tmp_path)
    figures = [part for part in parts if not isinstance(part, str)]
    assert figures == [(tmp_path / "cost.png", "Cost <b>")]
    assert [part.strip() for part in parts if isinstance(part, str)] == ["# A", "The end, ![no](figure.png)."]
    shown = rendering.format_figure(*figures[0])
    assert 'alt="Cost &lt;b&gt;"' in shown and "base64,cG5n" in shown


def test_words_are_counted():
    words = [[Piece("a", False)], [Piece("b", False), Piece("c", True)]]
    assert read(rendering.format_words(words, before=4)) == "3 pieces for 2 words, -25 % a b c"
    assert read(rendering.format_words(words)).startswith("3 pieces for 2 words a")
    assert rendering.format_words(words).count(" new") == rendering.format_words(words).count("word cut") == 1


def test_bars_are_shares_of_the_largest():
    page = rendering.format_bars([("a", 0.4), ("b", 0.1), ("c", -1.0)])
    assert re.findall(r"--share: ([\d.]+)%", page) == ["100.0", "25.0", "0.0"]
    assert rendering.format_bars([]) == "" and "0.0%" in rendering.format_bars([("a", 0.0)])


def test_losses_compare_the_first_model_with_the_last():
    page = rendering.format_losses(
        {"a": [("x", 1.0), ("y", 3.0)], "b": [("x", 9.0), ("y", 9.0)], "c": [("x", 2.0), ("y", 1.0)]}
    )
    assert read(page).startswith("a 2.000 b (+7.000) 9.000 c (-0.500) 1.500")
    assert re.findall(r'title="(.*?)"', page) == ["+1.00", "-2.00"]


def test_loss_of_a_model_that_compares_with_no_other():
    assert read(rendering.format_losses({"a": [("x", 1.0)]})) == "a 1.000"


def test_labels_of_every_task():
    assert (
        read(rendering.format_labels({"prediction": "b", "probabilities": {"a": 0.2, "b": 0.8}})) == "b 80.0% a 20.0%"
    )
    # Each of several labels has its own threshold.
    several = {"prediction": ["a"], "probabilities": {"a": 0.2, "b": 0.8, "c": 0.9}}
    assert read(rendering.format_labels(several)) == "a (predicted) 20.0% c 90.0% b 80.0%"
    assert read(rendering.format_labels({"prediction": 1.5})) == "1.500"
    row = {"tokens": ["the", "gene", "far"], "prediction": ["O", "B-X", None], "probabilities": [1.0, 0.5, None]}
    assert read(rendering.format_labels(row)) == "the gene B-X far"
    assert read(rendering.format_labels({"prediction": "", "probabilities": 0.25})) == "no answer 25.0%"
