"""List all problems of a plan before the first run."""

import math
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

from hf_domain.comparison.plan import Corpus, Plan
from hf_domain.comparison.row_checks import check_row
from hf_domain.comparison.rows import RECIPES, Recipe
from hf_domain.data.files import BUILDERS, SPLITS, check_held_out, find_files
from hf_domain.safe_io import is_url
from hf_domain.tasks.files import METRICS, SENTENCES, Task, check_task_files, find_kind
from hf_domain.tasks.sentences import explain_missing
from hf_domain.training.arguments import find_damage, find_wrong_values

# Flags that a comparison sets itself, or that change what it counts or scores.
FIXED_FLAGS = {
    "pretraining": {"method", "model_name_or_path", "validation_file", "do_train", "max_steps", "seed", "output_dir"},
    "fine_tuning": {
        *("model_name_or_path", "train_file", "validation_file", "test_file", "dataset_name", "do_train", "do_predict"),
        *("seed", "output_dir", "label_column_name", "label_all_tokens", "do_regression", "multi_label"),
        *("memory_name_or_path", "memory_cache", "passage_cache"),
    },
    "vocabulary": {"model_name_or_path", "counts_file", "output_dir"},
    "datastore": {"model_name_or_path", "output_dir"},
}


# Anybody may have written a plan, so only the command line can trust code or publish.
UNSAFE_FLAGS = {"trust_remote_code", "metric_name", "push_to_hub"}
COUNTED = ("per_device_train_batch_size", "max_seq_length", "gradient_accumulation_steps")


def check_plan(plan: Plan) -> list[str]:
    """List all problems of a plan, before the first run."""
    problems = _check_costs(plan)
    if damage := find_damage(plan.encoder, plan.folder):
        problems.append(f"encoder: {damage}")
    elif _lacks_tokenizer(plan):
        problems.append(
            f"encoder: the folder of an encoder must contain a tokenizer, but {plan.encoder} has none. Save it there, "
            "or name one with pretraining: tokenizer_name."
        )
    for section in (plan.corpora, plan.tasks, plan.methods):
        problems += [
            "names must consist of letters, digits, _ and -, because they name folders, but one is "
            f"{name}. Rename it, and put a number in quotes."
            for name in section
            if not (isinstance(name, str) and re.fullmatch(r"[\w-]+", name))
        ]
    if shared := sorted(plan.corpora.keys() & plan.tasks.keys()):
        problems.append(
            f"tasks and corpora must have different names, but share {', '.join(map(str, shared))}. Rename one."
        )
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


def _lacks_tokenizer(plan: Plan) -> bool:
    """Return whether the encoder is a folder without the file of any tokenizer."""
    folder = plan.folder / plan.encoder
    files = [file for pattern in ("tokenizer*.json", "vocab*", "*.model") for file in folder.glob(pattern)]
    return folder.is_dir() and not files and "tokenizer_name" not in plan.pretraining


def _check_costs(plan: Plan) -> list[str]:
    problems = _check_budget(plan)
    for name, seeds in (("seeds", plan.seeds), ("pretraining_seeds", plan.pretraining_seeds)):
        if not seeds or len(set(seeds)) < len(seeds):
            problems.append(f"{name} must be different numbers, but are {seeds}. Correct the list.")
        problems += [problem.removeprefix("--") for seed in seeds for problem in find_wrong_values({"seed": seed})]
    problems += [
        problem.removeprefix("--")
        for rate in plan.learning_rates
        for problem in find_wrong_values({"learning_rate": rate})
    ]
    if len(set(plan.labels)) < len(plan.labels) or not all(0 < share <= 1 for share in plan.labels):
        problems.append(
            f"labels must be different shares above 0 and up to 1, but are {plan.labels}. Correct the list."
        )
    if plan.evaluation not in get_args(get_type_hints(Plan)["evaluation"]):
        problems.append(f"evaluation must be fine_tune or probe, but is {plan.evaluation}. Set one of them.")
    if plan.keep_models not in get_args(get_type_hints(Plan)["keep_models"]):
        problems.append(f"keep_models must be best, all or none, but is {plan.keep_models}. Set one of them.")
    if plan.evaluation == "probe" and plan.learning_rates:
        problems.append("learning_rates must be left out with evaluation: probe, which does not fine-tune.")
    if len(set(plan.learning_rates)) < len(plan.learning_rates) or len(plan.learning_rates) == 1:
        problems.append(
            f"learning_rates must be at least two different numbers, but are {plan.learning_rates}. Add another, or "
            "set learning_rate in fine_tuning."
        )
    problems += _check_race(plan)
    given = [plan.fine_tuning, *(entry.options for entry in plan.tasks.values())]
    given += [method.fine_tuning for method in plan.methods.values()]
    if plan.learning_rates and any("learning_rate" in flags for flags in given):
        problems.append("learning_rate must not be set beside learning_rates, which tries several. Remove one of them.")
    trainings = [plan.pretraining, *(method.pretraining for method in plan.methods.values())]
    if plan.budget.tokens is not None and any(flags.get("line_by_line") not in (None, False) for flags in trainings):
        problems.append(
            "a token budget needs packed blocks, but line_by_line is set. Remove it, or set the budget in minutes."
        )
    return problems + _check_flags(plan)


def _check_budget(plan: Plan) -> list[str]:
    if (plan.budget.tokens is None) == (plan.budget.minutes is None):
        found = "neither" if plan.budget.tokens is None else "both"
        return [f"budget must have either tokens or minutes, but has {found}. Set one of them."]
    if isinstance(plan.budget.tokens, list):
        return _check_rungs(plan)
    if not 0 < (amount := plan.budget.tokens or plan.budget.minutes or 0) < math.inf:
        return [f"budget must be above 0 and finite, but is {amount}. Set a larger one."]
    return []


def _check_rungs(plan: Plan) -> list[str]:
    """List the problems of a list of tokens."""
    rungs, problems = plan.budget.rungs, []
    if len(set(rungs)) < max(1, len(rungs)) or min(rungs, default=0) <= 0:
        problems.append(
            f"budget: a list of tokens must have different numbers above 0, but is {plan.budget.tokens}. Correct it."
        )
    for name, flags in (
        ("pretraining", plan.pretraining),
        *((name, m.pretraining) for name, m in plan.methods.items()),
    ):
        if given := sorted({"lr_scheduler_type", "lr_scheduler_kwargs"} & flags.keys()):
            problems.append(
                f"{name}: {', '.join(given)} must be left out, because a list of token budgets has its own schedule."
            )
    for name, method in plan.methods.items():
        if not 0 < method.share < 1:
            problems.append(f"methods: {name}: share must be between 0 and 1, but is {method.share}. Correct it.")
    return problems


def _check_race(plan: Plan) -> list[str]:
    """List why rows cannot leave a race."""
    if not plan.race:
        return []
    problems = []
    if len(plan.methods) < 2:
        problems.append(
            f"race needs two rows or more, but there is only {', '.join(map(str, plan.methods))}. Add a row, or remove "
            "race."
        )
    if len(plan.budget.rungs) < 2:
        problems.append(
            "race needs at least two token budgets, because rows leave between them, but budget is "
            f"{plan.budget.tokens or f'{plan.budget.minutes} minutes'}. Add a second number of tokens."
        )
    if plan.learning_rates:
        problems.append(
            "race cannot be combined with learning_rates, which are chosen at the largest budget, after rows have "
            "left. Remove one of them."
        )
    if plan.evaluation != "probe" and len(plan.seeds) < 2:
        problems.append(f"race needs two seeds or more, or evaluation: probe, but seeds are {plan.seeds}. Add a seed.")
    return problems


def _check_flags(plan: Plan) -> list[str]:
    """List flags that no plan can have; `check_step_flags` tests the others once there are steps."""
    groups = [(kind, "", getattr(plan, kind)) for kind in FIXED_FLAGS]
    groups += [("fine_tuning", f"tasks: {name}: ", task.options) for name, task in plan.tasks.items()]
    for kind in ("pretraining", "fine_tuning", "datastore"):
        groups += [(kind, f"methods: {name}: ", getattr(method, kind)) for name, method in plan.methods.items()]
    problems = []
    for kind, where, flags in groups:
        # Scripts parse values that are texts, except for those that this code counts with before.
        values = {name: value for name, value in flags.items() if name in COUNTED or not isinstance(value, str)}
        problems += [f"{where}{kind}: {problem}" for problem in find_wrong_values(values)]
        # With another spelling, a flag would reach the script but not the code here that counts tokens and examples.
        if wrong := [name for name in flags if not (isinstance(name, str) and name.isidentifier())]:
            problems.append(
                f"{where}{kind}: flags must be written with _ and without --, but there is "
                f"{', '.join(map(str, wrong))}. Rewrite it."
            )
        if given := sorted(FIXED_FLAGS[kind] & flags.keys()):
            problems.append(f"{where}{kind}: {', '.join(given)} must be left out, because the comparison sets it.")
        if unsafe := sorted(name for name in map(str, flags) if name in UNSAFE_FLAGS or name.startswith("hub_")):
            problems.append(
                f"{where}{kind}: a plan must not run code of others or publish, but sets {', '.join(unsafe)}. Remove "
                "it."
            )
        if kind == "fine_tuning" and not where.startswith("tasks") and "text_column_names" in flags:
            problems.append(
                f"{where}fine_tuning: text_column_names must be set in the options of a task. Move it there."
            )
        if any(str(name).endswith("token") for name in flags):
            problems.append(
                f"{where}{kind}: a plan must not contain a Hub token, because results would publish it. Set HF_TOKEN."
            )
    if "train_file" in plan.pretraining:
        problems.append(
            "pretraining: train_file must be set in one method, because here it would replace the text of all, TAPT "
            "included. Move it to `methods`."
        )
    readers = [name for name, row in plan.methods.items() if row.recipe in RECIPES and _reads_task(RECIPES[row.recipe])]
    if "train_file" in plan.datastore and readers:
        problems.append(
            "datastore: train_file must be set in one method, because here it would replace the text of the task that "
            f"{', '.join(map(str, readers))} reads. Move it to `methods`."
        )
    return problems + _check_files(plan)


def _reads_task(recipe: Recipe) -> bool:
    """Return whether a row reads passages of the task's text."""
    return recipe.reads_datastore and recipe.text == "task"


def _check_files(plan: Plan) -> list[str]:
    """List the texts that flags name but that do not exist: the step that reads one may come hours after the first."""
    kinds = ("pretraining", "datastore")
    groups = {kind: getattr(plan, kind) for kind in kinds}
    groups |= {f"methods: {name}: {kind}": getattr(row, kind) for name, row in plan.methods.items() for kind in kinds}
    made = {flags.get("held_out_file") for flags in groups.values()}
    problems = []
    for where, flags in groups.items():
        named = [(flag, file) for flag in ("train_file", "word_counts") for file in _list_texts(flags.get(flag))]
        named += [("mix", str(file).rpartition(":")[0]) for file in _list_texts(flags.get("mix"))]
        for flag, file in named:
            if file in made or is_url(file):
                continue
            try:
                find_files(str(plan.folder / file))
            except FileNotFoundError:
                problems.append(f"{where}: {flag} must name a file, but there is no {file}. Correct the path.")
    return problems


def _list_texts(value: Any) -> list[str]:
    """Return the value of a flag that takes one text or several as a list of texts."""
    return [] if value is None else [str(item) for item in value] if isinstance(value, list) else [str(value)]


def _check_corpus(corpus: Corpus, plan: Plan) -> list[str]:
    problems = []
    for file in filter(None, (corpus.train_file, corpus.validation_file)):
        if not (plan.folder / file).is_file():
            problems.append(f"there is no file {file}")
        if Path(file.removesuffix(".gz")).suffix not in BUILDERS:
            problems.append(f"a corpus must be a file of {' '.join(BUILDERS)} (.gz), but is {file}. Convert it.")
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
    if task.kind not in METRICS:
        return [*problems, _explain_kind(task, plan)]
    if task.metric not in METRICS[task.kind]:
        problems.append(
            f"metric must be one of {', '.join(METRICS[task.kind])} for {task.kind}, but is {task.metric}. Set one of "
            "them."
        )
    if task.metric == "positive_micro_f1" and "negative_labels" not in task.options:
        problems.append(
            "metric positive_micro_f1 needs negative_labels, but the options have none. Add options: {negative_labels: "
            "...}."
        )
    if plan.evaluation == "probe" and task.kind == "qa":
        problems.append("a probe cannot score question answering. Remove the task, or set evaluation: fine_tune.")
    if task.kind in SENTENCES:
        problems += _check_sentences(task, plan)
    return problems + _check_task_files(task, plan)


def _check_sentences(task: Task, plan: Plan) -> list[str]:
    """List what a task of sentence embeddings cannot have."""
    problems = [] if (missing := explain_missing()) is None else [missing]
    if task.kind == "retrieval" and task.folds is not None:
        problems.append("folds must be left out, because a retrieval task is tested on the queries of qrels/test.tsv.")
    if plan.evaluation == "probe" and plan.labels:
        problems.append(
            f"labels must be left out, because a {task.kind} task needs no training examples with evaluation: probe."
        )
    if plan.race and not (plan.folder / task.get_file("validation")).is_file():
        problems.append(
            f"race needs validation scores, but there is no file {task.get_file('validation')}. Add it, or remove race."
        )
    return problems


def _explain_kind(task: Task, plan: Plan) -> str:
    """Return why a kind is invalid, or why none was found."""
    if task.kind:
        return f"kind must be one of {', '.join(METRICS)}, but is {task.kind}. Set one of them."
    try:
        return find_kind(task.get_file("train"), plan.folder)
    except ValueError as error:
        return str(error)


def _check_task_files(task: Task, plan: Plan) -> list[str]:
    files = {split: task.get_file(split) for split in SPLITS}
    if task.kind == "retrieval" and plan.evaluation == "probe":  # it trains nothing, and many tasks of BEIR only test
        files = {split: file for split, file in files.items() if split == "test" or (plan.folder / file).is_file()}
    names = task.options.get("text_column_names")
    if not isinstance(names, str | None):
        return [f"text_column_names must be text such as one,two, but is {names}. Write it as text."]
    if task.folds is None:
        return check_task_files(task.kind, files, plan.folder, names)
    if task.folds < 2:
        return [f"folds must be at least 2, but is {task.folds}. Leave it out for the split of the task."]
    # The items of all files become folds, which are checked when they are made: here each file for itself.
    problems = []
    for split, file in files.items():
        if split == "train" or (plan.folder / file).is_file():
            problems += check_task_files(task.kind, {"train": file}, plan.folder, names)
    return problems
