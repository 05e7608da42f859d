"""Check and read the files of a task: its rows, the texts for TAPT, and what its command predicts."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, TypeAlias

from datasets import DatasetDict

from hf_domain.data.columns import check_columns, find_text_columns
from hf_domain.data.files import check_held_out, load_table
from hf_domain.data.json_lines import read_rows
from hf_domain.safe_io import write_text
from hf_domain.tasks.kind import PLAN_KINDS
from hf_domain.tasks.labels import has_fractions
from hf_domain.tasks.scores import Predictions

Examples: TypeAlias = list[tuple[str, dict[str, Any]]]
"""Rows, each with its place."""


@dataclass
class Task:
    """A folder with train, validation and test as .jsonl."""

    # A plan with an unknown field or a converted value is refused.
    __pydantic_config__ = {"extra": "forbid", "strict": True}
    folder: str
    kind: str = ""
    """A key of `PLAN_KINDS`; if empty, found from the files."""
    corpus: str = ""
    """Name of its corpus; if empty, the only one beside the general corpus."""
    metric: str = ""
    """One of its kind; if empty, the first."""
    options: dict[str, Any] = field(default_factory=dict)

    def get_file(self, split: str) -> str:
        """Return the file of a split."""
        return f"{self.folder}/{split}.jsonl"


def find_plan_kind(file: str, folder: Path) -> str:
    """Find the kind of a task from the columns of its training file.

    Args:
        file: Relative to the folder; one JSON object a line.

    Raises:
        ValueError: The columns fit no kind in `PLAN_KINDS`, or two columns may hold the values of a regression.
    """
    values = find_values(file, folder)
    found = next((name for name in reversed(PLAN_KINDS) if PLAN_KINDS[name].fits_values(values)), None)
    if found is None:
        kinds = "; ".join(f"{kind}: {', '.join(sorted(own.columns))}" for kind, own in PLAN_KINDS.items())
        raise ValueError(
            f"a task must have the columns of its kind ({kinds}; the first three with one text or a pair), but {file} "
            f"has {', '.join(values)}. Rename the columns."
        )
    return found


def find_texts(kind: str, file: str, folder: Path, names: str | None = None) -> list[str]:
    """Find the columns of text that a task reads.

    Args:
        kind: A key of `PLAN_KINDS`.
        file: The training file, relative to the folder; one JSON object a line.
        folder: Folder of the plan.
        names: The option `text_column_names` of the task.

    Raises:
        ValueError: See `find_text_columns`.
    """
    if (known := PLAN_KINDS[kind].texts) is not None:
        return [*known]
    values = find_values(file, folder)
    return find_text_columns(values, names, label_column=PLAN_KINDS[kind].find_label_column(values))


def find_values(file: str, folder: Path) -> dict[str, Any]:
    """Return the columns of a file with the first value of each, or the first fraction if there is one."""
    values: dict[str, Any] = {}
    for _, row in read_rows(file, folder):
        for name, value in row.items():
            if values.get(name) is None or (has_fractions([value]) and not has_fractions([values[name]])):
                values[name] = value
    return values


def check_task_files(kind: str, files: dict[str, str], folder: Path, names: str | None = None) -> list[str]:
    """List what the command of a task would refuse in its files, so that it does not end hours of pre-training.

    Args:
        kind: A key of `PLAN_KINDS`.
        files: By split, `train` first if it is there; one JSON object a line.
        folder: The files are relative to it.
        names: The option `text_column_names` of the task.

    Returns:
        Files that cannot be read, or else the first row that the command refuses, and a file that is trained on and
        tested.
    """
    problems: list[str] = []
    read: dict[str, Examples] = {}

    def collect(check: Callable[..., None], *args: Any) -> None:
        try:
            check(*args)
        except ValueError as error:
            problems.append(str(error))

    def read_file(split: str, name: str) -> None:
        read[split] = [*read_rows(name, folder)]

    for split, name in files.items():
        collect(read_file, split, name)
    if not problems:
        collect(_check_rows, kind, read, files, folder, names)
    paths = {split: str(folder / name) for split, name in files.items()}
    collect(check_held_out, paths.pop("train", None), paths)
    return problems


def _check_rows(
    kind: str, read: Mapping[str, Examples], files: Mapping[str, str], folder: Path, names: str | None
) -> None:
    """Raise a ValueError where the command of a task would: its kind reads the rows."""

    def locate(split: str, row: int) -> str:
        return read[split][row][0]

    task_kind, first, splits = PLAN_KINDS[kind], next(iter(files)), DatasetDict()
    label = task_kind.find_label_column(read[first][0][1])
    required = {*task_kind.columns[:-1], label}
    texts = {split: find_texts(kind, name, folder, names) for split, name in files.items()}
    for split, rows in read.items():
        columns = {*required, *texts[first], *texts[split]}
        _check_types(rows, columns)
        own = [{column: row[column] for column in row if column in columns} for _, row in rows]
        splits[split] = load_table(own, files[split])
    check_columns(splits, sorted(required))
    args: Any = task_kind.arguments(**task_kind.list_flags(row for _, row in read[first]))
    args.text_column_names = names
    task = task_kind(args)
    splits = task.read(splits, locate)
    if task.problem_type != task_kind.problem_type:
        raise ValueError(
            f"the labels of a {kind} task must fit it, but {files[first]} is a {task.problem_type}. Correct the "
            "labels, or set another kind."
        )
    if hidden := [files[split] for split, rows in splits.items() if label not in rows.column_names]:
        raise ValueError(f"a task must be scored, but {label} is empty or -1 in all rows of {hidden[0]}. Fill it in.")
    task.check(splits, does_train=True)


def _check_types(rows: Examples, columns: Collection[str]) -> None:
    """Raise a ValueError where one of the columns has another type than in a row before."""
    types: dict[str, type] = {}
    for where, row in rows:
        for column in columns:
            value = row.get(column)
            own = float if type(value) is int else type(value)
            if value is not None and types.setdefault(column, own) is not own:
                raise ValueError(
                    f"a column must have values of one type, but {column} is {value!r} in {where}, unlike before. "
                    "Correct it."
                )


def get_text(value: Any) -> str:
    """Return the text of a value: a text, a list of words, or none."""
    return " ".join(value) if isinstance(value, list) else value or ""


def write_task_text(kind: str, file: Path, path: Path, names: str | None = None) -> None:
    """Write the different training texts of a task on a line each, as TAPT reads them.

    Args:
        kind: A key of `PLAN_KINDS`.
        file: The training file.
        path: The file to write.
        names: The option `text_column_names` of the task.
    """
    texts = find_texts(kind, file.name, file.parent, names)
    values = chain.from_iterable(map(row.get, texts) for _, row in read_rows(file.name, file.parent))
    lines = dict.fromkeys(" ".join(get_text(value).split()) for value in values)  # a context has several questions
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in lines if line))


def read_examples(file: Path, limit: Any = None) -> list[dict[str, Any]]:
    """Read the examples of a split, at most `limit`."""
    examples = [row for _, row in read_rows(file.name, file.parent)]
    return examples if limit is None else examples[: int(limit)]


def count_examples(task: Task, flags: Mapping[str, Any], folder: Path) -> int:
    """Return the number of test examples of a task, which flags may limit; its files are relative to the folder."""
    limit = (dict(flags) | task.options).get("max_predict_samples")
    return len(read_examples(folder / task.get_file("test"), limit))


def read_predictions(task: Task, flags: Mapping[str, Any], folder: Path, output_dir: Path) -> Predictions:
    """Read a command's predictions for the test set of its task.

    Args:
        flags: The command's.
        folder: The plan's.
        output_dir: The command's.
    """
    rows, kind = read_examples(folder / task.get_file("test"), flags.get("max_predict_samples")), PLAN_KINDS[task.kind]
    return kind.pair(
        kind.read_predictions(output_dir, rows), rows, task.metric, list_ignored(task.metric, task.options)
    )


def list_ignored(metric: str, options: Mapping[str, Any]) -> list[str]:
    """Return the labels that a metric leaves out."""
    return str(options["negative_labels"]).split(",") if metric == "positive_micro_f1" else []
