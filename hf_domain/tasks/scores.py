"""Scores of a test set, kept example by example so that they can be computed on a resample of the examples.

Every F1 of the papers is a function of three counts for each class: right, predicted and gold. A correlation is a
function of the values, or of their ranks in the resample.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby
from typing import Any, Protocol, Self

import numpy as np

from hf_domain.tasks.tags import find_entities, strip_prefix

# Names of the scores without any training, in a report.
MAJORITY = "majority baseline"
CORRELATIONS = ("pearson", "spearman")
TAG_METRICS = ("entity_f1", "token_f1")


class ExampleScores(Protocol):
    """The contribution of each example to a score."""

    def __len__(self) -> int: ...

    def compute(self, weights: np.ndarray | None = None) -> Any:
        """Return the score, in percent.

        Args:
            weights: How often each example counts [..., examples]; default once. Returns one score for each `...`.
        """


@dataclass
class ExampleCounts:
    """The contribution of each example to an F1 or a mean.

    Args:
        right: Right predictions [examples, classes]; for QA the score itself, with one class.
        predicted: Predictions [examples, classes].
        gold: Gold labels [examples, classes].
        average: "micro" pools the classes, "macro" averages the F1 of the classes that occur, "mean" averages `right`.
    """

    right: np.ndarray
    predicted: np.ndarray
    gold: np.ndarray
    average: str

    def __len__(self) -> int:
        return len(self.right)

    def compute(self, weights: np.ndarray | None = None) -> Any:
        """Return the F1 or the mean, see `ExampleScores`."""
        if weights is None:
            return float(self.compute(np.ones(len(self))))
        right = weights @ self.right
        if self.average == "mean":
            return 100 * right[..., 0] / weights.sum(-1)
        total = weights @ (self.predicted + self.gold)
        if self.average == "micro":
            right, total = right.sum(-1, keepdims=True), total.sum(-1, keepdims=True)
        f1 = np.divide(2 * right, total, out=np.zeros_like(total), where=total > 0)
        return 100 * f1.sum(-1) / np.maximum(1, (total > 0).sum(-1))


@dataclass
class ExampleValues:
    """The values of a regression.

    Args:
        predicted: [examples].
        gold: [examples].
        by_rank: Correlate the ranks (Spearman), not the values (Pearson).
    """

    predicted: np.ndarray
    gold: np.ndarray
    by_rank: bool

    def __len__(self) -> int:
        return len(self.gold)

    def compute(self, weights: np.ndarray | None = None) -> Any:
        """Return the correlation, 0 if either side is constant; see `ExampleScores`."""
        if weights is None:
            return float(self.compute(np.ones(len(self))))
        total = weights.sum(-1, keepdims=True)
        centered = []
        for values in (self.predicted, self.gold):
            if self.by_rank:
                compared = _rank(values, weights)
            else:  # between 0 and 1, so that rounding is far below the threshold, whatever the unit
                compared = np.broadcast_to((values - values.min()) / (np.ptp(values) or 1.0), weights.shape)
            centered.append(compared - (weights * compared).sum(-1, keepdims=True) / total)
        own, other = centered
        products = [(weights * a * b).sum(-1) for a, b in ((own, other), (own, own), (other, other))]
        scale = np.sqrt(products[1] * products[2])
        return 100 * np.divide(products[0], scale, out=np.zeros_like(scale), where=scale > 1e-12)


def _rank(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the mean rank of each value when each occurs as often as its weight."""
    _, groups = np.unique(values, return_inverse=True)
    counts = np.zeros((*weights.shape[:-1], groups.max() + 1))
    np.add.at(counts, (..., groups), weights)  # type: ignore[arg-type]
    return (counts.cumsum(-1) - (counts - 1) / 2)[..., groups]


@dataclass(frozen=True)
class Predictions:
    """Gold and predicted labels of a test set; of a regression the values, and of other kinds the scores.

    Args:
        metric: One of the kind's `plan_metrics`.
        labels: The names of the label ids.
        gold: Label ids of each example: one or several of a text, one for each word of a sentence.
        predicted: The predictions in the same form; words beyond the longest input have none.
        ignored: Labels without an F1 of their own, the `negative_labels` of the task.
        scores: Score of each example, between 0 and 1; for a regression the predicted values.
        values: Gold values of a regression.
    """

    metric: str
    labels: list[str] = field(default_factory=list)
    gold: list[list[int]] = field(default_factory=list)
    predicted: list[list[int]] = field(default_factory=list)
    ignored: list[str] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    values: list[float] = field(default_factory=list)

    @classmethod
    def pair(cls, predicted: Sequence[Any], gold: Sequence[Any], metric: str, ignored: Sequence[str] = ()) -> Self:
        """Pair what was predicted for each example with what is right.

        Args:
            predicted: For an F1, the name of a label or a list of names; for a correlation, a value. With another
                metric, a prediction is right if it is equal.
            gold: The same.
        """
        if metric in CORRELATIONS:
            return cls(metric, scores=[*predicted], values=[*gold])
        if not metric.endswith("_f1"):
            return cls(metric, scores=[float(own == right) for own, right in zip(predicted, gold, strict=True)])
        rows = [[[name] if isinstance(name, str) else name for name in side] for side in (gold, predicted)]
        labels = sorted({label for side in rows for names in side for label in names})
        ids = {label: number for number, label in enumerate(labels)}
        gold_ids, predicted_ids = ([[ids[label] for label in names] for names in side] for side in rows)
        return cls(metric, labels, gold_ids, predicted_ids, [*ignored])

    def score(self) -> ExampleScores:
        """Return the contribution of each example to the score."""
        if self.metric in CORRELATIONS:
            return ExampleValues(np.array(self.scores), np.array(self.values), by_rank=self.metric == "spearman")
        if self.scores:
            column = np.array(self.scores)[:, None]
            return ExampleCounts(column, np.zeros_like(column), np.zeros_like(column), "mean")
        predicted, gold = self.name(self.predicted), self.name(self.gold)
        if self.metric in TAG_METRICS:
            return score_tags(predicted, gold, self.metric)
        return score_labels(predicted, gold, self.metric, self.ignored)

    def name(self, rows: list[list[int]]) -> list[list[str]]:
        """Return the names of label ids."""
        return [[self.labels[number] for number in row] for row in rows]

    def to_json(self) -> dict[str, Any]:
        """Return a compact form for a JSON file, with all examples in one line."""
        ids = {name: ";".join(map(_write_ids, getattr(self, name))) for name in ("gold", "predicted")}
        numbers = {name: " ".join(f"{x:.9g}" for x in getattr(self, name)) for name in ("scores", "values")}
        return vars(self) | ids | numbers

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Self:
        """Undo `to_json`."""
        ids = {
            name: [_read_ids(row) for row in content[name].split(";") if content["labels"]]
            for name in ("gold", "predicted")
        }
        numbers = {name: [float(x) for x in content[name].split()] for name in ("scores", "values")}
        return cls(**content | ids | numbers)


def _write_ids(ids: Sequence[int]) -> str:
    """Return label ids as text: `0x7 3 0` are seven zeros, a three and a zero. Most words have the same label, O."""
    runs = [(number, len(list(run))) for number, run in groupby(ids)]
    return " ".join(f"{number}x{length}" if length > 1 else str(number) for number, length in runs)


def _read_ids(text: str) -> list[int]:
    """Undo `_write_ids`."""
    runs = [run.partition("x") for run in text.split()]
    return [int(number) for number, _, length in runs for _ in range(int(length or 1))]


def score_labels(
    predictions: Sequence[Collection[str]],
    references: Sequence[Collection[str]],
    metric: str,
    ignored: Sequence[str] = (),
) -> ExampleCounts:
    """Score classification by the labels of each example, one or several; `ignored` have no F1 of their own."""
    classes = sorted({label for rows in (predictions, references) for row in rows for label in row} - {*ignored})
    predicted, gold = (
        np.array([[name in row for name in classes] for row in rows], dtype=float) for rows in (predictions, references)
    )
    return ExampleCounts(predicted * gold, predicted, gold, "macro" if metric == "macro_f1" else "micro")


def score_tags(predictions: list[list[str]], references: list[list[str]], metric: str) -> ExampleCounts:
    """Score sentences of tags: entities as seqeval does, or tokens class by class.

    Raises:
        ValueError: A sentence has fewer tags than predictions.
    """
    for number, (predicted, gold) in enumerate(zip(predictions, references, strict=True)):
        if len(predicted) > len(gold):
            raise ValueError(
                f"predictions must have at most one tag for each word, but sentence {number} of the test set has "
                f"{len(gold)} words and {len(predicted)} tags. Predict that file again."
            )
    # Words beyond the longest input count as O, which misses their entities.
    predictions = [tags + ["O"] * (len(gold) - len(tags)) for tags, gold in zip(predictions, references, strict=True)]
    if metric != "entity_f1":
        return _count_tokens(predictions, references)
    pairs = [(_find_entities(*p), _find_entities(*g)) for p, g in zip(predictions, references, strict=True)]
    counts = np.array([(len(p & g), len(p), len(g)) for p, g in pairs], dtype=float)
    return ExampleCounts(counts[:, :1], counts[:, 1:2], counts[:, 2:], "micro")


@lru_cache(maxsize=2**16)  # runs share their gold tags, and most predictions with other runs
def _find_entities(*tags: str) -> frozenset:
    return frozenset(find_entities([*tags]))


def _count_tokens(predictions: list[list[str]], references: list[list[str]]) -> ExampleCounts:
    predictions, references = (
        [[strip_prefix(tag) for tag in tags] for tags in sentences] for sentences in (predictions, references)
    )
    classes = sorted({tag for sentences in (predictions, references) for tags in sentences for tag in tags} - {"O"})
    right, predicted, gold = (np.zeros((len(references), len(classes))) for _ in range(3))
    for row, (tags, gold_tags) in enumerate(zip(predictions, references, strict=True)):
        for column, name in enumerate(classes):
            predicted[row, column], gold[row, column] = tags.count(name), gold_tags.count(name)
            right[row, column] = sum(a == b == name for a, b in zip(tags, gold_tags, strict=True))
    return ExampleCounts(right, predicted, gold, "macro")
