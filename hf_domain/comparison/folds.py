"""Cross-validation: test every item of a task once, with a model that was not trained on it."""

import json
import logging
from collections import Counter, defaultdict
from collections.abc import Sequence
from itertools import chain
from typing import Any

import numpy as np

from hf_domain.tasks.files import get_label

logger = logging.getLogger(__name__)

# In each fold, every tenth of the other items is for validation.
VALIDATION_SHARE = 10
SEED = 0

Rows = list[dict[str, Any]]


def drop_repeated(rows: Rows, kind: str, columns: Sequence[str]) -> Rows:
    """Keep one item of each text, and none if its labels differ: a repeated text would be both trained on and tested.

    Args:
        rows: All items of a task.
        kind: Kind of the task.
        columns: Columns of text.
    """
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
    return json.dumps(sorted(map(str, label)) if kind == "multi_label" else label)


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

    Questions on one context stay together, and labels are spread evenly.

    Args:
        rows: The items; see `drop_repeated`.
        kind: Kind of the task.
        folds: Number of folds.
    """
    from sklearn.model_selection import GroupKFold, StratifiedKFold

    strata = np.array(find_strata(rows, kind, folds))
    contexts = np.array([row["context"] if kind == "qa" else str(number) for number, row in enumerate(rows)])
    if kind == "qa":
        tests = [test for _, test in GroupKFold(folds).split(rows, groups=contexts)]
    else:
        tests = [test for _, test in StratifiedKFold(folds, shuffle=True, random_state=SEED).split(rows, strata)]
    result = []
    for test in tests:
        rest = np.setdiff1d(np.arange(len(rows)), test)
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
