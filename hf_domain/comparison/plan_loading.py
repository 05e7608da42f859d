"""Load a plan: read its fields from YAML, complete a short plan, make the data files it asks for; and write one."""

from dataclasses import MISSING, fields
from itertools import count
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import yaml

from hf_domain.comparison.plan import Budget, Corpus, Plan, Row
from hf_domain.comparison.plan_checks import check_plan
from hf_domain.comparison.prepared_data import prepare_data
from hf_domain.comparison.results import check_output_dir
from hf_domain.comparison.rows import RECIPES
from hf_domain.safe_io import write_text
from hf_domain.tasks.files import METRICS, Task, find_kind
from hf_domain.training.settings import has_type, read_settings

# Sections with named entries.
SECTIONS: dict[str, type] = {"corpora": Corpus, "tasks": Task, "methods": Row}
# The name of a corpus that a plan gives only as a path.
ONLY_CORPUS = "domain"


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
    path = Path(path)
    content = read_settings(path)
    problems = expand_short_forms(content)
    _check_fields(content, Plan, "the plan", problems)
    for section, kind in SECTIONS.items():
        entries = content.get(section)
        if not isinstance(entries, dict) or not entries:
            problems.append(
                f"{section} must be a mapping of names with at least one entry, but is {entries}. Add an entry."
            )
            continue
        for name, options in entries.items():
            entries[name] = _build(kind, options, f"{section}: {name}", problems)
    content["budget"] = _build(Budget, content.get("budget"), "budget", problems)
    others = {name: value for name, value in content.items() if name not in (*SECTIONS, "budget")}
    known = {item.name for item in fields(Plan)}
    _check_types({name: value for name, value in others.items() if name in known}, Plan, "the plan", problems)
    content = {name: value for name, value in content.items() if value is not None}
    if problems:
        _refuse(path, problems)
    plan = Plan(**content, path=path)
    complete_plan(plan)
    _refuse(path, check_plan(plan))
    output_dir = path.with_suffix("") if output_dir is None else output_dir
    check_output_dir(output_dir)
    prepare_data(plan, output_dir)
    return plan


def write_plan(content: dict[str, Any], path: Path) -> str:
    """Write a plan; an earlier one with other content is kept beside it under a number: plan.yaml.1, plan.yaml.2.

    Returns:
        What changed and where the earlier plan is, in one line; empty if nothing changed.
    """
    text, before = yaml.safe_dump(content, sort_keys=False), ""
    if path.is_file() and (before := path.read_text(encoding="utf-8")) == text:
        return ""
    path.parent.mkdir(parents=True, exist_ok=True)
    if not before:
        write_text(path, text)
        return ""
    kept = next(file for n in count(1) if not (file := path.with_name(f"{path.name}.{n}")).exists())
    write_text(kept, before)
    write_text(path, text)
    old = yaml.safe_load(before)
    old = old if isinstance(old, dict) else {}
    names = [name for name in {**old, **content} if old.get(name) != content.get(name)]
    changes = "; ".join(f"{name} was {old.get(name)}, is {content.get(name)}" for name in names)
    return f"The plan changed, the earlier one is {kept}: {changes or 'only its layout'}"


def expand_short_forms(content: dict[Any, Any]) -> list[str]:
    """Convert the paths and lists of a short plan to named entries, in place.

    `corpus: corpus.txt`, `tasks: [acl_arc, scicite]` (or `task: acl_arc`) and `methods: [dapt, varmae]` become
    mappings; a task is named after its folder.

    Returns:
        The problems.
    """
    problems = []
    for short, section in (("corpus", "corpora"), ("task", "tasks")):
        if short in content:
            if section in content:
                problems.append(f"{short} must not be set beside {section}, but both are set. Remove one of them.")
            content.setdefault(section, content.pop(short))
    corpora, tasks, methods = (content.get(section) for section in SECTIONS)
    if isinstance(corpora, str):
        content["corpora"] = corpora = {ONLY_CORPUS: corpora}
    if isinstance(corpora, dict):
        content["corpora"] = {
            name: {"train_file": entry} if isinstance(entry, str) else entry for name, entry in corpora.items()
        }
    tasks = [tasks] if isinstance(tasks, str) else tasks
    for section, entries in (("tasks", tasks), ("methods", methods)):
        if isinstance(entries, list) and all(isinstance(entry, str) for entry in entries):
            names = [Path(entry).name for entry in entries] if section == "tasks" else entries
            if twice := sorted({name for name in names if names.count(name) > 1}):
                problems.append(
                    f"{section} must have different names, but {', '.join(twice)} occurs twice. Give each its own name."
                )
            content[section] = dict(zip(names, entries if section == "tasks" else [None] * len(names), strict=True))
    if isinstance(content.get("tasks"), dict):
        content["tasks"] = {
            name: {"folder": entry} if isinstance(entry, str) else entry for name, entry in content["tasks"].items()
        }
    return problems


def complete_plan(plan: Plan) -> None:
    """Fill in what the plan implies: recipes from names, the rows they start from, kinds, metrics, the only corpus.

    `check_plan` reports what cannot be found.
    """
    domains = [name for name in plan.corpora if name != plan.general]
    for name, method in plan.methods.items():
        method.recipe = method.recipe or name
        recipe = RECIPES.get(method.recipe)
        if recipe is not None and method.encoder is None and recipe.after in plan.methods:
            method.after = method.after or recipe.after
    for task in plan.tasks.values():
        task.corpus = task.corpus or (domains[0] if len(domains) == 1 else "")
        if not task.kind:
            try:
                task.kind = find_kind(task.get_file("train"), plan.folder)  # type: ignore[assignment]
            except ValueError:
                continue
        task.metric = task.metric or METRICS.get(task.kind, ("",))[0]


def _build(kind: type, options: Any, where: str, problems: list[str]) -> Any:
    options = {} if options is None else options
    if not isinstance(options, dict):
        problems.append(f"{where} must be a mapping, but is {options}. Write name: value.")
        return None
    right = _check_fields(options, kind, where, problems)
    return kind(**options) if right and _check_types(options, kind, where, problems) else None


def _check_types(options: dict[str, Any], kind: type, where: str, problems: list[str]) -> bool:
    """Add values of a wrong type to the problems; an empty entry of YAML keeps its default."""
    types = get_type_hints(kind)
    for name in [name for name, value in options.items() if value is None]:
        del options[name]
    wrong = [
        f"{where}: {name} must be of the type "
        f"{types[name] if get_args(types[name]) else types[name].__name__}, but is {value!r}. Correct it."
        for name, value in options.items()
        if not has_type(value, types[name]) and get_origin(types[name]) is not Literal
    ]
    problems += wrong
    return not wrong


def _check_fields(options: dict[str, Any], kind: type, where: str, problems: list[str]) -> bool:
    """Add unknown or missing fields to the problems; return whether there are none."""
    known = {item.name: item.default is MISSING and item.default_factory is MISSING for item in fields(kind)}
    wrong = [f"{where} has no field {name}. Use one of {', '.join(known)}." for name in options if name not in known]
    wrong += [
        f"{where} lacks {name}" for name, is_required in known.items() if is_required and options.get(name) is None
    ]
    problems += wrong
    return not wrong


def _refuse(path: Path, problems: list[str]) -> None:
    if problems:
        lines = "\n".join(f"- {problem}" for problem in problems)
        raise ValueError(f"the plan {path} has {len(problems)} problem(s); nothing was run:\n{lines}")
