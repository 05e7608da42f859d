"""List all problems of the rows of a plan, as part of `plan_checks`."""

from importlib.util import find_spec

from hf_domain.comparison.default_flags import FROZEN_FLAGS, PROBE_FLAGS
from hf_domain.comparison.plan import Plan, Row
from hf_domain.comparison.rows import RECIPES, check_start
from hf_domain.data.files import check_held_out
from hf_domain.hub import is_hub_id
from hf_domain.methods import METHODS, NO_ADAPTATION
from hf_domain.tasks.files import METRICS, SENTENCES, TEXTS, find_texts


def check_row(method: Row, plan: Plan) -> list[str]:
    """List all problems of a row."""
    if method.recipe not in RECIPES:
        return [f"recipe must be one of {', '.join(RECIPES)}, but is {method.recipe}. Set one of them."]
    problems, recipe = [], RECIPES[method.recipe]
    if recipe.needs_general and plan.general is None:
        problems.append(f"{method.recipe} needs general text, but `general` is not set. Name one of the corpora there.")
    if recipe.after is not None and method.after is None:
        problems.append(
            f"{method.recipe} needs a method to start from, but the default, {recipe.after}, is not in the plan. Add "
            "it, or name another method in `after`."
        )
    if recipe.method is None and method.pretraining:
        problems.append(
            f"pretraining must be left out, because {method.recipe} does not pre-train, but is {method.pretraining}."
        )
    if method.datastore and not recipe.needs_datastore:
        problems.append(
            f"datastore must be left out, because {method.recipe} reads no passages, but is {method.datastore}."
        )
    trainings = (plan.pretraining, plan.fine_tuning, method.pretraining, method.fine_tuning)
    if recipe.needs_datastore and any("datastore" in flags for flags in trainings):
        problems.append(
            f"the flag datastore must be left out, because the comparison builds a datastore for {method.recipe}. Set "
            "its options in `datastore`."
        )
    tasks = list(plan.tasks) if method.tasks is None else method.tasks
    if unknown := [task for task in tasks if task not in plan.tasks]:
        problems.append(
            f"tasks must be among {', '.join(plan.tasks)}, but there is {', '.join(unknown)}. Correct the list."
        )
    kinds: set[str] = {plan.tasks[task].kind for task in tasks if task in plan.tasks}
    problems += _check_own_encoder(method, plan) + _check_share(method, plan) + _check_samples(method)
    problems += _check_pseudo_labels(method, plan, tasks)
    problems += _check_kinds(method, kinds) + _check_stages(method, plan) + _check_appending(method, plan, tasks)
    problems += _check_probe(method, plan) + _check_vote(method, plan, tasks)
    return problems + (_check_chain(method, plan) or _check_folds(method, plan) + _check_states(method, plan, tasks))


def _check_own_encoder(method: Row, plan: Plan) -> list[str]:
    """Note an encoder that an expansion does not fit: its words get rows of the plan's encoder."""
    if not RECIPES[method.recipe].expands_vocabulary:
        return []
    rows = list_chain(method, plan)
    if (encoder := rows[-1].encoder) is None:
        return []
    where, found = ("encoder", encoder) if len(rows) == 1 else ("after", f"{method.after}, which starts from {encoder}")
    return [
        f"{where} must be left out, because {method.recipe} expands the vocabulary of the plan's encoder, but is "
        f"{found}. Compare this encoder in a plan of its own."
    ]


def list_chain(method: Row, plan: Plan) -> list[Row]:
    """List a row and those that it starts from, the first of all last; up to one that the plan lacks or repeats."""
    rows = [method]
    while (after := plan.methods.get(str(rows[-1].after))) is not None and after not in rows:
        rows.append(after)
    return rows


def _check_share(method: Row, plan: Plan) -> list[str]:
    """Note a share of tokens that nothing is divided by."""
    if plan.budget.rungs or method.share == Row.share:
        return []
    return [
        f"share must be left out without a list of tokens, which it divides, but is {method.share}. Remove it, or "
        f"write budget: {{tokens: [{plan.budget.tokens or 1_000_000}]}}."
    ]


def _check_samples(method: Row) -> list[str]:
    """Note limits of held-out examples: rows are compared example by example."""
    if given := sorted({"max_eval_samples", "max_predict_samples"} & method.fine_tuning.keys()):
        return [
            f"fine_tuning: {', '.join(given)} must be left out in a row, because all rows are compared on the same "
            "examples. Set it in the options of a task, or in the plan's fine_tuning."
        ]
    return []


def _check_pseudo_labels(method: Row, plan: Plan, tasks: list[str]) -> list[str]:
    """List files of pseudo-labels that fine-tuning would refuse after hours of pre-training, or that mislead scores."""
    problems, readers = [], dict[str, str]()
    for name, task in plan.tasks.items():
        flags = plan.fine_tuning | task.options | RECIPES[method.recipe].fine_tuning | method.fine_tuning
        file = flags.get("pseudo_labeled_file")
        if name not in tasks or file is None:
            continue
        if task.folds is not None or any(share < 1 for share in plan.labels):
            setting = "labels" if task.folds is None else f"the folds of {name}"
            problems.append(
                f"pseudo_labeled_file must be left out with {setting}: the model that labeled the texts of {file} may "
                "have learned from labels that a run does not have. Remove one of the two."
            )
        if (other := readers.setdefault(str(file), name)) != name:
            problems.append(
                f"pseudo_labeled_file must be of one task, but {other} and {name} have {file}. Make a row for each."
            )
        path, splits = plan.folder / str(file), ("validation", "test")
        if not path.is_file():
            problems.append(f"pseudo_labeled_file must be a file, but there is no {file}. hf-domain predict writes it.")
            continue
        try:
            held_out = {f"{split}_file": str(plan.folder / task.get_file(split)) for split in splits}
            check_held_out(str(path), held_out, "pseudo_labeled_file")
        except ValueError as error:
            problems.append(str(error))
    return problems


def _check_probe(method: Row, plan: Plan) -> list[str]:
    """List what a row cannot have if nothing is fine-tuned."""
    if plan.evaluation != "probe":
        return []
    problems = []
    if RECIPES[method.recipe].fine_tuning:
        problems.append(
            f"{method.recipe} must be left out with evaluation: probe, because it changes only fine-tuning. Use the "
            "recipe fine_tune, or evaluation: fine_tune."
        )
    if dropped := sorted(map(str, method.fine_tuning.keys() - PROBE_FLAGS - FROZEN_FLAGS)):
        problems.append(
            f"fine_tuning: {', '.join(dropped)} must be left out in a row with evaluation: probe, which has no such "
            "flags. Remove it, or set evaluation: fine_tune."
        )
    return problems


def _check_vote(method: Row, plan: Plan, tasks: list[str]) -> list[str]:
    """Note a vote without the package that finds the nearest texts: it would fail after hours of pre-training."""
    options = [plan.tasks[task].options for task in tasks if task in plan.tasks]
    flags = (plan.fine_tuning, RECIPES[method.recipe].fine_tuning, method.fine_tuning, *options)
    if not any(group.get("nearest_vote") for group in flags) or find_spec("tantivy") is not None:
        return []
    return ["nearest_vote needs tantivy, which is not installed. Run pip install tantivy, or leave the vote out."]


def _check_states(method: Row, plan: Plan, tasks: list[str]) -> list[str]:
    """Note a row that may have the states of its start, if no row shows these: a probe would judge it all the same.

    That is a module on top of a frozen encoder, such as VarMAE's; see `find_unjudged`.
    """
    own = METHODS.get(str(RECIPES[method.recipe].method))
    if plan.evaluation != "probe" or own is None or own.trains_stock_model or own.extends_vocabulary:
        return []
    flags = RECIPES[method.recipe].pretraining | plan.pretraining | method.pretraining
    if own.reads_memory or own.reads_passages or "freeze_backbone=false" in str(flags.get("config_overrides")).lower():
        return []
    start = method.after or NO_ADAPTATION
    shown = plan.methods.get(start, Row(tasks=[]))
    lacking = [task for task in tasks if shown.tasks is not None and task not in shown.tasks]
    trains = any(RECIPES[row.recipe].method for row in list_chain(shown, plan) if row.recipe in RECIPES)
    if method.encoder is not None:
        found = f"none starts from {method.encoder}. Add one with recipe: fine_tune and this encoder, and name it in "
        found += "after instead"
    elif start not in plan.methods:
        found = f"there is no {start}. Add it"
    elif plan.budget.rungs and trains:
        found = f"with a list of tokens none shows the encoder of {start} at the tokens that it starts from. Set a "
        found += "single number of tokens, or evaluation: fine_tune"
    elif lacking:
        found = f"{start} is not tested on {', '.join(lacking)}. Add that to its tasks"
    else:
        return []
    return [
        f"{method.recipe} needs a row with the states that it starts from, because it may leave them as they are, "
        f"which a probe cannot judge, but {found}."
    ]


def _check_kinds(method: Row, kinds: set[str]) -> list[str]:
    """List the kinds of its tasks that a method cannot be fine-tuned for."""
    recipe = RECIPES[method.recipe]
    # sentence-transformers trains encoders alone, without a memory or passages.
    unfit = kinds & {*SENTENCES} if recipe.fine_tuning else set()
    taken = [kind for kind in recipe.kinds or METRICS if kind not in SENTENCES]
    unfit |= set() if recipe.kinds is None else kinds - {*taken}
    if not unfit:
        return []
    return [
        f"{method.recipe} needs tasks of the kinds {', '.join(taken)}, but has {', '.join(sorted(unfit))}. Name others "
        "in `tasks`."
    ]


def _check_stages(method: Row, plan: Plan) -> list[str]:
    """Note what a row of two stages cannot have: the first ends where the learning rate begins to decay."""
    problems: list[str] = []
    if not RECIPES[method.recipe].first_stage:
        return problems
    if plan.budget.minutes is not None:
        problems.append(
            f"{method.recipe} needs a budget in tokens, which its two stages share, but it is in minutes. Set tokens."
        )
    if method.after is not None:
        problems.append(
            f"{method.recipe} must start from an encoder that no method of the plan trained. Remove `after`."
        )
    if given := sorted({"lr_scheduler_type", "lr_scheduler_kwargs"} & (plan.pretraining | method.pretraining).keys()):
        problems.append(f"{', '.join(given)} must be left out, because {method.recipe} has its own schedule.")
    return problems


def _check_folds(method: Row, plan: Plan) -> list[str]:
    """Note tasks that a method cannot be tested on, since it is made of their texts, which are all tested."""
    tasks = list(plan.tasks) if method.tasks is None else method.tasks
    folded = [name for name in tasks if name in plan.tasks and plan.tasks[name].folds is not None]
    is_made_of_task = RECIPES[method.recipe].reads_task or plan.is_made_of_task(method.after)
    if is_made_of_task and folded and (method.tasks is not None or len(folded) == len(tasks)):
        return [
            f"{method.recipe} trains on the texts of the task, but folds test all of them. Remove it from "
            f"{', '.join(folded)}."
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
                f"a passage can be appended to one text only, but {name} has the pair {', '.join(texts)}. Name other "
                "`tasks`, or one column with text_column_names in the options of the task."
            )
    return problems


def _check_chain(method: Row, plan: Plan) -> list[str]:
    if method.encoder is not None and method.after is not None:
        return [
            f"only one of encoder and after must be set, but they are {method.encoder} and {method.after}. Remove one."
        ]
    if method.encoder is not None and _is_missing_folder(method.encoder, plan):
        return [f"encoder: there is no folder {method.encoder}"]
    if method.counterpart is not None and method.counterpart not in plan.methods:
        return [f"counterpart must be one of the methods, but is {method.counterpart}. Name one of them."]
    seen = [method.after]
    while seen[-1] is not None:
        if seen[-1] not in plan.methods:
            return [f"after must be one of the methods, but is {seen[-1]}. Name one of them."]
        seen.append(plan.methods[seen[-1]].after)
        if seen[-1] in seen[:-1]:
            return [f"after must not lead in a circle, but {' is after '.join(map(str, seen))}. Change one of them."]
    return check_start(method.recipe, [plan.methods[name].recipe for name in seen if name is not None])


def _is_missing_folder(encoder: str, plan: Plan) -> bool:
    """Return whether an encoder can only be a folder, but does not exist; a name of the Hub may exist there."""
    return not is_hub_id(encoder, plan.folder) and not (plan.folder / encoder).is_dir()
