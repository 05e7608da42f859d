"""The files of a task: whether every row is what its script reads, and the texts that TAPT is trained on."""

import json
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from datasets import load_dataset

from hf_domain.files import write_text

COLUMNS = {
    "classification": {"text", "label"},
    "ner": {"tokens", "tags"},
    "qa": {"id", "context", "question", "answers"},
}
TEXTS = {"classification": ["text"], "ner": ["tokens"], "qa": ["context", "question"]}


def check_task_files(kind: str, files: dict[str, str], folder: Path) -> list[str]:
    """Return what is wrong with the files of a task, before hours of masked LM end in a script that refuses them.

    Args:
        kind: A key of `COLUMNS`.
        files: By split, `train` first; one JSON object a line.
        folder: The files are relative to it.

    Returns:
        For each file the first row that is wrong, and labels of which `train` has no example.
    """
    problems, labels = [], {}
    for split, name in files.items():
        try:
            labels[split] = set(_read_labels(kind, name, folder))
        except ValueError as error:
            problems.append(str(error))
    for split, found in labels.items():
        if len({type(label) for label in found}) > 1:
            problems.append(f"labels are all texts or all whole numbers, {files[split]} has both")
        elif "train" in labels and (unknown := found - labels["train"]):
            names = ", ".join(sorted(map(str, unknown)))
            problems.append(f"every label of {files[split]} occurs in {files['train']}; got {names}")
    return problems


def _read_labels(kind: str, name: str, folder: Path) -> Iterator[Any]:
    """Read the labels of a file; raises a ValueError at the first row that is wrong."""
    if not (folder / name).is_file():
        raise ValueError(f"there is no file {name}")
    has_rows = False
    with (folder / name).open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                has_rows = True
                yield from _read_row(kind, line, f"line {number} of {name}")
    if not has_rows:
        raise ValueError(f"{name} is empty")


def _read_row(kind: str, line: str, where: str) -> list[Any]:
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if not isinstance(row, dict):
        raise ValueError(f"a line is a JSON object, {where} is none")
    if lacking := sorted(column for column in COLUMNS[kind] if row.get(column) is None):
        raise ValueError(f"{where} lacks {', '.join(lacking)}")
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
    return []


def write_task_text(kind: str, file: Path, path: Path) -> None:
    """Write the training text of a task as a corpus, a text a line, for TAPT.

    Args:
        kind: A key of `TEXTS`.
        file: The training file.
        path: Where to.
    """
    rows = load_dataset("json", data_files=str(file), split="train")
    values = chain.from_iterable(map(row.get, TEXTS[kind]) for row in rows)
    texts = (" ".join(value) if isinstance(value, list) else value for value in values)
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = dict.fromkeys(" ".join(str(text).split()) for text in texts)  # a context has several questions
    write_text(path, "".join(f"{line}\n" for line in lines))
