"""The plan of a comparison: the rows to compare, the tasks that test them, and the budget. Read it and write it.

The docstring of examples/compare.py shows a complete plan. Paths are relative to the plan's folder. `pretraining`,
`fine_tuning`, `vocabulary` and `datastore` are flags of run_mlm.py, the scripts of the tasks, run_expand_vocab.py and
build_datastore.py; `null` removes a flag that the comparison would set.
"""

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, Literal

import yaml

from hf_domain.comparison.rows import RECIPES, RENAMED, Recipe
from hf_domain.extras import require
from hf_domain.methods import BASELINE
from hf_domain.safe_io import write_text
from hf_domain.tasks.files import Task, find_plan_kind
from hf_domain.tasks.kind import PLAN_KINDS
from hf_domain.training.settings import read_settings

logger = logging.getLogger(__name__)

# Refuse unknown fields, and convert no value: "5" is not a number.
STRICT: Any = {"extra": "forbid", "strict": True}
# The name of a corpus that a plan gives only as a path.
ONLY_CORPUS = "domain"
# Fields of rows in earlier versions.
RENAMED_FIELDS = {"counterpart": "control"}


@dataclass
class Corpus:
    """Text of a domain, and held-out text of the same kind."""

    __pydantic_config__ = STRICT
    train_file: str
    validation_file: str = ""
    """If empty, every twentieth document of `train_file`, drawn at random, is held out."""


@dataclass
class Row:
    """A row of the report."""

    __pydantic_config__ = STRICT
    recipe: str = ""
    """A key of `RECIPES`; default: the name of the row."""
    after: str | None = None
    """Another row whose encoder is the start, instead of the plan's encoder; default: the recipe's, if it has one."""
    encoder: str | None = None
    """A checkpoint made elsewhere that is the start, instead of the plan's encoder."""
    tasks: list[str] | None = None
    """The tasks that test it; default: all."""
    seeds: list[int] | None = None
    """Seeds of its fine-tuning; default: the plan's. A row without a pre-training of its own may have more."""
    control: str | None = None
    """The row of equal pre-training to compare it with; default: the recipe's, see `Plan.find_control`."""
    pretraining: dict[str, Any] = field(default_factory=dict)
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    datastore: dict[str, Any] = field(default_factory=dict)
    """Flags of its own datastore, such as `train_file`."""


@dataclass
class Budget:
    """The cost of each row's pre-training, in tokens or in minutes."""

    __pydantic_config__ = STRICT
    tokens: int | None = None
    minutes: float | None = None


@dataclass
class Plan:
    """A comparison; see the docstring of the module."""

    __pydantic_config__ = STRICT
    encoder: str
    corpora: dict[str, Corpus]
    tasks: dict[str, Task]
    methods: dict[str, Row]
    budget: Budget
    general: str | None = None
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    """Seeds of fine-tuning."""
    pretraining_seeds: list[int] = field(default_factory=lambda: [42])
    """Seeds of pre-training; each encoder is fine-tuned with each of `seeds`."""
    learning_rates: list[float] = field(default_factory=list)
    """Rates of fine-tuning to choose from: each row takes the best on a task's validation set, at the first seed."""
    keep_models: Literal["best", "all", "none"] = "best"
    """Which fine-tuned models are kept; best: for each task the one with the best validation score."""
    pretraining: dict[str, Any] = field(default_factory=dict)
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    vocabulary: dict[str, Any] = field(default_factory=dict)
    datastore: dict[str, Any] = field(default_factory=dict)
    path: Path = Path("plan.yaml")
    """The plan's file; its paths are relative to the folder."""

    @property
    def folder(self) -> Path:
        """The folder of the plan, where every command runs."""
        return self.path.parent

    def get_recipe(self, row: str) -> Recipe:
        """Return the recipe of a row."""
        return RECIPES[self.methods[row].recipe]

    def list_seeds(self, row: str) -> list[int]:
        """List the seeds of a row's fine-tuning."""
        return self.methods[row].seeds or self.seeds

    def list_starts(self, row: str) -> list[str]:
        """List a row and the rows that it starts from, the nearest first."""
        rows = [row]
        while (after := self.methods[rows[-1]].after) is not None:
            rows.append(after)
        return rows

    def find_control(self, row: str) -> str | None:
        """Return the row with equal pre-training costs, so that the difference shows what this one adds.

        The control of a row that trains no encoder is the row it starts from. A row that continues from another one's
        encoder has none, unless the plan names one.
        """
        options, recipe = self.methods[row], self.get_recipe(row)
        if options.control is not None or (options.after is not None and recipe.method is None):
            return options.control or options.after
        other = self.methods.get(str(recipe.control))
        has_same_start = other is not None and (other.after, other.encoder) == (options.after, options.encoder)
        return recipe.control if has_same_start else None

    def list_pairs(self) -> list[tuple[str, str]]:
        """List the comparisons of the plan: each row with its control, and with the baseline."""
        pairs = [(row, other) for row in self.methods for other in (self.find_control(row), BASELINE)]
        return [(own, other) for own, other in dict.fromkeys(pairs) if other in self.methods and own != other]

    def is_made_of_task(self, row: str) -> bool:
        """Return whether a row, or one that it starts from, trains on the text of the task."""
        return any(self.get_recipe(each).text == "task" for each in self.list_starts(row))

    def list_methods(self, task: str) -> list[str]:
        """List the rows tested on a task."""
        return [name for name, row in self.methods.items() if row.tasks is None or task in row.tasks]


def read_plan(path: str | Path) -> Plan:
    """Read a plan, and fill in what it implies; raise a ValueError that lists all fields that are wrong."""
    require("a comparison", "matplotlib", "pydantic", "scipy", "sklearn")
    from pydantic import TypeAdapter, ValidationError

    path = Path(path)
    content = read_settings(path)
    problems = expand_short_forms(content)
    drop_empty(content)
    try:
        plan = TypeAdapter(Plan).validate_json(json.dumps(content, default=str))
    except ValidationError as error:
        problems += describe_errors(content, error)
    if problems:
        refuse(path, problems)
    plan.path = path
    complete_plan(plan)
    return plan


def refuse(path: Path, problems: list[str]) -> None:
    """Raise a ValueError that lists the problems of a plan, if there are any."""
    if problems:
        lines = "\n".join(f"- {problem}" for problem in problems)
        raise ValueError(f"the plan {path} has {len(problems)} problem(s); nothing was run:\n{lines}")


def drop_empty(content: dict[Any, Any]) -> None:
    """Drop entries without a value, in place: an empty entry of YAML keeps its default, and so does an empty row."""
    for name, value in [*content.items()]:
        if value is None:
            del content[name]
    content.setdefault("budget", {})
    for section in ("corpora", "tasks", "methods"):
        entries: Any = content.setdefault(section, {})
        if not isinstance(entries, dict):  # refused later
            continue
        for name, entry in [*entries.items()]:
            if entry is None:
                entries[name] = {}
            elif isinstance(entry, dict):
                entries[name] = {field: value for field, value in entry.items() if value is not None}


def describe_errors(content: dict[Any, Any], error: Any) -> list[str]:
    """Return what a schema refuses, a sentence for each field."""
    found: dict[tuple[Any, ...], list[str]] = {}
    for each in error.errors(include_url=False):
        value, place = content, []
        for part in each["loc"]:  # a union adds the type that was tried
            if (isinstance(value, dict) and part in value) or (
                isinstance(value, list) and isinstance(part, int) and part < len(value)
            ):
                value = value[part]
            elif each["type"] != "missing":
                break
            place.append(part)
        name = ": ".join(map(str, place))
        if each["type"] == "unexpected_keyword_argument":
            text = f"{name} is not a field of a plan. Remove it, or correct its name."
        elif each["type"] == "missing":
            text = f"{name} is missing. Add it."
        elif each["type"] in ("dataclass_type", "dict_type"):
            text = f"{name} must be a mapping, but is {value}. Write name: value."
        else:
            wanted = each["msg"].removeprefix("Input should be ")
            text = f"{name} must be {wanted}, but is {value!r}. Correct it."
        found.setdefault(tuple(place), []).append(text)
    return [texts[0] for texts in found.values()]


def expand_short_forms(content: dict[Any, Any]) -> list[str]:
    """Convert the paths and lists of a short plan to named entries, and old names to new ones; return the problems.

    `corpus: corpus.txt`, `tasks: [acl_arc]` (or `task: acl_arc`) and `methods: [dapt, varmae]` become mappings, in
    place; a task is named after its folder.
    """
    problems = []
    for short, section in (("corpus", "corpora"), ("task", "tasks")):
        if short in content:
            if section in content:
                problems.append(f"{short} must not be set beside {section}, but both are set. Remove one of them.")
            content.setdefault(section, content.pop(short))
    corpora, tasks, methods = content.get("corpora"), content.get("tasks"), content.get("methods")
    content |= {"corpora": {ONLY_CORPUS: corpora}} if isinstance(corpora, str) else {}
    tasks = [tasks] if isinstance(tasks, str) else tasks
    for section, entries in (("tasks", tasks), ("methods", methods)):
        if isinstance(entries, list) and all(isinstance(entry, str) for entry in entries):
            names = [Path(entry).name for entry in entries] if section == "tasks" else entries
            if twice := sorted({name for name in names if names.count(name) > 1}):
                problems.append(
                    f"{section} must have different names, but {', '.join(twice)} occurs twice. Give each its own name."
                )
            content[section] = dict(zip(names, entries if section == "tasks" else [None] * len(names), strict=True))
    for section, path in (("corpora", "train_file"), ("tasks", "folder")):
        if isinstance(named := content.get(section), dict):
            content[section] = {name: {path: own} if isinstance(own, str) else own for name, own in named.items()}
    rename_fields(content)
    return problems


def rename_fields(content: dict[Any, Any]) -> None:
    """Replace the names that earlier versions gave to rows and their fields, in place."""
    rows = content.get("methods")
    if not isinstance(rows, dict):
        return
    content["methods"] = rows = {
        RENAMED.get(name, name) if not (isinstance(row, dict) and row.get("recipe")) else name: row
        for name, row in rows.items()
    }
    for row in rows.values():
        if not isinstance(row, dict):
            continue
        for old, new in RENAMED_FIELDS.items():
            if old in row:
                logger.warning(f"The field {old} of a plan is now called {new}")
                row.setdefault(new, row.pop(old))
        for name in ("recipe", "after", "control"):
            if isinstance(row.get(name), str):
                row[name] = RENAMED.get(row[name], row[name])


def complete_plan(plan: Plan) -> None:
    """Fill in what the plan implies: recipes from names, the rows they start from, kinds, metrics, the only corpus.

    `check_plan` reports what cannot be found.
    """
    domains = [name for name in plan.corpora if name != plan.general]
    for name, row in plan.methods.items():
        row.recipe = row.recipe or name
        recipe = RECIPES.get(row.recipe)
        if recipe is not None and row.encoder is None and recipe.after in plan.methods:
            row.after = row.after or recipe.after
    for task in plan.tasks.values():
        task.corpus = task.corpus or (domains[0] if len(domains) == 1 else "")
        if not task.kind:
            try:
                task.kind = find_plan_kind(task.get_file("train"), plan.folder)
            except ValueError:
                continue
        if task.kind in PLAN_KINDS:
            task.metric = task.metric or PLAN_KINDS[task.kind].plan_metrics[0]


def add_seeds(plan: Plan, num_seeds: int) -> None:
    """Give a plan this many seeds of fine-tuning, its own first, so that finished steps stay finished."""
    more = (seed for seed in count(1) if seed not in plan.seeds)
    while len(plan.seeds) < num_seeds:
        plan.seeds.append(next(more))
    del plan.seeds[num_seeds:]


def write_plan(content: Mapping[str, Any], path: Path) -> None:
    """Write a plan into a folder, which is made if it is missing; another plan there is kept as plan.yaml.1, .2, ..."""
    text = yaml.safe_dump(json.loads(json.dumps(content)), sort_keys=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.is_file() and (before := path.read_text(encoding="utf-8")) != text:
        kept = next(file for n in count(1) if not (file := path.with_name(f"{path.name}.{n}")).exists())
        write_text(kept, before)
        logger.warning(f"{path} is another plan now. The earlier one is {kept}.")
    write_text(path, text)
