"""Run the steps of a comparison that are missing as Dask futures, on this machine or on a cluster."""

import os
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from uuid import uuid4

import torch
from dask.system import CPU_COUNT
from distributed import Client, Future, KilledWorker, wait

from hf_domain.clusters import open_client, open_local_client
from hf_domain.comparison.costs import Speeds
from hf_domain.comparison.default_flags import CACHE_FLAGS
from hf_domain.comparison.descriptions import Job, list_jobs
from hf_domain.comparison.models import drop_models, has_model, list_kept
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.progress import ProgressView
from hf_domain.comparison.race import find_left, list_due, list_needed
from hf_domain.comparison.results import Result, describe_plan, find_results, get_path
from hf_domain.comparison.runner import (
    Execute,
    Interrupted,
    has_output,
    make_result,
    run_command,
    run_on_cluster,
    write_step_text,
)
from hf_domain.comparison.step import Step
from hf_domain.comparison.step_checks import check_encoders, check_step_flags
from hf_domain.safe_io import lock_folder, remove_unfinished, write_json

# Kinds of steps that need no GPU.
WITHOUT_GPU = ("vocabulary", "datastore", "selection", "average")
SECONDS_BETWEEN_LOOKS = 1.0


def run_comparison(
    plan: Plan,
    output_dir: Path,
    execute: Execute | None = None,
    num_processes: int = 1,
    dask_scheduler: str | None = None,
) -> list[Result]:
    """Run every step that has no result yet. A killed comparison resumes.

    Args:
        plan: What is compared.
        output_dir: Where results (`results/*.json`) and the output of the steps (`steps/`) go.
        execute: Runs a step and leaves its output in its folder; default runs the command in a process of its own.
        num_processes: Steps that run at once on this machine, each on its share of the cores or on a GPU of its own.
        dask_scheduler: Runs the steps on this cluster instead, see `open_client`; its workers see the same files.

    Returns:
        The results of all steps, those that failed included; without the steps of rows that left the race before them.

    Raises:
        ValueError: See `prepare_jobs`; another process runs a comparison in this folder.
    """
    if num_processes < 1:
        raise ValueError(f"num_processes must be at least 1, but is {num_processes}")
    # The workers of a cluster have other working folders.
    plan = replace(plan, path=plan.folder.resolve() / plan.path.name)
    output_dir = output_dir.resolve()
    jobs, results = prepare_jobs(plan, output_dir)
    lacking = find_lacking(plan, list_due(plan, jobs, results), results, output_dir)
    with lock_folder(output_dir), open_cluster(num_processes, dask_scheduler) if lacking else nullcontext() as cluster:
        for name in ("locks", "results"):
            (output_dir / name).mkdir(exist_ok=True)
        for name in ("", "data", "results"):
            remove_unfinished(output_dir / name)
        write_plan_file(plan, jobs, results, output_dir)
        drop_models(output_dir, results, list_kept(plan.keep_models, results, plan.budget.rungs))
        tried: set[str] = set()
        while cluster is not None and lacking:
            client, run = cluster
            missing = list_missing(jobs, lacking, output_dir)
            for job in missing:
                get_path(output_dir, job.address).unlink(missing_ok=True)
            run_jobs(client, missing, results, plan, output_dir, execute or run)
            tried |= lacking
            lacking = find_lacking(plan, list_due(plan, jobs, results), results, output_dir) - tried
            write_plan_file(plan, jobs, results, output_dir)
    return [results[job.name] for job in jobs if job.name in results]


def gather_results(plan: Plan, output_dir: Path) -> None:
    """Make a folder of results, also of several machines, ready for the report of a plan.

    Raises:
        FileNotFoundError: It has no result of the plan.
    """
    jobs = list_jobs(plan, output_dir)
    if not (results := find_results(output_dir, {job.name: job.address for job in jobs})):
        raise FileNotFoundError(f"{output_dir} has no results of the plan {plan.path}. Run the comparison first.")
    for step in [job.step for job in jobs if job.name in results]:
        if not (output_dir / "texts" / f"{step.task}.txt").is_file():
            write_step_text(step, plan, output_dir)  # the commands of the answer read it
    write_plan_file(plan, jobs, results, output_dir)


def write_plan_file(plan: Plan, jobs: list[Job], results: Mapping[str, Result], output_dir: Path) -> None:
    """Write what a report needs beside the results: the plan, the addresses of its steps, and who left the race."""
    left = {row: asdict(one) for row, one in find_left(plan, jobs, results).items()}
    addresses = {job.name: job.address for job in jobs}
    write_json(output_dir / "plan.json", describe_plan(plan, output_dir, addresses, left))


def prepare_jobs(plan: Plan, output_dir: Path) -> tuple[list[Job], dict[str, Result]]:
    """Check everything that can be checked before the first step.

    Returns:
        The steps of the plan, and the results that are there, by name.

    Raises:
        ValueError: A command does not take its flags, or a checkpoint is not an encoder.
    """
    jobs = list_jobs(plan, output_dir)
    check_step_flags([job.step for job in jobs])
    check_encoders(plan, [job.step for job in jobs])
    return jobs, find_results(output_dir, {job.name: job.address for job in jobs})


def find_lacking(plan: Plan, jobs: list[Job], results: Mapping[str, Result], output_dir: Path) -> set[str]:
    """Return the names of the steps that have no result or failed. If all are done, return those whose model is lost.

    A model that is to be kept is made again where its encoder is there, such as after `keep_models: none`.
    """
    if unfinished := {job.name for job in jobs if job.name not in results or not results[job.name].is_done}:
        return unfinished
    by_name = {job.name: job for job in jobs}

    def can_be_made(name: str) -> bool:
        needed = [by_name[need] for need in by_name[name].step.needs]
        return all(has_output(job.step, output_dir / "steps" / job.address) for job in needed)

    kept = list_kept(plan.keep_models, results, plan.budget.rungs) & by_name.keys()
    return {name for name in kept if not has_model(output_dir, results[name]) and can_be_made(name)}


def list_missing(jobs: list[Job], lacking: set[str], output_dir: Path) -> list[Job]:
    """List the steps that have to run: those that are lacking, and those whose output they read and is gone."""
    missing: dict[str, Job] = {}
    needed: set[str] = set()
    for job in reversed(jobs):
        is_gone = job.name in needed and not has_output(job.step, output_dir / "steps" / job.address)
        if job.name in lacking or is_gone:
            missing[job.name] = job
            needed.update(job.step.needs)
    return [*reversed(missing.values())]


def list_work(plan: Plan, output_dir: Path) -> list[Step]:
    """List the steps that `run_comparison` would run; in a race, if no more row leaves.

    Raises:
        ValueError: See `prepare_jobs`.
    """
    jobs, results = prepare_jobs(plan, output_dir)
    needed = list_needed(jobs, find_left(plan, jobs, results)) if plan.race else jobs
    return [job.step for job in list_missing(jobs, find_lacking(plan, needed, results, output_dir), output_dir)]


@contextmanager
def open_cluster(num_processes: int, dask_scheduler: str | None) -> Iterator[tuple[Client, Execute]]:
    """Open the cluster that runs the steps; gives the client, and what runs the command of a step there."""
    if dask_scheduler is not None:
        with open_client(dask_scheduler) as client:
            yield client, run_on_cluster
        return
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else list(map(str, range(torch.cuda.device_count())))
    num_threads = None if num_processes == 1 else max(1, CPU_COUNT // num_processes)
    with open_local_client(num_processes) as client:
        yield client, partial(run_command, num_threads=num_threads, devices=devices)


def run_jobs(
    client: Client, jobs: list[Job], results: dict[str, Result], plan: Plan, output_dir: Path, execute: Execute
) -> None:
    """Run steps, each once those it needs are done, and add their results.

    A step is submitted when a worker is free: given the whole graph, Dask puts a step where its inputs are, behind
    another one, and moves it late or never.

    Raises:
        KeyboardInterrupt: A step was interrupted.
        ConnectionError: The scheduler is gone.
        ValueError: A worker cannot run steps.
    """
    waiting, running = list(jobs), dict[Future, Job]()
    # Other keys than those of a comparison that was killed: its steps may still be about to end.
    own = uuid4().hex
    try:
        with ProgressView(jobs, Speeds(plan, output_dir), output_dir, client) as view:
            while waiting or running:
                workers = list(client.scheduler_info(n_workers=-1)["workers"].values())
                while len(running) < sum(worker["nthreads"] for worker in workers):
                    if (job := choose_job(waiting, list(running.values()))) is None:
                        break
                    waiting.remove(job)
                    needed = {name: results[name] for name in job.step.needs}
                    needs_gpu = job.step.kind not in WITHOUT_GPU and any("GPU" in w["resources"] for w in workers)
                    future = client.submit(
                        make_result,
                        *(job, plan, output_dir, needed, execute),
                        key=(job.step.kind, f"{job.address}-{own}"),
                        resources={"GPU": 1} if needs_gpu else None,
                    )
                    running[future] = job
                for future in wait_a_moment(running):
                    job = running.pop(future)
                    results[job.name] = gather_result(future, job)
                    if job.step.kind == "fine_tuning":
                        drop_models(output_dir, results, list_kept(plan.keep_models, results, plan.budget.rungs))
                    view.end(job, results[job.name], [*waiting, *running.values()], len(workers))
                view.show(waiting, running, len(workers))
    finally:
        client.cancel(list(running))


def choose_job(waiting: list[Job], running: list[Job]) -> Job | None:
    """Choose the next step that can run beside others: what it needs is made, and no other fills the same cache."""
    unfinished = {job.name for job in waiting + running}
    caches = {job.step.flags[name] for job in running for name in CACHE_FLAGS if name in job.step.flags}
    for job in waiting:
        if unfinished.isdisjoint(job.step.needs) and caches.isdisjoint(
            job.step.flags.get(name) for name in CACHE_FLAGS
        ):
            return job
    return None


def wait_a_moment(running: Mapping[Future, Job]) -> set[Future]:
    """Return the futures that have ended, after a second if there is none."""
    if not running:  # no worker is there yet
        time.sleep(SECONDS_BETWEEN_LOOKS)
        return set()
    try:
        return wait(list(running), timeout=SECONDS_BETWEEN_LOOKS, return_when="FIRST_COMPLETED").done
    except TimeoutError:
        return set()


def gather_result(future: Future, job: Job) -> Result:
    """Return what came of a step."""
    try:
        return future.result()
    except Interrupted:
        raise KeyboardInterrupt from None
    except KilledWorker as error:
        return Result(job.description, "failed", f"its workers were lost: {error}")
    except ValueError as error:
        raise ValueError(str(error)) from error  # of `check_worker`: the frames of a worker are not ours
    except CancelledError:
        raise ConnectionError("the Dask scheduler is gone. Start it, and give the same command again.") from None
