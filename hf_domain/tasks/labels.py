"""Find the kind and the names of a task's labels, and check the labels of every split."""

import logging
import math
import random
import re
import statistics
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import Any

from datasets import ClassLabel, Dataset, DatasetDict, List, Value

from hf_domain.data.columns import Locate, name_example

logger = logging.getLogger(__name__)
FRACTION = re.compile(r"[-+]?\d+\.\d+")
HELD_OUT = 0.2  # of a table that has no splits; our choice


def read_labels(
    splits: DatasetDict, column: str, do_regression: bool | None, multi_label: bool | None, locate: Locate
) -> tuple[str, list[str], dict[Any, int]]:
    """Return the problem type of a task, the names of its labels, and the id of every value.

    Args as in `find_problem_type`; the first split, train, decides.

    Raises:
        ValueError: See `find_problem_type`, `find_labels` and `check_values`.
    """
    first, rows = next((split, rows) for split, rows in splits.items() if column in rows.column_names)
    problem_type = find_problem_type(rows, column, do_regression, multi_label, lambda _, row: locate(first, row))
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
    """Return the problem type of a task, as transformers' configs name it, and check that the labels fit.

    Args:
        do_regression: Whether labels are numbers to predict. Default: whether some are fractions; 0.0, 1.0 and 2.0,
            which pandas makes of integers beside empty cells, are classes.
        multi_label: Whether an example has any number of labels. Default: whether labels are lists.

    Raises:
        ValueError: The labels do not fit the settings.
    """
    label = next((label for label in dataset[column] if label is not None), None)
    _check_simple(dataset, column, lambda row: locate("train", row))
    holds_lists = isinstance(label, list)
    if multi_label not in (None, holds_lists) or (holds_lists and do_regression):
        raise ValueError(
            f"multi-label data must have lists of labels, and other data none, but {column} has {label!r} and the "
            f"settings are do_regression={do_regression}, multi_label={multi_label}. Drop the setting, or change the "
            "labels."
        )
    if isinstance(label, str):
        _check_numbers(dataset, column, do_regression, locate)
        if multi_label is None:
            _check_no_lists(dataset, column)
    if holds_lists:
        return "multi_label_classification"
    if do_regression or (do_regression is None and has_fractions(dataset[column])):
        return "regression"
    if isinstance(label, float):
        logger.info(
            f"The values of {column} are whole numbers, such as {label}, and are read as classes. Set --do_regression "
            "true to predict them as values."
        )
    return "single_label_classification"


def has_fractions(labels: Iterable[Any]) -> bool:
    """Return whether some label is a fraction; NaN is a label that is missing."""
    return any(isinstance(label, float) and label == label and not label.is_integer() for label in labels)


def name_label(value: Any) -> str:
    """Return the name of a label: 1.0 is 1."""
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def _check_simple(dataset: Dataset, column: str, locate: Callable[[int], str]) -> None:
    """Raise if a label is neither a name, a number nor a list of these."""
    for row, label in enumerate(dataset[column]):
        for each in label if isinstance(label, list) else [label]:
            if isinstance(each, list):
                raise ValueError(
                    f"a label must be a name, a number, or a list of these, but {column} has {each} in {locate(row)}, "
                    "as for a span of characters. To find spans, give lists of words as tokens and a tag for each word "
                    "as tags: B-PER, I-PER, O."
                )
            if isinstance(each, dict):
                raise ValueError(
                    f"a label must be a name, a number, or a list of these, but {column} is {label} in {locate(row)}. "
                    "Give each label a column of its own, or a name."
                )


def _check_numbers(dataset: Dataset, column: str, do_regression: bool | None, locate: Locate) -> None:
    """Raise if text labels should be numbers: one wrong cell turns a whole column of fractions into text."""
    labels = ["" if label is None else str(label) for label in dataset[column]]
    if do_regression or (do_regression is None and any(map(FRACTION.fullmatch, labels))):
        row = next((row for row, label in enumerate(labels) if not _is_finite(label)), 0)
        raise ValueError(
            f"labels of a regression must be numbers, but {column} is {labels[row]!r} in {locate('train', row)}. "
            f"Correct the labels, or {'drop' if do_regression else 'set'} --do_regression "
            f"{'' if do_regression else 'false '}to read them as names."
        )


def _check_no_lists(dataset: Dataset, column: str) -> None:
    """Raise if all labels are lists written as text, as in a .csv file: each combination would be a class."""
    labels = [str(label).strip() for label in dataset[column] if label is not None]
    if labels and all(label.startswith("[") and label.endswith("]") for label in labels):
        raise ValueError(
            f"several labels of an example must be a list, but {column} has lists written as text, such as "
            f"{labels[0]}. Write JSON lines, which hold lists, or set --multi_label false to read them as names."
        )


def is_multi_hot(lists: Iterable[Any]) -> bool:
    """Return whether all lists have the same length and a 0 or 1 for each label, instead of the labels' names."""
    rows = [labels for labels in lists if labels is not None]
    if not rows or not all(isinstance(labels, list) for labels in rows):
        return False
    lengths = {len(labels) for labels in rows}
    return len(lengths) == 1 and min(lengths) > 1 and all(value in (0, 1) for labels in rows for value in labels)


def name_multi_hot(
    splits: DatasetDict, column: str, names: Sequence[str] | None = None, locate: Locate = name_example
) -> DatasetDict:
    """Return splits in which lists of 0 and 1, one for each label, are lists of names; other labels are unchanged.

    Args:
        splits: Splits of the task; the first one, train, decides.
        names: Names of the labels. Default: those that the dataset declares, or the positions 0, 1, 2, ...

    Raises:
        ValueError: There are more or fewer names than values in a list, or a later list has another form.
    """
    first = next((rows for rows in splits.values() if column in rows.column_names), None)
    if first is None or not is_multi_hot(first[column]):
        return splits
    size = len(next(labels for labels in first[column] if labels is not None))
    declared = getattr(getattr(first.features[column], "feature", None), "names", [])
    named = [*(names or (declared if len(declared) == size else map(str, range(size))))]
    if len(named) != size:
        raise ValueError(
            f"--class_names must have a name for each of the {size} values of {column}, but has {len(named)}: "
            f"{', '.join(named)}. Add or remove names."
        )
    logger.info(f"The lists of {column} have a 0 or 1 for each label: {', '.join(named)}")
    result = DatasetDict()
    for split, rows in splits.items():
        if column not in rows.column_names:
            result[split] = rows
            continue
        found: list[list[str] | None] = []
        for row, values in enumerate(rows[column]):
            if values is not None and (len(values) != size or any(value not in (0, 1) for value in values)):
                raise ValueError(
                    f"every list of {column} must have {size} values of 0 and 1, as in the first split, but is "
                    f"{values} in {locate(split, row)}. Correct it."
                )
            found.append(values and [name for name, value in zip(named, values, strict=True) if value])
        # The new values have another type.
        feature = List(Value("string"))
        result[split] = rows.remove_columns(column).add_column(column, found, feature=feature)
    return result


def hide_unknown(splits: DatasetDict, column: str) -> DatasetDict:
    """Return splits whose test set has no labels if all are hidden: -1, as on the Hub, or empty."""
    test, others = splits.get("test"), [rows for split, rows in splits.items() if split != "test"]
    if test is None or column not in test.column_names or {*map(str, test[column])} - {"-1", "-1.0", "None"}:
        return splits
    if any("-1" in {*map(str, rows[column])} for rows in others if column in rows.column_names):
        return splits
    logger.info(f"The labels of test are hidden ({column} is {test[column][0]}): its rows are predicted, not scored")
    return DatasetDict(splits | {"test": test.remove_columns(column)})


def _is_finite(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def find_labels(splits: DatasetDict, column: str, locate: Locate = name_example) -> tuple[list[str], dict[Any, int]]:
    """Collect the labels of a task, and check that every split uses only these.

    Args:
        splits: Splits of the task; the first one, train, defines the labels. Others may have no labels.
        column: Column of labels, or of lists of labels.

    Returns:
        The names of the labels in the order of their ids (as the dataset declares them, otherwise sorted), and the id
        of every value of the column.

    Raises:
        ValueError: An example has no label, labels mix names and numbers, or a split has labels that train lacks.
    """
    (first, train), *others = ((split, rows) for split, rows in splits.items() if column in rows.column_names)
    feature = train.features[column]
    feature = feature.feature if isinstance(feature, List) else feature
    found = {
        split: _find_values(data, column, split, locate) for split, data in splits.items() if column in data.features
    }
    if isinstance(feature, ClassLabel):
        names, ids = feature.names, {number: number for number in range(feature.num_classes)}
    else:
        # Without training data, the model's labels count, and a split may have labels that another one lacks.
        own = found if first != "train" else {first: found[first]}
        values = sorted({value for each in own.values() for value in each})
        names, ids = [name_label(value) for value in values], {value: number for number, value in enumerate(values)}
    for split, _ in others:
        unknown = {name_label(value): row for value, row in found.get(split, {}).items() if value not in ids}
        if unknown:
            raise ValueError(
                f"every label of {split} must occur in {first}, which has {', '.join(names)}, but "
                f"{', '.join(sorted(unknown))} does not, first in {locate(split, min(unknown.values()))}. Relabel "
                f"or drop these examples of {split}, or add such examples to {first}."
            )
    warn_of_twins(names)
    return names, ids


def warn_of_twins(names: Iterable[str]) -> None:
    """Warn of names of labels that differ only by blanks, case, or the form of their characters."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(" ".join(unicodedata.normalize("NFKC", name).casefold().split()), []).append(name)
    if twins := [each for each in alike.values() if len(each) > 1]:
        listed = "; ".join(", ".join(map(ascii, each)) for each in twins)
        logger.warning(
            f"Some labels differ only by blanks, case or the form of a character, and are read as different labels: "
            f"{listed}. Give them one spelling if they mean the same."
        )


def _find_values(dataset: Dataset, column: str, split: str, locate: Locate) -> dict[Any, int]:
    """Return each value of a label column with the first row that has it."""
    rows: dict[Any, int] = {}
    for row, labels in enumerate(dataset[column]):
        for value in labels if isinstance(labels, list) else [labels]:
            if value is None or value != value or (isinstance(value, str) and not value.strip()):
                told = "NaN" if isinstance(value, float) else "empty"
                raise ValueError(
                    f"every example must have a label, but {column} is {told} in {locate(split, row)}. "
                    "Label the example or drop it."
                )
            rows.setdefault(value, row)
    kinds = {isinstance(value, str): (row, value) for value, row in reversed(rows.items())}
    if len(kinds) > 1:
        row, value = max(kinds.values(), key=lambda found: found[0])
        raise ValueError(
            f"labels must be all names or all numbers, but {column} has both; {locate(split, row)} has {value!r}. "
            "Put numbers in quotes, or give every label a name."
        )
    return rows


def check_values(splits: DatasetDict, column: str, locate: Locate = name_example) -> None:
    """Raise a ValueError unless the labels of a regression are finite numbers.

    Args:
        splits: Splits of the task; only the first must have labels.
    """
    for split, dataset in splits.items():
        for row, value in enumerate(dataset[column] if column in dataset.column_names else []):
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                told = "empty" if value is None else repr(value)
                raise ValueError(
                    f"every label of a regression must be a finite number, but {column} is {told} in "
                    f"{locate(split, row)}. Correct the value or drop the example."
                )


MOST = 10.0  # A new head predicts values near 0, and learns values of hundreds in thousands of steps only.


def warn_of_units(values: Iterable[float], column: str) -> None:
    """Warn if the values of a regression are far from those that a new head predicts."""
    known = [float(value) for value in values]
    mean, spread = statistics.fmean(known), statistics.pstdev(known)
    if max(abs(mean), spread) > MOST:
        logger.warning(
            f"The values of {column} have the mean {mean:,.4g} and the standard deviation {spread:,.4g}, but a new "
            f"head learns values near 0 and 1 best. Write ({column} - {mean:.4g}) / {spread or 1:.4g} instead, and "
            "convert the predictions back."
        )


def check_variety(labels: Iterable[Any], column: str) -> None:
    """Raise a ValueError if all training labels are the same; a list is a set of labels."""
    found = {str(sorted(label) if isinstance(label, list) else label) for label in labels}
    if len(found) < 2:
        raise ValueError(
            f"training needs at least two different labels, but {column} is {', '.join(found)} everywhere in train. "
            "Check the column, or add examples with other labels; --max_train_samples takes the first ones."
        )


def check_spread(splits: DatasetDict, column: str) -> None:
    """Raise a ValueError if a held-out split has one value; the metrics would do so only after the training."""
    for split, dataset in splits.items():
        if split != "train" and column in dataset.column_names and len(found := {*dataset[column]}) == 1:
            raise ValueError(
                f"a correlation needs at least two different values, but {column} is {found.pop()} everywhere in "
                f"{split}. Add examples with other values; --max_eval_samples and --max_predict_samples take the first."
            )


def find_ids(names: str | None, label_names: list[str]) -> list[int]:
    """Return the ids of labels that are named as a,b, or raise a ValueError if there is no such label."""
    named = names.split(",") if names else []
    for name in named:
        if name not in label_names:
            raise ValueError(
                f"--negative_labels must name labels of the data ({', '.join(label_names)}), but names {name}"
            )
    return [label_names.index(name) for name in named]


def list_labels(rows: Dataset, column: str) -> list[set[Any]]:
    """Return the labels of each row: one, several, the tags of its words, or none if they are fractions or missing."""
    if column not in rows.column_names:
        return [set()] * len(rows)
    listed = [value if isinstance(value, list) else [value] for value in rows[column]]
    values = [*chain.from_iterable(listed)]
    if has_fractions(values) or any(isinstance(value, list | dict) for value in values):  # the check refuses the latter
        return [set()] * len(rows)
    return [{*labels} for labels in listed]


def draw_validation(labels: list[set[Any]], share: float = HELD_OUT) -> list[int]:
    """Draw a share of the rows in proportion to the labels, so that training keeps a row of each label.

    Args:
        labels: Labels of each row, see `list_labels`.
        share: Default: a fifth.

    Raises:
        ValueError: Each row is the only one with some label.
    """
    left = Counter(label for each in labels for label in each)
    order = [*range(len(labels))]
    random.Random(0).shuffle(order)
    # Side by side, the rows of a label give every fifth. Of several labels, the rarest counts.
    order.sort(key=lambda row: min(((left[label], str(label)) for label in labels[row]), default=(0, "")))
    drawn: list[int] = []
    for place, row in enumerate(order, 1):
        if share * place >= len(drawn) + 0.5 and all(left[label] > 1 for label in labels[row]):
            drawn.append(row)
            left.subtract(labels[row])
    if not drawn:
        raise ValueError(
            f"a table must have two rows of some label, so that one can be held out for validation, but each of its "
            f"{len(labels)} rows has a label of its own. Add rows, or pass the splits train and validation."
        )
    return sorted(drawn)
