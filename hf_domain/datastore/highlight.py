"""Show what a model reads for a text: the passages found, with the decisive words in bold."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hf_domain.datastore.store import Datastore

SHOWN_PREDICTIONS = 3
BOLD, RESET = "\x1b[1m", "\x1b[0m"
DECISIVE = 1.5  # a model's words are marked if they weigh this many times the average


@dataclass
class ReadPassage:
    """A passage that was found."""

    id: int
    document_id: str
    text: str
    score: float
    spans: list[tuple[int, int]]
    """Start and end of the marked characters, in ascending order, without overlap."""
    probability: float | None = None
    """The probability that a model chooses it."""
    is_chosen: bool = False
    """Whether a model chose it; the marked words are then those it weighs most."""


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
        weights: Passage id -> (start, end, weight) of characters, for example the words that a model weighs. A model
            that weighs all words equally marks none. In other passages the words of the query are marked.
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
        weighed = (weights or {}).get(row["id"])
        if weighed is None:
            found_terms = datastore.analyzer.find_terms(row["text"])
            spans = [(term.start, term.end) for term in found_terms if term.text in terms]
        else:
            average = sum(weight for _, _, weight in weighed) / max(1, len(weighed))
            spans = [(start, end) for start, end, weight in weighed if weight >= DECISIVE * average > 0]
        probability = (probabilities or {}).get(row["id"])
        passages.append(
            ReadPassage(
                row["id"], row["document_id"], row["text"], score, _join_spans(spans), probability, weighed is not None
            )
        )
    return Reading(text, passages, predictions)


def format_text(reading: Reading, use_bold: bool = True) -> str:
    """Format a reading for a terminal; control characters, which could command it, become blanks.

    Args:
        use_bold: Whether to mark words, by terminal codes.
    """
    lines = [f"What is read for: {_clean(reading.text)}"]
    if reading.predictions:
        shown = ", ".join(f"{label} {value:.3f}" for label, value in reading.predictions[:SHOWN_PREDICTIONS])
        lines.append(f"Prediction: {_clean(shown)}")
    lines.append("")
    for rank, passage in enumerate(reading.passages, 1):
        probability = "" if passage.probability is None else f", probability {passage.probability:.3f}"
        chosen = ", chosen by the model" if passage.is_chosen else ""
        place = f"passage {passage.id}, document {passage.document_id}, score {passage.score:.2f}"
        lines.append(f"{rank}. {_clean(place)}{probability}{chosen}")
        text, end = "", 0
        for start, stop in passage.spans if use_bold else ():
            text += f"{_clean(passage.text[end:start])}{BOLD}{_clean(passage.text[start:stop])}{RESET}"
            end = stop
        lines += [f"   {text}{_clean(passage.text[end:])}", ""]
    if not reading.passages:
        lines += ["No passage has a word in common with this text.", ""]
    return "\n".join(lines)


def _join_spans(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Merge spans that overlap, as pairs of characters do."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if joined and start < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((start, end))
    return joined


def _clean(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text)
