"""What a model reads for a text: the passages that are found, with the words that decide marked."""

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hf_domain.datastore.store import Datastore

BOLD, RESET = "\x1b[1m", "\x1b[0m"
LEAST_BOLD = 0.5  # a terminal has no shades: bold is what weighs at least half of the heaviest

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>What the model reads</title>
<style>
body {{ font-family: sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; line-height: 1.5; }}
blockquote {{ margin: 0; padding: 0.5rem 1rem; background: #f2f2f2; }}
li {{ margin: 1rem 0; }}
.source {{ color: #666; font-size: 0.85rem; }}
mark {{ padding: 0; }}
</style>
</head>
<body>
{readings}
</body>
</html>
"""


class Span(NamedTuple):
    """Characters of a passage that are marked."""

    start: int
    end: int
    weight: float
    """From 0 to the weight of what matters most."""


@dataclass
class ReadPassage:
    """A passage that was found."""

    id: int
    document_id: str
    text: str
    score: float
    spans: list[Span]
    """In order, without overlap."""
    is_chosen: bool = False
    """Whether a model chose it, and the spans are the words it weighs."""


@dataclass
class Reading:
    """A text and what is read for it."""

    text: str
    passages: list[ReadPassage]


def read_passages(
    datastore: Datastore,
    text: str,
    k: int = 10,
    *,
    max_query_terms: int | None = None,
    weights: Mapping[int, Sequence[tuple[int, int, float]]] | None = None,
) -> Reading:
    """Find the passages of a text and mark what matters in them.

    Args:
        datastore: The passages.
        text: The query.
        k: Passages at most. Default: RADA, section 4.1.
        max_query_terms: See `Datastore.search`.
        weights: For ids of passages, (start, end, weight) of characters, e.g. the words that a model weighs. Passages
            that are not in it, or all without it, have the words of the query marked, with weight 1.

    Returns:
        The passages, best first.
    """
    ((ids, scores),) = datastore.search([text], k, max_query_terms)
    terms = {term.text for term in datastore.analyzer.find_terms(text)}
    passages = []
    for row, score in zip(datastore.passages.select(ids), scores, strict=True):
        is_chosen = weights is not None and row["id"] in weights
        if weights is not None and is_chosen:
            spans = [Span(*span) for span in weights[row["id"]]]
        else:
            found = [term for term in datastore.analyzer.find_terms(row["text"]) if term.text in terms]
            spans = [Span(term.start, term.end, 1.0) for term in found]
        spans = _join_spans(spans)
        passages.append(ReadPassage(row["id"], row["document_id"], row["text"], score, spans, is_chosen))
    return Reading(text, passages)


def format_text(reading: Reading, use_bold: bool = True) -> str:
    """Write a reading for a terminal.

    Args:
        reading: What `read_passages` returned.
        use_bold: Whether words are marked, by the codes of terminals.

    Returns:
        Lines of text. Control characters of passages, which could command the terminal, are replaced.
    """
    lines = [f"What is read for: {_clean(reading.text)}", ""]
    for rank, passage in enumerate(reading.passages, 1):
        lines.append(f"{rank}. {_clean(_describe(passage))}")
        least = LEAST_BOLD * max((span.weight for span in passage.spans), default=0.0)
        text = "".join(
            f"{BOLD}{_clean(part)}{RESET}" if use_bold and weight > 0 and weight >= least else _clean(part)
            for part, weight in _cut_at_spans(passage)
        )
        lines += [f"   {text}", ""]
    if not reading.passages:
        lines += ["No passage has a word in common with this text.", ""]
    return "\n".join(lines)


def format_html(readings: Sequence[Reading]) -> str:
    """Write readings as a page of HTML; the heavier a word, the stronger its colour.

    Args:
        readings: What `read_passages` returned.

    Returns:
        A page that needs nothing beside itself; all text is escaped.
    """
    return PAGE.format(readings="\n".join(_format_section(reading) for reading in readings))


def _format_section(reading: Reading) -> str:
    items = []
    for passage in reading.passages:
        heaviest = max((span.weight for span in passage.spans), default=0.0)
        text = "".join(
            f'<mark style="background: rgba(255, 200, 0, {weight / heaviest:.2f})">{html.escape(part)}</mark>'
            if weight > 0
            else html.escape(part)
            for part, weight in _cut_at_spans(passage)
        )
        items.append(f'<li><div class="source">{html.escape(_describe(passage))}</div>{text}</li>')
    found = "<ol>\n" + "\n".join(items) + "\n</ol>" if items else "<p>No passage has a word in common with it.</p>"
    return f"<section>\n<blockquote>{html.escape(reading.text)}</blockquote>\n{found}\n</section>"


def _describe(passage: ReadPassage) -> str:
    chosen = ", chosen by the model" if passage.is_chosen else ""
    return f"passage {passage.id} of {passage.document_id}, score {passage.score:.2f}{chosen}"


def _join_spans(spans: list[Span]) -> list[Span]:
    """Make one of spans that overlap, as pairs of characters do."""
    joined: list[Span] = []
    for span in sorted(spans):
        if joined and span.start < joined[-1].end:
            last = joined[-1]
            joined[-1] = Span(last.start, max(span.end, last.end), max(span.weight, last.weight))
        else:
            joined.append(span)
    return joined


def _cut_at_spans(passage: ReadPassage) -> list[tuple[str, float]]:
    """Cut the text into parts with their weights, 0 outside of spans."""
    parts, end = [], 0
    for span in passage.spans:
        parts += [(passage.text[end : span.start], 0.0), (passage.text[span.start : span.end], span.weight)]
        end = span.end
    return [(part, weight) for part, weight in [*parts, (passage.text[end:], 0.0)] if part]


def _clean(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
