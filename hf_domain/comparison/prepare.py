"""Load a plan, and make the data that it leaves to be made.

That is held-out text of a corpus, the folds of a task, and a corpus without their items. The names of the files hold a
digest of their sources, so that results of earlier files are recognized.
"""

import hashlib
import json
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset, DatasetDict

from hf_domain.comparison.checks import check_plan
from hf_domain.comparison.plan import Corpus, Plan, read_plan, refuse
from hf_domain.comparison.results import check_output_dir
from hf_domain.data.columns import find_text_columns
from hf_domain.data.corpora import load_corpus
from hf_domain.data.decontamination import find_clean
from hf_domain.data.files import SPLITS, load_table
from hf_domain.data.json_lines import read_rows
from hf_domain.data.objects import write_files
from hf_domain.safe_io import fingerprint_files, write_json, write_whole
from hf_domain.tasks.files import (
    KIND_CLASSES,
    TEXTS,
    Task,
    check_task_files,
    find_texts,
    get_label,
    get_text,
    name_label_column,
)
from hf_domain.tasks.kind import find_kind
from hf_domain.tasks.labels import name_multi_hot
from hf_domain.tasks.scores import read_examples

logger = logging.getLogger(__name__)

# Of the documents, where a plan names no held-out text.
HELD_OUT_PERCENTAGE = 5
FOLDER = "data"
# What was left out of the items of a task with folds.
COUNTS = "counts.json"
# In each fold, every tenth of the other items is for validation.
VALIDATION_SHARE = 10
SEED = 0

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
    name = next(name for name, own in KIND_CLASSES.items() if own is kind)
    columns = TEXTS.get(name) or find_text_columns(table, label_column=name_label_column(name, table[0]))
    kept = drop_repeated([*table], name, columns)
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
        ValueError: The items of a task do not fill its folds, or nothing is left of a corpus.
    """
    folder = output_dir / FOLDER
    for name, task in plan.tasks.items():
        if task.kind == "multi_label":
            name_labels(name, task, plan, folder)
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
            write_rows(files[split], ({"text": row["text"]} for row in documents))
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
        write_rows(file, ({"text": row["text"]} for row in documents.select(clean)))
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
                write_rows(made / f"fold{number}" / f"{split}.jsonl", examples)
            files = {split: f"fold{number}/{split}.jsonl" for split in SPLITS}
            if problems := check_task_files(task.kind, files, made, names):
                raise ValueError(
                    f"tasks: {name}: each of {task.folds} folds must have what training and testing need, but not all "
                    f"do: {' '.join(problems)} Or use fewer folds."
                )
        write_json(made / COUNTS, {"items": len(kept), "left out": len(rows) - len(kept)})
        logger.warning(f"{name}: {len(kept)} of {len(rows)} items are tested; the others repeat a text")
    task.folder = localize(made, plan)


def write_rows(file: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Write rows as JSON lines."""
    file.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(file) as unfinished, unfinished.open("w", encoding="utf-8") as lines:
        lines.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def localize(file: Path, plan: Plan) -> str:
    """Return a path as the plan writes it: relative to its folder."""
    return os.path.relpath(file.resolve(), plan.folder.resolve())


# ---------------------------------------------------------------------------------------------------------- folds


def drop_repeated(rows: Rows, kind: str, columns: Sequence[str]) -> Rows:
    """Keep one item of each text, and none if its labels differ: else a text would be both trained on and tested."""
    kept: dict[str, dict[str, Any]] = {}
    ambiguous = set()
    for row in rows:
        key = json.dumps([row.get(column) for column in columns])
        first = kept.setdefault(key, row)
        if _name_label(kind, first) != _name_label(kind, row):
            ambiguous.add(key)
    return [row for key, row in kept.items() if key not in ambiguous]


def _name_label(kind: str, row: dict[str, Any]) -> str:
    label: Any = {"ner": row.get("tags"), "qa": row.get("answers")}.get(kind, get_label(kind, row))
    is_set = kind not in ("ner", "qa") and isinstance(label, list)
    return json.dumps(sorted(map(str, label)) if is_set else label)


def find_strata(rows: Rows, kind: str, folds: int) -> list[str]:
    """Return for each item the label by which items are spread evenly; "" for named entities, questions and values.

    With several labels it is the rarest that is frequent enough.
    """
    if kind not in ("classification", "multi_label"):
        return [""] * len(rows)
    labels = [get_label(kind, row) for row in rows]
    names = [list(map(str, label if isinstance(label, list) else [label])) for label in labels]
    counts = Counter(chain.from_iterable(names))
    rarest = [min(row, key=lambda name: (counts[name], name), default="") for row in names]
    sizes = Counter(rarest)
    usual = sizes.most_common(1)[0][0]
    return [name if sizes[name] >= folds else usual for name in rarest]


def split_folds(rows: Rows, kind: str, folds: int) -> list[dict[str, Rows]]:
    """Return `train`, `validation` and `test` for each fold; each item is in one test split.

    Questions on one context stay together, and labels are spread evenly. No text may be repeated, see `drop_repeated`.
    """
    from sklearn.model_selection import GroupKFold, StratifiedKFold

    strata = np.array(find_strata(rows, kind, folds))
    contexts = np.array([row["context"] if kind == "qa" else str(number) for number, row in enumerate(rows)])
    spread = GroupKFold(folds) if kind == "qa" else StratifiedKFold(folds, shuffle=True, random_state=SEED)
    result = []
    for rest, test in spread.split(rows, strata, contexts if kind == "qa" else None):
        groups: dict[str, dict[str, None]] = defaultdict(dict)  # ordered sets
        for number in np.random.default_rng(SEED).permutation(rest):
            groups[strata[number]][contexts[number]] = None
        chosen = slice(VALIDATION_SHARE // 2, None, VALIDATION_SHARE)
        held_out = set(chain.from_iterable(list(names)[chosen] for names in groups.values()))
        parts = {
            "train": [number for number in rest if contexts[number] not in held_out],
            "validation": [number for number in rest if contexts[number] in held_out],
            "test": test,
        }
        result.append({split: [rows[number] for number in sorted(numbers)] for split, numbers in parts.items()})
    return result
