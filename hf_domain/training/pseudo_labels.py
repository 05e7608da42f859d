"""Pseudo-labels: train on texts that another model labeled, beside those with labels of people.

A fine-tuned teacher labels unlabeled texts of the task with `hf-domain predict`; a student trains on both (Lee 2013,
"Pseudo-Label", ICML workshop on representation learning).
"""

import logging
from typing import Any

from datasets import Dataset, DatasetDict, List, Value, concatenate_datasets

from hf_domain.data.file_loading import check_held_out, load_files, locate_row
from hf_domain.data.text_columns import check_texts, warn_of_shared_rows
from hf_domain.training.arguments import ClassificationArguments

logger = logging.getLogger(__name__)

PREDICTION = "prediction"  # the column of `hf-domain predict`


def add_pseudo_labels(
    splits: DatasetDict,
    data_args: ClassificationArguments,
    text_columns: list[str],
    label_names: list[str],
    label_ids: dict[Any, int],
    does_train: bool,
) -> DatasetDict:
    """Return the splits with the texts of `--pseudo_labeled_file` at the end of the training texts.

    Args:
        splits: The data of the run, already cut to their limits, which therefore count no pseudo-labels.
        text_columns: Columns of text, also in the file.
        label_names: Names of the labels in the order of their ids.
        label_ids: The id of every value of the label column; none for a regression.
        does_train: Whether the run trains.

    Raises:
        ValueError: The run does not train; the file lacks a column, holds an empty text, or is also test or validation
            data; a prediction is no label of the training data.
    """
    file = data_args.pseudo_labeled_file
    if file is None:
        return splits
    if not does_train:
        raise ValueError("--pseudo_labeled_file needs --do_train, because its texts are trained on. Leave one out.")
    check_held_out(file, {name: vars(data_args)[name] for name in ("validation_file", "test_file")})
    labeled = load_files(file)
    if missing := [name for name in (*text_columns, PREDICTION) if name not in labeled.column_names]:
        raise ValueError(
            f"--pseudo_labeled_file must have the columns {', '.join([*text_columns, PREDICTION])}, but {file} lacks "
            f"{', '.join(missing)}. Let hf-domain predict write it."
        )
    check_texts({"train": labeled}, text_columns, lambda _, row: locate_row(file, row))
    column = data_args.label_column_name
    train = splits["train"].select_columns([*text_columns, column])
    if not label_ids:  # whole numbers would cut the predictions
        train = train.cast_column(column, Value("float64"))
    values = find_values(labeled, file, label_names, label_ids, isinstance(train.features[column], List))
    rows = {name: labeled[name][:] for name in text_columns} | {column: values}
    added = Dataset.from_dict(rows).select_columns(train.column_names).cast(train.features)
    warn_of_shared_rows(splits | {"train": added}, text_columns)
    logger.info(f"Training texts: {len(train):,} with labels, {len(added):,} with pseudo-labels of {file}")
    return DatasetDict(splits | {"train": concatenate_datasets([train, added])})


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
    known = {names[number]: value for value, number in ids.items()}
    expected = f"{'a list of ' if several else 'one of '}{', '.join(known)}" if ids else "a number"
    values: list[Any] = []
    for row, prediction in enumerate(labeled[PREDICTION]):
        found = prediction if several and isinstance(prediction, list) else [prediction]
        # A .csv file holds lists as text, and labels that are digits as numbers.
        fits = isinstance(prediction, list) == several and all(str(name) in known for name in found)
        if not (fits if ids else isinstance(prediction, float | int)):
            raise ValueError(
                f"every prediction must be {expected}, as in the training data, but that of {locate_row(file, row)} is "
                f"{prediction!r}. Let a model of this task predict, and write .jsonl."
            )
        labels = [known[str(name)] for name in found] if ids else found
        values.append(labels if several else labels[0])
    return values
