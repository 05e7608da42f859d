"""List all problems of a plan before the first run."""

import math
import re
from pathlib import Path
from typing import get_args, get_type_hints

from hf_domain.comparison.plan import METRICS, SENTENCES, SPLITS, Corpus, Plan, Row, Task
from hf_domain.comparison.task_files import TEXTS, check_task_files, find_kind, find_texts
from hf_domain.data.file_loading import BUILDERS, check_held_out
from hf_domain.publishing import is_hub_id
from hf_domain.recipes import RECIPES, check_start
from hf_domain.training.arguments import find_damage, find_wrong_values
from hf_domain.training.sentences import explain_missing

# Flags that a comparison sets itself, or that change what it counts or scores.
FIXED_FLAGS = {
    "pretraining": {"method", "model_name_or_path", "validation_file", "do_train", "max_steps", "seed", "output_dir"},
    "fine_tuning": {
        *("model_name_or_path", "train_file", "validation_file", "test_file", "dataset_name", "do_train", "do_predict"),
        *("seed", "output_dir", "label_column_name", "label_all_tokens", "do_regression", "multi_label"),
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
            "or name one by pretraining: tokenizer_name"
        )
    for section in (plan.corpora, plan.tasks, plan.methods):
        problems += [
            "a name must be a text of letters, digits, _ and - (quote a number): it becomes that of a folder; got "
            f"{name}"
            for name in section
            if not (isinstance(name, str) and re.fullmatch(r"[\w-]+", name))
        ]
    if shared := sorted(plan.corpora.keys() & plan.tasks.keys()):
        problems.append(
            f"a task and a corpus must have different names, what is made of them is called so; got {shared}"
        )
    if plan.general is not None and plan.general not in plan.corpora:
        problems.append(f"general must be one of the corpora {', '.join(plan.corpora)}, got {plan.general}")
    for name, corpus in plan.corpora.items():
        problems += [f"corpora: {name}: {problem}" for problem in _check_corpus(corpus, plan)]
    for name, task in plan.tasks.items():
        problems += [f"tasks: {name}: {problem}" for problem in _check_task(task, plan)]
    for name, method in plan.methods.items():
        problems += [f"methods: {name}: {problem}" for problem in _check_method(method, plan)]
    return problems


def _lacks_tokenizer(plan: Plan) -> bool:
    """Return whether the encoder is a folder without the file of any tokenizer."""
    folder = plan.folder / plan.encoder
    files = [file for pattern in ("tokenizer*.json", "vocab*", "*.model") for file in folder.glob(pattern)]
    return folder.is_dir() and not files and "tokenizer_name" not in plan.pretraining


def _is_missing_folder(encoder: str, plan: Plan) -> bool:
    """Return whether an encoder can only be a folder, but does not exist; a name of the Hub may exist there."""
    return not is_hub_id(encoder, plan.folder) and not (plan.folder / encoder).is_dir()


def _check_costs(plan: Plan) -> list[str]:
    problems = _check_budget(plan)
    for name, seeds in (("seeds", plan.seeds), ("pretraining_seeds", plan.pretraining_seeds)):
        if not seeds or len(set(seeds)) < len(seeds):
            problems.append(f"{name} must be different numbers, got {seeds}")
        problems += [problem.removeprefix("--") for seed in seeds for problem in find_wrong_values({"seed": seed})]
    problems += [
        problem.removeprefix("--")
        for rate in plan.learning_rates
        for problem in find_wrong_values({"learning_rate": rate})
    ]
    if len(set(plan.labels)) < len(plan.labels) or not all(0 < share <= 1 for share in plan.labels):
        problems.append(f"labels must be different shares above 0 and up to 1, but are {plan.labels}")
    if plan.evaluation not in get_args(get_type_hints(Plan)["evaluation"]):
        problems.append(f"evaluation must be fine_tune or probe, but is {plan.evaluation}")
    if plan.keep_models not in get_args(get_type_hints(Plan)["keep_models"]):
        problems.append(f"keep_models must be best, all or none, but is {plan.keep_models}")
    if plan.evaluation == "probe" and plan.learning_rates:
        problems.append("learning_rates are of fine-tuning, a probe has none: leave them out")
    if len(set(plan.learning_rates)) < len(plan.learning_rates) or len(plan.learning_rates) == 1:
        problems.append(f"learning_rates must be two different ones or more, got {plan.learning_rates}")
    problems += _check_race(plan)
    given = [plan.fine_tuning, *(entry.options for entry in plan.tasks.values())]
    given += [method.fine_tuning for method in plan.methods.values()]
    if plan.learning_rates and any("learning_rate" in flags for flags in given):
        problems.append("learning_rates are chosen from for all methods: leave learning_rate out of fine_tuning")
    trainings = [plan.pretraining, *(method.pretraining for method in plan.methods.values())]
    if plan.budget.tokens is not None and any(flags.get("line_by_line") not in (None, False) for flags in trainings):
        problems.append("a budget of tokens counts full blocks, lines are shorter: drop line_by_line, or give minutes")
    return problems + _check_flags(plan)


def _check_budget(plan: Plan) -> list[str]:
    if (plan.budget.tokens is None) == (plan.budget.minutes is None):
        return [f"budget must be either tokens or minutes, got {plan.budget}"]
    if isinstance(plan.budget.tokens, list):
        return _check_rungs(plan)
    if not 0 < (plan.budget.tokens or plan.budget.minutes or 0) < math.inf:
        return [f"budget must be above 0 and finite, got {plan.budget}"]
    return []


def _check_rungs(plan: Plan) -> list[str]:
    """List the problems of a list of tokens."""
    rungs, problems = plan.budget.rungs, []
    if len(set(rungs)) < max(1, len(rungs)) or min(rungs, default=0) <= 0:
        problems.append(f"budget: a list of tokens must hold different numbers above 0, but is {plan.budget.tokens}")
    for name, flags in (
        ("pretraining", plan.pretraining),
        *((name, m.pretraining) for name, m in plan.methods.items()),
    ):
        if given := sorted({"lr_scheduler_type", "lr_scheduler_kwargs"} & flags.keys()):
            problems.append(f"{name}: a list of tokens needs a schedule of its own: leave out {', '.join(given)}")
    for name, method in plan.methods.items():
        if not 0 < method.share < 1:
            problems.append(f"methods: {name}: share must be between 0 and 1, but is {method.share}")
    return problems


def _check_race(plan: Plan) -> list[str]:
    """List why rows cannot leave a race."""
    if not plan.race:
        return []
    problems = []
    if len(plan.budget.rungs) < 2:
        problems.append(f"race needs a list of tokens, at which rows can leave, but budget is {plan.budget.tokens}")
    if plan.learning_rates:
        problems.append("race: learning_rates are tried at the largest number of tokens, before any row can leave")
    if plan.evaluation != "probe" and len(plan.seeds) < 2:
        problems.append(f"race needs two seeds or more, or evaluation: probe, but seeds are {plan.seeds}")
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
            problems.append(f"{where}{kind}: a flag is written with _ and without --, got {', '.join(map(str, wrong))}")
        if given := sorted(FIXED_FLAGS[kind] & flags.keys()):
            problems.append(f"{where}{kind}: a comparison sets {', '.join(given)} itself: leave it out")
        if unsafe := sorted(name for name in map(str, flags) if name in UNSAFE_FLAGS or name.startswith("hub_")):
            problems.append(
                f"{where}{kind}: a plan must not run code of others or publish, got {', '.join(unsafe)}: leave it out"
            )
        if kind == "fine_tuning" and not where.startswith("tasks") and "text_column_names" in flags:
            problems.append(f"{where}fine_tuning: text_column_names is of a task: give it in the options of the task")
        if any(str(name).endswith("token") for name in flags):
            problems.append(f"{where}{kind}: a plan holds no token: results would show it; set HF_TOKEN instead")
    if "train_file" in plan.pretraining:
        problems.append("pretraining: train_file would be the text of all methods, also of TAPT: give it to one")
    return problems


def _check_corpus(corpus: Corpus, plan: Plan) -> list[str]:
    problems = []
    for file in filter(None, (corpus.train_file, corpus.validation_file)):
        if not (plan.folder / file).is_file():
            problems.append(f"there is no file {file}")
        if Path(file.removesuffix(".gz")).suffix not in BUILDERS:
            problems.append(f"a corpus must be a file of {' '.join(BUILDERS)} (.gz), got {file}")
    held_out = {"validation_file": str(plan.folder / corpus.validation_file)} if corpus.validation_file else {}
    try:
        check_held_out(str(plan.folder / corpus.train_file), held_out)
    except ValueError as error:
        problems.append(str(error))
    return problems


def _check_task(task: Task, plan: Plan) -> list[str]:
    problems = []
    if task.corpus not in plan.corpora:
        told = f"corpus must be one of {', '.join(plan.corpora)}, got {task.corpus}"
        several = f"corpus must be named where a plan has several: {', '.join(plan.corpora)}"
        problems.append(told if task.corpus else several)
    if task.kind not in METRICS:
        return [*problems, _explain_kind(task, plan)]
    if task.metric not in METRICS[task.kind]:
        problems.append(f"metric of {task.kind} must be one of {', '.join(METRICS[task.kind])}, got {task.metric}")
    if task.metric == "positive_micro_f1" and "negative_labels" not in task.options:
        problems.append("positive_micro_f1 needs options: {negative_labels: ...}")
    if plan.evaluation == "probe" and task.kind == "qa":
        problems.append("a probe classifies texts and words, it answers no questions: leave the task out")
    if task.kind in SENTENCES:
        problems += _check_sentences(task, plan)
    return problems + _check_task_files(task, plan)


def _check_sentences(task: Task, plan: Plan) -> list[str]:
    """List what a task of sentence embeddings cannot have."""
    problems = [] if (missing := explain_missing()) is None else [missing]
    if task.kind == "retrieval" and task.folds is not None:
        problems.append("a retrieval is tested on the queries of qrels/test.tsv: leave folds out")
    if plan.evaluation == "probe" and plan.labels:
        problems.append(f"a {task.kind} scores the encoder as it is, without training examples: leave labels out")
    if plan.race and not (plan.folder / task.get_file("validation")).is_file():
        problems.append(f"race reads validation scores, but there is no file {task.get_file('validation')}")
    return problems


def _explain_kind(task: Task, plan: Plan) -> str:
    """Return why a kind is invalid, or why none was found."""
    if task.kind:
        return f"kind must be one of {', '.join(METRICS)}, got {task.kind}"
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
        return [f"text_column_names must be a text such as one,two, got {names}"]
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


def _check_method(method: Row, plan: Plan) -> list[str]:
    if method.recipe not in RECIPES:
        return [f"recipe must be one of {', '.join(RECIPES)}, got {method.recipe}"]
    problems, recipe = [], RECIPES[method.recipe]
    if recipe.needs_general and plan.general is None:
        problems.append(f"{method.recipe} is trained on general text: name one of the corpora in `general`")
    if recipe.after is not None and method.after is None:
        problems.append(
            f"{method.recipe} needs `after`, the method whose encoder it takes; the default, {recipe.after}, is not "
            "in the plan"
        )
    if recipe.method is None and method.pretraining:
        problems.append(f"{method.recipe} is not pre-trained, got pretraining {method.pretraining}")
    if method.datastore and not recipe.reads_datastore:
        problems.append(f"{method.recipe} reads no datastore, got datastore {method.datastore}")
    trainings = (plan.pretraining, plan.fine_tuning, method.pretraining, method.fine_tuning)
    if recipe.reads_datastore and any("datastore" in flags for flags in trainings):
        problems.append(f"{method.recipe} reads a datastore that is built for it: give its flags in `datastore`")
    tasks = list(plan.tasks) if method.tasks is None else method.tasks
    if unknown := [task for task in tasks if task not in plan.tasks]:
        problems.append(f"tasks must be among {', '.join(plan.tasks)}, got {', '.join(unknown)}")
    kinds: set[str] = {plan.tasks[task].kind for task in tasks if task in plan.tasks}
    if plan.evaluation == "probe" and recipe.fine_tuning:
        problems.append(f"{method.recipe} changes fine-tuning, a probe has none: leave it out, or take fine_tune")
    problems += _check_kinds(method, kinds) + _check_stages(method, plan) + _check_appending(method, plan, tasks)
    return problems + (_check_chain(method, plan) or _check_folds(method, plan))


def _check_kinds(method: Row, kinds: set[str]) -> list[str]:
    """List the kinds of its tasks that a method cannot be fine-tuned for."""
    recipe = RECIPES[method.recipe]
    # sentence-transformers trains encoders alone, without a memory or passages.
    unfit = kinds & {*SENTENCES} if recipe.fine_tuning else set()
    taken = [kind for kind in recipe.kinds or METRICS if kind not in SENTENCES]
    unfit |= set() if recipe.kinds is None else kinds - {*taken}
    if not unfit:
        return []
    return [f"{method.recipe} works for {', '.join(taken)} alone, got {', '.join(sorted(unfit))}: name other `tasks`"]


def _check_stages(method: Row, plan: Plan) -> list[str]:
    """Note what a row of two stages cannot have: the first ends where the learning rate begins to decay."""
    problems: list[str] = []
    if not RECIPES[method.recipe].first_stage:
        return problems
    if plan.budget.minutes is not None:
        problems.append(f"{method.recipe} has two stages that share the tokens: give the budget in tokens, not minutes")
    if method.after is not None:
        problems.append(f"{method.recipe} starts from an encoder that no method of the plan made: leave out `after`")
    if given := sorted({"lr_scheduler_type", "lr_scheduler_kwargs"} & (plan.pretraining | method.pretraining).keys()):
        problems.append(f"{method.recipe} needs a schedule of its own: leave out {', '.join(given)}")
    return problems


def _check_folds(method: Row, plan: Plan) -> list[str]:
    """Note tasks that a method cannot be tested on, since it is made of their texts, which are all tested."""
    tasks = list(plan.tasks) if method.tasks is None else method.tasks
    folded = [name for name in tasks if name in plan.tasks and plan.tasks[name].folds is not None]
    is_made_of_task = RECIPES[method.recipe].text == "task" or plan.is_made_of_task(method.after)
    if is_made_of_task and folded and (method.tasks is not None or len(folded) == len(tasks)):
        return [
            f"{method.recipe} is made of the texts of the task, which folds test all: leave it out of "
            f"{', '.join(folded)}"
        ]
    return []


def _check_appending(method: Row, plan: Plan, tasks: list[str]) -> list[str]:
    """Note tasks on pairs of texts: a passage is appended to one text."""
    trainings = (RECIPES[method.recipe].fine_tuning, plan.fine_tuning, method.fine_tuning)
    if not any(flags.get("append_passage") for flags in trainings):
        return []
    problems = []
    for name, task in plan.tasks.items():
        if name not in tasks:
            continue
        try:
            names = task.options.get("text_column_names")
            texts = find_texts(task.kind, task.get_file("train"), plan.folder, names)
        except (ValueError, AttributeError):  # the problems of a task are listed elsewhere
            continue
        if task.kind not in TEXTS and len(texts) > 1:
            problems.append(
                f"a passage is appended to one text, {name} has the pair {', '.join(texts)}: name other `tasks`, or "
                "one column by text_column_names in the options of the task"
            )
    return problems


def _check_chain(method: Row, plan: Plan) -> list[str]:
    if method.encoder is not None and method.after is not None:
        return [f"it must start either from encoder or after a method, got {method.encoder} and {method.after}"]
    if method.encoder is not None and _is_missing_folder(method.encoder, plan):
        return [f"encoder: there is no folder {method.encoder}"]
    if method.counterpart is not None and method.counterpart not in plan.methods:
        return [f"counterpart must be one of the methods, but is {method.counterpart}"]
    seen = [method.after]
    while seen[-1] is not None:
        if seen[-1] not in plan.methods:
            return [f"after must be one of the methods, got {seen[-1]}"]
        seen.append(plan.methods[seen[-1]].after)
        if seen[-1] in seen[:-1]:
            return [f"after goes in a circle: {' after '.join(map(str, seen))}"]
    return check_start(method.recipe, [plan.methods[name].recipe for name in seen if name is not None])
