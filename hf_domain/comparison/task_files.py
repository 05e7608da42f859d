"""The files of a task: whether every row is what its script reads, and the texts that TAPT is trained on."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from hf_domain.data.file_loading import check_held_out
from hf_domain.data.text_columns import find_text_columns
from hf_domain.files import write_text

# What every row has beside the texts; those of a classification are found by their names.
COLUMNS = {
    "classification": {"label"},
    "ner": {"tokens", "tags"},
    "qa": {"id", "context", "question", "answers"},
}
TEXTS = {"ner": ["tokens"], "qa": ["context", "question"]}


def find_kind(file: Path) -> str:
    """Find out from the columns of its training file what kind a task is.

    Raises:
        ValueError: It is none of `COLUMNS`.
    """
    columns = _find_columns(str(file), Path()).keys()
    for kind in ("qa", "ner", "classification"):
        if COLUMNS[kind] <= columns:
            return kind
    kinds = "; ".join(f"{kind}: {', '.join(sorted(names))}" for kind, names in COLUMNS.items())
    raise ValueError(
        f"A task must have the columns of its kind ({kinds} and one text or a pair), but {file} has "
        f"{', '.join(columns)}. Rename the columns."
    )


def find_texts(kind: str, file: str, folder: Path, names: str | None = None) -> list[str]:
    """Find the columns of text that a task reads.

    Args:
        kind: A key of `COLUMNS`.
        file: The training file, relative to the folder; one JSON object a line.
        folder: Of the plan.
        names: The option `text_column_names` of the task.

    Raises:
        ValueError: See `find_text_columns`.
    """
    return TEXTS.get(kind) or find_text_columns(_find_columns(file, folder), names, label_column="label")


def _find_columns(file: str, folder: Path) -> dict[str, Any]:
    """Return the columns of a file with the first value of each."""
    columns: dict[str, Any] = {}
    for _, row in _read_rows(file, folder):
        columns |= {name: value for name, value in row.items() if columns.get(name) is None}
    return columns


def _read_rows(file: str, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield where each row stands, and the row."""
    if not (folder / file).is_file():
        raise ValueError(f"there is no file {file}")
    has_rows = False
    with (folder / file).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                has_rows = True
                where = f"line {number} of {file}"
                yield where, _parse_row(line, where)
    if not has_rows:
        raise ValueError(f"{file} is empty")


def _parse_row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError(f"a file holds text in UTF-8, {where} does not") from None
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise ValueError(f"a line is a JSON object, {where} is none")
    return row


def check_task_files(kind: str, files: dict[str, str], folder: Path, names: str | None = None) -> list[str]:
    """Return what is wrong with the files of a task, before hours of masked LM end in a script that refuses them.

    Args:
        kind: A key of `COLUMNS`.
        files: By split, `train` first; one JSON object a line.
        folder: The files are relative to it.
        names: The option `text_column_names` of the task.

    Returns:
        For each file the first row that is wrong, columns of text that nobody reads, labels of which `train` has no
        example or that are all the same.
    """
    problems, labels, texts = [], {}, list[str]()
    for split, name in files.items():
        try:
            own = find_texts(kind, name, folder, names)
            texts = texts or own
            if not {*own} <= {*texts}:
                raise ValueError(f"{name} has the texts {', '.join(own)}, {files['train']} has {', '.join(texts)}")
            rows = _read_rows(name, folder)
            labels[split] = set(chain.from_iterable(_read_row(kind, row, texts, where) for where, row in rows))
        except ValueError as error:
            problems.append(str(error) if name in str(error) else f"{name}: {error}")
    try:
        held_out = {split: str(folder / name) for split, name in files.items() if split != "train"}
        check_held_out(str(folder / files["train"]), held_out)
    except ValueError as error:
        problems.append(str(error))
    for split, found in labels.items():
        if len({type(label) for label in found}) > 1:
            problems.append(f"labels are all texts or all whole numbers, {files[split]} has both")
        elif kind != "qa" and "train" in labels and (unknown := found - labels["train"]):
            told = ", ".join(sorted(map(str, unknown)))
            problems.append(f"every label of {files[split]} occurs in {files['train']}; got {told}")
    if kind == "qa" and labels.get("train") == set():
        problems.append(f"training needs a question with an answer, {files['train']} has none")
    if kind != "qa" and len(labels.get("train", ())) == 1:
        (label,) = labels["train"]
        problems.append(f"training needs two different labels, {files['train']} has {label} alone")
    return problems


def _read_row(kind: str, row: dict[str, Any], texts: list[str], where: str) -> list[Any]:
    """Return the labels of a row; those of a question are whether it has an answer."""
    lacking = {column for column in COLUMNS[kind] if row.get(column) is None or row[column] == ""}
    values = [row.get(column) for column in texts]
    if not any(value and (not isinstance(value, str) or value.strip()) for value in values):
        lacking |= {*texts}
    if lacking:
        raise ValueError(f"{where} lacks {', '.join(sorted(lacking))}")
    if kind == "classification":
        if not isinstance(row["label"], str | int):
            raise ValueError(f"a label is a text or a whole number, {where} has {row['label']}")
        return [row["label"]]
    if kind == "ner":
        tags = row["tags"]
        if not (isinstance(tags, list) and all(isinstance(tag, str) for tag in tags)):
            raise ValueError(f"tags are texts such as B-gene, one for each token; {where} has {tags}")
        if len(tags) != len(row["tokens"]):
            raise ValueError(f"{where} has {len(tags)} tags for {len(row['tokens'])} tokens")
        return tags
    if not (isinstance(row["answers"], dict) and isinstance(row["answers"].get("text"), list)):
        raise ValueError(f"answers hold a list of texts as in SQuAD, {where} has {row['answers']}")
    return [True] if row["answers"]["text"] else []


def write_task_text(kind: str, file: Path, path: Path, names: str | None = None) -> None:
    """Write the training text of a task as a corpus, a text a line, for TAPT.

    Args:
        kind: A key of `COLUMNS`.
        file: The training file.
        path: Where to.
        names: The option `text_column_names` of the task.
    """
    texts = find_texts(kind, file.name, file.parent, names)
    values = chain.from_iterable(map(row.get, texts) for _, row in _read_rows(file.name, file.parent))
    words = (" ".join(value) if isinstance(value, list) else value or "" for value in values)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = dict.fromkeys(" ".join(text.split()) for text in words)  # a context has several questions
    write_text(path, "".join(f"{line}\n" for line in lines if line))
