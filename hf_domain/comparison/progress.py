"""How far a comparison is: steps done, those that run with their step and loss, and the minutes that remain."""

import re
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from statistics import mean
from typing import Self

from distributed import Client, Future
from tqdm.auto import tqdm

from hf_domain.comparison.descriptions import Job
from hf_domain.comparison.results import Result
from hf_domain.comparison.runner import Attempt
from hf_domain.training.terminal import format_seconds

# A line of `Progress` in training/terminal.py.
TRAINED = re.compile(r"step (\d+)/(\d+): loss ([\d.e+-]+|nan)")
END_OF_LOG = 4096  # bytes
BAR = "{desc}: {percentage:3.0f}% |{bar:20}| {n_fmt}/{total_fmt} steps{postfix}"


@dataclass(frozen=True)
class Run:
    """How far a step is that runs."""

    seconds: float
    """Since it began."""
    step: int = 0
    max_steps: int = 0
    """Of its training; 0 where it does not train, or not yet."""
    loss: str = ""

    def __str__(self) -> str:
        trained = f"step {self.step}/{self.max_steps}, loss {self.loss}, " if self.max_steps else ""
        return f"{trained}{format_seconds(self.seconds)}"


class ProgressView:
    """A bar of all steps and a line for each that runs; where nobody looks, a line for each that ended."""

    def __init__(self, jobs: list[Job], results: Mapping[str, Result], output_dir: Path, client: Client) -> None:
        self.jobs, self.results, self.output_dir, self.client = jobs, results, output_dir, client
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
            job: The step.
            result: What came of it.
            rest: Steps that have not ended.
            workers: How many there are.
        """
        self.ended += 1
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
        minutes = estimate_minutes(rest, list(self.results.values()), runs)
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
    return Run(seconds, int(found[-1][0]), int(found[-1][1]), found[-1][2]) if found else Run(seconds)


def estimate_minutes(jobs: list[Job], results: list[Result], runs: Mapping[str, Run]) -> float | None:
    """Estimate what steps take one after the other; None before any was measured.

    Args:
        jobs: Steps that have not ended.
        results: Whose seconds tell those of others: of the same kind and method, else of the same kind.
        runs: How far those are that run, by name.
    """
    measured: dict[tuple[str, ...], list[float]] = {}
    for result in results:
        if result.seconds is not None:
            for group in ((result.step.kind, str(result.step.method)), (result.step.kind,), ()):
                measured.setdefault(group, []).append(result.seconds)
    if not measured:
        return None
    seconds = 0.0
    for job in jobs:
        groups = ((job.step.kind, str(job.step.method)), (job.step.kind,), ())
        expected = mean(next(measured[group] for group in groups if group in measured))
        run = runs.get(job.name)
        if run is not None and run.step:
            expected = run.seconds * run.max_steps / run.step
        seconds += max(0.0, expected - (run.seconds if run is not None else 0.0))
    return seconds / 60
