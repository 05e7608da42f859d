"""Data that a plan leaves to be made: held-out text of a corpus, the folds of a task, a corpus without their items.

The names of the files hold a digest of their sources, so that results of earlier files are recognized.
"""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from datasets import Dataset

from hf_domain.comparison.folds import drop_repeated, split_folds
from hf_domain.comparison.plan import SPLITS, Corpus, Plan, Task
from hf_domain.comparison.task_files import check_task_files, find_texts, join_words, read_rows
from hf_domain.data.corpora import load_corpus
from hf_domain.data.decontamination import find_clean
from hf_domain.files import fingerprint_files, write_json, write_text, write_whole

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
        output_dir: Of the comparison; the files are made in its folder `data`.

    Raises:
        ValueError: The items of a task do not fill its folds, or nothing is left of a corpus.
    """
    folder = output_dir / FOLDER
    for name, corpus in plan.corpora.items():
        if not corpus.validation_file:
            hold_out(name, corpus, plan, folder)
    for name, corpus in plan.corpora.items():
        readers = [
            task for task in plan.tasks.values() if task.folds is not None and name in (task.corpus, plan.general)
        ]
        if readers:
            drop_items(name, corpus, readers, plan, folder)
    for name, task in plan.tasks.items():
        if task.folds is not None:
            make_folds(name, task, plan, folder)


def hold_out(name: str, corpus: Corpus, plan: Plan, folder: Path) -> None:
    """Split a corpus into text to train on and text to measure the masked-LM loss on."""
    source = plan.folder / corpus.train_file
    prefix = f"{name}-{fingerprint_files([source])[:8]}"
    files = {split: folder / f"{prefix}-{split}.jsonl" for split in ("train", "validation")}
    if not all(file.is_file() for file in files.values()):
        for split, documents in load_corpus(str(source), validation_split_percentage=HELD_OUT_PERCENTAGE).items():
            write_documents(files[split], documents)
    corpus.train_file, corpus.validation_file = (localize(file, plan) for file in files.values())


def drop_items(name: str, corpus: Corpus, tasks: Iterable[Task], plan: Plan, folder: Path) -> None:
    """Drop the documents that share ten running words with an item of tasks that are tested on all of their items.

    Raises:
        ValueError: Nothing is left.
    """
    source, items = plan.folder / corpus.train_file, [text for task in tasks for text in read_items(task, plan)]
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


def read_items(task: Task, plan: Plan) -> Iterator[str]:
    """Yield every text of a task."""
    files = [task.get_file(split) for split in SPLITS]
    columns = find_texts(task.kind, files[0], plan.folder, task.options.get("text_column_names"))
    for file in files:
        if (plan.folder / file).is_file():
            for _, row in read_rows(file, plan.folder):
                yield from (join_words(row.get(column)) for column in columns)


def make_folds(name: str, task: Task, plan: Plan, folder: Path) -> None:
    """Write the folds of a task, over the items of all its files, and let the task name them.

    Raises:
        ValueError: A fold lacks examples, such as training examples of a label.
    """
    assert task.folds is not None
    sources = [file for split in SPLITS if (plan.folder / (file := task.get_file(split))).is_file()]
    rows = [row for file in sources for _, row in read_rows(file, plan.folder)]
    names = task.options.get("text_column_names")
    digest = hashlib.sha256(json.dumps([rows, task.kind, names, task.folds], sort_keys=True).encode()).hexdigest()
    made = folder / f"{name}-{digest[:8]}"
    if not (made / COUNTS).is_file():
        columns = find_texts(task.kind, sources[0], plan.folder, names)
        items = drop_repeated(rows, task.kind, columns)
        if len(items) < task.folds:
            raise ValueError(
                f"tasks: {name}: folds must be at most the number of items whose labels agree, {len(items)}, but is "
                f"{task.folds}. Lower it, or add items."
            )
        for number, parts in enumerate(split_folds(items, task.kind, task.folds), start=1):
            for split, examples in parts.items():
                (made / f"fold{number}").mkdir(parents=True, exist_ok=True)
                lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in examples)
                write_text(made / f"fold{number}" / f"{split}.jsonl", "".join(lines))
            files = {split: f"fold{number}/{split}.jsonl" for split in SPLITS}
            if problems := check_task_files(task.kind, files, made, names):
                raise ValueError(
                    f"tasks: {name}: {task.folds} folds must have what training and testing need, but "
                    f"{'; '.join(problems)}. Lower folds, or drop rare labels."
                )
        write_json(made / COUNTS, {"items": len(items), "left out": len(rows) - len(items)})
        logger.warning(f"{name}: {len(items)} of {len(rows)} items are tested; the others repeat a text")
    task.folder = localize(made, plan)


def write_documents(file: Path, documents: Dataset) -> None:
    """Write documents as JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(file) as unfinished, unfinished.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": row["text"]}, ensure_ascii=False) + "\n" for row in documents)


def localize(file: Path, plan: Plan) -> str:
    """Return a path as the plan writes it: relative to its folder."""
    return os.path.relpath(file.resolve(), plan.folder.resolve())
