"""How far a comparison is: steps done, those that run with their step and loss, and the minutes that remain."""

import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from distributed import Client, Future
from tqdm.auto import tqdm

from hf_domain.comparison.costs import SECONDS_OF_START, Speeds, count_steps_before
from hf_domain.comparison.descriptions import Job
from hf_domain.comparison.results import Result
from hf_domain.comparison.runner import Attempt
from hf_domain.training.terminal import format_seconds

# A line of `Progress` in training/terminal.py.
TRAINED = re.compile(r"step (\d+)/(\d+): loss ([\d.e+-]+|nan)(?:.*?(?:(\d+) days?, )?(\d+):(\d\d):(\d\d) left)?")
END_OF_LOG = 4096  # bytes
BAR = "{desc}: {percentage:3.0f}% |{bar:20}| {n_fmt}/{total_fmt} steps{postfix}"


@dataclass(frozen=True)
class Run:
    """How far a step is that runs."""

    seconds: float
    """Since it began."""
    step: int = 0
    max_steps: int = 0
    """Steps of its training; 0 if it does not train, or not yet."""
    loss: str = ""
    left: float | None = None
    """Seconds that the rest of its training takes, as it said itself; None if it has not."""

    def __str__(self) -> str:
        trained = f"step {self.step}/{self.max_steps}, loss {self.loss}, " if self.max_steps else ""
        return f"{trained}{format_seconds(self.seconds)}"


class ProgressView:
    """A bar of all steps and a line for each that runs; where nobody looks, a line for each that ended."""

    def __init__(self, jobs: list[Job], speeds: Speeds, output_dir: Path, client: Client) -> None:
        self.jobs, self.speeds, self.output_dir, self.client = jobs, speeds, output_dir, client
        self.is_seen = sys.stderr.isatty()
        self.lines: list[tqdm] = []
        self.ended = 0

    def __enter__(self) -> Self:
        # Without Bokeh a dashboard has no pages.
        link = f"; Dask's dashboard: {self.client.dashboard_link}" if find_spec("bokeh") else ""
        tqdm.write(f"{len(self.jobs)} steps to run in {self.output_dir}{link}", file=sys.stderr)
        self.bar = tqdm(total=len(self.jobs), desc="comparison", bar_format=BAR, disable=not self.is_seen)
        return self

    def __exit__(self, *_: object) -> None:
        for line in [*self.lines, self.bar]:
            line.close()

    def end(self, job: Job, result: Result, rest: list[Job], workers: int) -> None:
        """Count a step that ended, and write its line.

        Args:
            job: The step that ended.
            result: Its result.
            rest: Steps that have not ended.
            workers: Number of workers.
        """
        self.ended += 1
        if result.seconds is not None:
            self.speeds.add_result(job.step, result.seconds, result.max_steps)
        self.bar.update()
        took = "" if result.seconds is None else f" in {format_seconds(result.seconds)}"
        told = f"done{took}" if result.is_done else f"failed: {result.error.strip().splitlines()[-1]}"
        if not self.is_seen or not result.is_done:
            left = self.describe_rest(rest, {}, workers)
            tqdm.write(f"{self.ended}/{len(self.jobs)} {job.name}: {told}{left and f'; {left}'}", file=sys.stderr)

    def show(self, waiting: list[Job], running: Mapping[Future, Job], workers: int) -> None:
        """Draw what runs.

        Args:
            waiting: Steps that wait for others or for a worker.
            running: Steps that run.
            workers: How many there are.
        """
        if not self.is_seen:
            return
        found = {job.name: read_run(self.output_dir / "steps" / job.address) for job in running.values()}
        runs = {name: run for name, run in found.items() if run is not None}
        self.bar.set_postfix_str(self.describe_rest([*waiting, *running.values()], runs, workers))
        while len(self.lines) < len(runs):
            self.lines.append(tqdm(bar_format="{desc}", position=len(self.lines) + 1, leave=False))
        texts = [f"  {name}: {run}" for name, run in runs.items()]
        for line, text in zip(self.lines, [*texts, *[""] * len(self.lines)], strict=False):
            line.set_description_str(text)

    def describe_rest(self, rest: list[Job], runs: Mapping[str, Run], workers: int) -> str:
        """Say how many minutes remain, as far as anything was measured, or that there is no worker."""
        minutes = estimate_minutes(rest, self.speeds, runs)
        return "no worker yet" if not workers else "" if minutes is None else f"{minutes / workers:.0f} min left"


def read_run(folder: Path) -> Run | None:
    """Read how far the step of a folder is; None if it does not run."""
    attempt = Attempt.read(folder)
    if attempt is None or attempt.done:
        return None
    seconds = max(0.0, time.time() - attempt.started)
    log = folder / "log.txt"
    if not log.is_file():
        return Run(seconds)
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - END_OF_LOG))
        found = TRAINED.findall(file.read().decode("utf-8", errors="replace"))
    if not found:
        return Run(seconds)
    step, max_steps, loss, *time_left = found[-1]
    left = None
    if time_left[1]:
        days, hours, minutes, rest = (int(part or 0) for part in time_left)
        left = max(0.0, 86400 * days + 3600 * hours + 60 * minutes + rest - (time.time() - log.stat().st_mtime))
    return Run(seconds, int(step), int(max_steps), loss, left)


def estimate_minutes(jobs: list[Job], speeds: Speeds, runs: Mapping[str, Run]) -> float | None:
    """Estimate the minutes of steps that run one after the other; None while no speed is known.

    Args:
        jobs: Steps that have not ended.
        speeds: Speeds of the steps that have.
        runs: Progress of the running steps by name. Their own estimates also improve those of the waiting steps.
    """
    known, steps = speeds.copy(), {job.name: job.step for job in jobs}
    for name, run in runs.items():
        if run.left is not None and run.step < run.max_steps:
            step, trained = steps[name], run.max_steps - count_steps_before(steps[name].flags)
            work = speeds.count_work(step) * (run.max_steps - run.step) / trained
            known.add(step.kind, step.command, step.method, SECONDS_OF_START + run.left, work)
    seconds = 0.0
    for job in jobs:
        own = runs.get(job.name)
        if own is not None and own.left is not None:
            seconds += own.left
        elif (expected := known.estimate(job.step)) is None:
            return None
        else:
            seconds += max(0.0, expected - (0.0 if own is None else own.seconds))
    return seconds / 60
