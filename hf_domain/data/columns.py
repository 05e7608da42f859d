"""Choose the text columns of a dataset: one column, or two for pairs of texts."""

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

from datasets import Dataset, IterableDataset, Value

logger = logging.getLogger(__name__)

Data: TypeAlias = Dataset | IterableDataset | Mapping[str, Any]
Locate = Callable[[str, int], str]
"""Returns where a row of a split is, for errors."""


def name_example(split: str, row: int) -> str:
    """Name a row of a split when its file and line are unknown."""
    return f"example {row} of {split}"


# Tokenizers call a second text text_pair. The other names are those of GLUE (run_glue.py of transformers), BoolQ and
# SQuAD.
PAIRS = (
    ("text", "text_pair"),
    ("sentence1", "sentence2"),
    ("premise", "hypothesis"),
    ("question1", "question2"),
    ("question", "sentence"),
    ("question", "passage"),
    ("question", "context"),
    ("text1", "text2"),
)
# Columns that are labels or ids, not text: gold_label, label_text; id, doc_id, guid, pairID.
LABEL_OR_ID = re.compile(r"(?i:label|(?:^|[_ -])(?:id|idx|guid|uid|uuid|index|key)$)|[a-z](?:ID|Id)$")


def find_text_columns(
    dataset: Data,
    names: str | None = None,
    *,
    label_column: str | None = None,
    option: str = "--text_column_names",
) -> list[str]:
    """Return the one or two columns of text that a task reads; known names win over all others.

    Args:
        dataset: One split of the task, or a value of each column.
        names: One column, or two as first,second. Default: `text`, a pair of `PAIRS`, `sentence`, or the only column of
            text.
        label_column: Column that is never text.
        option: Flag that names the columns, for errors.

    Raises:
        ValueError: A named column is missing or has no text. Or no column is named, and the choice is unclear.
    """
    if names is not None:
        return check_text_columns(dataset, names, option)
    columns = choose_text_columns(list_text_columns(dataset, label_column))
    if not columns:
        raise _refuse(dataset, list_text_columns(dataset, label_column), option)
    return columns


def describe_columns(dataset: Data, columns: Sequence[str], label_column: str | None = None) -> str:
    """Say which columns of text are read, and which are ignored."""
    ignored = ", ".join(name for name in list_text_columns(dataset, label_column) if name not in columns)
    return f"Columns of text: {' + '.join(columns)}{ignored and f'; ignored: {ignored}'}"


def find_split_columns(
    splits: Mapping[str, Dataset], label_column: str, names: str | None = None, locate: Locate = name_example
) -> list[str]:
    """Return the one or two text columns that a task reads, and check that every example has text in them.

    Args:
        splits: The data; the first split, train, decides.
        names: See `find_text_columns`.
        locate: Returns where an example is, for errors.

    Raises:
        ValueError: A split lacks a column or would be read differently, or an example has no text. See also
            `find_text_columns`.
    """
    first = next(iter(splits))
    columns = find_text_columns(splits[first], names, label_column=label_column)
    check_columns(splits, columns, "--text_column_names")
    for split, dataset in splits.items():
        own = choose_text_columns(list_text_columns(dataset, label_column))
        if names is None and not {*own} <= {*columns}:
            raise ValueError(
                f"all splits must have the same columns of text, but {split} has {', '.join(own)}, and {first} has "
                f"{', '.join(columns)}. Drop a column, or name the columns to read with --text_column_names."
            )
    check_texts(splits, columns, locate)
    warn_of_shared_rows(splits, columns)
    logger.info(describe_columns(splits[first], columns, label_column))
    return columns


def check_columns(
    splits: Mapping[str, Dataset], columns: list[str], option: str = "", optional_in_test: str | None = None
) -> None:
    """Raise a ValueError unless every split has the columns.

    Args:
        option: Flag that names the column, for errors.
        optional_in_test: Column that the test split may lack, such as the labels.
    """
    for split, dataset in splits.items():
        for column in columns:
            if column not in dataset.column_names and not (split == "test" and column == optional_in_test):
                raise ValueError(
                    f"the split {split} must have the column {column}, but has {', '.join(dataset.column_names)}. "
                    f"Rename a column{f', or name another with {option}' if option else ''}."
                )


def choose_column(dataset: Dataset, names: Sequence[str]) -> str:
    """Return the first of some names that is a column; the first of all if none is."""
    return next((name for name in names if name in dataset.column_names), names[0])


def check_texts(splits: Mapping[str, Dataset], columns: Sequence[str], locate: Locate = name_example) -> None:
    """Raise a ValueError unless every example has a text; in a pair, one text may be empty."""
    for split, dataset in splits.items():
        for row, texts in enumerate(zip(*(dataset[column] for column in columns), strict=True)):
            if not any(text and text.strip() for text in texts):
                raise ValueError(
                    f"every example must have a text, but {' and '.join(columns)} of {locate(split, row)} is empty. "
                    "Fill it in or drop the example."
                )


def warn_of_shared_rows(splits: Mapping[str, Dataset], columns: Sequence[str], trained_name: str = "train") -> None:
    """Warn if rows of another split are also rows of train.

    Args:
        columns: Rows are equal if these columns are.
        trained_name: What the rows of train are called.
    """
    if "train" not in splits:
        return
    rows = {split: [*_list_rows(dataset, columns)] for split, dataset in splits.items() if split != "train"}
    trained = {row for others in rows.values() for row in others}.intersection(_list_rows(splits["train"], columns))
    for split, others in rows.items():
        if count := sum(row in trained for row in others):
            logger.warning(
                f"{count:,} of {len(others):,} rows of {split} are also rows of {trained_name}: the score may be too "
                "good. Drop them from one of the two."
            )


def _list_rows(dataset: Dataset, columns: Sequence[str]) -> Iterator[str]:
    for batch in dataset.select_columns([*columns]).iter(1000):
        yield from map(repr, zip(*(batch[column] for column in columns), strict=True))


def find_document_columns(dataset: Data, names: str | None = None, *, option: str = "--text_column_name") -> list[str]:
    """Return the one or two columns with the text of a corpus; other columns, such as titles or URLs, are ignored.

    The texts of two columns are separate documents.

    Args:
        names: See `find_text_columns`.

    Raises:
        ValueError: A named column is missing or has no text, or no column is named and the choice is unclear.
    """
    columns = find_text_columns(dataset, names, option=option)
    if names is None and [*_list_kinds(dataset)] != ["text"]:  # the only column of a .txt file
        logger.info(describe_columns(dataset, columns))
    return columns


def check_text_columns(dataset: Data, names: str, option: str) -> list[str]:
    """Return the one or two columns that an option names.

    Raises:
        ValueError: There are more columns or the same twice, or a column is missing or has no text.
    """
    columns = [name.strip() for name in names.split(",")]
    if len(columns) > 2 or len(set(columns)) < len(columns):
        raise ValueError(
            f"{option} must name one column or two different ones, as first,second, but is {names}. "
            "An encoder reads one text or a pair; join columns to read more."
        )
    kinds = _list_kinds(dataset)
    for name in columns:
        if name not in kinds:
            raise ValueError(
                f"{option} must name columns of the data ({', '.join(kinds)}), but names {name}. Name another column."
            )
        if not _holds_text(kinds[name]) and not _is_empty(kinds[name]):
            raise ValueError(
                f"{option} must name columns of text, but {name} contains {_describe(kinds[name])}. "
                f"Name another column of {', '.join(kinds)}."
            )
    return columns


def choose_text_columns(candidates: Sequence[str]) -> list[str]:
    """Return the columns to read by their names: `text`, a pair, `sentence`, or the only column; otherwise none."""
    if "text" in candidates and "text_pair" not in candidates:
        return ["text"]
    for known in (*PAIRS, ("sentence",)):
        if set(known) <= set(candidates):
            return list(known)
    return list(candidates) if len(candidates) == 1 else []


def list_text_columns(dataset: Data, label_column: str | None = None) -> list[str]:
    """List the text columns that are neither labels nor ids."""
    columns = [name for name, kind in _list_kinds(dataset).items() if name != label_column and _holds_text(kind)]
    return [name for name in columns if not LABEL_OR_ID.search(name)] or columns[:1]


def _list_kinds(dataset: Data) -> dict[str, Any]:
    """Return the feature of each column or, for a stream without features, its first value."""
    return dict(dataset if isinstance(dataset, Mapping) else dataset.features or next(iter(dataset), {}))


def _holds_text(kind: Any) -> bool:
    return kind.dtype in ("string", "large_string", "string_view") if isinstance(kind, Value) else isinstance(kind, str)


def _is_empty(kind: Any) -> bool:
    return kind is None or (isinstance(kind, Value) and kind.dtype == "null")


def _describe(kind: Any) -> str:
    return kind.dtype if isinstance(kind, Value) else repr(kind)


def _refuse(dataset: Data, candidates: list[str], option: str) -> ValueError:
    if not candidates:
        kinds = [f"{name} ({_describe(kind)})" for name, kind in _list_kinds(dataset).items()]
        return ValueError(
            f"the data must have a column of text, but none of {', '.join(kinds)} is text. Name the column with "
            f"{option}, or write its values as text."
        )
    return ValueError(
        f"one column of text, or a pair with known names, must be read, but the choice is unclear: "
        f"{', '.join(candidates)}. Name one or two columns to read: {option} {candidates[0]}."
    )
