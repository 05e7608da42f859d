"""Data that a plan leaves to be made: held-out text of a corpus, the folds of a task, a corpus without their items.

The names of the files hold a digest of their sources, so that results of earlier files are recognized.
"""

import hashlib
import json
import logging
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from hf_domain.comparison.folds import drop_repeated, split_folds
from hf_domain.comparison.plan import Corpus, Plan
from hf_domain.data.corpora import load_corpus
from hf_domain.data.decontamination import find_clean
from hf_domain.data.files import SPLITS
from hf_domain.safe_io import fingerprint_files, write_json, write_text, write_whole
from hf_domain.tasks.files import Task, check_task_files, find_texts, get_text, read_rows

logger = logging.getLogger(__name__)

# Of the documents, where a plan names no held-out text.
HELD_OUT_PERCENTAGE = 5
FOLDER = "data"
# What was left out of the items of a task with folds.
COUNTS = "counts.json"


def prepare_data(plan: Plan, output_dir: Path) -> None:
    """Make what is not there yet, and let the plan name it.

    Args:
        plan: Checked.
        output_dir: Output folder of the comparison; the files are made in its folder `data`.

    Raises:
        ValueError: The items of a task do not fill its folds, or nothing is left of a corpus.
    """
    folder = output_dir / FOLDER
    folded = {name: collect_items(name, task, plan) for name, task in plan.tasks.items() if task.folds is not None}
    for name, corpus in plan.corpora.items():
        if not corpus.validation_file:
            hold_out(name, corpus, plan, folder)
    for name, corpus in plan.corpora.items():
        read = [items for task, items in folded.items() if name in (plan.tasks[task].corpus, plan.general)]
        if read:
            texts = [get_text(row.get(column)) for items in read for row in items.rows for column in items.columns]
            drop_items(name, corpus, texts, plan, folder)
    for name, items in folded.items():
        make_folds(name, items, plan, folder)


@dataclass(frozen=True)
class Items:
    """The items of all files of a task, and which columns hold their texts."""

    rows: list[dict[str, Any]]
    columns: list[str]


def collect_items(name: str, task: Task, plan: Plan) -> Items:
    """Read the items of a task.

    Raises:
        ValueError: There are fewer than folds.
    """
    files = [file for split in SPLITS if (plan.folder / (file := task.get_file(split))).is_file()]
    rows = [row for file in files for _, row in read_rows(file, plan.folder)]
    columns = find_texts(task.kind, files[0], plan.folder, task.options.get("text_column_names"))
    count = len(drop_repeated(rows, task.kind, columns))
    if count < (task.folds or 0):
        raise ValueError(
            f"tasks: {name}: folds must be at most the number of items whose labels agree, {count}, but is "
            f"{task.folds}. Lower it, or add items."
        )
    return Items(rows, columns)


def hold_out(name: str, corpus: Corpus, plan: Plan, folder: Path) -> None:
    """Split a corpus into text to train on and text to measure the masked-LM loss on."""
    source = plan.folder / corpus.train_file
    prefix = f"{name}-{fingerprint_files([source])[:8]}"
    files = {split: folder / f"{prefix}-{split}.jsonl" for split in ("train", "validation")}
    if not all(file.is_file() for file in files.values()):
        for split, documents in load_corpus(str(source), validation_split_percentage=HELD_OUT_PERCENTAGE).items():
            write_documents(files[split], documents)
    corpus.train_file, corpus.validation_file = (localize(file, plan) for file in files.values())


def drop_items(name: str, corpus: Corpus, items: list[str], plan: Plan, folder: Path) -> None:
    """Drop the documents that share ten running words with an item of tasks that are tested on all of their items.

    Raises:
        ValueError: Nothing is left.
    """
    source = plan.folder / corpus.train_file
    digest = hashlib.sha256(json.dumps([fingerprint_files([source]), sorted(items)]).encode()).hexdigest()
    file = folder / f"{name}-{digest[:8]}-without-items.jsonl"
    if not file.is_file():
        documents = load_corpus(str(source), validation_split_percentage=0)["train"]
        clean = find_clean((row["text"] for row in documents), items)
        if not clean:
            raise ValueError(
                f"corpora: {name}: a corpus must hold documents without ten running words of a task with folds, but "
                f"all {len(documents)} share some. Use another corpus, or leave folds out."
            )
        dropped = len(documents) - len(clean)
        logger.warning(f"{name}: {dropped} of {len(documents)} documents share ten running words with items: left out")
        write_documents(file, documents.select(clean))
    corpus.train_file = localize(file, plan)


def make_folds(name: str, items: Items, plan: Plan, folder: Path) -> None:
    """Write the folds of a task, and let the task name them.

    Raises:
        ValueError: A fold lacks examples, such as training examples of a label.
    """
    task, rows = plan.tasks[name], items.rows
    assert task.folds is not None
    names = task.options.get("text_column_names")
    digest = hashlib.sha256(json.dumps([rows, task.kind, names, task.folds], sort_keys=True).encode()).hexdigest()
    made = folder / f"{name}-{digest[:8]}"
    if not (made / COUNTS).is_file():
        kept = drop_repeated(rows, task.kind, items.columns)
        for number, parts in enumerate(split_folds(kept, task.kind, task.folds), start=1):
            for split, examples in parts.items():
                (made / f"fold{number}").mkdir(parents=True, exist_ok=True)
                lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in examples)
                write_text(made / f"fold{number}" / f"{split}.jsonl", "".join(lines))
            files = {split: f"fold{number}/{split}.jsonl" for split in SPLITS}
            if problems := check_task_files(task.kind, files, made, names):
                raise ValueError(
                    f"tasks: {name}: each of {task.folds} folds must have what training and testing need, but not all "
                    f"do: {' '.join(problems)} Or use fewer folds."
                )
        write_json(made / COUNTS, {"items": len(kept), "left out": len(rows) - len(kept)})
        logger.warning(f"{name}: {len(kept)} of {len(rows)} items are tested; the others repeat a text")
    task.folder = localize(made, plan)


def write_documents(file: Path, documents: Dataset) -> None:
    """Write documents as JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(file) as unfinished, unfinished.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": row["text"]}, ensure_ascii=False) + "\n" for row in documents)


def localize(file: Path, plan: Plan) -> str:
    """Return a path as the plan writes it: relative to its folder."""
    return os.path.relpath(file.resolve(), plan.folder.resolve())
