"""Run the steps of a comparison: what is missing, once, in as many processes or machines as are wanted."""

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
from collections import defaultdict
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from filelock import FileLock, Timeout
from tqdm.auto import tqdm
from transformers import AutoTokenizer

from hf_domain import command_line
from hf_domain.comparison.floors import score_floors
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.results import (
    Description,
    Result,
    check_results,
    describe_plan,
    describe_steps,
    get_path,
    read_result,
    read_results,
    write_result,
)
from hf_domain.comparison.scores import read_predictions
from hf_domain.comparison.step_checks import check_encoders, check_flags
from hf_domain.comparison.steps import Step, count_tokens, list_steps
from hf_domain.comparison.task_files import write_task_text
from hf_domain.environment import describe_environment
from hf_domain.files import read_json, write_json
from hf_domain.training.run_files import METRICS, STATE
from hf_domain.training.run_folders import drop_checkpoint, find_checkpoint

# Of the commands most steps run: what takes longest to import.
PRELOADED = [
    f"hf_domain.{name}"
    for name in ("comparison.runner", "training.pretraining", "training.fine_tuning", "rada.passages", "gmap.reader")
]
CACHES = ("memory_cache", "passage_cache")
# Exit code of a step on Ctrl-C, which a terminal sends to every process.
INTERRUPTED = 130
Execute = Callable[[Step, Plan, Path], None]


@dataclass(frozen=True)
class Attempt:
    """Whose output lies in the folder of a step, and how far it is."""

    FILE: ClassVar[str] = "step.json"
    step: Description
    started: float
    seconds: float
    """Of the attempts before."""
    done: bool = False

    @classmethod
    def read(cls, folder: Path) -> "Attempt | None":
        """Read the attempt of a folder; None where there is none, or one of another version."""
        if not (folder / cls.FILE).is_file():
            return None
        try:
            content = read_json(folder / cls.FILE)
            return cls(**content | {"step": Description(**content["step"])})
        except (KeyError, TypeError, ValueError):
            return None

    def write(self, folder: Path) -> None:
        """Write it into a folder."""
        write_json(folder / self.FILE, asdict(self))


def run_comparison(
    plan: Plan,
    output_dir: Path,
    shard: tuple[int, int] = (1, 1),
    execute: Execute | None = None,
    num_processes: int = 1,
) -> list[Result]:
    """Run every step that has no result yet. A killed comparison goes on where it was.

    Args:
        plan: What is compared.
        output_dir: Where results (`results/*.json`) and the output of the steps go.
        shard: Which part of how many: (2, 4) is the second of four. Methods that start from each other's encoders stay
            together, so that each part can run on a machine of its own; their results are put into one folder after.
        execute: Runs a step and leaves its output in its folder; default runs the command in a process of its own.
        num_processes: Steps that run at once, each on its share of the cores. For small models on a CPU.

    Returns:
        The results of all steps of this part, those that failed included.

    Raises:
        ValueError: See `prepare_part`; another process runs this part.
    """
    if num_processes < 1:
        raise ValueError(f"num_processes is the number of steps that run at once, at least 1, got {num_processes}")
    part, results, descriptions = prepare_part(plan, output_dir, shard)
    with lock_part(output_dir, shard):
        write_json(output_dir / "plan.json", describe_plan(plan, output_dir))
        num_threads = None if num_processes == 1 else max(1, (os.cpu_count() or 1) // num_processes)
        run = execute or partial(run_command, num_threads=num_threads)

        def make_result(step: Step) -> Result:
            # Parts share a step where their methods start from it, and methods a cache: the first to come makes it, the
            # others wait.
            caches = [f"cache-{Path(step.flags[name]).name}" for name in CACHES if name in step.flags]
            with ExitStack() as locks:
                for name in (step.name, *caches):
                    locks.enter_context(FileLock(output_dir / "locks" / f"{name}.lock"))
                return get_result(step, plan, output_dir, results, descriptions[step.name], run)

        with (
            tqdm(total=len(part), desc="comparison", unit="step") as progress,
            ThreadPoolExecutor(num_processes) as pool,
        ):
            waiting, running = list(part), dict[Future[Result], Step]()
            while waiting or running:
                while len(running) < num_processes and (step := choose_step(waiting, list(running.values()))):
                    waiting.remove(step)
                    running[pool.submit(make_result, step)] = step
                names = ", ".join(step.name for step in running.values())
                minutes = estimate_minutes(waiting + list(running.values()), results)
                rest = "" if minutes is None else f", {minutes / num_processes:.0f} min remain"
                progress.set_postfix_str(names + rest)
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    results[running.pop(future).name] = future.result()
                    progress.update()
    return [results[step.name] for step in part]


def prepare_part(
    plan: Plan, output_dir: Path, shard: tuple[int, int]
) -> tuple[list[Step], dict[str, Result], dict[str, Description]]:
    """Check everything that can be checked before the first step.

    Returns:
        The steps of the part, the results that are there, and what a result says of each step, by name.

    Raises:
        ValueError: A command does not take its flags, the folder has results of another plan or of other versions, or
            there is no such part.
    """
    steps = list_steps(plan, output_dir)
    check_flags(steps)
    check_encoders(plan, steps)
    results, descriptions = read_results(output_dir), describe_steps(plan, output_dir)
    check_results(results, descriptions)
    return choose_part(plan, steps, shard), results, descriptions


def list_missing_steps(plan: Plan, output_dir: Path, shard: tuple[int, int] = (1, 1)) -> list[Step]:
    """List the steps of a part that have no result; what they need and is gone is made again beside them.

    Raises:
        ValueError: See `prepare_part`.
    """
    part, results, _ = prepare_part(plan, output_dir, shard)
    return [step for step in part if not is_done(step, results)]


def is_done(step: Step, results: Mapping[str, Result]) -> bool:
    """Return whether a step has a result and did not fail."""
    return step.name in results and results[step.name].is_done


def choose_step(waiting: list[Step], running: list[Step]) -> Step | None:
    """Choose the next step that can run beside others: what it needs is made, and no other writes the same cache."""
    unfinished = {step.name for step in waiting + running}
    caches = {step.flags[name] for step in running for name in CACHES if name in step.flags}
    for step in waiting:
        if unfinished.isdisjoint(step.needs) and caches.isdisjoint(step.flags.get(name) for name in CACHES):
            return step
    return None


def get_result(
    step: Step,
    plan: Plan,
    output_dir: Path,
    results: Mapping[str, Result],
    description: Description,
    execute: Execute,
) -> Result:
    """Read the result of a step, or run the step and write it; a failed step is tried again."""
    path = get_path(output_dir, step.name)
    done = path.is_file() and (result := read_result(path)).is_done
    if done:  # since this comparison began, by another part, whose plan may have been another
        check_results({step.name: result}, {step.name: description})
    # Results may have come from another machine without the encoder that the next step reads, or it was deleted.
    if done and (has_output(step, output_dir / "steps" / step.name) or not is_needed(step, plan, output_dir, results)):
        return result
    # Until its output is whole again, a step has no result: one that is killed now would be taken for done.
    path.unlink(missing_ok=True)
    # A learning rate that makes training fail is not chosen.
    needed = [results[name] for name in step.needs if results[name].step.kind != "tuning"]
    if failed := [other.step.name for other in needed if not other.is_done]:
        result = Result(description, "failed", f"it needs {', '.join(failed)}, which failed")
    else:
        result = run_step(step, plan, output_dir, results, description, execute)
    write_result(output_dir, result)
    if result.is_done and step.kind != "trunk":
        for checkpoint in (output_dir / "steps" / step.name).glob("checkpoint-*"):
            drop_checkpoint(checkpoint)
    return result


def has_output(step: Step, folder: Path) -> bool:
    """Return whether the output of a step is whole in its folder."""
    attempt = Attempt.read(folder)
    is_there = step.kind not in ("pretraining", "average") or any(folder.glob("*.safetensors"))
    if step.kind == "trunk":
        is_there = find_checkpoint(folder) is not None
    return is_there and attempt is not None and attempt.done


def is_needed(step: Step, plan: Plan, output_dir: Path, results: Mapping[str, Result]) -> bool:
    """Return whether a step without a result reads the output of this one, directly or not."""
    for other in list_steps(plan, output_dir):
        if step.name in other.needs and (not is_done(other, results) or is_needed(other, plan, output_dir, results)):
            return True
    return False


def run_step(
    step: Step,
    plan: Plan,
    output_dir: Path,
    results: Mapping[str, Result],
    description: Description,
    execute: Execute,
) -> Result:
    """Run a step and return its result; a step that fails is a result too."""
    folder = output_dir / "steps" / step.name
    before = Attempt.read(folder)
    checkpoint = None if before is None or not before.step.is_of(description) else find_checkpoint(folder)
    seconds = 0.0 if before is None or checkpoint is None else count_seconds(before, Path(checkpoint))
    if folder.is_dir() and checkpoint is None:
        shutil.rmtree(folder)  # of a step that was killed and cannot go on, or that was another one
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():  # what it began to write at its end is of no use, and may be of another type of model
        if file.is_file() and file.name != Attempt.FILE:
            file.unlink()
    attempt = Attempt(description, time.time(), seconds)
    attempt.write(folder)
    started = time.perf_counter()
    try:
        step = choose_learning_rate(fit_to_minutes(step, plan, results), plan, results)
        if step.task is not None and step.kind in ("pretraining", "probe", "datastore"):
            task = plan.tasks[step.task]
            file, names = plan.folder / task.get_file("train"), task.options.get("text_column_names")
            write_task_text(task.kind, file, output_dir / "texts" / f"{step.task}.txt", names)
        execute(step, plan, folder)
        seconds += time.perf_counter() - started
        output = read_output(step, plan, folder)
        replace(attempt, done=True).write(folder)
    except Exception as error:  # whatever it is: the other runs go on, and the report tells of this one
        return Result(description, "failed", f"{error}" or type(error).__name__, environment=describe_environment())
    return Result(description, "done", seconds=seconds, environment=describe_environment(), **output)


def count_seconds(attempt: Attempt, checkpoint: Path) -> float:
    """Return what a killed step took up to the checkpoint it goes on from, over all its attempts."""
    return attempt.seconds + max(0.0, (checkpoint / STATE).stat().st_mtime - attempt.started)


def run_command(step: Step, plan: Plan, folder: Path, num_threads: int | None = None) -> None:
    """Run the command of a step in a process of its own, from the folder of the plan, its output in log.txt.

    Args:
        step: What to run.
        plan: Its plan.
        folder: Of the step.
        num_threads: Threads of torch; default as many as it takes.

    Raises:
        RuntimeError: It failed; the end of its log.
    """
    arguments = [step.command, *step.list_arguments()]
    if (checkpoint := find_checkpoint(folder)) is not None:
        arguments += ["--resume_from_checkpoint", str(Path(checkpoint).resolve())]
    log = (folder / "log.txt").resolve()
    # A server that has imported everything once forks a fresh process for each step: importing takes longer than many a
    # step, and a step that runs out of memory takes only itself down.
    context: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    if hasattr(os, "fork"):
        context.set_forkserver_preload(PRELOADED)
    process = context.Process(target=_run, args=(arguments, plan.folder.resolve(), log, num_threads))
    process.start()
    process.join()
    if process.exitcode == INTERRUPTED:
        raise KeyboardInterrupt  # no result of the step
    if process.exitcode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        raise RuntimeError("\n".join([f"exit code {process.exitcode}", *lines[-5:]]))


def _run(arguments: list[str], folder: Path, log: Path, num_threads: int | None) -> None:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    # A step trains on one device: on two its batches, and so its tokens, would be twice those of the plan.
    os.environ["CUDA_VISIBLE_DEVICES"] = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    with log.open("w", encoding="utf-8") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    os.chdir(folder)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    sys.argv = ["hf-domain", *arguments]
    command_line.main()


def _end_with_parent() -> None:
    """End this process when the comparison is killed: it would write its output into that of the next run."""
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
        output["milliseconds_per_text"] = 1000 * metrics["predict_runtime"] / len(scores)  # of QA: a question
    if step.kind in ("fine_tuning", "tuning", "probe", "evaluation", "trunk"):
        for file in folder.glob("*.safetensors"):
            file.unlink()
    return output


def digest_vocabulary(encoder: str) -> str:
    """Return a digest of the vocabulary of an encoder: losses compare where it is the same."""
    vocabulary = sorted(AutoTokenizer.from_pretrained(encoder).get_vocab().items())
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
    return replace(step, flags={**step.flags, "max_steps": max(1, round(60 * plan.budget.minutes * per_second))})


def choose_learning_rate(step: Step, plan: Plan, results: Mapping[str, Result]) -> Step:
    """Return a fine-tuning with the learning rate that is best on the validation set; the test set is not read.

    Raises:
        RuntimeError: Training failed at every learning rate.
    """
    tried = [results[name] for name in step.needs if results[name].step.kind == "tuning"]
    if not tried:
        return step
    metric = plan.tasks[str(step.task)].metric
    name = f"eval_{'f1' if metric == 'entity_f1' else metric}"  # as the commands call it
    done = [result for result in tried if result.is_done]
    if not done:
        raise RuntimeError(f"training failed at every learning rate, the first time with: {tried[0].error}")
    best = max(done, key=lambda result: result.metrics[name])
    return replace(step, flags={**step.flags, "learning_rate": best.step.flags["learning_rate"]})


def choose_part(plan: Plan, steps: list[Step], shard: tuple[int, int]) -> list[Step]:
    """Choose the steps of a part; methods that start from each other stay together.

    Raises:
        ValueError: There is no such part, or fewer families of methods than parts.
    """
    number, count = shard
    if not 1 <= number <= count:
        raise ValueError(f"a part is between 1/{count} and {count}/{count}, got {number}/{count}")
    roots = {method: plan.get_root(method) for method in plan.methods}
    families = list(dict.fromkeys(roots.values()))
    if count > len(families):
        raise ValueError(
            f"methods that start from each other stay together: there are {len(families)} parts, got {count}"
        )
    chosen = {method for method, root in roots.items() if families.index(root) % count == number - 1}
    needed = {step.name for step in steps if step.method in chosen}
    for step in reversed(steps):
        if step.name in needed:
            needed.update(step.needs)
    return [step for step in steps if step.name in needed]


@contextmanager
def lock_part(output_dir: Path, shard: tuple[int, int]) -> Any:
    """Keep a second process from running the same part; the lock falls with the process.

    Raises:
        ValueError: Another process runs it.
    """
    for name in ("locks", "results"):
        (output_dir / name).mkdir(parents=True, exist_ok=True)
    path = output_dir / "locks" / f"part-{shard[0]}-of-{shard[1]}.lock"
    try:
        with FileLock(path, blocking=False):
            yield
    except Timeout:
        raise ValueError(f"another process runs part {shard[0]}/{shard[1]} in {output_dir}; wait for it") from None


def estimate_minutes(steps: list[Step], results: Mapping[str, Result]) -> float | None:
    """Estimate what steps take that have no result, from those of the same kind that are done; None without any."""
    seconds = defaultdict(list)
    for result in results.values():
        if result.seconds is not None:
            seconds[result.step.kind].append(result.seconds)
    means = {kind: sum(values) / len(values) for kind, values in seconds.items()}
    missing = [step for step in steps if not is_done(step, results)]
    return sum(means.get(step.kind, max(means.values())) for step in missing) / 60 if means else None
