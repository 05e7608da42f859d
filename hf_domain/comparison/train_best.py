"""Make the models that a comparison recommends: its row, fine-tuned on all labeled examples of each task.

The encoder is that of the comparison. Its runs chose epochs, learning rate and thresholds on validation, so the
validation examples can now be trained on. A model therefore has no score of its own: its card shows the row's.
"""

import logging
import statistics
from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from hf_domain.comparison.answer import choose
from hf_domain.comparison.default_flags import CACHE_FLAGS
from hf_domain.comparison.descriptions import Job, describe_steps
from hf_domain.comparison.engine import gather_results, list_due, list_missing, open_cluster, prepare_jobs, run_jobs
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.prepared_data import FOLDER, localize
from hf_domain.comparison.publication import HUB_TASKS, Source, make_publication
from hf_domain.comparison.report import name_encoder, write_report
from hf_domain.comparison.results import Result, find_results, read_results
from hf_domain.comparison.runner import Execute, has_output
from hf_domain.comparison.step import Step
from hf_domain.comparison.steps import StepLister, find_root, list_steps
from hf_domain.comparison.summary import Report
from hf_domain.data.files import SPLITS
from hf_domain.safe_io import lock_folder, read_json, write_json, write_text
from hf_domain.tasks.files import SENTENCES, find_texts, get_text
from hf_domain.tasks.scores import read_examples

logger = logging.getLogger(__name__)

BEST: Final = "best"
# Flags of a fine-tuning that need held-out examples, or leave some of the training examples out.
HELD_OUT = (
    *("validation_file", "test_file", "do_eval", "do_predict", "early_stopping_patience", "eval_strategy"),
    *("eval_steps", "metric_for_best_model", "load_best_model_at_end"),
    *("max_train_samples", "max_eval_samples", "max_predict_samples", "nearest_vote"),
)
LICENSE_NOTE = "Not stated yet: name the licenses of the base model, of the corpus and of the task here."
LIMITS = "Other kinds of text than the corpus and the task."


def train_best(
    plan: Plan,
    output_dir: Path,
    execute: Execute | None = None,
    num_processes: int = 1,
    dask_scheduler: str | None = None,
) -> dict[str, Path]:
    """Train the recommended row for each of its tasks, and gather each model with its card in a folder of its own.

    What is there is not trained again; a killed call resumes.

    Args:
        plan: What was compared.
        output_dir: Output folder of the comparison, which has ended; the models are made in its folder `BEST`.
        execute: See `run_comparison`, for this and the others.

    Returns:
        The folders by task.

    Raises:
        ValueError: The comparison has not ended, or no row of it learned.
        RuntimeError: A training failed.
    """
    plan = replace(plan, path=plan.folder.resolve() / plan.path.name)
    output_dir = output_dir.resolve()
    jobs, results = prepare_jobs(plan, output_dir)
    if lacking := [job for job in list_due(plan, jobs, results) if job.name not in results]:
        raise ValueError(
            f"--train_best needs a comparison that has ended, but {len(lacking)} steps of {plan.path.name} have no "
            "result. Run it without --train_best first."
        )
    gather_results(plan, output_dir)  # the last run may have been of another plan
    report = write_report(output_dir)
    method, _ = choose(report)
    if method is None:
        raise ValueError("--train_best needs a row that learned, but none did. See the first line of the report.")
    steps = list_steps(plan, output_dir)
    tasks = [task for task in plan.tasks if method in plan.list_methods(task)]
    if unfit := [task for task in tasks if plan.tasks[task].kind in SENTENCES]:
        logger.warning(f"--train_best trains models with a head: run hf-domain sentences for {', '.join(unfit)}")
        tasks = [task for task in tasks if task not in unfit]
    for task in tasks:
        steps.append(make_step(plan, output_dir, method, task, results))
    jobs = describe_steps(plan, output_dir, steps)
    wanted = [job for job in jobs if job.step.kind == BEST]
    results |= find_results(output_dir, {job.name: job.address for job in wanted})
    lost = {job.name for job in wanted if not is_made(job, results, output_dir)}
    if lost:
        with lock_folder(output_dir), open_cluster(num_processes, dask_scheduler) as (client, run):
            run_jobs(client, list_missing(jobs, lost, output_dir), results, plan, output_dir, execute or run)
    return {task: gather(plan, output_dir, results[name_step(method, task)], report) for task in tasks}


def is_made(job: Job, results: Mapping[str, Result], output_dir: Path) -> bool:
    """Return whether the model of a step is there."""
    result = results.get(job.name)
    return result is not None and result.is_done and has_output(job.step, output_dir / "steps" / job.address)


def name_step(method: str, task: str) -> str:
    """Return the name of the step that trains the model of a task."""
    return f"{method}-{task}-{BEST}"


def make_step(plan: Plan, output_dir: Path, method: str, task: str, results: Mapping[str, Result]) -> Step:
    """Return the step that fine-tunes a row on all labeled examples of a task, as its runs chose on validation."""
    root, rungs = find_root(plan, output_dir), plan.budget.rungs
    lister = StepLister(plan, root, plan.pretraining_seeds[0], rungs[-1] if rungs else None)
    fold, known = plan.tasks[task].list_folds()[0], [step.name for step in list_steps(plan, output_dir)]
    step = lister.fine_tune(method, task, fold, plan.seeds[0], known)
    flags = {name: value for name, value in step.flags.items() if name not in HELD_OUT}
    # States are cached example by example, in the order of the files.
    flags |= {name: f"{flags[name]}-{BEST}" for name in CACHE_FLAGS if name in flags}
    flags |= {
        "train_file": write_examples(plan, output_dir, task),
        **list_choices(plan, list_runs(results, method, task)),
    }
    name = name_step(method, task)
    flags["output_dir"] = lister.get_folder(name)
    return replace(step, name=name, kind=BEST, flags=flags, fold=None)


def list_runs(results: Mapping[str, Result], method: str, task: str) -> list[Result]:
    """List the runs of a row on a task, at the largest budget."""
    runs = [r for r in results.values() if r.step.kind == "fine_tuning" and r.is_done and r.step.labels is None]
    runs = [r for r in runs if (r.step.method, r.step.task) == (method, task)]
    largest = max((r.step.rung or 0 for r in runs), default=0)
    return [r for r in runs if (r.step.rung or 0) == largest]


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
    return localize(file, plan)


def gather(plan: Plan, output_dir: Path, result: Result, report: Report) -> Path:
    """Gather the model of a task with its card.

    Raises:
        RuntimeError: Its training failed.
    """
    if not result.is_done:
        raise RuntimeError(f"{result.step.name} failed; the same command tries it again: {result.error}")
    method, task = str(result.step.method), str(result.step.task)
    own, source = plan.tasks[task], output_dir / "steps" / result.step.address
    config = read_json(source / "config.json")
    runs = list_runs(read_results(output_dir), method, task)
    chosen = {"label_thresholds": average_thresholds(runs), "nearest_vote": average_votes(runs)}
    # Also what no run has any more: the folder may be that of an earlier comparison.
    chosen = {name: value for name, value in chosen.items() if value is not None or name in config}
    write_json(source / "config.json", config | chosen)
    train = own.get_file("train", own.list_folds()[0])
    column = find_texts(own.kind, train, plan.folder, own.options.get("text_column_names"))[0]
    example = get_text(read_examples(plan.folder / train, 1)[0][column])
    return make_publication(
        output_dir,
        output_dir / BEST / task,
        source=Source(result, source, method, None, HUB_TASKS.get(own.kind, "text-classification"), [task]),
        model_name=f"{name_encoder(report)}-{task}",
        license=None,
        license_note=LICENSE_NOTE,
        limits=LIMITS,
        example=example,
    )
