"""Check the files of a task: every row must be what its script reads. Also reads the texts for TAPT."""

import math
from collections.abc import Container, Iterator
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_domain.data.columns import find_text_columns
from hf_domain.data.corpora import tokenize_corpus
from hf_domain.data.files import check_held_out
from hf_domain.data.json_lines import read_rows as read_json_lines
from hf_domain.safe_io import write_text
from hf_domain.tasks.labels import has_fractions, is_multi_hot, name_positions
from hf_domain.tasks.retrieval import CORPUS, JUDGED, JUDGMENTS, QUERIES, TABLES, read_queries
from hf_domain.tasks.token_classification import check_tags

METRICS = {
    "classification": ("macro_f1", "micro_f1", "positive_micro_f1"),
    "multi_label": ("macro_f1", "micro_f1"),
    "regression": ("pearson", "spearman"),
    "ner": ("entity_f1", "token_f1"),
    "qa": ("f1", "exact_match"),
    "similarity": ("spearman", "pearson"),
    "retrieval": ("ndcg_at_10", "mrr_at_10"),
}
# Kinds that score an encoder by the cosines of its sentence embeddings, with sentence-transformers.
SENTENCES = ("similarity", "retrieval")
# Columns that every row has beside its texts, whose names vary for classification. A regression may name its values
# `score`, beside labels of another task.
TASK_COLUMNS = {
    "classification": {"label"},
    "multi_label": {"label"},
    "regression": {"label"},
    "ner": {"tokens", "tags"},
    "qa": {"id", "context", "question", "answers"},
    "similarity": {"score"},
    "retrieval": {"id", "query", "passages"},
}
TEXTS = {"ner": ["tokens"], "qa": ["context", "question"], "retrieval": ["query", "passages"]}
VALUES = ("regression", "similarity")


@dataclass
class Task:
    """A folder with train, validation and test as .jsonl; with folds, train alone is enough. A retrieval: as BEIR."""

    # A plan with an unknown field or a converted value is refused.
    __pydantic_config__ = {"extra": "forbid", "strict": True}
    folder: str
    kind: Literal["classification", "multi_label", "regression", "ner", "qa", "similarity", "retrieval", ""] = ""
    """If empty, found from the files; only a similarity must be named, as it has the columns of a regression."""
    corpus: str = ""
    """Name of its corpus; if empty, the only one beside the general corpus."""
    metric: str = ""
    """One of `METRICS`; if empty, the first of the kind."""
    options: dict[str, Any] = field(default_factory=dict)
    folds: int | None = None
    """Number of folds to cross-validate over the items of all files; every item is then a test item."""

    def get_file(self, split: str, fold: int | None = None) -> str:
        """Return the file of a split, of the task or of one of its folds."""
        if self.kind == "retrieval":
            return f"{self.folder}/{JUDGMENTS}/{TABLES[split]}"
        return f"{self.folder}/{split}.jsonl" if fold is None else f"{self.folder}/fold{fold}/{split}.jsonl"

    def list_folds(self) -> list[int | None]:
        """List the folds; None stands for the task's own split."""
        return [None] if self.folds is None else [*range(1, self.folds + 1)]


def find_kind(file: str, folder: Path) -> str:
    """Find the kind of a task from the columns of its training file, or from the files beside it.

    Args:
        file: Relative to the folder; one JSON object a line.

    Raises:
        ValueError: The columns fit no kind in `TASK_COLUMNS`, or two columns may hold the values of a regression.
    """
    if all((folder / file).with_name(name).is_file() for name in (CORPUS, QUERIES)):
        return "retrieval"
    columns = _find_columns(file, folder)
    for kind in ("qa", "ner"):
        if columns.keys() >= TASK_COLUMNS[kind]:
            return kind
    if "label" in columns or _is_number(columns.get("score")):
        if isinstance(columns.get("label"), list):
            return "multi_label"
        if "label" not in columns:
            return "regression"
        is_regression = has_fractions(row.get("label") for _, row in read_rows(file, folder))
        if is_regression and _is_number(columns.get("score")):
            raise ValueError(
                f"the values of a regression must be in one column, but {file} has fractions in label and numbers in "
                "score. Remove one of them, or set kind: regression, which predicts score."
            )
        return "regression" if is_regression else "classification"
    told = {kind: ", ".join(sorted(names)) for kind, names in TASK_COLUMNS.items() if kind not in SENTENCES}
    kinds = "; ".join(f"{kind}: {names}" for kind, names in told.items())
    raise ValueError(
        f"a task must have the columns of its kind ({kinds}; the first three with one text or a pair), but {file} has "
        f"{', '.join(columns)}. Rename the columns."
    )


def name_label_column(kind: str, columns: Container[str]) -> str:
    """Return the column of labels of a classification, or of the values of a regression."""
    return "score" if kind in VALUES and "score" in columns else "label"


def find_label_column(kind: str, file: str, folder: Path) -> str:
    """Find the column of labels, or of values, in the first row of a file."""
    return name_label_column(kind, next(read_rows(file, folder))[1])


def get_label(kind: str, row: dict[str, Any]) -> Any:
    """Return the label, the labels or the value of an example."""
    return row.get(name_label_column(kind, row))


def find_texts(kind: str, file: str, folder: Path, names: str | None = None) -> list[str]:
    """Find the columns of text that a task reads.

    Args:
        kind: A key of `TASK_COLUMNS`.
        file: The training file, relative to the folder; one JSON object a line.
        folder: Folder of the plan.
        names: The option `text_column_names` of the task.

    Raises:
        ValueError: See `find_text_columns`; or a similarity has no two texts.
    """
    if kind in TEXTS:
        return TEXTS[kind]
    columns = _find_columns(file, folder)
    texts = find_text_columns(columns, names, label_column=name_label_column(kind, columns))
    if kind == "similarity" and len(texts) != 2:
        raise ValueError(
            f"a similarity task needs two columns of text, but {file} has {', '.join(texts)}. Name two with "
            "text_column_names."
        )
    return texts


def _find_columns(file: str, folder: Path) -> dict[str, Any]:
    """Return the columns of a file with the first value of each."""
    columns: dict[str, Any] = {}
    for _, row in read_rows(file, folder):
        columns |= {name: value for name, value in row.items() if columns.get(name) is None}
    return columns


def read_rows(file: str, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each example with its place; those of a retrieval are queries with the passages that answer them."""
    yield from read_queries(folder / file) if file.endswith(JUDGED) else read_json_lines(file, folder)


def check_task_files(kind: str, files: dict[str, str], folder: Path, names: str | None = None) -> list[str]:
    """List the problems of the files of a task, before hours of masked LM end in a script that refuses them.

    Args:
        kind: A key of `TASK_COLUMNS`.
        files: By split, `train` first if it is there; one JSON object a line, or tables of a retrieval.
        folder: The files are relative to it.
        names: The option `text_column_names` of the task.

    Returns:
        For each file the first row that is wrong, columns of text that nobody reads, labels of which `train` has no
        example or that are all the same.
    """
    problems, labels, texts, first = [], {}, list[str](), next(iter(files.values()))
    positions = list[str]()  # the names of the labels, if lists of 0 and 1 stand for them
    for split, name in files.items():
        try:
            own = find_texts(kind, name, folder, names)
            texts = texts or own
            if not {*own} <= {*texts}:
                raise ValueError(
                    f"the files of a task must have the same columns of text, but {name} has {', '.join(own)} and "
                    f"{first} has {', '.join(texts)}. Rename the columns."
                )
            rows = {where: _read_row(kind, row, texts, where) for where, row in read_rows(name, folder)}
            # The first file decides: every list of a small test set may be [0, 1].
            if kind == "multi_label" and name == first and is_multi_hot(rows.values()):
                positions = [str(number) for number in range(len(next(iter(rows.values()))))]
            if positions:
                rows = {where: name_positions(row, positions, lambda at=where: at) for where, row in rows.items()}
            labels[split] = set(chain.from_iterable(rows.values()))
        except ValueError as error:
            problems.append(str(error) if name in str(error) else f"{name}: {error}")
    try:
        held_out = {split: str(folder / name) for split, name in files.items() if split != "train"}
        check_held_out(str(folder / first) if "train" in files else None, held_out)
    except ValueError as error:
        problems.append(str(error))
    for split, own_labels in labels.items():
        problems += _check_labels(kind, files[split], own_labels, labels.get("train", own_labels), first)
    return problems


def _check_labels(kind: str, file: str, found: set[Any], trained: set[Any], train_file: str) -> list[str]:
    """List the problems of the labels of a file, given those of the training file."""
    if kind in VALUES:
        problem = f"a {kind} task needs at least two different values, but {file} has only one. Add others."
        return [problem] if len(found) == 1 else []
    if len({type(label) for label in found}) > 1:
        return [f"labels must be all texts or all whole numbers, but {file} has both. Convert them."]
    problems = []
    if kind != "qa" and (unknown := found - trained):
        problems.append(
            f"every label of {file} must occur in {train_file}, but {', '.join(sorted(map(str, unknown)))} does not. "
            f"Add an example there, or remove the label from {file}."
        )
    if file != train_file:
        return problems
    if kind in ("qa", "multi_label") and not found:
        needed = "question with an answer" if kind == "qa" else "label"
        problems.append(f"training needs a {needed}, but {file} has none. Add one.")
    if kind == "ner":
        try:
            check_tags(sorted(found))
        except ValueError as error:
            problems.append(f"{file}: {error}")
    if kind in ("classification", "ner") and len(found) == 1:
        problems.append(
            f"training needs two different labels, but {file} has only {next(iter(found))}. Add examples of another."
        )
    return problems


def _read_row(kind: str, row: dict[str, Any], texts: list[str], where: str) -> list[Any]:
    """Return the labels of a row; those of a question are whether it has an answer."""
    needed = TASK_COLUMNS[kind] if kind in TEXTS else {name_label_column(kind, row)}
    lacking = {column for column in needed if row.get(column) is None or row[column] == ""}
    values = [row.get(column) for column in texts]
    if not any(value and (not isinstance(value, str) or value.strip()) for value in values):
        lacking |= {*texts}
    if lacking:
        raise ValueError(f"{where} lacks {', '.join(sorted(lacking))}. Add it, or remove the row.")
    return READERS[kind](row, where)


def _read_label(row: dict[str, Any], where: str) -> list[Any]:
    if not _is_label(row["label"]):
        raise ValueError(f"a label must be text or a whole number, but is {row['label']} in {where}. Correct it.")
    return [row["label"]]


def _read_labels(row: dict[str, Any], where: str) -> list[Any]:
    if not (isinstance(row["label"], list) and all(map(_is_label, row["label"]))):
        raise ValueError(
            f"label must be a list of texts or of whole numbers, but is {row['label']} in {where}. Correct it."
        )
    return row["label"]


def _read_value(row: dict[str, Any], where: str) -> list[Any]:
    if not _is_number(value := get_label("regression", row)):
        raise ValueError(f"a value must be a finite number, but is {value} in {where}. Correct it.")
    return [float(value)]


def _read_passages(row: dict[str, Any], where: str) -> list[Any]:
    return []  # `read_queries` has checked them


def _read_tags(row: dict[str, Any], where: str) -> list[Any]:
    tags = row["tags"]
    if not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
        raise ValueError(f"tags must be a list of texts such as B-gene, but are {tags} in {where}. Correct them.")
    if len(tags) != len(row["tokens"]):
        raise ValueError(
            f"every token needs one tag, but {where} has {len(tags)} tags for {len(row['tokens'])} tokens. Correct "
            "them."
        )
    return tags


def _read_answers(row: dict[str, Any], where: str) -> list[Any]:
    if not (isinstance(row["answers"], dict) and isinstance(row["answers"].get("text"), list)):
        raise ValueError(
            f"answers must contain a list of texts as in SQuAD, but are {row['answers']} in {where}. Correct them."
        )
    return [True] if row["answers"]["text"] else []


READERS = {
    "classification": _read_label,
    "multi_label": _read_labels,
    "regression": _read_value,
    "ner": _read_tags,
    "qa": _read_answers,
    "similarity": _read_value,
    "retrieval": _read_passages,
}


def _is_label(value: Any) -> bool:
    return isinstance(value, str | int) or (isinstance(value, float) and value.is_integer())


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def get_text(value: Any) -> str:
    """Return the text of a value: a text, a list of words, or none."""
    return " ".join(value) if isinstance(value, list) else value or ""


def list_task_texts(kind: str, file: Path, names: str | None = None) -> list[str]:
    """List the different training texts of a task on a line each, as TAPT reads them.

    Args:
        kind: A key of `TASK_COLUMNS`.
        file: The training file.
        names: The option `text_column_names` of the task.
    """
    texts = find_texts(kind, file.name, file.parent, names)
    values = chain.from_iterable(map(row.get, texts) for _, row in read_rows(file.name, file.parent))
    lines = dict.fromkeys(" ".join(get_text(value).split()) for value in values)  # a context has several questions
    return [line for line in lines if line]


def write_task_text(kind: str, file: Path, path: Path, names: str | None = None) -> None:
    """Write the training texts of a task to `path`; other arguments as in `list_task_texts`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, "".join(f"{line}\n" for line in list_task_texts(kind, file, names)))


def fills_batch(kind: str, file: Path, tokenizer: PreTrainedTokenizerBase, max_seq_length: int, size: int) -> bool:
    """Return whether the training texts of a task, see `list_task_texts`, make a batch of this size for TAPT."""
    texts = Dataset.from_dict({"text": list_task_texts(kind, file)})
    examples = tokenize_corpus(texts, tokenizer, max_seq_length=max_seq_length)["train"]
    return len(examples) >= size
