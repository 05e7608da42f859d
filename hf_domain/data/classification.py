"""Sequence classification: the kind of a task, and conversion of labels and texts for the model."""

import math
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict
from transformers import BatchEncoding, PreTrainedTokenizerBase

from hf_domain.data.labels import Locate, check_values, find_labels, name_example

FRACTION = re.compile(r"[-+]?\d+\.\d+")


def read_labels(
    splits: DatasetDict, column: str, do_regression: bool | None, multi_label: bool | None, locate: Locate
) -> tuple[str, list[str], dict[Any, int]]:
    """Return the problem type of a task, the names of its labels, and the id of every value.

    Args:
        splits: The splits of the task; the first one, train, decides.
        do_regression: See `find_problem_type`.
        multi_label: See `find_problem_type`.
        locate: Says where an example stands, for messages.

    Raises:
        ValueError: See `find_problem_type`, `find_labels` and `check_values`.
    """
    problem_type = find_problem_type(splits["train"], column, do_regression, multi_label, locate)
    if problem_type != "regression":
        return problem_type, *find_labels(splits, column, locate)
    check_values(splits, column, locate)
    return problem_type, ["value"], {}


def find_problem_type(
    dataset: Dataset,
    column: str,
    do_regression: bool | None,
    multi_label: bool | None,
    locate: Locate = name_example,
) -> str:
    """Find out what kind of classification a task is, and check that the labels fit.

    Args:
        do_regression: Whether labels are values. Default: if they are fractions.
        multi_label: Whether an example has any number of labels. Default: if it has a list of them.
        locate: Says where an example stands, for messages.

    Returns:
        The problem type, as transformers' configs name it.

    Raises:
        ValueError: The labels do not fit the settings.
    """
    label = next((label for label in dataset[column] if label is not None), None)
    holds_lists = isinstance(label, list)
    if holds_lists and (do_regression or multi_label is False):
        raise ValueError(
            f"lists of labels must be read as multi-label, but {column} holds {label} and the settings are "
            f"do_regression={do_regression}, multi_label={multi_label}. Drop the setting, or give each example "
            "one label."
        )
    if multi_label and not holds_lists:
        raise ValueError(
            f"multi-label data must have lists of labels, but {column} holds {label!r} and the settings are "
            f"do_regression={do_regression}, multi_label={multi_label}. Put the labels into lists, or drop the "
            "setting."
        )
    if isinstance(label, str):
        _check_numbers(dataset, column, do_regression, locate)
    if holds_lists:
        return "multi_label_classification"
    if do_regression or (do_regression is None and isinstance(label, float)):
        return "regression"
    return "single_label_classification"


def _check_numbers(dataset: Dataset, column: str, do_regression: bool | None, locate: Locate) -> None:
    """Raise if labels read as texts should be numbers: one wrong cell turns a whole column of fractions into texts."""
    labels = ["" if label is None else str(label) for label in dataset[column]]
    if do_regression or (do_regression is None and any(map(FRACTION.fullmatch, labels))):
        row = next((row for row, label in enumerate(labels) if not _is_finite(label)), 0)
        raise ValueError(
            f"Regression needs numbers, but {column} is {labels[row]!r} in {locate('train', row)}. "
            f"Correct the labels, or {'drop' if do_regression else 'set'} --do_regression "
            f"{'' if do_regression else 'false '}to take them for names."
        )


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def tokenize_texts(
    texts: Sequence[list[str | None]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int,
    pad_to_max_length: bool = False,
) -> BatchEncoding:
    """Tokenize texts or pairs of texts.

    Args:
        texts: One column or two; None, as an empty cell of a table is read, is an empty text.
        max_seq_length: Tokens at most; of a pair, the longer one is cut first.
        pad_to_max_length: Pad here rather than batch by batch.

    Returns:
        The model's inputs.
    """
    columns = [[text or "" for text in column] for column in texts]
    padding = "max_length" if pad_to_max_length else False
    return tokenizer(*columns, truncation=True, max_length=max_seq_length, padding=padding)


def encode_labels(labels: list[Any], problem_type: str, ids: dict[Any, int]) -> list[Any]:
    """Turn labels into what the model's loss takes.

    Args:
        labels: As in the dataset.
        problem_type: See `find_problem_type`.
        ids: See `find_labels`; not used for regression.

    Returns:
        Values for regression, a 1 or 0 for every label for multi-label classification, ids otherwise.

    Raises:
        ValueError: A value is missing, nan or infinite.
    """
    if problem_type == "regression":
        if None in labels:
            raise ValueError(
                "every example of a regression must have a value, but one of the labels is empty. Fill it in or "
                "drop the example."
            )
        values = [float(label) for label in labels]
        if not np.isfinite(values).all():
            wrong = int(np.flatnonzero(~np.isfinite(values))[0])
            raise ValueError(
                f"every value must be finite, but one of the labels is {values[wrong]}. Correct it or drop the example."
            )
        return values
    if problem_type == "multi_label_classification":
        rows = np.zeros((len(labels), len(ids)), dtype=np.float32)
        for row, names in zip(rows, labels, strict=True):
            row[[ids[name] for name in names]] = 1
        return rows.tolist()
    return [ids[label] for label in labels]


def decode_logits(logits: np.ndarray | tuple[np.ndarray, ...], problem_type: str) -> np.ndarray:
    """Turn the logits of a sequence classifier into predictions.

    Args:
        logits: [examples, labels], or a tuple that begins with them, as a model gives that returns more.
        problem_type: As in the model's config.

    Returns:
        Values [examples] for regression, 0 or 1 [examples, labels] for multi-label classification (a label is predicted
        when its probability is above one half), label ids [examples] otherwise.
    """
    logits = logits[0] if isinstance(logits, tuple) else logits
    if problem_type == "regression":
        return logits.squeeze(-1)
    if problem_type == "multi_label_classification":
        return (logits > 0).astype(int)
    return logits.argmax(-1)


def name_predictions(predictions: np.ndarray, problem_type: str, label_names: list[str]) -> list[Any]:
    """Turn predictions into values or label names.

    Args:
        predictions: See `decode_logits`.
        problem_type: See `find_problem_type`.
        label_names: In the order of their ids.

    Returns:
        A value, a list of names, or a name for each example.
    """
    if problem_type == "regression":
        return predictions.tolist()
    if problem_type == "multi_label_classification":
        return [[label_names[label] for label in np.flatnonzero(row)] for row in predictions]
    return [label_names[label] for label in predictions]
