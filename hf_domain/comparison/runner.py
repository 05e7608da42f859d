"""Run the steps of a comparison: what is missing, once, in as many processes or machines as are wanted."""

import hashlib
import importlib
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
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from tqdm.auto import tqdm
from transformers import AutoTokenizer

from hf_domain.comparison.plan import Plan
from hf_domain.comparison.results import check_results, describe_plan, describe_steps, is_of, read_results
from hf_domain.comparison.scores import read_scores, score_baseline
from hf_domain.comparison.steps import Step, check_encoders, check_flags, count_tokens, list_steps
from hf_domain.comparison.task_files import write_task_text
from hf_domain.environment import describe_environment
from hf_domain.files import read_json, write_json
from hf_domain.training.run_folders import find_checkpoint

PRELOADED = [f"hf_domain.examples.{name}" for name in ("run_mlm", "run_classification", "run_ner", "run_qa")]
CACHES = ("memory_cache", "passage_cache")
# In the folder of a step: whose output lies there.
RECORD = "step.json"
# Exit code of a step on Ctrl-C, which a terminal sends to every process.
INTERRUPTED = 130
Execute = Callable[[Step, Plan, Path], None]


def run_comparison(
    plan: Plan,
    output_dir: Path,
    shard: tuple[int, int] = (1, 1),
    execute: Execute | None = None,
    num_processes: int = 1,
) -> list[dict[str, Any]]:
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

        def make_result(step: Step) -> dict[str, Any]:
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
            waiting, running = list(part), dict[Future[dict[str, Any]], Step]()
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
) -> tuple[list[Step], dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    """Check everything that can be checked before the first step.

    Returns:
        The steps of the part, the results that are there, and what a result says of each step, by name.

    Raises:
        ValueError: A script does not take its flags, the folder has results of another plan or of other versions, or
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
    return [step for step in part if results.get(step.name, {}).get("status") != "done"]


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
    results: dict[str, dict[str, Any]],
    description: dict[str, Any],
    execute: Execute,
) -> dict[str, Any]:
    """Read the result of a step, or run the step and write it; a failed step is tried again."""
    path = output_dir / "results" / f"{step.name}.json"
    done = path.is_file() and (result := read_json(path))["status"] == "done"
    if done:  # since this comparison began, by another part, whose plan may have been another
        check_results({step.name: result}, {step.name: description})
    # Results may have come from another machine without the encoder that the next step reads, or it was deleted.
    if done and (has_output(step, output_dir / "steps" / step.name) or not is_needed(step, plan, output_dir, results)):
        return result
    # Until its output is whole again, a step has no result: one that is killed now would be taken for done.
    path.unlink(missing_ok=True)
    if failed := [name for name in step.needs if results[name]["status"] != "done"]:
        result = description | {"status": "failed", "error": f"it needs {', '.join(failed)}, which failed"}
    else:
        result = run_step(step, plan, output_dir, results, description, execute)
    write_json(path, result)
    if result["status"] == "done":
        drop_checkpoints(output_dir / "steps" / step.name)
    return result


def drop_checkpoints(folder: Path) -> None:
    """Delete the checkpoints of a step; one of which a part is deleted is none to go on from."""
    for saved in folder.glob("checkpoint-*"):
        (saved / "trainer_state.json").unlink(missing_ok=True)  # by which a whole one is known
        shutil.rmtree(saved)


def has_output(step: Step, folder: Path) -> bool:
    """Return whether the output of a step is whole in its folder."""
    record = folder / RECORD
    is_there = step.kind not in ("pretraining", "average") or any(folder.glob("*.safetensors"))
    return is_there and record.is_file() and read_json(record)["done"]


def is_needed(step: Step, plan: Plan, output_dir: Path, results: dict[str, dict[str, Any]]) -> bool:
    """Return whether a step without a result reads the output of this one, directly or not."""
    for other in list_steps(plan, output_dir):
        if step.name in other.needs:
            missing = results.get(other.name, {}).get("status") != "done"
            if missing or is_needed(other, plan, output_dir, results):
                return True
    return False


def run_step(
    step: Step,
    plan: Plan,
    output_dir: Path,
    results: dict[str, dict[str, Any]],
    description: dict[str, Any],
    execute: Execute,
) -> dict[str, Any]:
    """Run a step and return its result; a step that fails is a result too."""
    folder = output_dir / "steps" / step.name
    record = folder / RECORD
    is_ours = record.is_file() and is_of(read_json(record), description)
    checkpoint = find_checkpoint(folder) if is_ours else None
    seconds = 0.0 if checkpoint is None else count_seconds(read_json(record), Path(checkpoint))
    if folder.is_dir() and checkpoint is None:
        shutil.rmtree(folder)  # of a step that was killed and cannot go on, or that was another one
    folder.mkdir(parents=True, exist_ok=True)
    for file in folder.iterdir():  # what it began to write at its end is of no use, and may be of another type of model
        if file.is_file() and file != record:
            file.unlink()
    attempt = description | {"started": time.time(), "seconds": seconds, "done": False}
    write_json(record, attempt)
    started = time.perf_counter()
    try:
        fit_to_minutes(step, plan, results)
        if step.task is not None and step.kind in ("pretraining", "probe", "datastore"):
            task = plan.tasks[step.task]
            file, names = plan.folder / task.get_file("train"), task.options.get("text_column_names")
            write_task_text(task.kind, file, output_dir / "texts" / f"{step.task}.txt", names)
        execute(step, plan, folder)
        seconds += time.perf_counter() - started
        result = description | {"status": "done", "seconds": seconds, **read_output(step, plan, folder)}
        write_json(record, attempt | {"done": True})
    except Exception as error:  # whatever it is: the other runs go on, and the report tells of this one
        result = description | {"status": "failed", "error": f"{error}" or type(error).__name__}
    return result | {"environment": describe_environment()}


def count_seconds(record: dict[str, Any], checkpoint: Path) -> float:
    """Return what a killed step took up to the checkpoint it goes on from, over all its attempts."""
    return record["seconds"] + max(0.0, (checkpoint / "trainer_state.json").stat().st_mtime - record["started"])


def run_command(step: Step, plan: Plan, folder: Path, num_threads: int | None = None) -> None:
    """Run the script of a step in a process of its own, from the folder of the plan, its output in log.txt.

    Args:
        step: What to run.
        plan: Its plan.
        folder: Of the step.
        num_threads: Threads of torch; default as many as it takes.

    Raises:
        RuntimeError: It failed; the end of its log.
    """
    arguments = step.list_arguments()
    if (checkpoint := find_checkpoint(folder)) is not None:
        arguments += ["--resume_from_checkpoint", str(Path(checkpoint).resolve())]
    log = (folder / "log.txt").resolve()
    # A server that has imported everything once forks a fresh process for each step: importing takes longer than many a
    # step, and a step that runs out of memory takes only itself down.
    context: Any = multiprocessing.get_context("forkserver" if hasattr(os, "fork") else "spawn")
    if hasattr(os, "fork"):
        context.set_forkserver_preload(PRELOADED)
    process = context.Process(
        target=_run_script, args=(step.script, arguments, plan.folder.resolve(), log, num_threads)
    )
    process.start()
    process.join()
    if process.exitcode == INTERRUPTED:
        raise KeyboardInterrupt  # no result of the step
    if process.exitcode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        raise RuntimeError("\n".join([f"exit code {process.exitcode}", *lines[-5:]]))


def _run_script(script: str, arguments: list[str], folder: Path, log: Path, num_threads: int | None) -> None:
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
    sys.argv = [script, *arguments]
    importlib.import_module(f"hf_domain.examples.{script}").main()


def _end_with_parent() -> None:
    """End this process when the comparison is killed: it would write its output into that of the next run."""
    if (parent := multiprocessing.parent_process()) is not None:
        parent.join()
        os._exit(1)


def read_output(step: Step, plan: Plan, folder: Path) -> dict[str, Any]:
    """Read what a step left in its folder, and drop the weights that no other step needs."""
    metrics = read_json(folder / "all_results.json") if (folder / "all_results.json").is_file() else {}
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
        scores = read_scores(plan.tasks[step.task], step.flags, plan.folder, folder)
        baseline = score_baseline(plan.tasks[step.task], step.flags, plan.folder).compute()
        output |= {"score": scores.compute(), "baseline": baseline, "examples": scores.to_json()}
        output["milliseconds_per_text"] = 1000 * metrics["predict_runtime"] / len(scores.right)  # of QA: a question
    if step.kind in ("fine_tuning", "probe", "evaluation"):
        for file in folder.glob("*.safetensors"):
            file.unlink()
    return output


def digest_vocabulary(encoder: str) -> str:
    """Return a digest of the vocabulary of an encoder: losses compare where it is the same."""
    vocabulary = sorted(AutoTokenizer.from_pretrained(encoder).get_vocab().items())
    return hashlib.sha256(json.dumps(vocabulary).encode()).hexdigest()


def count_trained_tokens(flags: dict[str, Any], blocks: int | None) -> int:
    """Return the tokens of a training; the last batch of an epoch is short where `blocks` do not fill it."""
    steps, length = int(flags["max_steps"]), int(flags["max_seq_length"])
    of_step = count_tokens(flags)
    if blocks is None:
        return steps * of_step
    epochs, rest = divmod(steps, math.ceil(blocks * length / of_step))
    return (epochs * blocks * length) + min(rest * of_step, blocks * length)


def fit_to_minutes(step: Step, plan: Plan, results: dict[str, dict[str, Any]]) -> None:
    """Set the steps of pre-training that the minutes of the budget allow, from what the probe measured."""
    if plan.budget.minutes is not None and step.kind == "pretraining":
        per_second = results[f"{step.name}-probe"]["metrics"]["train_warm_steps_per_second"]
        step.flags["max_steps"] = max(1, round(60 * plan.budget.minutes * per_second))


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


def estimate_minutes(steps: list[Step], results: dict[str, dict[str, Any]]) -> float | None:
    """Estimate what steps take that have no result, from those of the same kind that are done; None without any."""
    seconds = defaultdict(list)
    for result in results.values():
        if result["status"] == "done":
            seconds[result["kind"]].append(result["seconds"])
    means = {kind: sum(values) / len(values) for kind, values in seconds.items()}
    missing = [step for step in steps if results.get(step.name, {}).get("status") != "done"]
    return sum(means.get(step.kind, max(means.values())) for step in missing) / 60 if means else None
