"""Show what a model reads for a text: the passages found, with the decisive words marked."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hf_domain.datastore.store import Datastore

SHOWN_PREDICTIONS = 3
BOLD, RESET = "\x1b[1m", "\x1b[0m"
LEAST_BOLD = 0.5  # a terminal has no shades; words with 1.5 times the average weight are bold


class Span(NamedTuple):
    """Marked characters of a passage."""

    start: int
    end: int
    weight: float
    """From 0 to the largest weight."""


@dataclass
class ReadPassage:
    """A passage that was found."""

    id: int
    document_id: str
    text: str
    score: float
    spans: list[Span]
    """In ascending order, without overlap."""
    probability: float | None = None
    """The probability that a model chooses it."""
    is_chosen: bool = False
    """Whether a model chose it; the spans are then the words it weighs."""


@dataclass
class Reading:
    """A text and the passages read for it."""

    text: str
    passages: list[ReadPassage]
    predictions: Sequence[tuple[str, float]] = ()
    """A model's labels with their probabilities, likeliest first."""


def read_passages(
    datastore: Datastore,
    text: str,
    k: int = 10,
    *,
    found: Mapping[int, float] | None = None,
    weights: Mapping[int, Sequence[tuple[int, int, float]]] | None = None,
    probabilities: Mapping[int, float] | None = None,
    predictions: Sequence[tuple[str, float]] = (),
) -> Reading:
    """Find the passages of a text and mark what matters in them.

    Args:
        k: Largest number of passages. Default: RADA, section 4.1.
        found: The passages that a model read: id -> score, best first. Default: searches for them.
        weights: Passage id -> (start, end, weight) of characters, for example the words that a model weighs. In other
            passages the words of the query are marked, with weight 1.
        probabilities: Passage id -> the probability that a model chooses it.
        predictions: A model's predictions for the text, see `Reading`.

    Returns:
        The passages, best first.
    """
    if found is None:
        ((ids, scores),) = datastore.search([text], k)
    else:
        ids, scores = [*found], [*found.values()]
    terms = {term.text for term in datastore.analyzer.find_terms(text)}
    passages = []
    for row, score in zip(datastore.passages.select(ids), scores, strict=True):
        is_chosen = weights is not None and row["id"] in weights
        if weights is not None and is_chosen:
            spans = [Span(*span) for span in weights[row["id"]]]
        else:
            found_terms = datastore.analyzer.find_terms(row["text"])
            spans = [Span(term.start, term.end, 1.0) for term in found_terms if term.text in terms]
        spans = _join_spans(spans)
        probability = (probabilities or {}).get(row["id"])
        passages.append(ReadPassage(row["id"], row["document_id"], row["text"], score, spans, probability, is_chosen))
    return Reading(text, passages, predictions)


def format_text(reading: Reading, use_bold: bool = True) -> str:
    """Format a reading for a terminal; control characters, which could command it, become blanks.

    Args:
        use_bold: Whether to mark words, by terminal codes.
    """
    lines = [f"What is read for: {_clean(reading.text)}"]
    lines += [f"Prediction: {_clean(_describe_predictions(reading))}"] if reading.predictions else []
    lines.append("")
    for rank, passage in enumerate(reading.passages, 1):
        lines.append(f"{rank}. {_clean(_describe(passage))}")
        text = "".join(
            f"{BOLD}{_clean(part)}{RESET}" if use_bold and weight >= LEAST_BOLD else _clean(part)
            for part, weight in _cut_at_spans(passage)
        )
        lines += [f"   {text}", ""]
    if not reading.passages:
        lines += ["No passage has a word in common with this text.", ""]
    return "\n".join(lines)


def format_section(reading: Reading) -> str:
    """Format a reading as a section of an HTML page: the heavier a word, the stronger its color. Text is escaped."""
    items = []
    for passage in reading.passages:
        text = "".join(
            f'<mark style="background: rgba(255, 200, 0, {weight:.2f})">{html.escape(part)}</mark>'
            if weight > 0
            else html.escape(part)
            for part, weight in _cut_at_spans(passage)
        )
        items.append(f'<li><div class="source">{html.escape(_describe(passage))}</div>{text}</li>')
    found = "<ol>\n" + "\n".join(items) + "\n</ol>" if items else "<p>No passage has a word in common with it.</p>"
    if reading.predictions:
        found = f"<p>Prediction: {html.escape(_describe_predictions(reading))}</p>\n{found}"
    return f"<section>\n<blockquote>{html.escape(reading.text)}</blockquote>\n{found}\n</section>"


def _describe(passage: ReadPassage) -> str:
    probability = "" if passage.probability is None else f", probability {passage.probability:.3f}"
    chosen = ", chosen by the model" if passage.is_chosen else ""
    return f"passage {passage.id}, document {passage.document_id}, score {passage.score:.2f}{probability}{chosen}"


def _describe_predictions(reading: Reading) -> str:
    return ", ".join(f"{label} {value:.3f}" for label, value in reading.predictions[:SHOWN_PREDICTIONS])


def _join_spans(spans: list[Span]) -> list[Span]:
    """Merge spans that overlap, as pairs of characters do."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span.start < joined[-1].end:
            last = joined[-1]
            joined[-1] = Span(last.start, max(span.end, last.end), max(span.weight, last.weight))
        else:
            joined.append(span)
    return joined


def _cut_at_spans(passage: ReadPassage) -> list[tuple[str, float]]:
    """Cut the text into parts, each with a shade from 0 (outside of spans) to 1.

    A model's weights are shaded above the average word, fully at twice the average. A model that weighs all words
    equally marks none.
    """
    parts, end, spans = [], 0, passage.spans
    mean = sum(span.weight for span in spans) / max(1, len(spans))
    if passage.is_chosen and mean > 0:
        spans = [span._replace(weight=min(1.0, max(0.0, round(span.weight / mean - 1, 2)))) for span in spans]
    for span in spans:
        parts += [(passage.text[end : span.start], 0.0), (passage.text[span.start : span.end], span.weight)]
        end = span.end
    return [(part, weight) for part, weight in [*parts, (passage.text[end:], 0.0)] if part]


def _clean(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
