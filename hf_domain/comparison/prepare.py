"""Load a plan, and make the data that it leaves to be made: held-out text of a corpus, and names of labels.

The names of the files hold a digest of their sources, so that results of earlier files are recognized.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict

from hf_domain.comparison.checks import check_plan
from hf_domain.comparison.plan import Corpus, Plan, read_plan, refuse
from hf_domain.comparison.results import check_output_dir
from hf_domain.data.columns import find_text_columns
from hf_domain.data.corpora import load_corpus
from hf_domain.data.files import SPLITS, load_table
from hf_domain.data.objects import write_files
from hf_domain.safe_io import fingerprint_files, write_whole
from hf_domain.tasks.files import Task, read_examples
from hf_domain.tasks.kind import PLAN_KINDS, TaskKind, find_kind
from hf_domain.tasks.labels import name_multi_hot

logger = logging.getLogger(__name__)

# Of the documents, where a plan names no held-out text.
HELD_OUT_PERCENTAGE = 5
FOLDER = "data"

Rows = list[dict[str, Any]]


def load_plan(path: str | Path, output_dir: Path | None = None) -> Plan:
    """Read a plan, check it, and make its data files, see `prepare_data`.

    Args:
        path: YAML file.
        output_dir: The comparison's output folder. Default: the path without its suffix.

    Returns:
        The plan, with paths relative to its folder.

    Raises:
        FileExistsError: The output folder has files that no comparison wrote.
        ValueError: The plan has problems: all of its fields' in one message, then all of the files' in one.
    """
    plan = read_plan(path)
    refuse(plan.path, check_plan(plan))
    output_dir = plan.path.with_suffix("") if output_dir is None else output_dir
    check_output_dir(output_dir)
    prepare_data(plan, output_dir)
    return plan


def open_task(path: Path, folder: Path, text_column: str | None = None, label_column: str | None = None) -> Path:
    """Return the folder of a task; a table is split into one below `folder`, see `split_table`.

    Raises:
        FileNotFoundError: There is neither.
    """
    if not path.exists():
        raise FileNotFoundError(f"--task must be a table or a folder, but there is no {path}. Check the path.")
    if path.is_dir():
        return path
    return split_table(path, folder / path.name.partition(".")[0], text_column, label_column)


def split_table(
    file: str | Path, folder: Path, text_column: str | None = None, label_column: str | None = None
) -> Path:
    """Split a table into a task: a fifth of the rows for testing, and a fifth of the rest for validation.

    A text that is repeated would be both trained on and tested, see `drop_repeated`.

    Args:
        file: A table, see `load_files`.
        folder: The task's folder.
        text_column: Column of texts. Default: the known names, see `find_text_columns`.
        label_column: Default: that of the kind.

    Raises:
        ValueError: A column is missing, no label has two rows, or each text has several labels.
    """
    table = load_table(str(file), "task")
    for column in filter(None, (text_column, label_column)):
        if column not in table.column_names:
            known = ", ".join(table.column_names)
            raise ValueError(f"{file} must have the column {column}, but has {known}. Name another.")
    if text_column is not None:
        table = table.select_columns([text_column, *([label_column] if label_column else [])])
        table = table.rename_column(text_column, "text") if text_column != "text" else table
    if label_column is not None and label_column != "label":
        table = table.rename_column(label_column, "label")
    kind = find_kind({*table.column_names})
    columns = kind.texts or find_text_columns(table, label_column=kind.find_label_column(table.column_names))
    kept = drop_repeated([*table], kind, columns)
    if not kept:
        raise ValueError(
            f"a table must have texts with one label each, but each text of {file} has several. Check the columns."
        )
    if repeated := len(table) - len(kept):
        logger.warning(f"{repeated} of {len(table)} rows of {file} repeat a text or contradict another: left out")
    splits = {"train": Dataset.from_list(kept, features=table.features)}
    for split in ("test", "validation"):
        rest = splits["train"]
        held_out = kind.hold_out(rest, None)
        splits[split] = rest.select(held_out)
        splits["train"] = rest.select(sorted({*range(len(rest))} - {*held_out}))
    write_files({f"{split}.jsonl": rows for split, rows in splits.items()}, folder)
    counts = ", ".join(f"{len(rows)} for {split}" for split, rows in splits.items())
    logger.warning(f"{file} is split: {counts} rows")
    return folder


def prepare_data(plan: Plan, output_dir: Path) -> None:
    """Make what is not there yet in the folder `data` of the comparison, and let the plan name it.

    Raises:
        ValueError: See `name_multi_hot`.
    """
    folder = output_dir / FOLDER
    for name, task in plan.tasks.items():
        if PLAN_KINDS[task.kind].problem_type == "multi_label_classification":
            name_labels(name, task, plan, folder)
    for name, corpus in plan.corpora.items():
        if not corpus.validation_file:
            hold_out(name, corpus, plan, folder)


def name_labels(name: str, task: Task, plan: Plan, folder: Path) -> None:
    """Write a task whose lists have a 0 or 1 for each label with lists of names, and let the task name its folder.

    Raises:
        ValueError: See `name_multi_hot`.
    """
    files = {split: plan.folder / task.get_file(split) for split in SPLITS}
    examples = {split: read_examples(file) for split, file in files.items() if file.is_file()}
    lists = {
        split: Dataset.from_dict({"row": range(len(rows)), "label": [row["label"] for row in rows]})
        for split, rows in examples.items()
    }
    named = name_multi_hot(DatasetDict(lists), "label", task.options.get("class_names"))
    if all(named[split] is lists[split] for split in lists):
        return
    for split, rows in examples.items():
        examples[split] = [row | {"label": own} for row, own in zip(rows, named[split]["label"], strict=True)]
    digest = hashlib.sha256(json.dumps(examples, sort_keys=True).encode()).hexdigest()
    made = folder / f"{name}-{digest[:8]}-named"
    for split, rows in examples.items():
        if not (made / f"{split}.jsonl").is_file():
            write_rows(made / f"{split}.jsonl", rows)
    task.folder = localize(made, plan)


def hold_out(name: str, corpus: Corpus, plan: Plan, folder: Path) -> None:
    """Split a corpus into text to train on and text to measure the masked-LM loss on."""
    source = plan.folder / corpus.train_file
    prefix = f"{name}-{fingerprint_files([source])[:8]}"
    files = {split: folder / f"{prefix}-{split}.jsonl" for split in ("train", "validation")}
    if not all(file.is_file() for file in files.values()):
        for split, documents in load_corpus(str(source), validation_split_percentage=HELD_OUT_PERCENTAGE).items():
            write_rows(files[split], ({"text": row["text"]} for row in documents))
    corpus.train_file, corpus.validation_file = (localize(file, plan) for file in files.values())


def write_rows(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(file) as unfinished, unfinished.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def localize(file: Path, plan: Plan) -> str:
    """Return a path as the plan writes it: relative to its folder."""
    return os.path.relpath(file.resolve(), plan.folder.resolve())


def drop_repeated(rows: Rows, kind: type[TaskKind], columns: Sequence[str]) -> Rows:
    """Keep one item of each text, and none if its labels differ: else a text would be both trained on and tested."""
    kept: dict[str, tuple[str, dict[str, Any]]] = {}
    ambiguous = set()
    for row in rows:
        key, label = json.dumps([row.get(column) for column in columns]), row.get(kind.find_label_column(row))
        # Several labels of a text have no order, but the tags of its words do.
        own = json.dumps(sorted(map(str, label)) if kind.problem_type and isinstance(label, list) else label)
        if kept.setdefault(key, (own, row))[0] != own:
            ambiguous.add(key)
    return [row for key, (_, row) in kept.items() if key not in ambiguous]
