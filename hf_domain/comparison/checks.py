"""Check a plan, its rows, the flags of its steps and its encoders before the first run."""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, NoReturn

from transformers import MODEL_FOR_MASKED_LM_MAPPING, AutoConfig, AutoTokenizer

from hf_domain.cli import import_command
from hf_domain.comparison.plan import Corpus, Plan, Row
from hf_domain.comparison.rows import RECIPES, explain_recipe
from hf_domain.comparison.steps import ROOT, Step
from hf_domain.data.corpora import check_length
from hf_domain.data.csv_files import drop_packing
from hf_domain.data.files import BUILDERS, SPLITS, check_held_out, find_files
from hf_domain.datastore.elasticsearch_index import PACKAGES
from hf_domain.extras import explain_missing
from hf_domain.hub import is_hub_id
from hf_domain.safe_io import is_url
from hf_domain.tasks.files import Task, check_task_files, find_plan_kind
from hf_domain.tasks.kind import PLAN_KINDS
from hf_domain.training.arguments import ScriptParser, find_damage, find_wrong_values

# Flags that a comparison sets itself, or that change what it counts or scores.
FIXED_FLAGS = {
    "pretraining": {"method", "model_name_or_path", "validation_file", "do_train", "max_steps", "seed", "output_dir"},
    "fine_tuning": {
        *("model_name_or_path", "train_file", "validation_file", "test_file", "dataset_name", "do_train", "do_predict"),
        *("seed", "output_dir", "label_column_name", "do_regression", "multi_label"),
        *("memory_name_or_path", "memory_cache", "passage_cache"),
    },
    "vocabulary": {"model_name_or_path", "counts_file", "output_dir"},
    "datastore": {"model_name_or_path", "output_dir"},
}
# The same in a row: rows are compared example by example.
SHARED_FLAGS = {"max_eval_samples", "max_predict_samples"}
# Anybody may have written a plan, so only the command line can trust code or publish.
UNSAFE_FLAGS = {"trust_remote_code", "push_to_hub"}
COUNTED = ("per_device_train_batch_size", "max_seq_length", "gradient_accumulation_steps")


def check_plan(plan: Plan) -> list[str]:
    """List all problems of a plan, before the first run."""
    problems = _check_encoder(plan) + _check_numbers(plan) + _check_names(plan)
    problems += _check_flags(plan) + _check_files(plan)
    if plan.general is not None and plan.general not in plan.corpora:
        problems.append(
            f"general must be one of the corpora {', '.join(plan.corpora)}, but is {plan.general}. Name one of them."
        )
    for name, corpus in plan.corpora.items():
        problems += [f"corpora: {name}: {problem}" for problem in _check_corpus(corpus, plan)]
    for name, task in plan.tasks.items():
        problems += [f"tasks: {name}: {problem}" for problem in _check_task(task, plan)]
    for name, method in plan.methods.items():
        problems += [f"methods: {name}: {problem}" for problem in check_row(method, plan)]
    return problems


def _check_names(plan: Plan) -> list[str]:
    problems = []
    for section, entries in (("corpora", plan.corpora), ("tasks", plan.tasks), ("methods", plan.methods)):
        if not entries:
            problems.append(f"{section} must have at least one entry, but has none. Add one.")
        problems += [
            f"names must consist of letters, digits, _ and -, because they name folders, but one is {name}. Rename it."
            for name in entries
            if not re.fullmatch(r"[\w-]+", name)
        ]
    if shared := sorted(plan.corpora.keys() & plan.tasks.keys()):
        problems.append(f"tasks and corpora must have different names, but share {', '.join(shared)}. Rename one.")
    return problems


def _check_encoder(plan: Plan) -> list[str]:
    if damage := find_damage(plan.encoder, plan.folder):
        return [f"encoder: {damage}"]
    folder = plan.folder / plan.encoder
    files = chain.from_iterable(map(folder.glob, ("tokenizer*.json", "vocab*", "*.model")))
    if not folder.is_dir() or any(files) or "tokenizer_name" in plan.pretraining:
        return []
    return [
        f"encoder: the folder of an encoder must contain a tokenizer, but {plan.encoder} has none. Save it there, or "
        "name one with pretraining: tokenizer_name."
    ]


def _check_numbers(plan: Plan) -> list[str]:
    """List the problems of budget, seeds and rates."""
    problems = _check_budget(plan)
    lists = {"seeds": plan.seeds, "pretraining_seeds": plan.pretraining_seeds}
    lists |= {f"seeds of {name}": row.seeds for name, row in plan.methods.items() if row.seeds is not None}
    for name, seeds in lists.items():
        if not seeds or len(set(seeds)) < len(seeds):
            problems.append(f"{name} must be different numbers, but are {seeds}. Correct the list.")
    wrong = find_wrong_values({"seed": [*chain.from_iterable(lists.values())], "learning_rate": plan.learning_rates})
    problems += [problem.removeprefix("--") for problem in wrong]
    if len(set(plan.learning_rates)) < len(plan.learning_rates) or len(plan.learning_rates) == 1:
        problems.append(
            f"learning_rates must be at least two different numbers, but are {plan.learning_rates}. Add another, or "
            "set learning_rate in fine_tuning."
        )
    given = [plan.fine_tuning, *(task.options for task in plan.tasks.values())]
    given += [row.fine_tuning for row in plan.methods.values()]
    if plan.learning_rates and any("learning_rate" in flags for flags in given):
        problems.append("learning_rate must not be set beside learning_rates, which tries several. Remove one of them.")
    return problems


def _check_budget(plan: Plan) -> list[str]:
    budget, problems = plan.budget, []
    trainings = [plan.pretraining, *(row.pretraining for row in plan.methods.values())]
    if (budget.tokens is None) == (budget.minutes is None):
        found = "neither" if budget.tokens is None else "both"
        problems.append(f"budget must have either tokens or minutes, but has {found}. Set one of them.")
    elif not 0 < (amount := budget.tokens or budget.minutes or 0) < math.inf:
        problems.append(f"budget must be above 0 and finite, but is {amount}. Set a larger one.")
    if budget.tokens is not None and any(flags.get("line_by_line") not in (None, False) for flags in trainings):
        problems.append(
            "a token budget needs packed blocks, but line_by_line is set. Remove it, or set the budget in minutes."
        )
    return problems


def _check_flags(plan: Plan) -> list[str]:
    """List flags that no plan can have; `check_step_flags` tests the others once there are steps."""
    groups = [(kind, "", getattr(plan, kind), FIXED_FLAGS[kind]) for kind in FIXED_FLAGS]
    of_task = FIXED_FLAGS["fine_tuning"]
    groups += [("fine_tuning", f"tasks: {name}: ", task.options, of_task) for name, task in plan.tasks.items()]
    for name, row in plan.methods.items():
        for kind in ("pretraining", "fine_tuning", "datastore"):
            fixed = FIXED_FLAGS[kind] | (SHARED_FLAGS if kind == "fine_tuning" else set())
            groups.append((kind, f"methods: {name}: ", getattr(row, kind), fixed))
    problems = []
    for kind, where, flags, fixed in groups:
        # Scripts parse values that are texts, except for those that this code counts with before.
        values = {name: value for name, value in flags.items() if name in COUNTED or not isinstance(value, str)}
        found = find_wrong_values(values)
        # With another spelling, a flag would reach the script but not the code here that counts tokens and examples.
        if wrong := [name for name in flags if not (isinstance(name, str) and name.isidentifier())]:
            listed = ", ".join(map(str, wrong))
            found.append(f"flags must be written with _ and without --, but there is {listed}. Rewrite it.")
        if given := sorted(fixed & flags.keys()):
            found.append(f"{', '.join(given)} must be left out, because the comparison sets it or all rows share it.")
        names = sorted(map(str, flags))
        if unsafe := [name for name in names if name in UNSAFE_FLAGS or name.startswith("hub_")]:
            found.append(f"a plan must not run code of others or publish, but sets {', '.join(unsafe)}. Remove it.")
        if any(name.endswith("token") for name in names):
            found.append("a plan must not contain a Hub token, because results would publish it. Set HF_TOKEN.")
        if kind == "fine_tuning" and not where.startswith("tasks") and "text_column_names" in flags:
            found.append("text_column_names must be set in the options of a task. Move it there.")
        problems += [f"{where}{kind}: {problem}" for problem in found]
    if "train_file" in plan.pretraining:
        problems.append(
            "pretraining: train_file must be set in one method, because here it would replace the text of all, TAPT "
            "included. Move it to `methods`."
        )
    return problems


def _check_files(plan: Plan) -> list[str]:
    """List the texts that flags name but that do not exist: the step that reads one may come hours after the first."""
    kinds = ("pretraining", "datastore")
    groups = {kind: getattr(plan, kind) for kind in kinds}
    groups |= {f"methods: {name}: {kind}": getattr(row, kind) for name, row in plan.methods.items() for kind in kinds}
    made = {flags.get("held_out_file") for flags in groups.values()}
    problems = []
    for where, flags in groups.items():
        for flag in ("train_file", "mix"):
            named = flags.get(flag) or []
            for name in named if isinstance(named, list) else [named]:
                file = str(name).rpartition(":")[0] if flag == "mix" else str(name)
                if file in made or is_url(file):
                    continue
                try:
                    find_files(str(plan.folder / file))
                except FileNotFoundError:
                    problems.append(f"{where}: {flag} must name a file, but there is no {file}. Correct the path.")
    return problems


def _check_corpus(corpus: Corpus, plan: Plan) -> list[str]:
    problems = []
    for file in filter(None, (corpus.train_file, corpus.validation_file)):
        if not (plan.folder / file).is_file():
            problems.append(f"there is no file {file}")
        if Path(drop_packing(file)).suffix not in BUILDERS:
            problems.append(f"a corpus must be a file of {' '.join(BUILDERS)} (.gz, .zst), but is {file}. Convert it.")
    held_out = {"validation_file": str(plan.folder / corpus.validation_file)} if corpus.validation_file else {}
    try:
        check_held_out(str(plan.folder / corpus.train_file), held_out)
    except ValueError as error:
        problems.append(str(error))
    return problems


def _check_task(task: Task, plan: Plan) -> list[str]:
    problems = []
    if task.corpus not in plan.corpora:
        corpora = ", ".join(plan.corpora)
        wrong = f"corpus must be one of {corpora}, but is {task.corpus}. Name one of them."
        missing = f"corpus must be set, because the plan has several: {corpora}. Name one of them."
        problems.append(wrong if task.corpus else missing)
    if not task.kind:
        try:
            find_plan_kind(task.get_file("train"), plan.folder)
        except ValueError as error:
            return [*problems, str(error)]
    if task.kind not in PLAN_KINDS:
        return [*problems, f"kind must be one of {', '.join(PLAN_KINDS)}, but is {task.kind}. Set one of them."]
    if task.metric not in (known := PLAN_KINDS[task.kind].plan_metrics):
        problems.append(
            f"metric must be one of {', '.join(known)} for {task.kind}, but is {task.metric}. Set one of them."
        )
    if task.metric == "positive_micro_f1" and "negative_labels" not in task.options:
        problems.append(
            "metric positive_micro_f1 needs negative_labels, but the options have none. Add options: {negative_labels: "
            "...}."
        )
    names = task.options.get("text_column_names")
    if not isinstance(names, str | None):
        return [*problems, f"text_column_names must be text such as one,two, but is {names}. Write it as text."]
    files = {split: task.get_file(split) for split in SPLITS}
    return problems + check_task_files(task.kind, files, plan.folder, names)


# ---- rows


def check_row(method: Row, plan: Plan) -> list[str]:
    """List all problems of a row."""
    if (wrong := explain_recipe(method.recipe)) is not None:
        return [wrong]
    problems, recipe, name = [], RECIPES[method.recipe], method.recipe
    if recipe.text == "general" and plan.general is None:
        problems.append(f"{name} needs general text, but `general` is not set. Name one of the corpora there.")
    if recipe.after is not None and method.after is None:
        problems.append(
            f"{name} needs a method to start from, but the default, {recipe.after}, is not in the plan. Add it, or "
            "name another method in `after`."
        )
    if recipe.method is None and method.pretraining:
        problems.append(
            f"pretraining must be left out, because {name} does not pre-train, but is {method.pretraining}."
        )
    if method.datastore and not recipe.reads_datastore:
        problems.append(f"datastore must be left out, because {name} reads no passages, but is {method.datastore}.")
    trainings = (plan.pretraining, plan.fine_tuning, method.pretraining, method.fine_tuning)
    if recipe.reads_datastore and any("datastore" in flags for flags in trainings):
        problems.append(
            f"the flag datastore must be left out, because the comparison builds a datastore for {name}. Set its "
            "options in `datastore`."
        )
    return problems + _check_tasks(method, plan) + _check_chain(method, plan)


def _check_tasks(method: Row, plan: Plan) -> list[str]:
    """List problems of the tasks of a row."""
    name, recipe, problems = method.recipe, RECIPES[method.recipe], []
    tasks = [*plan.tasks] if method.tasks is None else method.tasks
    if unknown := [task for task in tasks if task not in plan.tasks]:
        problems.append(
            f"tasks must be among {', '.join(plan.tasks)}, but there is {', '.join(unknown)}. Correct the list."
        )
    known = [plan.tasks[task] for task in tasks if task in plan.tasks]
    voting = [kind for kind, own in PLAN_KINDS.items() if own.problem_type]
    unfit = {task.kind for task in known if task.kind in PLAN_KINDS} - {*voting}
    if unfit and recipe.fine_tuning.get("nearest_vote"):
        problems.append(
            f"{name} needs tasks of the kinds {', '.join(voting)}, but has {', '.join(sorted(unfit))}. Name others in "
            "`tasks`."
        )
    flags = [plan.fine_tuning, recipe.fine_tuning, method.fine_tuning, *(task.options for task in known)]
    searches = {"nearest_vote": "tantivy"} if any(group.get("nearest_vote") for group in flags) else {}
    if recipe.reads_datastore:
        engine = (plan.datastore | method.datastore).get("engine")
        searches[f"the datastore of {name}"] = PACKAGES.get(str(engine), "tantivy")
    return problems + [missing for search in searches.items() if (missing := explain_missing(*search))]


def _check_chain(method: Row, plan: Plan) -> list[str]:
    """List the problems of the start of a row, and of its control."""
    if method.encoder is not None and method.after is not None:
        return [
            f"only one of encoder and after must be set, but they are {method.encoder} and {method.after}. Remove one."
        ]
    if (encoder := method.encoder) and not is_hub_id(encoder, plan.folder) and not (plan.folder / encoder).is_dir():
        return [f"encoder: there is no folder {encoder}"]
    if method.control is not None and method.control not in plan.methods:
        return [f"control must be one of the methods, but is {method.control}. Name one of them."]
    rows, names = [method], list[str]()
    while (after := rows[-1].after) is not None:
        if after not in plan.methods:
            return [f"after must be one of the methods, but is {after}. Name one of them."]
        if after in names:
            circle = " is after ".join([*names, after])
            return [f"after must not lead in a circle, but {circle}. Change one of them."]
        names.append(after)
        rows.append(plan.methods[after])
    problems, recipe = [], RECIPES[method.recipe]
    earlier = [row.recipe for row in rows[1:] if row.recipe in RECIPES]
    expanding = [name for name in earlier if RECIPES[name].expands_vocabulary]
    if recipe.reads_datastore and expanding:
        problems.append(
            f"{method.recipe} needs an encoder with the plan's tokenizer, which cuts the passages, but "
            f"{', '.join(expanding)} expands the vocabulary. Start from another row."
        )
    if recipe.expands_vocabulary and (encoder := rows[-1].encoder) is not None:
        found = encoder if len(rows) == 1 else f"{method.after}, which starts from {encoder}"
        problems.append(
            f"{'encoder' if len(rows) == 1 else 'after'} must be left out, because {method.recipe} expands the "
            f"vocabulary of the plan's encoder, but is {found}. Compare this encoder in a plan of its own."
        )
    return problems


# ---- steps


class _FlagParser(ScriptParser):
    def find_wrong(self, values: Mapping[str, Any]) -> list[str]:
        return find_wrong_values(values)  # paths are relative to the plan, and some are made by earlier steps

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def check_step_flags(steps: Iterable[Step]) -> None:
    """Check that the commands take the flags of their steps, before the first of them runs.

    Raises:
        ValueError: A flag is unknown or has a value of a wrong type; lists all of them.
    """
    given: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for step in steps:
        for name in step.flags:  # one by one, because a parser reports only its first problem
            given[step.command, *step.list_arguments(ROOT, name)].append(step.name)
    parsers: dict[str, _FlagParser] = {}
    problems: dict[str, list[str]] = {}
    for (command, *arguments), names in given.items():
        if command not in parsers:
            parsers[command] = _FlagParser(import_command(command).ARGUMENTS)
            for action in parsers[command]._actions:
                action.required = False
        try:
            # A value such as --trust_remote_code would be a flag of its own on the step's command line.
            if flags := [value for value in arguments[1:] if value.startswith("--")]:
                raise ValueError(f"{arguments[0]} must have values, but has the flag {flags[0]}. Remove it.")
            parsers[command].parse_args(arguments)
        except ValueError as error:
            problems[f"{command}: {error}"] = names
    if problems:
        lines = "".join(
            f"\n- {problem} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
            for problem, names in problems.items()
        )
        raise ValueError(f"the flags of the plan have {len(problems)} problem(s); nothing was run:{lines}")


def check_encoders(plan: Plan, steps: Iterable[Step]) -> None:
    """Check before the first run that the encoders have a masked LM, and allow the texts' lengths.

    Raises:
        ValueError: Some do not; lists all of them.
    """
    problems = []
    lengths: dict[str, int] = {}
    for step in [step for step in steps if step.method is not None and "max_seq_length" in step.flags]:
        encoder = plan.methods[plan.list_starts(str(step.method))[-1]].encoder or plan.encoder
        lengths[encoder] = max(lengths.get(encoder, 0), int(step.flags["max_seq_length"]))
    for encoder, length in lengths.items():
        folder = plan.folder / encoder
        name = folder if folder.is_dir() else encoder
        try:
            config = AutoConfig.from_pretrained(name, trust_remote_code=False)
            tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
        except (OSError, ValueError) as error:
            if "trust_remote_code" in str(error):
                problems.append(
                    f"{encoder}: a plan must not run code of others, but this encoder has its own. Use another encoder."
                )
            continue  # the first step that reads it reports other errors
        if type(config) not in MODEL_FOR_MASKED_LM_MAPPING:
            problems.append(f"{encoder}: it must be an encoder such as BERT or RoBERTa, but is a {config.model_type}")
            continue
        try:
            check_length(tokenizer, length)
        except ValueError as error:
            problems.append(f"{encoder}: {error}")
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ValueError(f"{len(problems)} encoder(s) cannot do what the plan asks for; nothing was run:{lines}")
