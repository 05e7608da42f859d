"""Lay out corpora and tasks that are Python objects as the files that a plan names."""

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, TypeGuard

from datasets import ClassLabel, Dataset, IterableDataset, List

from hf_domain.data.files import SPLITS, load_rows, open_saved
from hf_domain.data.tables import Rows, Splits, choose_splits, has_splits
from hf_domain.safe_io import write_text

TaskData: TypeAlias = str | os.PathLike | Mapping[str, Rows] | Splits
"""A folder with train, validation and test .jsonl, or the rows of these three."""
Tasks: TypeAlias = TaskData | Iterable[str | os.PathLike] | Mapping[str, TaskData]
"""One task, several folders, or tasks by their names."""
Files: TypeAlias = dict[str, Dataset | IterableDataset]
"""Rows by the file, relative to the plan, that will hold them."""
ONLY_TASK = "task"  # the name of a task that is given without one


def place_corpus(corpus: Rows | Splits, name: str, files: Files) -> str | dict[str, str]:
    """Return what a plan says of a corpus: a path, or files for training and validation.

    Args:
        corpus: A path, or an object, see `load_corpus`.
        name: Name of its files.
        files: Gets the files to write.
    """
    corpus = open_saved(corpus)
    if is_path(corpus):
        return find_file(corpus)
    places: dict[str, str] = {}
    for split, rows in (choose_splits(corpus, name) if has_splits(corpus) else {"train": corpus}).items():
        places[f"{split}_file"] = file = f"{name}.jsonl" if split == "train" else f"{name}_{split}.jsonl"
        files[file] = load_rows(rows, name)
    return places if len(places) > 1 else places["train_file"]


def place_tasks(tasks: Tasks, files: Files) -> dict[str, str]:
    """Return the folder of each task by its name, relative to the plan if its rows are objects.

    Args:
        files: Gets the files to write.

    Raises:
        ValueError: There is no task, two have one name, or a task lacks a split.
    """
    folders: dict[str, str] = {}
    for name, task in name_tasks(tasks).items():
        task = open_saved(task)
        if is_path(task):
            folders[name] = find_file(task)
            continue
        if not isinstance(task, Mapping) or {*task} != {*SPLITS}:
            found = ", ".join(map(str, task)) if isinstance(task, Mapping) else f"a {type(task).__name__}"
            raise ValueError(f"a task must be a folder or have the splits {', '.join(SPLITS)}, but {name} has {found}")
        folders[name] = name
        for split, rows in task.items():
            files[f"{name}/{split}.jsonl"] = load_rows(rows, f"{split} of {name}")
    return folders


def name_tasks(tasks: Tasks) -> dict[str, Any]:
    """Return tasks by their names; a folder gives its own name.

    Raises:
        TypeError: The tasks are neither folders nor mappings.
        ValueError: There is no task, or two folders have one name.
    """
    if isinstance(tasks, Mapping) and not ("train" in tasks and {*tasks} <= {*SPLITS}):
        named: dict[str, Any] = dict(tasks)
    elif isinstance(tasks, Mapping):
        named = {ONLY_TASK: tasks}
    else:
        folders: list[Any] = [tasks] if is_path(tasks) else list(tasks)  # type: ignore[arg-type]
        if wrong := [type(folder).__name__ for folder in folders if not is_path(folder)]:
            raise TypeError(
                f"tasks must be folders, or rows by the splits {', '.join(SPLITS)}, but one is a {wrong[0]}. Pass "
                "{'name': {'train': ..., 'validation': ..., 'test': ...}}."
            )
        named = {Path(folder).resolve().name: folder for folder in folders}
        if len(named) < len(folders):
            raise ValueError(f"tasks must be folders with different names, but are {', '.join(map(str, folders))}")
    if not named:
        raise ValueError("tasks must be one or more, but are none")
    return named


def write_files(files: Files, folder: Path) -> None:
    """Write the rows of all files as JSON lines."""
    for name, rows in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in name_labels(rows))
        write_text(path, "".join(lines))


def name_labels(rows: Dataset | IterableDataset) -> Iterable[dict[str, Any]]:
    """Yield rows with the names of labels that the dataset stores as numbers; -1 stands for no label."""
    classes = {name: find_class(kind) for name, kind in (rows.features or {}).items()}
    for row in rows:
        for name, kind in classes.items():
            if kind is not None:
                row[name] = (
                    [name_label(kind, value) for value in row[name]]
                    if isinstance(row[name], list)
                    else (name_label(kind, row[name]))
                )
        yield row


def find_class(feature: Any) -> ClassLabel | None:
    """Return the labels of a column, or of a column of lists; None if it has none."""
    feature = feature.feature if isinstance(feature, List) else feature
    return feature if isinstance(feature, ClassLabel) else None


def name_label(kind: ClassLabel, value: int | None) -> str | None:
    """Return the name of a label; None if an example has none."""
    return None if value is None or value < 0 else kind.int2str(value)


def is_path(data: Any) -> TypeGuard[str | os.PathLike]:
    """Return whether data is the place of a file or folder, and not the data itself."""
    return isinstance(data, (str, os.PathLike))


def find_file(path: Any) -> str:
    """Return a path that a plan in any folder can name."""
    return str(Path(path).resolve())
