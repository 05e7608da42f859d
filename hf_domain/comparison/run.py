"""Run the steps of a comparison that are missing, each as a command in a process of its own."""

import gc
import hashlib
import json
import math
import multiprocessing
import os
import platform
import shlex
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pandas as pd
import torch
from filelock import FileLock
from tqdm.auto import tqdm
from transformers import AutoTokenizer

from hf_domain import cli
from hf_domain.clusters import end_with_parent, open_client, read_address
from hf_domain.comparison.checks import check_encoders, check_step_flags
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.results import (
    WEIGHTS,
    Result,
    drop_models,
    find_results,
    get_path,
    has_model,
    list_kept,
    list_titles,
    read_result,
    write_plan_file,
    write_result,
)
from hf_domain.comparison.statistics import predict_power
from hf_domain.comparison.steps import (
    CACHE_FLAGS,
    Step,
    count_tokens,
    find_root,
    list_steps,
    list_versions,
)
from hf_domain.environment import describe_environment
from hf_domain.safe_io import lock_folder, read_json, remove_unfinished, write_json
from hf_domain.tasks.files import read_predictions, write_task_text
from hf_domain.tasks.trivial_baselines import score_floors
from hf_domain.training.run_folder import METRICS, STATE, drop_checkpoint, find_checkpoint

# The slowest imports of the commands that most steps run.
PRELOADED = [
    "hf_domain.comparison.run",
    "hf_domain.training.pretraining",
    "hf_domain.training.task_trainer",
]
# Kinds of steps that need no GPU.
WITHOUT_GPU = ("vocabulary", "datastore")
# Kinds of steps whose folder others read; of the rest they read the result alone.
READ_BY_OTHERS = ("vocabulary", "datastore", "pretraining")
# Exit code of a step on Ctrl-C, which a terminal sends to every process.
INTERRUPTED = 130
# Suffix of the file that a step leaves beside its log when all its output is written. What happens to its process later
# costs nothing: of 249 steps on a GPU one ended with exit code 255 after its last line.
ENDED = ".ended"
# How often a step checks whether its result is still wanted, and a comparison whether a worker is free.
SECONDS_BETWEEN_LOOKS = 1.0
# Beside the output of a step: see `read_attempt`.
ATTEMPT = "step.json"
SHARED = "shared"
Execute = Callable[[Step, Plan, Path], None]


class Interrupted(Exception):
    """A step ended because nobody waits for it any more; it has no result."""


# ------------------------------------------------------------------------------------------------------ a comparison


def run_comparison(
    plan: Plan,
    output_dir: Path,
    execute: Execute | None = None,
    num_processes: int = 1,
    dask_scheduler: str | None = None,
    arrange: Callable[[list[Step]], list[Step]] = list,
    note: Callable[[Result], Any] = lambda result: None,
) -> list[Result]:
    """Run every step that has no result yet, and return the results of all. A killed comparison resumes.

    Args:
        plan: What is compared.
        output_dir: Where results (`results/*.json`) and the output of the steps (`steps/`) go.
        execute: Runs a step and leaves its output in its folder; default runs the command in a process of its own.
        num_processes: Steps that run at once on this machine, each on its share of the cores or on a GPU of its own.
        dask_scheduler: Runs the steps on this cluster instead, see `open_client`; its workers see the same files.
        arrange: Chooses of the missing steps those to run, with all that they need, and their order.
        note: Called with each new result.

    Raises:
        ValueError: See `check_steps`; another process runs a comparison in this folder.
    """
    if num_processes < 1:
        raise ValueError(f"num_processes must be at least 1, but is {num_processes}")
    if dask_scheduler is not None:
        read_address(dask_scheduler)  # before anything is written
    # The workers of a cluster have other working folders.
    plan = replace(plan, path=plan.folder.resolve() / plan.path.name)
    output_dir = output_dir.resolve()
    steps, results = check_steps(plan, output_dir)
    missing = arrange(list_missing(steps, find_lacking(plan, steps, results, output_dir), output_dir))
    with lock_folder(output_dir):
        for name in ("locks", "results"):
            (output_dir / name).mkdir(exist_ok=True)
        for name in ("", "data", "results"):
            remove_unfinished(output_dir / name)
        write_plan_file(plan, steps, output_dir)
        drop_models(output_dir, results, plan.keep_models)
        run_steps(missing, results, plan, output_dir, execute, num_processes, dask_scheduler, note)
    return [results[step.name] for step in steps if step.name in results]


def gather_results(plan: Plan, output_dir: Path) -> None:
    """Make a folder of results, also of several machines, ready for the report of a plan.

    Raises:
        FileNotFoundError: It has no result of the plan.
    """
    steps = list_steps(plan, output_dir)
    if not find_results(output_dir, {step.name: step.id for step in steps}):
        raise FileNotFoundError(f"{output_dir} has no results of the plan {plan.path}. Run the comparison first.")
    write_plan_file(plan, steps, output_dir)


def check_steps(plan: Plan, output_dir: Path) -> tuple[list[Step], dict[str, Result]]:
    """Return the steps of a plan, checked, and the results that are there by name.

    Raises:
        ValueError: A command does not take its flags, or a checkpoint is not an encoder.
    """
    steps = list_steps(plan, output_dir)
    check_step_flags(steps)
    check_encoders(plan, steps)
    return steps, find_results(output_dir, {step.name: step.id for step in steps})


def find_lacking(plan: Plan, steps: list[Step], results: Mapping[str, Result], output_dir: Path) -> set[str]:
    """Return the names of the steps that have no result or failed. If all are done, return those whose model is lost.

    A model that is to be kept is made again where its encoder is there, such as after `keep_models: none`.
    """
    if unfinished := {step.name for step in steps if step.name not in results or not results[step.name].is_done}:
        return unfinished
    by_id = {step.id: step for step in steps}
    kept = list_kept(plan.keep_models, results)
    lost = [step for step in steps if step.name in kept and not has_model(output_dir, results[step.name])]
    made = [all(has_output(by_id[need], output_dir / "steps" / need) for need in step.needs) for step in lost]
    return {step.name for step, can_be_made in zip(lost, made, strict=True) if can_be_made}


def list_missing(steps: list[Step], lacking: set[str], output_dir: Path) -> list[Step]:
    """List the steps that have to run: those that are lacking, and those whose output they read and is gone."""
    missing: list[Step] = []
    needed: set[str] = set()
    for step in reversed(steps):
        is_gone = step.id in needed and not has_output(step, output_dir / "steps" / step.id)
        if step.name in lacking or is_gone:
            missing.append(step)
            needed.update(step.needs)
    return missing[::-1]


def run_steps(
    missing: list[Step],
    results: dict[str, Result],
    plan: Plan,
    output_dir: Path,
    execute: Execute | None = None,
    num_processes: int = 1,
    dask_scheduler: str | None = None,
    note: Callable[[Result], Any] = lambda result: None,
) -> None:
    """Run steps, each once those it needs are done, and add their results.

    A step is submitted when a worker is free: given the whole graph, Dask puts a step where its inputs are, behind
    another one, and moves it late or never.

    The steps come each after those it needs; `results` gets theirs, by name. Plan and folder are absolute.

    Raises:
        KeyboardInterrupt: A step was interrupted.
        ConnectionError: The scheduler is gone.
        ValueError: A worker cannot run steps.
    """
    if not missing:
        return
    for step in missing:
        get_path(output_dir, step.id).unlink(missing_ok=True)
    by_id = {result.step.id: result for result in results.values()}
    waiting, running = list(missing), dict[Future, Step]()
    with (
        open_workers(num_processes, dask_scheduler) as workers,
        tqdm(total=len(missing), desc="comparison", unit="step", disable=None) as progress,
    ):
        while waiting or running:
            while len(running) < workers.count():
                if (chosen := choose_step(waiting, [*running.values()])) is None:
                    break
                waiting.remove(chosen)
                needed = {need: by_id[need] for need in chosen.needs}
                executor = workers.executor if chosen.kind in WITHOUT_GPU else workers.on_gpu
                job = Job(chosen, plan, output_dir, execute or workers.run, needed)
                running[executor.submit(make_result, job)] = chosen
            progress.set_postfix_str(", ".join(step.name for step in running.values()))
            if not running:  # no worker of the cluster is there yet
                time.sleep(SECONDS_BETWEEN_LOOKS)
                continue
            for future in wait(running, timeout=SECONDS_BETWEEN_LOOKS, return_when=FIRST_COMPLETED).done:
                step = running.pop(future)
                results[step.name] = by_id[step.id] = get_result(future, step)
                note(results[step.name])
                if step.kind == "fine_tuning":
                    drop_models(output_dir, results, plan.keep_models)
                progress.update()


def choose_step(waiting: list[Step], running: list[Step]) -> Step | None:
    """Choose the next step that can run beside others: what it needs is made, and no other fills the same cache."""
    unfinished = {step.id for step in waiting + running}
    caches = {step.flags[name] for step in running for name in CACHE_FLAGS if name in step.flags}
    for step in waiting:
        own = (step.flags.get(name) for name in CACHE_FLAGS)
        if unfinished.isdisjoint(step.needs) and caches.isdisjoint(own):
            return step
    return None


def get_result(future: Future, step: Step) -> Result:
    """Return what came of a step."""
    try:
        return future.result()
    except Interrupted:
        raise KeyboardInterrupt from None
    except CancelledError:
        raise ConnectionError("the Dask scheduler is gone. Start it, and give the same command again.") from None
    except ValueError as error:
        raise ValueError(str(error)) from error  # of `check_worker`: the frames of a worker are not ours
    except Exception as error:
        if type(error).__name__ != "KilledWorker":  # of Dask, which may not be installed
            raise
        return Result(step, "failed", f"its workers were lost: {error}")


# ----------------------------------------------------------------------------------------------------------- workers


@dataclass
class Workers:
    """Where steps run: threads that wait for processes of this machine, or the workers of a cluster."""

    executor: Executor
    on_gpu: Executor
    """For steps that train."""
    count: Callable[[], int]
    """Returns how many steps can run at once."""
    run: Execute
    """Runs the command of a step there."""


@contextmanager
def open_workers(num_processes: int, dask_scheduler: str | None) -> Iterator[Workers]:
    """Open what runs the steps; at the end, also at an error, steps that run are stopped."""
    if dask_scheduler is not None:
        with open_client(dask_scheduler) as client:
            known = client.scheduler_info(n_workers=-1)["workers"].values()
            has_gpus = any("GPU" in worker["resources"] for worker in known)
            # Results are files: what an earlier comparison computed must not be taken from the scheduler's memory.
            plain = client.get_executor(pure=False)
            on_gpu = client.get_executor(pure=False, resources={"GPU": 1}) if has_gpus else plain
            try:
                yield Workers(plain, on_gpu, lambda: sum(client.nthreads().values()), run_on_cluster)
            finally:
                for executor in (plain, on_gpu):
                    executor.shutdown(wait=False)  # cancels what runs
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else list(map(str, range(torch.cuda.device_count())))
    num_threads = None if num_processes == 1 else max(1, count_cores() // num_processes)
    stopped, free = threading.Event(), SimpleQueue[str | None]()
    for number in range(num_processes):
        free.put(devices[number % len(devices)] if devices else None)

    def run(step: Step, plan: Plan, folder: Path) -> None:
        device = free.get()
        try:
            run_command(step, plan, folder, num_threads, device, lambda: not stopped.is_set())
        finally:
            free.put(device)

    with ThreadPoolExecutor(num_processes) as pool:
        try:
            yield Workers(pool, pool, lambda: num_processes, run)
        finally:
            stopped.set()
            pool.shutdown(wait=True, cancel_futures=True)


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def count_workers() -> int:
    """Return how many steps run at once by default: one on each GPU, or two small models on a core each."""
    return torch.cuda.device_count() or min(2, count_cores())


def run_on_cluster(step: Step, plan: Plan, folder: Path) -> None:
    """Run the command of a step with its share of the worker's cores: Dask's nannies allow libraries one thread."""
    from distributed import get_worker

    run_command(step, plan, folder, max(1, count_cores() // get_worker().state.nthreads), is_wanted=is_wanted)


def is_wanted() -> bool:
    """Return whether anybody waits for the task that this thread of a Dask worker runs."""
    from distributed import get_worker

    worker = get_worker()
    task = worker.state.tasks.get(worker.get_current_task())
    return task is not None and task.state == "executing"


# -------------------------------------------------------------------------------------------------------- one step


@dataclass(frozen=True)
class Job:
    """A step, and what a worker needs to run it. Plan and folder are absolute."""

    step: Step
    plan: Plan
    output_dir: Path
    execute: Execute
    needed: Mapping[str, Result]
    """The results of the steps that it reads, by id."""

    @property
    def folder(self) -> Path:
        """Where the step leaves its output."""
        return self.output_dir / "steps" / self.step.id


def make_result(job: Job) -> Result:
    """Run a step on a worker and write its result, unless both are there: a lost worker may have left them.

    Raises:
        ValueError: The worker cannot run it: it has other versions or another file system.
        Interrupted: Nobody waits for it.
    """
    step, output_dir = job.step, job.output_dir
    check_worker(step, output_dir)
    # A process of a lost worker may still be about to end.
    with FileLock(output_dir / "locks" / f"{step.id}.lock"):
        result = read_result(output_dir, step.id)
        if result is not None and result.is_done and has_output(step, job.folder):
            return result
        # Until its output is whole again, a step has no result: one that is killed now would be taken for done.
        get_path(output_dir, step.id).unlink(missing_ok=True)
        # A learning rate that makes training fail is not chosen.
        failed = [r.step.name for r in job.needed.values() if not r.is_done and r.step.kind != "lr_trial"]
        error = f"it needs {', '.join(failed)}, which failed"
        result = Result(step, "failed", error) if failed else run_step(job)
        write_result(output_dir, result)
        if result.is_done:
            for checkpoint in job.folder.glob("checkpoint-*"):
                drop_checkpoint(checkpoint)
        return result


def check_worker(step: Step, output_dir: Path) -> None:
    """Raise a ValueError if this machine has other versions than the comparison, or another file system."""
    if not (output_dir / "plan.json").is_file():
        raise ValueError(
            f"every worker must see the folder {output_dir}, but {platform.node()} does not. Share its file system."
        )
    versions = list_versions()
    wrong = [
        f"{name} {versions.get(name, 'missing')} instead of {wanted}"
        for name, wanted in step.versions.items()
        if versions.get(name) != wanted
    ]
    if wrong:
        raise ValueError(
            f"every worker must have the versions of the comparison, but {platform.node()} has {', '.join(wrong)}. "
            "Install the same environment there."
        )


def read_attempt(folder: Path) -> dict[str, Any]:
    """Return what is known of the step that writes into a folder; empty if nothing is.

    Its id, when it `started`, the `seconds` of the attempts before, and whether it is `done`.
    """
    try:
        return read_json(folder / ATTEMPT)
    except (OSError, ValueError):
        return {}


def has_output(step: Step, folder: Path) -> bool:
    """Return whether what others read of a step is whole in its folder; of most they read the result alone."""
    if step.kind not in READ_BY_OTHERS:
        return True
    is_there = step.kind != "pretraining" or any(folder.glob(WEIGHTS))
    return is_there and read_attempt(folder).get("done", False)


def run_step(job: Job) -> Result:
    """Run a step and return its result; a step that fails is a result too."""
    step, folder = job.step, job.folder
    before, checkpoint = read_attempt(folder), find_checkpoint(folder)
    seconds = 0.0
    if before and checkpoint is not None:  # of all attempts, up to the checkpoint
        last = (Path(checkpoint) / STATE).stat().st_mtime - before["started"]
        seconds = before["seconds"] + max(0.0, last)
    if folder.is_dir() and checkpoint is None:
        shutil.rmtree(folder)  # of a step that was killed and cannot resume
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():  # what it began to write at its end is of no use, and may be of another type of model
        if file.is_file() and file.name != ATTEMPT:
            file.unlink()
    attempt = {"step": step.id, "started": time.time(), "seconds": seconds, "done": False}
    write_json(folder / ATTEMPT, attempt)
    started, result = time.perf_counter(), Result(step, "failed")
    try:
        step = set_chosen_rate(fit_to_minutes(step, job.plan, job.needed), job.needed)
        write_step_text(step, job.plan, job.output_dir)
        job.execute(step, job.plan, folder)
        seconds += time.perf_counter() - started
        output = read_output(step, job.plan, folder)
        write_json(folder / ATTEMPT, attempt | {"done": True})
    except Interrupted:
        raise
    except Exception as error:  # any error: the other runs continue, and the report names this one
        return replace(result, error=f"{error}" or type(error).__name__, environment=describe_environment())
    return replace(result, status="done", seconds=seconds, environment=describe_environment(), **output)


def write_step_text(step: Step, plan: Plan, output_dir: Path) -> None:
    """Write the text of a task for a step that trains an encoder on it."""
    if step.task is None or step.kind not in ("pretraining", "timing"):
        return
    task = plan.tasks[step.task]
    file, names = plan.folder / task.get_file("train"), task.options.get("text_column_names")
    write_task_text(task.kind, file, output_dir / "texts" / f"{step.task}.txt", names)


def fit_to_minutes(step: Step, plan: Plan, needed: Mapping[str, Result]) -> Step:
    """Return a step that trains as many steps as the minutes of the budget allow, by the speed that was measured."""
    if plan.budget.minutes is None or step.kind != "pretraining":
        return step
    (timing,) = (result for result in needed.values() if result.step.kind == "timing")
    per_second = timing.metrics["train_warm_steps_per_second"]
    return step.change(max_steps=max(1, round(60 * plan.budget.minutes * per_second)))


def set_chosen_rate(step: Step, needed: Mapping[str, Result]) -> Step:
    """Return a fine-tuning with the learning rate that is best on the validation set; the test set is not read.

    Raises:
        RuntimeError: Training failed at every learning rate.
    """
    tried = [result for result in needed.values() if result.step.kind == "lr_trial"]
    if not tried:
        return step
    if not (done := [result for result in tried if result.is_done]):
        raise RuntimeError(f"training failed at every learning rate, the first time with: {tried[0].error}")
    best = max(done, key=lambda result: result.get_validation_score() or -math.inf)
    return step.change(learning_rate=best.step.flags["learning_rate"])


def run_command(
    step: Step,
    plan: Plan,
    folder: Path,
    num_threads: int | None = None,
    device: str | None = None,
    is_wanted: Callable[[], bool] = lambda: True,
) -> None:
    """Run the command of a step in a process of its own, from the folder of the plan.

    Its log.txt has the command, then the output.

    Args:
        folder: The step's folder.
        num_threads: Threads of torch; default as many as torch takes.
        device: The GPU. Default: the first that this process sees.
        is_wanted: Whether anybody still waits for the result.

    Raises:
        RuntimeError: It failed, with the end of its log, or it did not start.
        Interrupted: It was interrupted, or nobody waits for it any more.
    """
    arguments = [step.command, *step.list_arguments(find_root(plan, folder.parents[1]))]
    if (checkpoint := find_checkpoint(folder)) is not None:
        arguments += ["--resume_from_checkpoint", str(Path(checkpoint).resolve())]
    log = (folder / "log.txt").resolve()
    for file in (log, log.with_suffix(ENDED)):
        file.unlink(missing_ok=True)
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
        # Each process imports the main script, where an unguarded comparison starts again.
        raise RuntimeError(
            f"the process of a step must start, but ended with exit code {process.exitcode} before it did. In a script "
            'of your own, compare below `if __name__ == "__main__":`.'
        )
    if process.exitcode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
        raise RuntimeError("\n".join([f"exit code {process.exitcode}", *lines[-5:]]))


def _run(arguments: list[str], folder: Path, log: Path, num_threads: int | None, device: str | None) -> None:
    is_own = arguments[0] in cli.COMMANDS
    gc.freeze()  # a collection would write to, and so copy, all that the server imported
    end_with_parent()  # it would write its output into that of the next run
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    # A step trains on one device: on two its batches, and so its tokens, would be twice those of the plan.
    os.environ["CUDA_VISIBLE_DEVICES"] = device or os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    with log.open("w", encoding="utf-8") as output:
        output.write(shlex.join([*(["hf-domain"] if is_own else ["python", "-m"]), *arguments]) + "\n")
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    os.chdir(folder)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    sys.argv = ["hf-domain", *arguments] if is_own else arguments
    cli.main() if is_own else cli.import_command(arguments[0]).main()
    log.with_suffix(ENDED).touch()


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
    if step.kind == "held_out_loss":
        output["masked_lm_loss"] = metrics["eval_loss"]
        encoder = step.flags["model_name_or_path"].replace("{root}", str(folder.parents[1]))
        is_folder = (plan.folder / encoder).is_dir()
        output["vocabulary"] = digest_vocabulary(str(plan.folder / encoder) if is_folder else encoder)
    if step.kind == "fine_tuning":
        task = plan.tasks[str(step.task)]
        predictions = read_predictions(task, step.flags, plan.folder, folder)
        scores, floors = predictions.score(), score_floors(task, step.flags, plan.folder)
        output |= {"score": scores.compute(), "floors": floors, "predictions": predictions}
        output["milliseconds_per_text"] = 1000 * metrics["predict_runtime"] / len(scores)  # of QA: a question
    # Which fine-tuned models are kept is known once others have ended.
    if step.kind in ("lr_trial", "timing", "held_out_loss"):
        for file in folder.glob(WEIGHTS):
            file.unlink()
    return output


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


# --------------------------------------------------------------------------------------------------------- a dry run


def describe_work(plan: Plan, output_dir: Path) -> str:
    """Describe the steps that are missing by row and kind, and which differences the plan can see."""
    steps, results = check_steps(plan, output_dir)
    missing = list_missing(steps, find_lacking(plan, steps, results, output_dir), output_dir)
    if not missing:
        return f"No step is missing: hf-domain compare {plan.path} writes the report."
    titles = list_titles(plan)
    rows = pd.Series([titles.get(str(step.method), SHARED) for step in missing])
    kinds = pd.Series([step.kind.replace("_", " ") for step in missing])
    counts = pd.crosstab(rows, kinds)
    counts = counts.loc[
        [title for title in (SHARED, *titles.values()) if title in counts.index], [*dict.fromkeys(kinds)]
    ]
    counts.loc["steps"] = counts.sum()
    table = counts.map(lambda count: str(count or "")).rename_axis(index=None, columns=None)
    count = f"{len(missing)} step{' is' if len(missing) == 1 else 's are'} missing:"
    return "\n".join([count, "", table.to_string(), "", predict_power(plan)]).rstrip()
