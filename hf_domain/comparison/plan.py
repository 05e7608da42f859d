"""The plan of a comparison: which methods make an encoder of a domain, which tasks test it, and at which cost.

The docstring of examples/compare.py shows a whole one. Paths are relative to the plan; `pretraining`, `fine_tuning`,
`vocabulary` and `datastore` are flags of run_mlm.py, the scripts of the tasks, run_expand_vocab.py, build_datastore.py.
"""

import math
import re
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from hf_domain.comparison.task_files import check_task_files, find_texts
from hf_domain.data.file_loading import BUILDERS, check_held_out
from hf_domain.methods import BASELINE, RECIPES, Recipe, check_start
from hf_domain.publishing import is_hub_id
from hf_domain.training.arguments import find_damage, find_wrong_values
from hf_domain.training.settings import has_type, read_settings

METRICS = {
    "classification": ("macro_f1", "micro_f1", "positive_micro_f1"),
    "ner": ("entity_f1", "token_f1"),
    "qa": ("f1", "exact_match"),
}
# A comparison sets these itself, or what they change is not what it counts or scores.
FIXED_FLAGS = {
    "pretraining": {"method", "model_name_or_path", "validation_file", "do_train", "max_steps", "seed", "output_dir"},
    "fine_tuning": {
        *("model_name_or_path", "train_file", "validation_file", "test_file", "dataset_name", "do_train", "do_predict"),
        *("seed", "output_dir", "label_column_name", "label_all_tokens", "do_regression", "multi_label"),
    },
    "vocabulary": {"model_name_or_path", "counts_file", "output_dir"},
    "datastore": {"model_name_or_path", "output_dir"},
}


# A plan may come from anybody: trust and publishing are decided on the command line.
UNSAFE_FLAGS = {"trust_remote_code", "metric_name", "push_to_hub"}
COUNTED = ("per_device_train_batch_size", "max_seq_length", "gradient_accumulation_steps")


@dataclass
class Corpus:
    """Text of a domain, and text of the same kind that no method is trained on."""

    train_file: str
    validation_file: str


@dataclass
class Task:
    """A folder with train, validation and test as .jsonl."""

    kind: Literal["classification", "ner", "qa"]
    folder: str
    corpus: str
    metric: str = ""
    """One of `METRICS`; empty takes the first of the kind."""
    options: dict[str, Any] = field(default_factory=dict)

    def get_file(self, split: str) -> str:
        """Return the file of a split."""
        return f"{self.folder}/{split}.jsonl"


@dataclass
class Method:
    """A row of the report."""

    recipe: str = ""
    """A key of `RECIPES`; empty: the name of the method."""
    after: str | None = None
    """Another method whose encoder this one starts from, instead of the plan's."""
    encoder: str | None = None
    """A checkpoint made elsewhere that this one starts from, instead of the plan's."""
    share: float = 0.5
    """Of the tokens of a rung, where the method trains on after another one: the other has the rest."""
    tasks: list[str] | None = None
    """The tasks that it is tested on; default all."""
    counterpart: str | None = None
    """The method of equal pre-training that it is compared with; default that of the recipe, see `find_counterpart`."""
    pretraining: dict[str, Any] = field(default_factory=dict)
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    datastore: dict[str, Any] = field(default_factory=dict)
    """Flags of a datastore of its own, such as `train_file`."""


@dataclass
class Budget:
    """What pre-training of each method may cost: one of the two."""

    tokens: int | list[int] | None = None
    """A list trains each encoder once, up to the largest number, and scores it at each of them."""
    minutes: float | None = None

    @property
    def rungs(self) -> list[int]:
        """The numbers of tokens at which encoders are scored, in order; empty where there is a single one."""
        return sorted(self.tokens) if isinstance(self.tokens, list) else []


@dataclass
class Plan:
    """What is compared. See the docstring of the module."""

    encoder: str
    corpora: dict[str, Corpus]
    tasks: dict[str, Task]
    methods: dict[str, Method]
    budget: Budget
    general: str | None = None
    evaluation: Literal["fine_tune", "probe"] = "fine_tune"
    """How encoders are scored: fine-tuned with each seed, or frozen, by a logistic regression on their states."""
    seeds: list[int] = field(default_factory=lambda: [1, 2, 3])
    """Of fine-tuning."""
    pretraining_seeds: list[int] = field(default_factory=lambda: [42])
    """Each encoder is trained with each of them, and fine-tuned with each of `seeds`."""
    learning_rates: list[float] = field(default_factory=list)
    """Of fine-tuning: each method takes the one that is best on the validation set of a task, with the first seed."""
    pretraining: dict[str, Any] = field(default_factory=dict)
    fine_tuning: dict[str, Any] = field(default_factory=dict)
    vocabulary: dict[str, Any] = field(default_factory=dict)
    datastore: dict[str, Any] = field(default_factory=dict)
    path: Path = Path("plan.yaml")
    """Where the plan stands; its paths are relative to the folder."""

    @property
    def folder(self) -> Path:
        """The folder of the plan, where every command runs."""
        return self.path.parent

    def get_recipe(self, method: str) -> Recipe:
        """Return how a method makes its encoder."""
        return RECIPES[self.methods[method].recipe]

    def get_root(self, method: str) -> str:
        """Return the first of the methods that a method starts from, or itself."""
        while (after := self.methods[method].after) is not None:
            method = after
        return method

    def find_counterpart(self, method: str) -> str | None:
        """Return the method whose pre-training costs as much, so that the difference is what the method adds.

        A method that trains no encoder itself has that of the method it starts from. One that goes on from another's
        has no equal, unless the plan names it.
        """
        options, recipe = self.methods[method], self.get_recipe(method)
        if options.counterpart is not None or (options.after is not None and recipe.method is None):
            return options.counterpart or options.after
        same = recipe.counterpart in self.methods and self.methods[str(recipe.counterpart)]
        return recipe.counterpart if same and (same.after, same.encoder) == (options.after, options.encoder) else None

    def list_pairs(self) -> list[tuple[str, str]]:
        """List the comparisons of the plan: each method with its counterpart, and with the baseline."""
        pairs = [(method, other) for method in self.methods for other in (self.find_counterpart(method), BASELINE)]
        return [(own, other) for own, other in dict.fromkeys(pairs) if other in self.methods and own != other]

    def list_methods(self, task: str) -> list[str]:
        """List the methods that are tested on a task."""
        return [name for name, method in self.methods.items() if method.tasks is None or task in method.tasks]


def load_plan(path: str | Path) -> Plan:
    """Read a plan and check it.

    Args:
        path: YAML file.

    Returns:
        The plan, with paths that hold from the working directory.

    Raises:
        ValueError: Something is wrong with it: all of its fields in one message, then all that they name in one.
    """
    path = Path(path)
    content = read_settings(path)
    problems: list[str] = []
    _check_fields(content, Plan, "the plan", problems)
    for section, kind in (("corpora", Corpus), ("tasks", Task), ("methods", Method)):
        entries = content.get(section)
        if not isinstance(entries, dict) or not entries:
            problems.append(f"{section} is a mapping of names with at least one entry, got {entries}")
            continue
        for name, options in entries.items():
            entries[name] = _build(kind, options, f"{section}: {name}", problems)
    content["budget"] = _build(Budget, content.get("budget"), "budget", problems)
    others = {name: value for name, value in content.items() if name not in ("corpora", "tasks", "methods", "budget")}
    known = {item.name for item in fields(Plan)}
    _check_types({name: value for name, value in others.items() if name in known}, Plan, "the plan", problems)
    content = {name: value for name, value in content.items() if value is not None}
    if problems:
        _refuse(path, problems)
    plan = Plan(**content, path=path)
    for name, method in plan.methods.items():
        method.recipe = method.recipe or name
    for task in plan.tasks.values():
        task.metric = task.metric or METRICS.get(task.kind, ("",))[0]
    _refuse(path, check_plan(plan))
    return plan


def _build(kind: type, options: Any, where: str, problems: list[str]) -> Any:
    options = {} if options is None else options
    if not isinstance(options, dict):
        problems.append(f"{where} is a mapping, got {options}")
        return None
    right = _check_fields(options, kind, where, problems)
    return kind(**options) if right and _check_types(options, kind, where, problems) else None


def _check_types(options: dict[str, Any], kind: type, where: str, problems: list[str]) -> bool:
    """Note values of another type than the field's; an empty entry of YAML is left to its default."""
    types = get_type_hints(kind)
    for name in [name for name, value in options.items() if value is None]:
        del options[name]
    wrong = [
        f"{where}: {name} is a {types[name] if get_args(types[name]) else types[name].__name__}, got {value!r}"
        for name, value in options.items()
        if not has_type(value, types[name]) and get_origin(types[name]) is not Literal
    ]
    problems += wrong
    return not wrong


def _check_fields(options: dict[str, Any], kind: type, where: str, problems: list[str]) -> bool:
    """Note fields that are unknown or missing; return whether there are none."""
    known = {item.name: item.default is MISSING and item.default_factory is MISSING for item in fields(kind)}
    wrong = [f"{where} has no {name}; there are {', '.join(known)}" for name in options if name not in known]
    wrong += [
        f"{where} lacks {name}" for name, is_required in known.items() if is_required and options.get(name) is None
    ]
    problems += wrong
    return not wrong


def check_plan(plan: Plan) -> list[str]:
    """Return everything that is wrong with a plan, before the first run."""
    problems = _check_costs(plan)
    if damage := find_damage(plan.encoder, plan.folder):
        problems.append(f"encoder: {damage}")
    for section in (plan.corpora, plan.tasks, plan.methods):
        problems += [
            f"a name is a text of letters, digits, _ and - (quote a number): it becomes that of a folder; got {name}"
            for name in section
            if not (isinstance(name, str) and re.fullmatch(r"[\w-]+", name))
        ]
    if shared := sorted(plan.corpora.keys() & plan.tasks.keys()):
        problems.append(f"a task and a corpus have different names, what is made of them is called so; got {shared}")
    if plan.general is not None and plan.general not in plan.corpora:
        problems.append(f"general is none of the corpora {', '.join(plan.corpora)}, got {plan.general}")
    for name, corpus in plan.corpora.items():
        problems += [f"corpora: {name}: {problem}" for problem in _check_corpus(corpus, plan)]
    for name, task in plan.tasks.items():
        problems += [f"tasks: {name}: {problem}" for problem in _check_task(task, plan)]
    for name, method in plan.methods.items():
        problems += [f"methods: {name}: {problem}" for problem in _check_method(method, plan)]
    return problems


def _is_missing_folder(encoder: str, plan: Plan) -> bool:
    """Return whether an encoder can only be a folder, and is none; what is called like one of the Hub may be there."""
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
    if plan.evaluation not in get_args(get_type_hints(Plan)["evaluation"]):
        problems.append(f"evaluation must be fine_tune or probe, but is {plan.evaluation}")
    if plan.evaluation == "probe" and plan.learning_rates:
        problems.append("learning_rates are of fine-tuning, a probe has none: leave them out")
    if len(set(plan.learning_rates)) < len(plan.learning_rates) or len(plan.learning_rates) == 1:
        problems.append(f"learning_rates must be two different ones or more, got {plan.learning_rates}")
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
        return [f"budget is either tokens or minutes, got {plan.budget}"]
    if isinstance(plan.budget.tokens, list):
        return _check_rungs(plan)
    if not 0 < (plan.budget.tokens or plan.budget.minutes or 0) < math.inf:
        return [f"budget must be above 0 and finite, got {plan.budget}"]
    return []


def _check_rungs(plan: Plan) -> list[str]:
    """Note what a list of tokens cannot have."""
    rungs, problems = plan.budget.rungs, []
    if len(set(rungs)) < max(2, len(rungs)) or rungs[0] <= 0:
        problems.append(f"budget: a list of tokens must be two different numbers above 0 or more, but is {rungs}")
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


def _check_flags(plan: Plan) -> list[str]:
    """Note flags that no plan can have; whether a script takes the others is checked with its steps."""
    groups = [(kind, "", getattr(plan, kind)) for kind in FIXED_FLAGS]
    groups += [("fine_tuning", f"tasks: {name}: ", task.options) for name, task in plan.tasks.items()]
    for kind in ("pretraining", "fine_tuning", "datastore"):
        groups += [(kind, f"methods: {name}: ", getattr(method, kind)) for name, method in plan.methods.items()]
    problems = []
    for kind, where, flags in groups:
        # Texts are left to the parsers of the scripts, but not where steps are counted before these are asked.
        values = {name: value for name, value in flags.items() if name in COUNTED or not isinstance(value, str)}
        problems += [f"{where}{kind}: {problem}" for problem in find_wrong_values(values)]
        # Another spelling would reach the script, and not the code here that counts tokens and examples.
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
    for file in (corpus.train_file, corpus.validation_file):
        if not (plan.folder / file).is_file():
            problems.append(f"there is no file {file}")
        if Path(file.removesuffix(".gz")).suffix not in BUILDERS:
            problems.append(f"a corpus is {' '.join(BUILDERS)} (.gz), got {file}")
    try:
        check_held_out(
            str(plan.folder / corpus.train_file), {"validation_file": str(plan.folder / corpus.validation_file)}
        )
    except ValueError as error:
        problems.append(str(error))
    return problems


def _check_task(task: Task, plan: Plan) -> list[str]:
    problems = []
    if task.corpus not in plan.corpora:
        problems.append(f"corpus is none of {', '.join(plan.corpora)}, got {task.corpus}")
    if task.kind not in METRICS:
        return [*problems, f"kind is one of {', '.join(METRICS)}, got {task.kind}"]
    if task.metric not in METRICS[task.kind]:
        problems.append(f"metric of {task.kind} is one of {', '.join(METRICS[task.kind])}, got {task.metric}")
    if task.metric == "positive_micro_f1" and "negative_labels" not in task.options:
        problems.append("positive_micro_f1 needs options: {negative_labels: ...}")
    if plan.evaluation == "probe" and task.kind == "qa":
        problems.append("a probe classifies texts and words, it answers no questions: leave the task out")
    files = {split: task.get_file(split) for split in ("train", "validation", "test")}
    names = task.options.get("text_column_names")
    if not isinstance(names, str | None):
        return [*problems, f"text_column_names is a text such as one,two, got {names}"]
    return problems + check_task_files(task.kind, files, plan.folder, names)


def _check_method(method: Method, plan: Plan) -> list[str]:
    if method.recipe not in RECIPES:
        return [f"recipe is one of {', '.join(RECIPES)}, got {method.recipe}"]
    problems, recipe = [], RECIPES[method.recipe]
    if recipe.text == "general" and plan.general is None:
        problems.append(f"{method.recipe} is trained on general text: name one of the corpora in `general`")
    if recipe.needs_after and method.after is None:
        problems.append(f"{method.recipe} needs `after`, the method whose encoder it takes")
    if recipe.method is None and method.pretraining:
        problems.append(f"{method.recipe} is not pre-trained, got pretraining {method.pretraining}")
    if method.datastore and not recipe.reads_datastore:
        problems.append(f"{method.recipe} reads no datastore, got datastore {method.datastore}")
    trainings = (plan.pretraining, plan.fine_tuning, method.pretraining, method.fine_tuning)
    if recipe.reads_datastore and any("datastore" in flags for flags in trainings):
        problems.append(f"{method.recipe} reads a datastore that is built for it: give its flags in `datastore`")
    tasks = list(plan.tasks) if method.tasks is None else method.tasks
    if unknown := [task for task in tasks if task not in plan.tasks]:
        problems.append(f"tasks are of {', '.join(plan.tasks)}, got {', '.join(unknown)}")
    kinds = {plan.tasks[task].kind for task in tasks if task in plan.tasks}
    if plan.evaluation == "probe" and recipe.fine_tuning:
        problems.append(f"{method.recipe} changes fine-tuning, a probe has none: leave it out, or take fine_tune")
    if unfit := sorted(kinds - {*recipe.kinds}):
        problems.append(
            f"{method.recipe} works for {', '.join(recipe.kinds)} alone, got {', '.join(unfit)}: name other `tasks`"
        )
    return problems + _check_appending(method, plan, tasks) + _check_chain(method, plan)


def _check_appending(method: Method, plan: Plan, tasks: list[str]) -> list[str]:
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
        except (ValueError, AttributeError):  # what is wrong with a task is noted there
            continue
        if task.kind == "classification" and len(texts) > 1:
            problems.append(
                f"a passage is appended to one text, {name} has the pair {', '.join(texts)}: name other `tasks`, or "
                "one column by text_column_names in the options of the task"
            )
    return problems


def _check_chain(method: Method, plan: Plan) -> list[str]:
    if method.encoder is not None and method.after is not None:
        return [f"it starts either from encoder or after a method, got {method.encoder} and {method.after}"]
    if method.encoder is not None and _is_missing_folder(method.encoder, plan):
        return [f"encoder: there is no folder {method.encoder}"]
    if method.counterpart is not None and method.counterpart not in plan.methods:
        return [f"counterpart must be one of the methods, but is {method.counterpart}"]
    seen = [method.after]
    while seen[-1] is not None:
        if seen[-1] not in plan.methods:
            return [f"after is none of the methods, got {seen[-1]}"]
        seen.append(plan.methods[seen[-1]].after)
        if seen[-1] in seen[:-1]:
            return [f"after goes in a circle: {' after '.join(map(str, seen))}"]
    return check_start(method.recipe, [plan.methods[name].recipe for name in seen if name is not None])


def _refuse(path: Path, problems: list[str]) -> None:
    if problems:
        lines = "\n".join(f"- {problem}" for problem in problems)
        raise ValueError(f"{len(problems)} thing(s) are wrong with the plan {path}; nothing was run:\n{lines}")
