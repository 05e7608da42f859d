"""Sequence classification: texts and labels to model inputs, logits to predictions."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from transformers import BatchEncoding, PreTrainedTokenizerBase


def tokenize_texts(
    texts: Sequence[list[str | None]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    pad_to_max_length: bool = False,
) -> BatchEncoding:
    """Tokenize texts or pairs of texts.

    Args:
        texts: One column or two; None, an empty cell of a table, counts as an empty text.
        max_seq_length: Maximum number of tokens; in a pair, the longer text is truncated first.
        pad_to_max_length: Pad here instead of per batch.
    """
    columns = [[text or "" for text in column] for column in texts]
    padding = "max_length" if pad_to_max_length else False
    return tokenizer(*columns, truncation=True, max_length=max_seq_length, padding=padding)


def find_vote(config: dict[str, Any], architecture: str = "") -> dict[str, Any] | None:
    """Return the vote of the nearest texts in the configuration of a classifier; None without one, or without a weight.

    Other models that were made from a classifier may have its configuration, but have no vote.

    Args:
        config: Content of a configuration.
        architecture: Name of the model's class. Default: as in the configuration.
    """
    is_classifier = "ForSequenceClassification" in (architecture or str(config.get("architectures")))
    vote = config.get("nearest_vote") if is_classifier else None
    return vote if vote and vote["weight"] else None


def encode_labels(labels: list[Any], problem_type: str, ids: dict[Any, int], size: int | None = None) -> list[Any]:
    """Return labels as the model's loss expects them: values, rows of 0 and 1 (multi-label), or ids.

    Args:
        labels: As in the dataset.
        problem_type: See `find_problem_type`.
        ids: See `find_labels`; unused for regression.
        size: Number of labels that the model has. Default: that of the ids.

    Raises:
        ValueError: A value is missing, nan or infinite.
    """
    if problem_type == "regression":
        if None in labels:
            raise ValueError(
                "every label of a regression must be a number, but one is empty. Fill it in or drop the example."
            )
        values = [float(label) for label in labels]
        if not np.isfinite(values).all():
            wrong = int(np.flatnonzero(~np.isfinite(values))[0])
            raise ValueError(
                f"every label of a regression must be finite, but one is {values[wrong]}. Correct it or drop the "
                "example."
            )
        return values
    if problem_type == "multi_label_classification":
        rows = np.zeros((len(labels), size or len(ids)), dtype=np.float32)
        for row, names in zip(rows, labels, strict=True):
            row[[ids[name] for name in names]] = 1
        return rows.tolist()
    return [ids[label] for label in labels]


def decode_logits(
    logits: np.ndarray | tuple[np.ndarray, ...], problem_type: str, thresholds: Sequence[float] | None = None
) -> np.ndarray:
    """Turn the logits of a sequence classifier into predictions.

    Args:
        logits: [examples, labels], or a tuple that begins with them.
        problem_type: As in the model's config.
        thresholds: See `choose_thresholds`; default one half.

    Returns:
        For regression, values [examples]. For multi-label classification, 0 or 1 [examples, labels]: 1 where the
        probability exceeds the label's threshold. Otherwise, label ids [examples].
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    if problem_type == "regression":
        return logits.squeeze(-1)
    if problem_type == "multi_label_classification":
        return (logits > compute_logits(0.5 if thresholds is None else thresholds)).astype(int)
    return logits.argmax(-1)


def compute_logits(probabilities: ArrayLike) -> np.ndarray:
    """Return the logits of probabilities."""
    values = np.asarray(probabilities, dtype=float)
    return np.log(values) - np.log1p(-values)


def choose_thresholds(logits: np.ndarray, labels: np.ndarray) -> list[float]:
    """Return for each label the threshold on its probability that gives the best F1.

    A threshold lies midway between two probabilities; a label without examples gets one half.

    Args:
        logits: [examples, labels] of held-out examples.
        labels: [examples, labels], 0 or 1.
    """
    probabilities = 1 / (1 + np.exp(-logits.astype(float)))
    thresholds = []
    for own, gold in zip(probabilities.T, np.asarray(labels).T, strict=True):
        order = np.argsort(-own, kind="stable")
        values, found = own[order], np.cumsum(gold[order])
        f1 = 2 * found / (np.arange(1, len(gold) + 1) + gold.sum())
        f1[:-1][values[:-1] == values[1:]] = 0  # a threshold cannot separate equal probabilities
        last = int(f1.argmax())
        below = values[last + 1] if last + 1 < len(values) else 0.0
        thresholds.append(float(np.clip((values[last] + below) / 2, 1e-6, 1 - 1e-6)) if found[-1] else 0.5)
    return thresholds


def name_predictions(predictions: np.ndarray, problem_type: str, label_names: list[str]) -> list[Any]:
    """Return for each example a value (regression), a list of label names (multi-label) or a label name.

    Args:
        predictions: See `decode_logits`.
        problem_type: See `find_problem_type`.
        label_names: Names in the order of their ids.
    """
    if problem_type == "regression":
        return predictions.tolist()
    if problem_type == "multi_label_classification":
        return [[label_names[label] for label in np.flatnonzero(row)] for row in predictions]
    return [label_names[label] for label in predictions]
