"""Turn Python data (files, lists, tables, datasets) into datasets."""

import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeGuard, Union

from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict
from pyarrow import ArrowException

if TYPE_CHECKING:
    import pandas

Rows: TypeAlias = Union[
    str,
    os.PathLike,
    Iterable[str],
    Iterable[os.PathLike],
    Iterable[Mapping[str, Any]],
    "pandas.DataFrame",
    Dataset,
    IterableDataset,
]
"""A path or a glob, a list of paths, texts, rows, or a table."""
Splits: TypeAlias = DatasetDict | IterableDatasetDict
"""Several tables by the names of their splits."""


def find_paths(data: Any) -> list[str] | None:
    """Return paths or globs as a list; None if `data` is not paths.

    A list of strings contains texts, unless every one of them is an existing file.
    """
    if isinstance(data, (str, os.PathLike)):
        return [os.fspath(data)]
    if isinstance(data, (list, tuple)) and data and all(map(_is_file, data)):
        return [os.fspath(path) for path in data]
    return None


def _is_file(item: Any) -> bool:
    return isinstance(item, os.PathLike) or (isinstance(item, str) and os.path.isfile(item))


def has_splits(data: Any) -> TypeGuard[Splits]:
    """Return whether data is several splits."""
    return isinstance(data, (DatasetDict, IterableDatasetDict))


def choose_splits(data: Splits, name: str = "a corpus") -> dict[str, Dataset | IterableDataset]:
    """Return the splits that a corpus is made of: `train`, or the only split, and `validation` if there is one.

    Raises:
        ValueError: There is no `train` but several other splits, or none at all.
    """
    if len(data) == 1:
        return {"train": next(iter(data.values()))}
    if "train" not in data:
        raise ValueError(
            f"{name} must have the split train or only one split, but has {', '.join(data) or 'none'}. Pass one split."
        )
    return {split: data[split] for split in ("train", "validation") if split in data}


def make_dataset(data: Any, name: str = "data") -> Dataset | IterableDataset:
    """Return an object as a dataset; texts become the column `text`.

    Args:
        data: Texts, rows, a `DataFrame`, or a generator of texts or rows, which are all kept in memory. A dataset is
            returned unchanged; `Dataset.from_generator` makes one on the disk.

    Raises:
        TypeError: The object contains neither texts nor rows.
        ValueError: The object is empty, or a column mixes types.
    """
    if isinstance(data, (Dataset, IterableDataset)):
        return data
    if has_splits(data):
        raise TypeError(
            f"{name} must be one split, but is a {type(data).__name__} of {', '.join(data)}. Choose one split"
        )
    try:
        if hasattr(data, "to_parquet") and hasattr(data, "columns"):  # recognizes a DataFrame without importing pandas
            return _check_filled(Dataset.from_pandas(data, preserve_index=False), name)
        if isinstance(data, Mapping) or not isinstance(data, Iterable):
            raise TypeError(
                f"{name} must be a path, texts, rows, a DataFrame or a Dataset, but has the type {type(data).__name__}"
            )
        return _check_filled(join_rows(_read_rows(data, name)), name)
    except UnicodeEncodeError as error:
        broken = error.object[max(error.start - 20, 0) : error.end]
        raise ValueError(
            f"{name} must be text that UTF-8 can write, but {broken!r} has half of a character ("
            f"{error.object[error.start]!r}). Drop it: text.encode(errors='ignore').decode()."
        ) from None
    except (ArrowException, OverflowError) as error:
        raise ValueError(f"each column of {name} must have values of one type, but: {error}") from error


def join_rows(rows: Iterable[Mapping[str, Any]]) -> Dataset:
    """Return rows as a dataset. Where a row lacks a column of another, it has None, as rows of a file have.

    `Dataset.from_list` takes the columns of the first row and drops all others.
    """
    rows = list(rows)
    columns = dict.fromkeys(column for row in rows for column in row)
    return Dataset.from_list([{column: row.get(column) for column in columns} for row in rows])


def _read_rows(items: Iterable[Any], name: str) -> Iterator[Mapping[str, Any]]:
    for number, item in enumerate(items):
        if isinstance(item, os.PathLike):
            raise TypeError(f"{name} must not mix paths with texts or rows, but item {number} is the path {item}")
        if isinstance(item, (list, tuple)) and all(isinstance(word, str) for word in item):
            yield {"tokens": [*item]}
            continue
        if not isinstance(item, (str, Mapping)):
            raise TypeError(f"{name} must contain texts, lists of words or rows, but item {number} is {item!r}")
        yield {"text": item} if isinstance(item, str) else item


def _check_filled(dataset: Dataset, name: str) -> Dataset:
    if not len(dataset):
        raise ValueError(f"{name} must contain at least one example, but is empty")
    return dataset
