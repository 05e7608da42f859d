"""One pre-training seed of results/converged.yaml: all trainings side by side, then the fine-tunings.

    python benchmarks/converged.py --seed 1 --output runs.jsonl --rows no_adaptation dapt general_text --minutes 9
    python benchmarks/converged.py --seed 1 --output runs.jsonl --minutes 9  # the other rows; again until all is done
    python benchmarks/converged.py --seed 2 --output runs.jsonl --minutes 9  # adds another pre-training
    python benchmarks/converged.py --output runs.jsonl && hf-domain compare results/converged.yaml --report_only

Beside the plan stand the folders that it names: encoder/ and data/. The steps are those of `hf-domain compare`, which
runs what is left of the plan; a server that has imported everything forks a process for each. They run in the order of
what they decide, so that a run that ends at any moment leaves the most; the same command resumes. Each result becomes a
line of the output at once. The file is all that another machine needs to resume, or to write the report: join the files
of several machines with cat. On a GPU the processes compute side by side if NVIDIA's MPS is installed.

Without a GPU, `--cpu` trains a tenth of the tokens, and the first three rows, by a plan of its own beside the other:
some hours for each seed on two cores.

    python benchmarks/converged.py --cpu --seed 1 --output cpu.jsonl
    hf-domain compare results/converged_cpu.yaml --report_only
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from threading import Event, Semaphore
from typing import Any

import torch

from hf_domain.comparison.plan import Plan, write_plan
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.results import Result, find_results, get_path
from hf_domain.comparison.run import Interrupted, count_cores, count_workers, run_command, run_comparison
from hf_domain.comparison.steps import Step, list_steps
from hf_domain.safe_io import read_json, write_json
from hf_domain.training.device import emulates_bfloat16
from hf_domain.training.settings import read_settings


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Path, default=Path("results/converged.yaml"))
    parser.add_argument("--seed", type=int, help="a pre-training seed of the plan; default: only unpack the output")
    parser.add_argument("--rows", nargs="+", help="rows of the plan; default: all, with --cpu the first three")
    parser.add_argument("--cpu", action="store_true", help="a tenth of the tokens, by a plan beside the plan")
    parser.add_argument("--minutes", type=float, help="stop then; default: when all is done")
    # On 16 cores 18 processes filled an H100: each waits for the GPU at times.
    most = count_cores() + 2 if torch.cuda.is_available() else count_workers()
    parser.add_argument("--workers", type=int, default=most, help="steps that run at once")
    parser.add_argument("--trainings", type=int, default=8, help="pre-trainings that run at once")
    parser.add_argument("--work", type=Path, help="the comparison's folder; default: the plan's path without .yaml")
    parser.add_argument("--output", type=Path, required=True, help="JSON lines, a result each: read, and added to")
    return parser.parse_args()


def write_small_plan(path: Path) -> Path:
    """Write a plan for a CPU beside a plan: a tenth of the tokens, in bfloat16 if the processor computes in it."""
    content = read_settings(path)
    content["budget"]["tokens"] //= 10
    for name in ("pretraining", "fine_tuning"):
        content[name] |= {"use_cpu": True, "bf16": not emulates_bfloat16()}
    write_plan(content, path.with_stem(f"{path.stem}_cpu"))
    return path.with_stem(f"{path.stem}_cpu")


def choose_steps(steps: list[Step], plan: Plan, seed: int, rows: list[str]) -> list[Step]:
    """Return the steps of a pre-training seed in the order of their value.

    Trainings come first, since everything waits for them; then a fine-tuning of every row on every task, then the next
    seed; then rows whose training continues another one. The losses decide nothing.

    Args:
        steps: In the order of the plan.
        seed: A row that trains no encoder has seeds of fine-tuning for all of them, which are dealt out.
        rows: The rows that are fine-tuned.
    """
    number, count = plan.pretraining_seeds.index(seed), len(plan.pretraining_seeds)
    dealt = {row: plan.list_seeds(row)[number::count] for row in rows}
    chosen = {
        step.id
        for step in steps
        if step.kind == "fine_tuning" and step.method in rows
        if step.pretraining_seed == seed or (step.pretraining_seed is None and step.seed in dealt[step.method])
    }
    for step in reversed(steps):
        chosen |= {*step.needs} if step.id in chosen else set()
    chosen |= {step.id for step in steps if step.kind == "held_out_loss" and chosen.issuperset(step.needs)}
    trained = {step.id for step in steps if step.kind == "pretraining"}
    late = {step.method for step in steps if step.kind == "pretraining" and trained.intersection(step.needs)}
    rounds = Counter[Any]()
    ranks = {}
    for step in steps:
        if step.id in chosen:
            is_scored = step.kind == "fine_tuning"
            ranks[step.id] = (
                step.kind == "held_out_loss",
                step.method in late,
                is_scored,
                rounds[step.method, step.task],
            )
            rounds[step.method, step.task] += is_scored
    return sorted((step for step in steps if step.id in chosen), key=lambda step: ranks[step.id])


# ---------------------------------------------------------------------------------------------------- the output


def unpack_results(output: Path, work: Path) -> set[str]:
    """Write the results of the output into a comparison's folder, and return their names.

    A process that was killed may have left half a line.
    """
    names = set()
    for line in output.read_text(encoding="utf-8").splitlines() if output.is_file() else ():
        try:
            content = json.loads(line)
            file = work / "results" / Path(content.pop("name")).name
        except ValueError:
            continue
        if not file.is_file() or read_json(file)["status"] != "done":
            write_json(file, content)
        names |= {file.stem} if content["status"] == "done" else set()
    return names


def add_line(output: Path, result: Result) -> None:
    """Add a result to the output, in one write, and on a line of its own."""
    line = json.dumps({"name": f"{result.step.id}.json"} | result.to_json())
    with output.open("a+b", buffering=0) as file:
        file.seek(max(0, file.tell() - 1))
        is_cut = file.read() not in (b"", b"\n")
        file.write(b"\n" * is_cut + line.encode() + b"\n")


# -------------------------------------------------------------------------------------------------------- a run


@contextmanager
def share_gpu() -> Iterator[None]:
    """Start NVIDIA's MPS, by which the kernels of several processes run at the same time, and end it."""
    control = shutil.which("nvidia-cuda-mps-control")
    if control is None:
        yield
        return
    for name in ("PIPE", "LOG"):
        folder = Path(tempfile.gettempdir(), f"mps-{os.getuid()}-{name.lower()}")
        os.environ.setdefault(f"CUDA_MPS_{name}_DIRECTORY", str(folder))
        Path(os.environ[f"CUDA_MPS_{name}_DIRECTORY"]).mkdir(exist_ok=True)
    # That of a killed run still listens, and is used.
    subprocess.run([control, "-d"], check=False, capture_output=True)
    try:
        yield
    finally:
        subprocess.run([control], input="quit\n", text=True, check=False, capture_output=True, timeout=60)


def run_seed(plan: Plan, work: Path, args: argparse.Namespace) -> bool:
    """Run what is missing of a seed; return whether time was left."""
    stopped, trainings = Event(), Semaphore(args.trainings)
    num_threads = max(1, count_cores() // args.workers)

    def execute(step: Step, plan: Plan, folder: Path) -> None:
        with trainings if step.kind == "pretraining" else nullcontext():
            if stopped.is_set():
                raise Interrupted
            run_command(step, plan, folder, num_threads, is_wanted=lambda: not stopped.is_set())

    def stop(*_: Any) -> None:
        stopped.set()
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
        signal.signal(number, stop)
    signal.setitimer(signal.ITIMER_REAL, 60 * (args.minutes or 0))
    try:
        with share_gpu():
            run_comparison(
                *(plan, work, execute, args.workers),
                arrange=lambda steps: choose_steps(steps, plan, args.seed, args.rows),
                note=lambda result: add_line(args.output, result),
            )
    except KeyboardInterrupt:
        return False
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
    return True


def main() -> None:
    """Run a seed, or unpack the results of several."""
    args = parse_arguments()
    if args.cpu:
        args.plan = write_small_plan(args.plan)
    work = args.work or args.plan.with_suffix("")
    plan = load_plan(args.plan, work)
    args.rows = args.rows or [*plan.methods][: 3 if args.cpu else None]
    if args.seed is not None and args.seed not in plan.pretraining_seeds:
        sys.exit(f"--seed must be one of {plan.pretraining_seeds}, the plan's, but is {args.seed}. Name one of them.")
    if unknown := {*args.rows} - {*plan.methods}:
        sys.exit(
            f"--rows must be rows of {args.plan}, but {', '.join(unknown)} is none. Use some of {[*plan.methods]}."
        )
    (work / "results").mkdir(parents=True, exist_ok=True)
    ids = {step.name: step.id for step in list_steps(plan, work)}
    written = unpack_results(args.output, work)
    for result in find_results(work, ids).values():  # of a run that was killed before it wrote its line
        if result.is_done and result.step.id not in written:
            add_line(args.output, result)
    is_whole = args.seed is None or run_seed(plan, work, args)
    done = sum(get_path(work, each).is_file() for each in ids.values())
    print(f"{done:,} of {len(ids):,} steps of {args.plan} have a result.")
    if not is_whole:
        print("Time is up. The same command resumes.")
    print(f"The report: hf-domain compare {args.plan} --output_dir {work} --report_only")


if __name__ == "__main__":
    main()
