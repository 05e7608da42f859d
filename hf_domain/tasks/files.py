"""Check the files of a task: every row must be what its script reads. Also reads the texts for TAPT."""

import math
from collections.abc import Callable, Collection, Container, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal, TypeAlias

from datasets import DatasetDict

from hf_domain.data.columns import check_columns, find_text_columns
from hf_domain.data.files import check_held_out, load_table
from hf_domain.data.json_lines import read_rows
from hf_domain.safe_io import write_text
from hf_domain.tasks.classification import Classification
from hf_domain.tasks.kind import TaskKind
from hf_domain.tasks.labels import has_fractions
from hf_domain.tasks.question_answering import QuestionAnswering
from hf_domain.tasks.token_classification import TokenClassification


@dataclass(frozen=True)
class PlanKind:
    """How the rows of a task look in a plan, what reads and checks them, and what scores their predictions."""

    reader: type[TaskKind]
    metrics: tuple[str, ...]
    """The first is that of a task that names none."""
    columns: tuple[str, ...]
    """Columns that every row has. A regression may name its values `score`, beside labels of another task."""
    texts: list[str] | None = None
    """Columns of text; None if their names vary."""
    problem_type: str = ""


F1 = ("macro_f1", "micro_f1")
PLAN_KINDS = {
    "classification": PlanKind(
        Classification, (*F1, "positive_micro_f1"), ("label",), problem_type="single_label_classification"
    ),
    "multi_label": PlanKind(Classification, F1, ("label",), problem_type="multi_label_classification"),
    "regression": PlanKind(Classification, ("pearson", "spearman"), ("label",), problem_type="regression"),
    "ner": PlanKind(TokenClassification, ("entity_f1", "token_f1"), ("tokens", "tags"), ["tokens"]),
    "qa": PlanKind(
        QuestionAnswering,
        ("f1", "exact_match"),
        ("id", "context", "question", "answers"),
        ["context", "question"],
    ),
}
Examples: TypeAlias = list[tuple[str, dict[str, Any]]]
"""Rows, each with its place."""


@dataclass
class Task:
    """A folder with train, validation and test as .jsonl."""

    # A plan with an unknown field or a converted value is refused.
    __pydantic_config__ = {"extra": "forbid", "strict": True}
    folder: str
    kind: Literal["classification", "multi_label", "regression", "ner", "qa", ""] = ""
    """If empty, found from the files."""
    corpus: str = ""
    """Name of its corpus; if empty, the only one beside the general corpus."""
    metric: str = ""
    """One of its kind; if empty, the first."""
    options: dict[str, Any] = field(default_factory=dict)

    def get_file(self, split: str) -> str:
        """Return the file of a split."""
        return f"{self.folder}/{split}.jsonl"


def find_kind(file: str, folder: Path) -> str:
    """Find the kind of a task from the columns of its training file.

    Args:
        file: Relative to the folder; one JSON object a line.

    Raises:
        ValueError: The columns fit no kind in `PLAN_KINDS`, or two columns may hold the values of a regression.
    """
    columns = _find_columns(file, folder)
    for kind in ("qa", "ner"):
        if columns.keys() >= {*PLAN_KINDS[kind].columns}:
            return kind
    score = columns.get("score")
    has_scores = isinstance(score, int | float) and math.isfinite(score)
    if "label" in columns or has_scores:
        if isinstance(columns.get("label"), list):
            return "multi_label"
        if "label" not in columns:
            return "regression"
        is_regression = has_fractions(row.get("label") for _, row in read_rows(file, folder))
        if is_regression and has_scores:
            raise ValueError(
                f"the values of a regression must be in one column, but {file} has fractions in label and numbers in "
                "score. Remove one of them, or set kind: regression, which predicts score."
            )
        return "regression" if is_regression else "classification"
    kinds = "; ".join(f"{kind}: {', '.join(sorted(own.columns))}" for kind, own in PLAN_KINDS.items())
    raise ValueError(
        f"a task must have the columns of its kind ({kinds}; the first three with one text or a pair), but {file} has "
        f"{', '.join(columns)}. Rename the columns."
    )


def name_label_column(kind: str, columns: Container[str]) -> str:
    """Return the column of labels of a classification, or of the values of a regression."""
    return "score" if kind == "regression" and "score" in columns else "label"


def get_label(kind: str, row: dict[str, Any]) -> Any:
    """Return the label, the labels or the value of an example."""
    return row.get(name_label_column(kind, row))


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
        return known
    columns = _find_columns(file, folder)
    return find_text_columns(columns, names, label_column=name_label_column(kind, columns))


def _find_columns(file: str, folder: Path) -> dict[str, Any]:
    """Return the columns of a file with the first value of each."""
    columns: dict[str, Any] = {}
    for _, row in read_rows(file, folder):
        columns |= {name: value for name, value in row.items() if columns.get(name) is None}
    return columns


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

    plan_kind, first, splits = PLAN_KINDS[kind], next(iter(files)), DatasetDict()
    label = name_label_column(kind, read[first][0][1])
    required = {label} if plan_kind.problem_type else {*plan_kind.columns}
    texts = {split: find_texts(kind, name, folder, names) for split, name in files.items()}
    for split, rows in read.items():
        columns = {*required, *texts[first], *texts[split]}
        _check_types(rows, columns)
        own = [{column: row[column] for column in row if column in columns} for _, row in rows]
        splits[split] = load_table(own, files[split])
    check_columns(splits, sorted(required))
    args: Any = plan_kind.reader.arguments()
    if plan_kind.problem_type:
        args.text_column_names, args.label_column_name = names, label
        args.do_regression = True if kind == "regression" else None
    task: Any = plan_kind.reader(args)
    splits = task.read(splits, locate)
    if plan_kind.problem_type:
        if task.problem_type != plan_kind.problem_type:
            raise ValueError(
                f"the labels of a {kind} task must fit it, but {files[first]} is a {task.problem_type}. Correct the "
                "labels, or set another kind."
            )
        if hidden := [files[split] for split, rows in splits.items() if label not in rows.column_names]:
            raise ValueError(
                f"a task must be scored, but {label} is empty or -1 in all rows of {hidden[0]}. Fill it in."
            )
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
