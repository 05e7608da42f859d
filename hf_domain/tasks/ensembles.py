"""Join what several fine-tunings of one task, such as those of several seeds, predict."""

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

ADDED = ("prediction", "probabilities")  # the columns of a prediction


def join_predictions(members: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join what several models say of a row.

    The probabilities of a classifier are averaged, and the values of a regression. With several labels, a row gets
    those that more than half of the models predict. A word gets the tag, and a question the answer, for which the
    probabilities of the models that predict it have the largest sum.

    Args:
        members: `prediction` and, but for a regression, `probabilities` of each model.

    Returns:
        The same of all models. The probability of a tag or an answer is that sum, divided by the number of models.

    Raises:
        ValueError: The models have different labels.
    """
    predictions = [member["prediction"] for member in members]
    probabilities = [member.get("probabilities") for member in members]
    if probabilities[0] is None and isinstance(predictions[0], float):
        return {"prediction": statistics.fmean(predictions)}
    if isinstance(probabilities[0], dict):
        return _join_labels(predictions, probabilities)
    if isinstance(probabilities[0], list):  # of words
        words = [
            _join_answers(*word)
            for word in zip(zip(*predictions, strict=True), zip(*probabilities, strict=True), strict=True)
        ]
        tags, sums = zip(*words, strict=True) if words else ((), ())
        return {"prediction": [*tags], "probabilities": [*sums]}
    return dict(zip(ADDED, _join_answers(predictions, probabilities), strict=True))


def _join_labels(predictions: list[Any], probabilities: list[Any]) -> dict[str, Any]:
    """Join the labels of a text."""
    if len({tuple(sorted(each)) for each in probabilities}) > 1:
        raise ValueError(
            "the models of an ensemble must have the same labels, but they have "
            f"{' and '.join(sorted({', '.join(sorted(each)) for each in probabilities}))}. Leave the others out."
        )
    means = {label: statistics.fmean(each[label] for each in probabilities) for label in probabilities[0]}
    if isinstance(predictions[0], list):
        votes = Counter(label for labels in predictions for label in labels)
        return {
            "prediction": [label for label in means if 2 * votes[label] > len(predictions)],
            "probabilities": means,
        }
    return {"prediction": max(means, key=lambda label: means[label]), "probabilities": means}


def _join_answers(answers: Sequence[Any], probabilities: Sequence[float | None]) -> tuple[Any, float | None]:
    """Return the answer, or the tag of a word, whose probabilities have the largest sum; a word may have none."""
    sums: dict[Any, float] = defaultdict(float)
    for answer, probability in zip(answers, probabilities, strict=True):
        sums[answer] += probability or 0.0
    best = max(sums, key=lambda answer: sums[answer])
    return best, None if {*probabilities} == {None} else sums[best] / len(answers)
