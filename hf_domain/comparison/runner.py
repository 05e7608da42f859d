"""Run the steps of a comparison: what is missing, once, in as many processes or machines as are wanted."""

import importlib
import json
import multiprocessing
import os
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from datasets import load_dataset
from filelock import FileLock, Timeout
from tqdm.auto import tqdm

from hf_domain.comparison.plan import Plan
from hf_domain.comparison.scores import read_scores
from hf_domain.comparison.steps import Step, count_tokens, list_steps
from hf_domain.outputs import write_text
from hf_domain.results import describe_environment, read_json, write_json
from hf_domain.runs import find_checkpoint

# A result counts only beside those of the same versions of what computes it.
COMPARED_VERSIONS = ("hf-domain", "transformers", "torch")
PRELOADED = [f"hf_domain.examples.{name}" for name in ("run_mlm", "run_classification", "run_ner", "run_qa")]
CACHES = ("memory_cache", "passage_cache")
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
        ValueError: The folder has results of another plan or of other versions, or another process runs this part.
    """
    if num_processes < 1:
        raise ValueError(f"num_processes is the number of steps that run at once, at least 1, got {num_processes}")
    steps = list_steps(plan, output_dir)
    results = read_results(output_dir)
    check_results(results, {step.name: describe(step, plan) for step in steps})
    part = choose_part(plan, steps, shard)
    with lock_part(output_dir, shard):
        write_json(output_dir / "plan.json", describe_plan(plan))
        num_threads = None if num_processes == 1 else max(1, (os.cpu_count() or 1) // num_processes)
        run = execute or partial(run_command, num_threads=num_threads)

        def make_result(step: Step) -> dict[str, Any]:
            # Parts share a step where their methods start from it, and methods a cache: the first to come makes it, the
            # others wait.
            caches = [f"cache-{Path(step.flags[name]).name}" for name in CACHES if name in step.flags]
            with ExitStack() as locks:
                for name in (step.name, *caches):
                    locks.enter_context(FileLock(output_dir / "locks" / f"{name}.lock"))
                return get_result(step, plan, output_dir, results, run)

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
                progress.set_postfix_str(f"{names}, {estimate_minutes(part, results) / num_processes:.0f} min remain")
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    results[running.pop(future).name] = future.result()
                    progress.update()
    return [results[step.name] for step in part]


def choose_step(waiting: list[Step], running: list[Step]) -> Step | None:
    """Choose the next step that can run beside others: what it needs is made, and no other writes the same cache."""
    unfinished = {step.name for step in waiting + running}
    caches = {step.flags[name] for step in running for name in CACHES if name in step.flags}
    for step in waiting:
        if unfinished.isdisjoint(step.needs) and caches.isdisjoint(step.flags.get(name) for name in CACHES):
            return step
    return None


def get_result(
    step: Step, plan: Plan, output_dir: Path, results: dict[str, dict[str, Any]], execute: Execute
) -> dict[str, Any]:
    """Read the result of a step, or run the step and write it; a failed step is tried again."""
    path = output_dir / "results" / f"{step.name}.json"
    done = path.is_file() and (result := read_json(path))["status"] == "done"
    # Results may have come from another machine without the encoder that the next step reads.
    if done and ((output_dir / "steps" / step.name).is_dir() or not is_needed(step, plan, output_dir, results)):
        return result
    if failed := [name for name in step.needs if results[name]["status"] != "done"]:
        result = describe(step, plan) | {"status": "failed", "error": f"it needs {', '.join(failed)}, which failed"}
    else:
        result = run_step(step, plan, output_dir, results, execute)
    write_json(path, result)
    return result


def is_needed(step: Step, plan: Plan, output_dir: Path, results: dict[str, dict[str, Any]]) -> bool:
    """Return whether a step without a result reads the output of this one, directly or not."""
    for other in list_steps(plan, output_dir):
        if step.name in other.needs:
            missing = results.get(other.name, {}).get("status") != "done"
            if missing or is_needed(other, plan, output_dir, results):
                return True
    return False


def run_step(
    step: Step, plan: Plan, output_dir: Path, results: dict[str, dict[str, Any]], execute: Execute
) -> dict[str, Any]:
    """Run a step and return its result; a step that fails is a result too."""
    result, folder = describe(step, plan), output_dir / "steps" / step.name
    fit_to_minutes(step, plan, results)
    if folder.is_dir() and find_checkpoint(folder) is None:
        shutil.rmtree(folder)  # the output of a step that was killed and cannot go on
    folder.mkdir(parents=True, exist_ok=True)
    if step.task is not None and step.kind in ("pretraining", "probe", "datastore"):
        write_task_text(plan, step.task, output_dir / "texts" / f"{step.task}.txt")
    started = time.perf_counter()
    try:
        execute(step, plan, folder)
        result |= {"status": "done", "seconds": time.perf_counter() - started, **read_output(step, plan, folder)}
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        result |= {"status": "failed", "error": str(error)}
    return result | {"environment": describe_environment()}


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
    if process.exitcode:
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
        raise RuntimeError("\n".join([f"exit code {process.exitcode}", *lines[-5:]]))


def _run_script(script: str, arguments: list[str], folder: Path, log: Path, num_threads: int | None) -> None:
    with log.open("w", encoding="utf-8") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    os.chdir(folder)
    if num_threads is not None:
        torch.set_num_threads(num_threads)
    sys.argv = [script, *arguments]
    importlib.import_module(f"hf_domain.examples.{script}").main()


def read_output(step: Step, plan: Plan, folder: Path) -> dict[str, Any]:
    """Read what a step left in its folder, and drop the weights that no other step needs."""
    metrics = read_json(folder / "all_results.json") if (folder / "all_results.json").is_file() else {}
    output: dict[str, Any] = {"metrics": metrics}
    weights = folder / "model.safetensors"
    if weights.is_file():
        output["checkpoint_bytes"] = weights.stat().st_size
    if step.kind == "pretraining":
        output["tokens"] = int(step.flags["max_steps"]) * count_tokens(step.flags)
        output["trainable_parameters"] = metrics["trainable_parameters"]
    if step.kind == "evaluation":
        # The own loss of a method may have more terms; what compares is the reconstruction of the masked tokens.
        output["masked_lm_loss"] = metrics.get("eval_masked_reconstruction_loss", metrics["eval_loss"])
    if step.kind == "fine_tuning":
        assert step.task is not None
        scores = read_scores(plan.tasks[step.task], plan.folder, folder)
        output |= {"score": scores.compute(), "examples": scores.to_json()}
        output["milliseconds_per_text"] = 1000 / metrics["predict_samples_per_second"]
    if step.kind in ("fine_tuning", "probe", "evaluation"):
        for file in folder.glob("*.safetensors"):
            file.unlink()
    return output


def fit_to_minutes(step: Step, plan: Plan, results: dict[str, dict[str, Any]]) -> None:
    """Set the steps of pre-training that the minutes of the budget allow, from what the probe measured."""
    if plan.budget.minutes is not None and step.kind == "pretraining":
        per_second = results[f"{step.name}-probe"]["metrics"]["train_steps_per_second"]
        step.flags["max_steps"] = max(1, round(60 * plan.budget.minutes * per_second))


def write_task_text(plan: Plan, task: str, path: Path) -> None:
    """Write the training text of a task as a corpus, a text a line, for TAPT."""
    columns = {"classification": ["text"], "ner": ["tokens"], "qa": ["context", "question"]}[plan.tasks[task].kind]
    rows = load_dataset("json", data_files=str(plan.folder / plan.tasks[task].get_file("train")), split="train")
    texts = [" ".join(value) if isinstance(value, list) else value for row in rows for value in map(row.get, columns)]
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = dict.fromkeys(" ".join(str(text).split()) for text in texts)  # a context has several questions
    write_text(path, "".join(f"{line}\n" for line in lines))


def describe_plan(plan: Plan) -> dict[str, Any]:
    """Return what a report says of the plan."""
    titles = {name: plan.get_recipe(name).name for name in plan.methods}
    for name, method in plan.methods.items():
        titles[name] += "" if method.recipe == name else f" ({name})"
        titles[name] += "" if method.after is None else f", after {method.after}"
    content = asdict(plan)
    return content | {"path": plan.path.name, "titles": titles}


def describe(step: Step, plan: Plan) -> dict[str, Any]:
    """Return what a result says of its step: by it the result is known again, also after a file was changed."""
    fields = ("name", "kind", "method", "corpus", "task", "seed", "needs", "script")
    files = {name: plan.folder / value for name, value in step.flags.items() if name.endswith("_file")}
    sizes = {name: file.stat().st_size for name, file in files.items() if file.name != f"{step.task}.txt"}
    return {name: getattr(step, name) for name in fields} | {"flags": dict(step.flags), "input_bytes": sizes}


def read_results(output_dir: Path) -> dict[str, dict[str, Any]]:
    """Read the results that are there, by the names of their steps."""
    return {path.stem: read_json(path) for path in sorted((output_dir / "results").glob("*.json"))}


def check_results(results: dict[str, dict[str, Any]], expected: dict[str, dict[str, Any]]) -> None:
    """Check that results belong to the steps of a plan, and to the installed versions.

    Args:
        results: By the names of the steps.
        expected: What `describe` says of the steps.

    Raises:
        ValueError: One does not.
    """
    expected = json.loads(json.dumps(expected))
    versions = describe_environment()["versions"]
    foreign = []
    for name, result in results.items():
        if name not in expected or any(result[key] != value for key, value in expected[name].items()):
            foreign.append(f"{name} (another plan)")
        elif "environment" in result and any(
            result["environment"]["versions"][package] != versions[package] for package in COMPARED_VERSIONS
        ):
            foreign.append(f"{name} (other versions of {', '.join(COMPARED_VERSIONS)})")
    if foreign:
        raise ValueError(
            f"the folder holds {len(foreign)} result(s) that are not of this comparison: {', '.join(foreign[:5])}; "
            "choose another --output_dir, or delete them from results/"
        )


def choose_part(plan: Plan, steps: list[Step], shard: tuple[int, int]) -> list[Step]:
    """Choose the steps of a part; methods that start from each other stay together.

    Raises:
        ValueError: There is no such part.
    """
    number, count = shard
    if not 1 <= number <= count:
        raise ValueError(f"a part is between 1/{count} and {count}/{count}, got {number}/{count}")
    roots = {}
    for method in plan.methods:
        root = method
        while (after := plan.methods[root].after) is not None:
            root = after
        roots[method] = root
    families = list(dict.fromkeys(roots.values()))
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
        with FileLock(path, timeout=0):
            yield
    except Timeout:
        raise ValueError(f"another process runs part {shard[0]}/{shard[1]} in {output_dir}; wait for it") from None


def estimate_minutes(steps: list[Step], results: dict[str, dict[str, Any]]) -> float:
    """Estimate what the missing steps take, from those of the same kind that are done."""
    seconds = defaultdict(list)
    for result in results.values():
        if result["status"] == "done":
            seconds[result["kind"]].append(result["seconds"])
    means = {kind: sum(values) / len(values) for kind, values in seconds.items()}
    missing = [step for step in steps if results.get(step.name, {}).get("status") != "done"]
    return sum(means.get(step.kind, max(means.values(), default=0.0)) for step in missing) / 60
