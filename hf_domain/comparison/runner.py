"""Run one step of a comparison on a worker: in a process of its own, from its last checkpoint if it has one."""

import gc
import hashlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from dask.system import CPU_COUNT
from distributed import get_worker
from filelock import FileLock
from transformers import AutoTokenizer

from hf_domain import cli
from hf_domain.comparison.budgets import count_tokens
from hf_domain.comparison.descriptions import Description, Job, list_versions
from hf_domain.comparison.models import WEIGHTS, get_validation_score
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.results import Result, get_path, read_result, write_result
from hf_domain.comparison.step import Step
from hf_domain.environment import describe_environment
from hf_domain.safe_io import read_json, write_json
from hf_domain.tasks.files import write_task_text
from hf_domain.tasks.scores import read_predictions
from hf_domain.tasks.trivial_baselines import score_floors
from hf_domain.training.run_files import METRICS, STATE
from hf_domain.training.run_folder import drop_checkpoint, find_checkpoint

# The slowest imports of the commands that most steps run.
PRELOADED = [
    f"hf_domain.{name}"
    for name in ("comparison.runner", "training.pretraining", "training.fine_tuning", "rada.passages", "gmap.reader")
]
PRELOADED += ["sklearn.metrics", "seqeval.metrics"]  # which a fine-tuning imports when it is scored
# Kinds of steps whose folder others read; of the rest they read the result alone.
READ_BY_OTHERS = ("vocabulary", "datastore", "selection", "trunk", "pretraining", "average", "best")
# Exit code of a step on Ctrl-C, which a terminal sends to every process.
INTERRUPTED = 130
# Suffix of the file that a step leaves beside its log when all its output is written. What happens to its process later
# costs nothing: of 249 steps on a GPU one ended with exit code 255 after its last line.
ENDED = ".ended"
# How often a step checks whether its result is still wanted.
SECONDS_BETWEEN_LOOKS = 1.0
# Python imports the main script again in the process of each step, where an unguarded comparison would start again.
NOT_STARTED = (
    "the process of a step must start, but ended with exit code {exitcode} before it did. In a script of your own, "
    'compare below `if __name__ == "__main__":`.'
)
Execute = Callable[[Step, Plan, Path], None]


class Interrupted(Exception):
    """A step ended because nobody waits for it any more; it has no result."""


@dataclass(frozen=True)
class Attempt:
    """The step that writes into a folder, how long it has run, and whether it is done."""

    FILE: ClassVar[str] = "step.json"
    address: str
    """The step's address."""
    started: float
    seconds: float
    """Seconds of the attempts before."""
    done: bool = False

    @classmethod
    def read(cls, folder: Path) -> "Attempt | None":
        """Read the attempt of a folder; None where there is none, or one of another version."""
        if not (folder / cls.FILE).is_file():
            return None
        try:
            return cls(**read_json(folder / cls.FILE))
        except (TypeError, ValueError):
            return None

    def write(self, folder: Path) -> None:
        """Write it into a folder."""
        write_json(folder / self.FILE, asdict(self))


def make_result(job: Job, plan: Plan, output_dir: Path, needed: Mapping[str, Result], execute: Execute) -> Result:
    """Run a step on a worker and write its result, unless both are there: a lost worker may have left them.

    Args:
        job: The step of the plan.
        plan: The plan, with an absolute path.
        output_dir: Output folder of the comparison, absolute.
        needed: Results of the steps that it reads, by name.
        execute: See `run_step`.

    Raises:
        ValueError: The worker cannot run it: it has other versions or another file system.
        Interrupted: Nobody waits for it.
    """
    check_worker(job.description, output_dir)
    folder = output_dir / "steps" / job.address
    # A process of a lost worker may still be about to end.
    with FileLock(output_dir / "locks" / f"{job.address}.lock"):
        result = read_result(output_dir, job.address)
        if result is not None and result.is_done and has_output(job.step, folder):
            return result
        # Until its output is whole again, a step has no result: one that is killed now would be taken for done.
        get_path(output_dir, job.address).unlink(missing_ok=True)
        # A learning rate that makes training fail is not chosen.
        failed = [r.step.name for r in needed.values() if not r.is_done and r.step.kind != "tuning"]
        if failed:
            result = Result(job.description, "failed", f"it needs {', '.join(failed)}, which failed")
        else:
            result = run_step(job, plan, folder, needed, execute)
        write_result(output_dir, result)
        if result.is_done and job.step.kind != "trunk":
            for checkpoint in folder.glob("checkpoint-*"):
                drop_checkpoint(checkpoint)
        return result


def check_worker(description: Description, output_dir: Path) -> None:
    """Check that this machine computes what the comparison asks for.

    Raises:
        ValueError: It has other versions or another file system.
    """
    place = f"the worker {get_worker().address}" if is_on_worker() else "this process"
    if not (output_dir / "plan.json").is_file():
        raise ValueError(f"every worker must see the folder {output_dir}, but {place} does not. Share its file system.")
    versions = list_versions()
    if wrong := [
        f"{name} {versions.get(name, 'missing')} instead of {v}"
        for name, v in description.versions.items()
        if v != versions.get(name)
    ]:
        raise ValueError(
            f"every worker must have the versions of the comparison, but {place} has {', '.join(wrong)}. Install the "
            "same environment there."
        )


def has_output(step: Step, folder: Path) -> bool:
    """Return whether what others read of a step is whole in its folder; of most they read the result alone."""
    if step.kind not in READ_BY_OTHERS:
        return True
    attempt = Attempt.read(folder)
    is_there = step.kind not in ("pretraining", "average", "best") or any(folder.glob("*.safetensors"))
    if step.kind == "trunk":
        is_there = find_checkpoint(folder) is not None
    return is_there and attempt is not None and attempt.done


def run_step(job: Job, plan: Plan, folder: Path, needed: Mapping[str, Result], execute: Execute) -> Result:
    """Run a step and return its result; a step that fails is a result too.

    Args:
        job: The step of the plan.
        plan: The plan.
        folder: Folder of the step.
        needed: Results of the steps that it reads, by name.
        execute: Runs the step and leaves its output in the folder.

    Raises:
        Interrupted: Nobody waits for it.
    """
    step, description = job.step, job.description
    before, checkpoint = Attempt.read(folder), find_checkpoint(folder)
    seconds = 0.0 if before is None or checkpoint is None else count_seconds(before, Path(checkpoint))
    if folder.is_dir() and checkpoint is None:
        shutil.rmtree(folder)  # of a step that was killed and cannot resume
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():  # what it began to write at its end is of no use, and may be of another type of model
        if file.is_file() and file.name != Attempt.FILE:
            file.unlink()
    attempt = Attempt(job.address, time.time(), seconds)
    attempt.write(folder)
    started = time.perf_counter()
    try:
        step = set_chosen_rate(fit_to_minutes(step, plan, needed), plan, needed)
        write_step_text(step, plan, folder.parents[1])
        execute(step, plan, folder)
        seconds += time.perf_counter() - started
        output = read_output(step, plan, folder)
        replace(attempt, done=True).write(folder)
    except Interrupted:
        raise
    except Exception as error:  # any error: the other runs continue, and the report names this one
        return Result(description, "failed", f"{error}" or type(error).__name__, environment=describe_environment())
    return Result(description, "done", seconds=seconds, environment=describe_environment(), **output)


def write_step_text(step: Step, plan: Plan, output_dir: Path) -> None:
    """Write the text of a task for a step that trains an encoder on it, or builds a datastore of it."""
    if step.task is None or step.kind not in ("pretraining", "trunk", "probe", "datastore", "selection"):
        return
    task = plan.tasks[step.task]
    file, names = plan.folder / task.get_file("train"), task.options.get("text_column_names")
    write_task_text(task.kind, file, output_dir / "texts" / f"{step.task}.txt", names)


def count_seconds(attempt: Attempt, checkpoint: Path) -> float:
    """Return the seconds of a killed step up to the checkpoint it resumes from, over all its attempts."""
    return attempt.seconds + max(0.0, (checkpoint / STATE).stat().st_mtime - attempt.started)


def run_command(
    step: Step, plan: Plan, folder: Path, num_threads: int | None = None, devices: Sequence[str] = ()
) -> None:
    """Run the command of a step in a process of its own, from the folder of the plan, its output in log.txt.

    Args:
        step: The step to run.
        plan: The plan that it is part of.
        folder: The step's folder.
        num_threads: Threads of torch; default as many as torch takes.
        devices: GPUs; the first worker takes the first. Default: the first that this process sees.

    Raises:
        RuntimeError: It failed, with the end of its log, or it did not start.
        Interrupted: It was interrupted, or nobody waits for it any more.
    """
    arguments = [step.command, *step.list_arguments()]
    if (checkpoint := find_checkpoint(folder)) is not None:
        arguments += ["--resume_from_checkpoint", str(Path(checkpoint).resolve())]
    log = (folder / "log.txt").resolve()
    for file in (log, log.with_suffix(ENDED)):
        file.unlink(missing_ok=True)
    device = devices[get_worker().name % len(devices)] if devices else None
    # A server that has imported everything once forks a fresh process for each step: importing takes longer than many a
    # step, and a step that runs out of memory takes only itself down.
    context: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    if hasattr(os, "fork"):
        context.set_forkserver_preload(PRELOADED)
    # A worker of Dask's nanny is a daemon, which may have no children: they would outlive it. These do not.
    multiprocessing.current_process().daemon = False
    process = context.Process(target=_run, args=(arguments, plan.folder, log, num_threads, device))
    process.start()
    while process.is_alive():
        process.join(timeout=SECONDS_BETWEEN_LOOKS)
        if not is_wanted():
            process.kill()
            process.join()
            raise Interrupted
    if process.exitcode == INTERRUPTED:
        raise Interrupted
    if log.with_suffix(ENDED).is_file():
        return
    if process.exitcode and not log.is_file():
        raise RuntimeError(NOT_STARTED.format(exitcode=process.exitcode))
    if process.exitcode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        raise RuntimeError("\n".join([f"exit code {process.exitcode}", *lines[-5:]]))


def run_on_cluster(step: Step, plan: Plan, folder: Path) -> None:
    """Run the command of a step with its share of the worker's cores: Dask's nannies allow libraries one thread."""
    run_command(step, plan, folder, max(1, CPU_COUNT // get_worker().state.nthreads))


def is_on_worker() -> bool:
    """Return whether a worker of Dask runs this."""
    try:
        get_worker()
    except ValueError:
        return False
    return True


def is_wanted() -> bool:
    """Return whether anybody waits for the task that this thread runs: a comparison that was killed does not."""
    if not is_on_worker():
        return True
    worker = get_worker()
    task = worker.state.tasks.get(worker.get_current_task())
    return task is not None and task.state == "executing"


def _run(arguments: list[str], folder: Path, log: Path, num_threads: int | None, device: str | None) -> None:
    gc.freeze()  # a collection would write to, and so copy, all that the server imported
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    # A step trains on one device: on two its batches, and so its tokens, would be twice those of the plan.
    os.environ["CUDA_VISIBLE_DEVICES"] = device or os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    with log.open("w", encoding="utf-8") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    os.chdir(folder)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    sys.argv = ["hf-domain", *arguments]
    cli.main(is_checked=True)
    log.with_suffix(ENDED).touch()


def _end_with_parent() -> None:
    """End this process when its worker is killed: it would write its output into that of the next run."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def read_output(step: Step, plan: Plan, folder: Path) -> dict[str, Any]:
    """Return the fields of `Result` that a step left in its folder, and drop weights that no other step needs."""
    metrics = read_json(folder / METRICS) if (folder / METRICS).is_file() else {}
    output: dict[str, Any] = {"metrics": metrics}
    weights = folder / "model.safetensors"
    if weights.is_file():
        output["checkpoint_bytes"] = weights.stat().st_size
    if step.kind == "pretraining":
        output["max_steps"] = int(step.flags["max_steps"])
        if step.flags.get("line_by_line") in (None, False):  # lines are as long as they are, nobody counts them
            output["tokens"] = count_trained_tokens(step.flags, metrics.get("train_samples"))
        output["trainable_parameters"] = metrics["trainable_parameters"]
    if step.kind == "evaluation":
        output["masked_lm_loss"] = metrics["eval_loss"]
        encoder = step.flags["model_name_or_path"]
        output["vocabulary"] = digest_vocabulary(
            str(plan.folder / encoder) if (plan.folder / encoder).is_dir() else encoder
        )
    if step.kind == "fine_tuning":
        assert step.task is not None
        task = plan.tasks[step.task]
        predictions = read_predictions(task, step.flags, plan.folder, folder, step.fold)
        scores, floors = predictions.score(), score_floors(task, step.flags, plan.folder)
        output |= {"score": scores.compute(), "floors": floors, "predictions": predictions}
        if "validation_file" in step.flags:  # a retrieval that is probed may have none
            output["validation"] = read_predictions(task, step.flags, plan.folder, folder, step.fold, "validation")
        output["metrics"] = metrics | read_choices(folder)
        output["milliseconds_per_text"] = 1000 * metrics["predict_runtime"] / len(scores)  # of QA: a question
    # Which fine-tuned models are kept is known once others have ended.
    if step.kind in ("tuning", "probe", "evaluation", "trunk"):
        for file in folder.glob(WEIGHTS):
            file.unlink()
    return output


def read_choices(folder: Path) -> dict[str, Any]:
    """Return what a fine-tuning chose on validation: the epoch of its weights, thresholds of labels, and a vote."""
    state, config = (read_json(file) if file.is_file() else {} for file in (folder / STATE, folder / "config.json"))
    chosen = {}
    if state.get("best_global_step"):
        chosen["best_epoch"] = state["epoch"] * state["best_global_step"] / state["global_step"]
    for name in ("label_thresholds", "nearest_vote"):
        if config.get(name):
            chosen[name] = config[name]
    return chosen


def digest_vocabulary(encoder: str) -> str:
    """Return a digest of the vocabulary of an encoder: losses compare where it is the same."""
    vocabulary = sorted(AutoTokenizer.from_pretrained(encoder, trust_remote_code=False).get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def count_trained_tokens(flags: Mapping[str, Any], blocks: int | None) -> int:
    """Return the tokens of a training; the last batch of an epoch is short where `blocks` do not fill it."""
    steps, length = int(flags["max_steps"]), int(flags["max_seq_length"])
    of_step = count_tokens(flags)
    if blocks is None:
        return steps * of_step
    epochs, rest = divmod(steps, math.ceil(blocks * length / of_step))
    return (epochs * blocks * length) + min(rest * of_step, blocks * length)


def fit_to_minutes(step: Step, plan: Plan, results: Mapping[str, Result]) -> Step:
    """Return a step that trains as many steps as the minutes of the budget allow, by what the probe measured."""
    if plan.budget.minutes is None or step.kind != "pretraining":
        return step
    per_second = results[f"{step.name}-probe"].metrics["train_warm_steps_per_second"]
    return step.change(max_steps=max(1, round(60 * plan.budget.minutes * per_second)))


def set_chosen_rate(step: Step, plan: Plan, results: Mapping[str, Result]) -> Step:
    """Return a fine-tuning with the learning rate that is best on the validation set; the test set is not read.

    Raises:
        RuntimeError: Training failed at every learning rate.
    """
    tried = [results[name] for name in step.needs if results[name].step.kind == "tuning"]
    if not tried:
        return step
    metric = plan.tasks[str(step.task)].metric
    done = [result for result in tried if result.is_done]
    if not done:
        raise RuntimeError(f"training failed at every learning rate, the first time with: {tried[0].error}")
    best = max(done, key=lambda result: get_validation_score(result, metric) or -math.inf)
    return step.change(learning_rate=best.step.flags["learning_rate"])
