"""Pseudo-labels: train on texts that another model labeled, beside those with labels of people.

A fine-tuned teacher labels unlabeled texts of the task with `hf-domain predict`; a student trains on both (Lee 2013,
"Pseudo-Label", ICML workshop on representation learning).
"""

import logging
import math
from typing import Any

from datasets import Dataset, DatasetDict, List, Value, concatenate_datasets
from transformers import TrainingArguments

from hf_domain.data.columns import check_text_columns, check_texts, warn_of_shared_rows
from hf_domain.data.files import check_held_out, load_files, locate_row
from hf_domain.training.arguments import ClassificationArguments, ModelArguments

logger = logging.getLogger(__name__)

FLAG, PREDICTION = "pseudo_labeled_file", "prediction"  # the column of `hf-domain predict`


def add_pseudo_labels(
    splits: DatasetDict,
    model_args: ModelArguments,
    data_args: ClassificationArguments,
    training_args: TrainingArguments,
    text_columns: list[str],
    label_names: list[str],
    label_ids: dict[Any, int],
) -> tuple[DatasetDict, int]:
    """Return the splits with the texts of `--pseudo_labeled_file` at the end of the training texts.

    Args:
        splits: The data of the run, already cut to their limits, which therefore count no pseudo-labels.
        text_columns: Columns of text, also in the file.
        label_names: Names of the labels in the order of their ids.
        label_ids: The id of every value of the label column; none for a regression.

    Returns:
        The splits, and the number of training texts with labels of people.

    Raises:
        ValueError: The run does not train; the file lacks a column, contains an empty text, or is also test or
            validation data; a prediction is no label of the training data.
    """
    train, file = splits["train"], data_args.pseudo_labeled_file
    if file is None:
        return splits, len(train)
    if not training_args.do_train:
        raise ValueError(f"--{FLAG} needs a training, which reads it. Add --do_train, or leave the file out.")
    check_held_out(file, {name: vars(data_args)[name] for name in ("validation_file", "test_file")}, FLAG)
    labeled = load_files(file, cache_dir=model_args.cache_dir)
    if PREDICTION not in labeled.column_names:
        raise ValueError(
            f"--{FLAG} must have the column {PREDICTION}, but {file} has {', '.join(labeled.column_names)}. Let "
            "hf-domain predict write it."
        )
    check_text_columns(labeled, ",".join(text_columns), f"--{FLAG}")
    check_texts({FLAG: labeled}, text_columns, lambda _, row: locate_row(file, row))
    column = data_args.label_column_name
    train = train.select_columns([*text_columns, column])
    if not label_ids:  # whole numbers would cut the predictions
        train = train.cast_column(column, Value("float64"))
    values = find_values(labeled, file, label_names, label_ids, isinstance(train.features[column], List))
    rows = {name: labeled[name][:] for name in text_columns} | {column: values}
    added = Dataset.from_dict(rows).select_columns(train.column_names).cast(train.features)
    warn_of_shared_rows(splits | {"train": added}, text_columns, file)
    logger.info(f"Training texts: {len(train):,} with labels of people, {len(added):,} with pseudo-labels of {file}")
    return DatasetDict(splits | {"train": concatenate_datasets([train, added])}), len(train)


def find_values(labeled: Dataset, file: str, names: list[str], ids: dict[Any, int], several: bool) -> list[Any]:
    """Return the predictions as values of the label column.

    Args:
        labeled: Rows with the column `PREDICTION`.
        file: Where they are from, for errors.
        names: See `add_pseudo_labels`.
        ids: See `add_pseudo_labels`.
        several: Whether an example has a list of labels.

    Raises:
        ValueError: A prediction is none of the labels.
    """
    # A .csv file holds lists as text, and labels that are digits as numbers. An empty cell is no label "None".
    known = {names[number]: value for value, number in ids.items()}
    expected = f"{'a list of ' if several else 'one of '}{', '.join(known)}" if ids else "a number"
    values: list[Any] = []
    for row, prediction in enumerate(labeled[PREDICTION]):
        found = prediction if several and isinstance(prediction, list) else [prediction]
        if ids:
            is_known = all(name is not None and str(name) in known for name in found)
            fits = isinstance(prediction, list) == several and is_known
        else:
            fits = type(prediction) in (float, int) and math.isfinite(prediction)
        if not fits:
            raise ValueError(
                f"every prediction must be {expected}, as in the training data, but that of {locate_row(file, row)} is "
                f"{prediction!r}. Let a model of this task predict, and write .jsonl."
            )
        labels = [known[str(name)] for name in found] if ids else found
        values.append(labels if several else labels[0])
    return values
