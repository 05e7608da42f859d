"""Make a model of a comparison ready for the Hub, and train the row that it recommends on all labeled examples.

A publication has weights, tokenizer, code, pictures, and a card with what was measured. The model that `train_best`
makes has the encoder of the comparison. Its runs chose epochs, learning rate and thresholds on validation, so the
validation examples can now be trained on. It therefore has no score of its own: its card shows the row's.
"""

import logging
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from transformers import AutoTokenizer

from hf_domain.comparison.decision import choose, list_starts, list_unlearned
from hf_domain.comparison.figures import draw_training
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.prepare import FOLDER
from hf_domain.comparison.report import draw, explain, format_markdown_table, make_tables, name_encoder, write_report
from hf_domain.comparison.results import Result, find_models, find_results, read_plan_file, read_results
from hf_domain.comparison.rows import RECIPES
from hf_domain.comparison.run import Execute, check_steps, gather_results, has_output, list_missing, run_steps
from hf_domain.comparison.steps import (
    CACHE_FLAGS,
    CHECKPOINTS,
    ROOT,
    TRAINER_OPTIONS,
    Step,
    StepLister,
    find_root,
    identify,
    name_steps,
    put_root,
)
from hf_domain.comparison.summary import Report
from hf_domain.data.files import SPLITS
from hf_domain.hub import MODEL_FILES, has_own_code, is_hub_id, read_config
from hf_domain.methods import METHODS
from hf_domain.safe_io import (
    lock_folder,
    name_replaced,
    read_json,
    replace_folder,
    restore_folder,
    write_json,
    write_text,
)
from hf_domain.tasks.files import SENTENCES, Task, find_texts, get_text
from hf_domain.tasks.scores import read_examples
from hf_domain.training.cards import describe_encoder, make_usage, write_model_card
from hf_domain.training.run_files import STATE

logger = logging.getLogger(__name__)

# The folder of the recommended models, in that of the comparison.
BEST: Final = "best"
# Flags of a fine-tuning that need held-out examples, or leave some of the training examples out.
HELD_OUT = (
    *("validation_file", "test_file", "do_eval", "do_predict", "early_stopping_patience", "eval_strategy"),
    *("eval_steps", "metric_for_best_model", "load_best_model_at_end"),
    *("max_train_samples", "max_eval_samples", "max_predict_samples", "nearest_vote"),
)
LICENSE_NOTE = "Not stated yet: name the licenses of the base model, of the corpus and of the task here."
LIMITS = "Other kinds of text than the corpus and the task."
# What a publication has beside the model; a license in its folder is somebody's own.
MADE_FILES = ("README.md", "report.json", "*.png")
# What a comparison keeps in its own folder.
KEPT = ("steps", "results", "data", "texts", "passages", "memories", "locks")
# What the Hub calls a kind of tasks; the others classify texts.
ENCODER = "fill-mask"
HUB_TASKS = {"ner": "token-classification", "qa": "question-answering"}
WITHOUT_PACKAGE = "import sys\nsys.modules['hf_domain'] = None\n"


@dataclass(frozen=True)
class Source:
    """A model that a comparison trained."""

    result: Result
    card: str | None
    """A key of `METHODS`: what the card is about; None: fine-tuning alone."""
    hub_task: str
    """As the Hub names it."""
    tasks: list[str]
    """Tasks of the plan that the model was tested on."""


def make_publication(
    output_dir: Path,
    folder: Path,
    *,
    model_name: str,
    example: str,
    license: str | None = None,
    license_note: str = LICENSE_NOTE,
    limits: str = LIMITS,
    language: str = "en",
    method: str | None = None,
    corpus: str | None = None,
    task: str | None = None,
    source: Source | None = None,
) -> Path:
    """Gather a model that a comparison trained, write its card from the results, and return the folder.

    The usage snippet of the card runs on the folder in a process that cannot import this package; the card shows its
    output.

    Args:
        output_dir: Output folder of the comparison.
        folder: Where the publication is made; an earlier one there is replaced, nothing else is.
        model_name: Name of the model, as its users will write it.
        example: A sentence for the snippet; of an encoder with the tokenizer's mask token.
        license: Identifier of the license of the weights; None if it is not settled.
        license_note: Licenses of base model and data.
        limits: What it was not tested for.
        language: Code of the language of the corpus.
        method: Row of the plan whose encoder is published.
        corpus: Corpus of the plan that the encoder was trained on. For TAPT, and for what starts from it, the task.
        task: Task of the plan whose fine-tuned model with the best validation score is published instead of an encoder.
        source: The model itself, instead of a method and a corpus, or a task.

    Raises:
        ValueError: The comparison did not train such a model, or `folder` holds something else.
        RuntimeError: The snippet fails.
    """
    folder = folder.resolve()
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    check_publication_folder(name_replaced(folder), output_dir, is_whole=False)
    restore_folder(folder)
    check_publication_folder(folder, output_dir)
    check_publication_folder(unfinished, output_dir, is_whole=False)
    results = read_results(output_dir)
    if source is None and task is not None:
        source = find_fine_tuned(output_dir, results, task)
    elif source is None:
        source = find_pretrained(output_dir, results, str(method), str(corpus))
    report, step = write_report(output_dir), source.result.step
    trained = output_dir / "steps" / step.id
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    tokenizer = AutoTokenizer.from_pretrained(trained, trust_remote_code=False)
    for pattern in (*MODEL_FILES, *tokenizer.vocab_files_names.values()):
        for file in trained.glob(pattern):
            shutil.copy(file, unfinished)
    config = read_config(trained)
    if not has_own_code(config) and config.pop("auto_map", None):  # of the base: its code computes nothing here
        write_json(unfinished / "config.json", config)
    report = keep_tasks(report, source.tasks)
    pictures = [f"{name}.png" for name in draw(report, unfinished)] if source.tasks else []
    # The end of a failed step's log explains the failure, but may give away what nobody has checked.
    scores = read_json(output_dir / "report.json")
    write_json(unfinished / "report.json", scores | {"failed": sorted(scores["failed"])})
    if draw_training(trained / STATE, unfinished / "training.png"):
        pictures.append("training.png")
    encoder, stages = find_start(report.plan, str(step.method))
    recipe = RECIPES[report.plan["methods"][step.method]["recipe"]]
    if source.hub_task != ENCODER and recipe.method is not None:
        stages.append(recipe.title)
    # The cards of the others say so themselves.
    elif source.card and METHODS[source.card].trains_stock_model and "expanded_vocabulary" in step.flags:
        stages.append("an expansion of its vocabulary by words of the domain")
    home = output_dir / report.plan["folder"]
    start, base_model = home / encoder, encoder if is_hub_id(encoder, home) else None
    parts = []
    if report.plan["tasks"]:
        parts = [make_results(report), f"{describe_row(source.result, report)} {explain(report)}"]
    write_model_card(
        unfinished,
        {"license": license, "language": language, "base_model": base_model},
        # The model's type decides: DAPT that starts after a VarMAE continues the VarMAE.
        method=config["model_type"] if has_own_code(config) else source.card,
        task=source.hub_task,
        model_name=model_name,
        base_model=describe_encoder(str(start) if start.exists() else encoder, stages=stages),
        corpus=describe_text(step, report.plan),
        settings=list_settings(source.result),
        limits=f"{recipe.note if task is None else ''} {limits}".strip(),
        license_note=license_note,
        example=example,
        usage_output=run_usage(unfinished, example, source.hub_task),
        results="\n\n".join([*parts, *(f"![{Path(name).stem}]({name})" for name in pictures)]),
    )
    replace_folder(unfinished, folder)
    return folder


def publish_best(output_dir: Path, folder: Path) -> Path:
    """Gather the fine-tuned model with the best validation score, of the first task that has one.

    Returns:
        The folder; that of the step itself for a model of sentence embeddings, which sentence-transformers loads.

    Raises:
        ValueError: No model was kept.
    """
    plan, models = read_plan_file(output_dir), find_models(output_dir, read_results(output_dir))
    name = next((name for name in plan["tasks"] if name in models), None)
    if name is None:
        raise ValueError(f"{output_dir} must hold a fine-tuned model, but has none. Set keep_models: best in the plan.")
    task = Task(**plan["tasks"][name])
    if task.kind in SENTENCES:
        return output_dir / "steps" / models[name].step.id
    example = find_example(task, (output_dir / plan["folder"]).resolve())
    make_publication(output_dir, folder, model_name=f"{name_encoder(plan)}-{name}", example=example, task=name)
    return folder


def find_example(task: Task, folder: Path) -> str:
    """Return the text of the first training example of a task, whose files are relative to the folder."""
    train = task.get_file("train", task.list_folds()[0])
    column = find_texts(task.kind, train, folder, task.options.get("text_column_names"))[0]
    return get_text(read_examples(folder / train, 1)[0][column])


def find_pretrained(output_dir: Path, results: Mapping[str, Result], method: str, corpus: str) -> Source:
    """Find the encoder of a method.

    Raises:
        ValueError: The comparison did not train it.
    """
    name = f"{method}-{corpus}"
    trained = output_dir / "steps" / (results[name].step.id if name in results else name)
    if name not in results or not results[name].is_done or not (trained / "config.json").is_file():
        made = sorted(n for n, r in results.items() if r.step.kind == "pretraining" and r.is_done)
        raise ValueError(f"{output_dir} has no trained model {name}; there are {', '.join(made) or 'none'}")
    recipes = {name: row["recipe"] for name, row in read_plan_file(output_dir)["methods"].items()}
    card = RECIPES[recipes[method]].card
    if card is None:
        made = sorted(name for name, recipe in recipes.items() if RECIPES[recipe].card is not None)
        raise ValueError(
            f"--method must be a row that trains an encoder by masked LM, but is {method}. Publish one of "
            f"{', '.join(made) or 'another plan'}."
        )
    # A row of the report may be of several encoders, one for each corpus.
    tested = (r.step for r in results.values() if r.step.kind == "fine_tuning" and r.step.method == method)
    tasks = sorted({str(step.task) for step in tested if results[name].step.id in step.needs})
    return Source(results[name], card, ENCODER, tasks)


def find_fine_tuned(output_dir: Path, results: Mapping[str, Result], task: str) -> Source:
    """Find the fine-tuned model of a task with the best validation score.

    Raises:
        ValueError: The comparison did not keep it.
    """
    models = find_models(output_dir, results)
    if task not in models:
        raise ValueError(
            f"--task must be a task whose best fine-tuned model was kept, {', '.join(models) or 'and there is none'}, "
            f"but is {task}. Set keep_models: best in the plan, and run the comparison again."
        )
    run, kind = models[task], read_plan_file(output_dir)["tasks"][task]["kind"]
    if kind in SENTENCES:
        raise ValueError(
            f"--task must be a task whose model has a head, but {task} is a {kind}, whose model sentence-transformers "
            f"publishes: SentenceTransformer({str(output_dir / 'steps' / run.step.id)!r}).push_to_hub(...)"
        )
    return Source(run, None, HUB_TASKS.get(kind, "text-classification"), [task])


def list_settings(result: Result) -> dict[str, Any]:
    """List how a model was trained, and what it cost; without flags that only say where files are."""
    flags = {
        name: value
        for name, value in result.step.flags.items()
        if name not in {*TRAINER_OPTIONS, *CHECKPOINTS, "mix"}
        and not name.endswith(("_file", "_dir", "_path", "_vocabulary", "_cache", "datastore"))
        and not name.startswith(("log", "do_", "use_"))
    }
    if "learning_rate" in result.metrics:  # as it was chosen
        flags["learning_rate"] = result.metrics["learning_rate"]
    settings = {name.replace("_", " "): value for name, value in flags.items()}
    if result.max_steps is not None:
        settings["max steps"] = result.max_steps
    if result.tokens is not None:
        settings["tokens"] = f"{result.tokens:,}"
    settings["seconds"] = f"{result.seconds:.0f}"
    settings["versions"] = ", ".join(f"{k} {v}" for k, v in result.environment["versions"].items())
    return settings


def describe_row(result: Result, report: Report) -> str:
    """Say which row of the table a model is of, and how a fine-tuned one was chosen."""
    row, step, score = report.titles[str(result.step.method)], result.step, result.score
    tokens, seeds = report.plan["budget"]["tokens"], report.plan["pretraining_seeds"]
    if step.kind == "final":
        return (
            f"This model is made as {row}, and was fine-tuned on all labeled examples, also those for validation. "
            "So it has no score of its own: those of the row are of models that were trained without them."
        )
    if score is not None:
        return (
            f"This model is a run of {row}. It has the best validation score of all runs, and a test score of "
            f"{score:.1f}."
        )
    if step.budget not in (None, tokens):
        return f"This model is {row} after {step.budget:,} tokens; the table has its scores after {tokens:,}."
    if len(seeds) > 1:
        return (
            f"This model is one of the {len(seeds)} encoders of {row}, with the seed {step.pretraining_seed}; the row "
            "has their means."
        )
    return f"{row} is this model."


def check_publication_folder(folder: Path, output_dir: Path, *, is_whole: bool = True) -> None:
    """Raise unless a folder can be replaced by a publication: nothing that anybody else wrote is ever deleted.

    Raises:
        ValueError: It holds the comparison, is a part of it, or has files that no publication wrote. Of one that was
            not finished, `is_whole` is false.
    """
    home = output_dir.resolve()
    if home.is_relative_to(folder) or any(folder.is_relative_to(home / name) for name in KEPT):
        raise ValueError(f"--output_dir must lie outside the comparison {home}, but is {folder}. Name another folder.")
    if not folder.exists():
        return
    files = sorted(folder.iterdir()) if folder.is_dir() else [folder]
    # A killed process leaves the file that it was writing.
    names, patterns = [file.name for file in files], [*MODEL_FILES, *MADE_FILES, *["*.unfinished"] * (not is_whole)]
    others = [f.name for f in files if not (f.is_file() and any(fnmatch(f.name, pattern) for pattern in patterns))]
    if others or (names and is_whole and not {"README.md", "config.json", "report.json"} <= {*names}):
        raise ValueError(
            f"--output_dir must be empty or an earlier publication, but {folder} contains "
            f"{', '.join((others or names)[:5])}. Name another folder."
        )


def keep_tasks(report: Report, tasks: list[str]) -> Report:
    """Return a report of some of its tasks."""
    kept = {name: options for name, options in report.plan["tasks"].items() if name in tasks}
    differences = {
        row: {task: difference for task, difference in own.items() if task in kept}
        for row, own in report.differences.items()
    }
    runs = {key: run for key, run in report.runs.items() if key[1] in kept}
    return replace(report, plan=report.plan | {"tasks": kept}, runs=runs, differences=differences)


def make_results(report: Report) -> str:
    """Write the table of scores for a card, below the sentence on the runs that did not learn, if there are any."""
    scores, unlearned = make_tables(report)["Scores"], list_unlearned(report)
    table = format_markdown_table(scores[(scores != "").any(axis=1)])  # rows of other tasks alone would be empty
    return f"**{unlearned}**\n\n{table}" if unlearned else table


def describe_text(step: Step, plan: dict[str, Any]) -> str:
    """Say what a model was trained on: a corpus of the plan, files of its own, or the texts of a task."""
    if step.task is not None:
        return f"{'all labeled' if step.kind == 'final' else 'the training'} texts of {step.task}"
    files = put_root(step.flags["train_file"], plan["root"])
    if files == plan["corpora"][step.corpus]["train_file"]:
        return str(step.corpus)
    files = files if isinstance(files, list) else [files]
    return f"{step.corpus} ({', '.join(Path(file).name for file in files)})"


def find_start(plan: dict[str, Any], method: str) -> tuple[str, list[str]]:
    """Return the encoder that a method of a plan started from, and what trained it before the method did."""
    first, *later = list_starts(plan, method)[::-1]
    recipes = [RECIPES[plan["methods"][row]["recipe"]] for row in (first, *later) if row != method]
    return (plan["methods"][first]["encoder"] or plan["encoder"]).rstrip("/"), [r.title for r in recipes if r.method]


def run_usage(folder: Path, example: str, hub_task: str) -> str:
    """Run the snippet of the card on a folder, without this package; returns what it prints.

    Raises:
        RuntimeError: It fails.
    """
    snippet = make_usage(folder, str(folder.resolve()), example, hub_task)
    command = [sys.executable, "-c", WITHOUT_PACKAGE + snippet]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode:
        raise RuntimeError(f"the snippet of the card fails on {folder}:\n{run.stderr[-2000:]}")
    return run.stdout.strip()


# ---------------------------------------------------------------------------------------------- the recommended row


def train_best(
    plan: Plan,
    output_dir: Path,
    execute: Execute | None = None,
    num_processes: int = 1,
    dask_scheduler: str | None = None,
) -> dict[str, Path]:
    """Train the recommended row for each of its tasks, and gather each model with its card in a folder of its own.

    What is there is not trained again; a killed call resumes. Other arguments as in `run_comparison`.

    Args:
        output_dir: Output folder of the comparison, which has ended; the models are made in its folder `BEST`.

    Returns:
        The folders by task.

    Raises:
        ValueError: The comparison has not ended, or no row of it learned.
        RuntimeError: A training failed.
    """
    plan = replace(plan, path=plan.folder.resolve() / plan.path.name)
    output_dir = output_dir.resolve()
    steps, results = check_steps(plan, output_dir)
    if lacking := [step for step in steps if step.name not in results]:
        raise ValueError(
            f"--train_best needs a comparison that has ended, but {len(lacking)} steps of {plan.path.name} have no "
            "result. Run it without --train_best first."
        )
    gather_results(plan, output_dir)  # the last run may have been of another plan
    report = write_report(output_dir)
    method = choose(report)
    if method is None:
        raise ValueError("--train_best needs a row that learned, but none did. See the first line of the report.")
    tasks = [task for task in plan.tasks if method in plan.list_methods(task)]
    if unfit := [task for task in tasks if plan.tasks[task].kind in SENTENCES]:
        logger.warning(f"--train_best trains models with a head: run hf-domain sentences for {', '.join(unfit)}")
        tasks = [task for task in tasks if task not in unfit]
    named = name_steps(plan, output_dir)
    steps = identify(plan, output_dir, [*named, *(make_step(plan, output_dir, method, t, results) for t in tasks)])
    wanted = {str(step.task): step for step in steps if step.kind == "final"}
    results |= find_results(output_dir, {step.name: step.id for step in wanted.values()})
    made = {name for name, result in results.items() if result.is_done}
    made &= {step.name for step in wanted.values() if has_output(step, output_dir / "steps" / step.id)}
    if lost := {step.name for step in wanted.values()} - made:
        with lock_folder(output_dir):
            missing = list_missing(steps, lost, output_dir)
            run_steps(missing, results, plan, output_dir, execute, num_processes, dask_scheduler)
    return {task: gather(plan, output_dir, results[step.name], report) for task, step in wanted.items()}


def make_step(plan: Plan, output_dir: Path, method: str, task: str, results: Mapping[str, Result]) -> Step:
    """Return the step that fine-tunes a row on all labeled examples of a task, as its runs chose on validation."""
    budgets = plan.budget.numbers
    lister = StepLister(plan, find_root(plan, output_dir), plan.pretraining_seeds[0], budgets[-1] if budgets else None)
    fold, known = plan.tasks[task].list_folds()[0], [step.name for step in name_steps(plan, output_dir)]
    step = lister.fine_tune(method, task, fold, plan.seeds[0], known)
    flags = {name: value for name, value in step.flags.items() if name not in HELD_OUT}
    # States are cached example by example, in the order of the files.
    flags |= {name: f"{flags[name]}-{BEST}" for name in CACHE_FLAGS if name in flags}
    chosen = list_choices(plan, list_runs(results, method, task))
    flags |= {"train_file": write_examples(plan, output_dir, task), **chosen}
    return replace(step, name=f"{method}-{task}-{BEST}", kind="final", flags=flags, fold=None)


def list_runs(results: Mapping[str, Result], method: str, task: str) -> list[Result]:
    """List the runs of a row on a task, at the largest budget."""
    runs = [r for r in results.values() if r.step.kind == "fine_tuning" and r.is_done and r.step.train_fraction is None]
    runs = [r for r in runs if (r.step.method, r.step.task) == (method, task)]
    largest = max((r.step.budget or 0 for r in runs), default=0)
    return [r for r in runs if (r.step.budget or 0) == largest]


def list_choices(plan: Plan, runs: list[Result]) -> dict[str, float]:
    """Return the flags that runs chose on validation: the median of the best epochs, the most frequent rate."""
    chosen = {}
    if epochs := [r.metrics["best_epoch"] for r in runs if "best_epoch" in r.metrics]:
        chosen["num_train_epochs"] = round(statistics.median(epochs), 3)
    if plan.learning_rates:
        chosen["learning_rate"] = statistics.mode(r.metrics["learning_rate"] for r in runs)
    return chosen


def average_thresholds(runs: list[Result]) -> list[float] | None:
    """Return the mean of the thresholds of several labels that runs chose; None where they have none."""
    chosen = [r.metrics["label_thresholds"] for r in runs if "label_thresholds" in r.metrics]
    return [statistics.mean(of_label) for of_label in zip(*chosen, strict=True)] if chosen else None


def average_votes(runs: list[Result]) -> dict[str, Any] | None:
    """Return the vote that runs chose: the most frequent number of texts, and the mean weight; None without a vote."""
    chosen = [r.metrics["nearest_vote"] for r in runs if "nearest_vote" in r.metrics]
    if not chosen:
        return None
    weight = sum(vote["weight"] for vote in chosen) / len(runs)  # a run without a vote has the weight 0
    return {**chosen[0], "count": statistics.mode(vote["count"] for vote in chosen), "weight": weight}


def write_examples(plan: Plan, output_dir: Path, task: str) -> str:
    """Write the training and the validation examples of a task, with folds all items, and return the file."""
    own = plan.tasks[task]
    splits = SPLITS if own.folds is not None else SPLITS[:2]
    files = [plan.folder / own.get_file(split, own.list_folds()[0]) for split in splits]
    lines = [line for file in files for line in file.read_text(encoding="utf-8").split("\n") if line.strip()]
    text = "".join(f"{line}\n" for line in lines)
    file = output_dir / FOLDER / f"{task}-{sha256(text.encode()).hexdigest()[:8]}-all.jsonl"
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.is_file():
        write_text(file, text)
    return f"{ROOT}/{FOLDER}/{file.name}"


def gather(plan: Plan, output_dir: Path, result: Result, report: Report) -> Path:
    """Gather the model of a task with its card.

    Raises:
        RuntimeError: Its training failed.
    """
    if not result.is_done:
        raise RuntimeError(f"{result.step.name} failed; the same command tries it again: {result.error}")
    method, task = str(result.step.method), str(result.step.task)
    own, source = plan.tasks[task], output_dir / "steps" / result.step.id
    config = read_json(source / "config.json")
    runs = list_runs(read_results(output_dir), method, task)
    chosen = {"label_thresholds": average_thresholds(runs), "nearest_vote": average_votes(runs)}
    # Also what no run has any more: the folder may be that of an earlier comparison.
    chosen = {name: value for name, value in chosen.items() if value is not None or name in config}
    write_json(source / "config.json", config | chosen)
    return make_publication(
        output_dir,
        output_dir / BEST / task,
        source=Source(result, None, HUB_TASKS.get(own.kind, "text-classification"), [task]),
        model_name=f"{name_encoder(report.plan)}-{task}",
        example=find_example(own, plan.folder),
    )
