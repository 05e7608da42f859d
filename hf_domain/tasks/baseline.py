"""Majority baselines: score constant predictions, and mark a run that does not beat them."""

import logging
from collections import Counter
from typing import Any

import numpy as np

logger = logging.getLogger(__name__)

Metrics = dict[str, Any]
# For other metrics we do not know whether higher is better, so a run with them is not judged.
BETTER = dict.fromkeys(("accuracy", "micro_f1", "macro_f1", "positive_micro_f1", "pearson", "spearman", "f1"), 1)
BETTER["mse"] = -1
# The deciding metric of a run. For regression it is the error, because a constant has no correlation.
DECIDING = {"single_label_classification": "macro_f1", "multi_label_classification": "macro_f1", "regression": "mse"}
# The logit of a constant multi-label prediction, beyond any threshold.
CERTAIN = 20.0
ADVICE = "Train longer, choose another learning rate, or give more examples."


def compare_with_baseline(metrics: Metrics, baseline: Metrics, deciding: str) -> Metrics:
    """Return the metrics with the baseline's as `baseline_*`, and with `beats_baseline`.

    Args:
        baseline: The same metrics of constant predictions.
        deciding: The metric that must beat the baseline's.
    """
    result = metrics | {f"baseline_{name}": value for name, value in baseline.items()}
    if deciding in metrics and deciding in BETTER:
        result["beats_baseline"] = bool(BETTER[deciding] * (metrics[deciding] - baseline[deciding]) > 1e-9)
    return result


def make_constants(problem_type: str, labels: Any, num_labels: int) -> list[np.ndarray]:
    """Return the logits of the constant predictions of a classifier.

    A single-label task has one: the most frequent label. A regression has one: the mean. A multi-label task has three:
    all labels (best for macro F1), as many of the most frequent labels as give the best micro F1, and the most frequent
    set of labels (best for accuracy).

    Args:
        problem_type: As in the model's config.
        labels: Label ids of the training data: `[examples]`, or 0 and 1 `[examples, labels]` for several labels.
    """
    labels = np.asarray(labels)
    if problem_type == "regression":
        return [labels.mean(keepdims=True)]
    if problem_type == "single_label_classification":
        return [np.eye(num_labels)[np.bincount(labels, minlength=num_labels).argmax()]]
    counts = labels.sum(0)
    order = np.argsort(-counts, kind="stable")
    sizes = np.arange(1, num_labels + 1)
    micro_f1 = 2 * np.cumsum(counts[order]) / np.maximum(len(labels) * sizes + counts.sum(), 1)
    frequent = np.isin(np.arange(num_labels), order[: micro_f1.argmax() + 1])
    commonest = np.array(Counter(map(tuple, labels)).most_common(1)[0][0]) > 0
    return [np.where(chosen, CERTAIN, -CERTAIN) for chosen in (np.ones(num_labels, bool), frequent, commonest)]


def describe_unlearned(metrics: Metrics, split: str) -> str | None:
    """Return a warning if a run does not beat the majority baseline; None if it does.

    Args:
        metrics: Metrics with the prefix of the split.
        split: `eval` or `predict`.
    """
    if metrics.get(f"{split}_beats_baseline", True):
        return None
    prefix = f"{split}_baseline_"
    pairs = [
        f"{name.removeprefix(prefix)} {metrics[f'{split}_{name.removeprefix(prefix)}']:.4g} (baseline {value:.4g})"
        for name, value in metrics.items()
        if name.startswith(prefix)
    ]
    what = {"eval": "validation set", "predict": "test set"}.get(split, split)
    return (
        f"This model did not learn its task: on the {what} it is not better than the majority baseline, which predicts "
        f"the same label for every example: {', '.join(pairs)}."
    )


def warn_if_unlearned(metrics: Metrics, split: str) -> None:
    """Warn if a run does not beat the majority baseline."""
    if (sentence := describe_unlearned(metrics, split)) is not None:
        logger.warning(f"{sentence} {ADVICE}")
