"""Put what a comparison measured on the cards of its models, and train the row that it recommends on all examples.

Every step that trains leaves a model with a card. A publication is that folder: its card gets the table of scores. The
model that `train_best` makes has the encoder of the comparison. Its runs chose epochs, learning rate and thresholds on
validation, so the validation examples can now be trained on. It therefore has no score of its own: its card shows the
row's.
"""

import json
import re
import shutil
import statistics
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from huggingface_hub import ModelCard

from hf_domain.comparison.decision import choose, list_unlearned
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.prepare import FOLDER
from hf_domain.comparison.report import explain, format_markdown_table, make_score_table, name_encoder, write_report
from hf_domain.comparison.results import Result, find_models, find_results, read_plan_file, read_results
from hf_domain.comparison.run import Execute, check_steps, gather_results, has_output, list_missing, run_steps
from hf_domain.comparison.steps import CACHE_FLAGS, ROOT, Step, StepLister, find_root, identify, name_steps
from hf_domain.comparison.summary import Report, read_report
from hf_domain.data.files import SPLITS
from hf_domain.hub import MODEL_FILES, carries_foreign_code, check_license, check_publication, has_own_code, read_config
from hf_domain.safe_io import FINISHED, UNFINISHED, lock_folder, read_json, write_folder, write_json, write_text

# The folder of the recommended models, in that of the comparison.
BEST: Final = "best"
# Flags of a fine-tuning that need held-out examples, or leave some of the training examples out.
HELD_OUT = (
    *("validation_file", "test_file", "do_eval", "do_predict", "early_stopping_patience", "eval_strategy"),
    *("eval_steps", "metric_for_best_model", "load_best_model_at_end"),
    *("max_train_samples", "max_eval_samples", "max_predict_samples", "nearest_vote"),
)
# The section of a card that shows the scores of the comparison.
SECTION: Final = "## Comparison"


def find_model(
    output_dir: Path, *, task: str | None = None, method: str | None = None, corpus: str | None = None
) -> tuple[Path, str]:
    """Return the folder of a model that a comparison trained, and the section of its card on the scores.

    Args:
        output_dir: Output folder of the comparison.
        task: Task of the plan: the fine-tuned model with the best validation score.
        method: Row of the plan: its encoder.
        corpus: Corpus of the plan that the encoder was trained on. For TAPT, and for what starts from it, the task.

    Raises:
        ValueError: The comparison did not train such a model, or did not keep it.
    """
    results, name = read_results(output_dir), f"{method}-{corpus}"
    models = find_models(output_dir, results)
    encoders = {name: r for name, r in results.items() if r.step.kind == "pretraining" and r.is_done}
    encoders = {name: r for name, r in encoders.items() if (output_dir / "steps" / r.step.id / "config.json").is_file()}
    if task is not None and task not in models:
        raise ValueError(
            f"--task must be a task whose best fine-tuned model was kept, {', '.join(models) or 'and there is none'}, "
            f"but is {task}. Set keep_models: best in the plan, and run the comparison again."
        )
    if task is None and name not in encoders:
        raise ValueError(f"{output_dir} has no trained model {name}; there are {', '.join(sorted(encoders)) or 'none'}")
    result = encoders[name] if task is None else models[task]
    # A row of the report may be of several encoders, one for each corpus.
    runs = [run.step for run in results.values() if run.step.kind == "fine_tuning" and result.step.id in run.step.needs]
    tasks = sorted({str(step.task) for step in runs if step.method == method}) if task is None else [task]
    return complete_model(output_dir, result, read_report(read_plan_file(output_dir), results), tasks)


def complete_model(output_dir: Path, result: Result, report: Report, tasks: list[str]) -> tuple[Path, str]:
    """Return the folder of a step's model, without leftovers of its base, and the section of its card on the scores."""
    folder = output_dir / "steps" / result.step.id
    config = read_config(folder)
    has_code = has_own_code(config) or carries_foreign_code(folder)
    if not has_code and config.pop("auto_map", None):  # of the base: its code computes nothing here
        write_json(folder / "config.json", config)
    if not tasks:
        return folder, ""
    report = keep_tasks(report, tasks)
    return folder, f"{make_results(report)}\n\n{describe_row(result, report)} {explain(report)}"


def complete_card(folder: Path, *, name: str | None = None, license: str | None = None, results: str = "") -> None:
    """Put facts into the card that a run wrote; the rest of the card stays as it is.

    Args:
        name: What users of the model will write. Default: what the card says, the name of the run's folder.
        license: Identifier of the license of the weights. Default: that of the base model, as far as it is known.
        results: What a comparison measured; replaces the results of an earlier call.

    Raises:
        ValueError: The folder lacks a part of a publication, the Hub does not accept the license, or
            sentence-transformers publishes the model.
    """
    check_license(license)
    check_publication(folder)
    card = ModelCard((folder / "README.md").read_text(encoding="utf-8"), ignore_metadata_errors=True)
    if getattr(card.data, "library_name", None) == "sentence-transformers":
        raise ValueError(
            f"a publication must be a model of transformers, but sentence-transformers publishes that of {folder}: "
            f"SentenceTransformer({str(folder)!r}).push_to_hub(...)"
        )
    if license is not None:
        card.data["license"] = license
    if name is not None and (title := re.search(r"^# (.+)$", card.text, re.MULTILINE)):
        card.text = card.text.replace(title[0], f"# {name}", 1).replace(json.dumps(title[1]), json.dumps(name))
        if card.data.get("model_name"):
            card.data["model_name"] = name
    if results:
        text = re.sub(rf"^{SECTION}\n.*?(?=^## |\Z)", "", card.text, flags=re.MULTILINE | re.DOTALL)
        before, heading, after = text.partition("## Training\n")
        card.text = f"{before.rstrip()}\n\n{SECTION}\n\n{results}\n\n{heading}{after}"
    write_text(folder / "README.md", str(card))


def publish_best(output_dir: Path, folder: Path) -> None:
    """Copy the fine-tuned model with the best validation score, of the first task that has one, with its results.

    Raises:
        ValueError: No model was kept, or the folder holds something else.
    """
    plan, models = read_plan_file(output_dir), find_models(output_dir, read_results(output_dir))
    task = next((name for name in plan["tasks"] if name in models), None)
    if task is None:
        raise ValueError(f"{output_dir} must hold a fine-tuned model, but has none. Set keep_models: best in the plan.")
    model, results = find_model(output_dir, task=task)
    complete_card(model, name=f"{name_encoder(plan)}-{task}", results=results)
    copy_model(model, folder)


def copy_model(model: Path, folder: Path) -> Path:
    """Copy what the Hub takes of a model, and return the folder.

    Raises:
        ValueError: The folder holds something else than an earlier copy: what anybody else wrote is never replaced.
    """
    names, card = check_publication(model), folder / "README.md"
    # Of a copy that was killed, a part may still be in one of these folders.
    is_copy = (folder / UNFINISHED).is_dir() or (folder / FINISHED).is_dir()
    is_copy = is_copy or (card.is_file() and SECTION in card.read_text(encoding="utf-8"))
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir()) and not is_copy):
        raise ValueError(f"the model needs an empty folder, but {folder} holds something else. Move that away.")
    with write_folder(folder, [pattern for pattern in MODEL_FILES if pattern != "*.py"]) as unfinished:
        for name in names:
            shutil.copy(model / name, unfinished)
    return folder


def describe_row(result: Result, report: Report) -> str:
    """Say which row of the table a model is of, and how a fine-tuned one was chosen."""
    row, step, score = report.titles[str(result.step.method)], result.step, result.score
    seeds = report.plan["pretraining_seeds"]
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
    if len(seeds) > 1:
        return (
            f"This model is one of the {len(seeds)} encoders of {row}, with the seed {step.pretraining_seed}; the row "
            "has their means."
        )
    return f"{row} is this model."


def keep_tasks(report: Report, tasks: list[str]) -> Report:
    """Return a report of some of its tasks."""
    kept = {name: options for name, options in report.plan["tasks"].items() if name in tasks}
    runs = {key: run for key, run in report.runs.items() if key[1] in kept}
    return replace(report, plan=report.plan | {"tasks": kept}, runs=runs)


def make_results(report: Report) -> str:
    """Write the table of scores for a card, below the sentence on the runs that did not learn, if there are any."""
    scores, unlearned = make_score_table(report), list_unlearned(report)
    table = format_markdown_table(scores[(scores != "").any(axis=1)])  # rows of other tasks alone would be empty
    return f"**{unlearned}**\n\n{table}" if unlearned else table


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
    return {task: gather(output_dir, results[step.name], report) for task, step in wanted.items()}


def make_step(plan: Plan, output_dir: Path, method: str, task: str, results: Mapping[str, Result]) -> Step:
    """Return the step that fine-tunes a row on all labeled examples of a task, as its runs chose on validation."""
    lister = StepLister(plan, find_root(plan, output_dir), plan.pretraining_seeds[0])
    fold, known = plan.tasks[task].list_folds()[0], [step.name for step in name_steps(plan, output_dir)]
    step = lister.fine_tune(method, task, fold, plan.seeds[0], known)
    flags = {name: value for name, value in step.flags.items() if name not in HELD_OUT}
    # States are cached example by example, in the order of the files.
    flags |= {name: f"{flags[name]}-{BEST}" for name in CACHE_FLAGS if name in flags}
    chosen = list_choices(plan, list_runs(results, method, task))
    flags |= {"train_file": write_examples(plan, output_dir, task), **chosen}
    return replace(step, name=f"{method}-{task}-{BEST}", kind="final", flags=flags, fold=None)


def list_runs(results: Mapping[str, Result], method: str, task: str) -> list[Result]:
    """List the runs of a row on a task."""
    runs = [result for result in results.values() if result.step.kind == "fine_tuning" and result.is_done]
    return [run for run in runs if (run.step.method, run.step.task) == (method, task)]


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


def gather(output_dir: Path, result: Result, report: Report) -> Path:
    """Complete the model of a task and its card, and copy it into the folder `BEST`.

    Raises:
        RuntimeError: Its training failed.
    """
    if not result.is_done:
        raise RuntimeError(f"{result.step.name} failed; the same command tries it again: {result.error}")
    method, task = str(result.step.method), str(result.step.task)
    file = output_dir / "steps" / result.step.id / "config.json"
    config, runs = read_json(file), list_runs(read_results(output_dir), method, task)
    chosen = {"label_thresholds": average_thresholds(runs), "nearest_vote": average_votes(runs)}
    # Also what no run has any more: the folder may be that of an earlier comparison.
    chosen = {name: value for name, value in chosen.items() if value is not None or name in config}
    write_json(file, config | chosen)
    model, results = complete_model(output_dir, result, report, [task])
    complete_card(model, name=f"{name_encoder(report.plan)}-{task}", results=results)
    return copy_model(model, output_dir / BEST / task)
