"""Steps as a graph of futures: on this machine, on a cluster, and where a worker is lost."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from dask_processes import start_cluster
from pretended_runs import (
    SENTENCES,
    get_address,
    get_result,
    pretend,
    pretend_and_hang_once,
    run_comparison,
    write_plan,
)
from script_runs import save_tiny_bert

from hf_domain.comparison import run as runner
from hf_domain.comparison.report import write_report
from hf_domain.comparison.results import read_results
from hf_domain.comparison.steps import CACHE_FLAGS, list_steps
from hf_domain.safe_io import lock_folder, read_json

SUPPORT = Path(__file__).parent.parent / "support"


def test_steps_at_once_make_the_same_report(plan, tmp_path):
    run_comparison(plan, tmp_path / "one", execute=pretend)
    running, finished, most = {}, set(), 0

    def watch(step, plan, folder):
        nonlocal most
        assert {need[:-9] for need in step.needs} <= finished
        caches = [other.flags[name] for other in running.values() for name in CACHE_FLAGS if name in other.flags]
        assert not set(caches) & {step.flags.get(name) for name in CACHE_FLAGS}
        running[step.name] = step
        most = max(most, len(running))
        time.sleep(0.01)
        pretend(step, plan, folder)
        finished.add(running.pop(step.name).name)

    results = run_comparison(plan, tmp_path / "many", execute=watch, num_processes=4)
    assert [result.error for result in results if not result.is_done] == [] and len(finished) == len(results)
    assert 2 <= most <= 4
    for folder in ("one", "many"):
        write_report(tmp_path / folder)
    many = (tmp_path / "many" / "report.md").read_text()
    # The commands name the folder.
    for command in ("predict", "publish --comparison"):
        many = many.replace(f"hf-domain {command} many", f"hf-domain {command} one")
    assert (tmp_path / "one" / "report.md").read_text() == many
    with pytest.raises(ValueError, match="at least 1, but is 0"):
        run_comparison(plan, tmp_path / "many", pretend, num_processes=0)


def test_steps_that_fill_one_cache_run_one_after_the_other(content, tmp_path, load):
    content["methods"] = {"dapt": None, "gmap": {"after": "dapt"}}
    running, most, lock, together = Counter(), Counter(), threading.Lock(), threading.Event()

    def watch(step, plan, folder):
        cache = step.flags.get("memory_cache")
        with lock:
            running[cache] += 1
            most[cache] = max(most[cache], running[cache])
        if running[None] == 3:
            together.set()
        if cache is None and step.kind == "fine_tuning":
            together.wait(20)  # a busy machine starts the second and the third late
        time.sleep(0.05)
        with lock:
            running[cache] -= 1
        pretend(step, plan, folder)

    run_comparison(load(), tmp_path / "output", watch, num_processes=3)
    assert most.pop(None) == 3
    assert len(most) == 2 and set(most.values()) == {1}


@pytest.mark.parametrize("has_gpu", [True, False])
def test_steps_that_train_or_predict_wait_for_a_gpu_of_the_cluster(content, tmp_path, load, monkeypatch, has_gpu):
    """Vocabularies and datastores need none; without any GPU, every worker takes every step."""
    content["methods"] = {"dapt": None, "adalm": None, "rada": None}
    kinds, workers = (
        defaultdict(set),
        {"plain": {"resources": {}}, "other": {"resources": {"GPU": 1} if has_gpu else {}}},
    )

    class Cluster(ThreadPoolExecutor):
        def __init__(self, pure, resources=None):
            super().__init__(1)
            self.resources = resources

        def submit(self, function, job):
            kinds[bool(self.resources)].add(job.step.kind)
            return super().submit(function, job)

    client = SimpleNamespace(
        scheduler_info=lambda n_workers: {"workers": workers},
        nthreads=lambda: dict.fromkeys(workers, 1),
        get_executor=Cluster,
    )
    monkeypatch.setattr(runner, "open_client", lambda address: nullcontext(client))
    run_comparison(load(), tmp_path / "output", pretend, dask_scheduler="tcp://127.0.0.1:8786")
    trained = {"pretraining", "held_out_loss", "fine_tuning"}
    assert kinds == (
        {True: trained, False: {*runner.WITHOUT_GPU}} if has_gpu else {False: trained | {*runner.WITHOUT_GPU}}
    )


def test_second_comparison_in_a_folder_is_refused(plan, tmp_path):
    (tmp_path / "output").mkdir()
    with lock_folder(tmp_path / "output"), pytest.raises(ValueError, match="only one run may write into a folder"):
        run_comparison(plan, tmp_path / "output", pretend)


def test_full_disk_is_one_error(plan, tmp_path, monkeypatch):
    def fail(folder, result):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(runner, "write_result", fail)
    with pytest.raises(OSError, match=f"room on the disk of {tmp_path}/plan"):
        run_comparison(plan, tmp_path / "plan", pretend)


def test_worker_with_other_versions_or_other_files_ends_the_comparison(plan, tmp_path, monkeypatch):
    monkeypatch.setattr(runner, "list_versions", lambda: {"hf-domain": "0.0", "transformers": "5", "torch": "2"})
    with pytest.raises(ValueError, match=r"every worker must have the versions .* hf-domain 0\.0 instead of"):
        run_comparison(plan, tmp_path / "output", pretend)
    step = list_steps(plan, tmp_path / "output")[0]
    with pytest.raises(ValueError, match=r"every worker must see the folder .*nowhere"):
        runner.check_worker(step, tmp_path / "nowhere")


@pytest.mark.parametrize("name", ["tcp://127.0.0.1:9", "nowhere.json"])
def test_scheduler_that_is_not_there(plan, tmp_path, monkeypatch, name):
    monkeypatch.setattr("hf_domain.clusters.CONNECT_SECONDS", 0.5)
    with pytest.raises((OSError, ValueError), match=f"--dask_scheduler must .*{name}"):
        run_comparison(plan, tmp_path / "output", pretend, dask_scheduler=name)


@pytest.mark.faults
def test_worker_that_is_killed_costs_its_step_alone(content, tmp_path, load):
    """The same plan on two workers of this process and on two workers as processes, one of which is killed."""
    content["methods"] = {"dapt": None, "varmae": None, "no_adaptation": None}
    plan = load()
    local = run_comparison(plan, tmp_path / "local", pretend, num_processes=2)

    def kill_worker():
        while not (pids := [line.split()[1] for line in read_lines(ran) if line.startswith("dapt-pets ")]):
            time.sleep(0.05)
        time.sleep(0.3)
        os.kill(int(pids[0]), signal.SIGKILL)

    ran = tmp_path / "ran.txt"
    environment = os.environ | {"PYTHONPATH": str(SUPPORT)}
    with start_cluster(tmp_path, "--no-nanny", environment=environment) as (file, _):
        killer = threading.Thread(target=kill_worker, daemon=True)
        killer.start()
        remote = runner.run_comparison(plan, tmp_path / "remote", pretend_and_hang_once, dask_scheduler=file)
    names = [line.split()[0] for line in read_lines(ran)]
    assert sorted(names) == sorted([*(result.step.name for result in local), "dapt-pets"])
    assert len({line.split()[1] for line in read_lines(ran)}) == 2
    for one, other in zip(local, remote, strict=True):
        assert one.step == other.step and one.is_done and other.is_done
        assert (one.score, one.metrics, one.predictions) == (other.score, other.metrics, other.predictions)


def read_lines(file):
    return file.read_text().splitlines() if file.is_file() else []


@pytest.mark.faults
@pytest.mark.parametrize("killed", ["worker", "comparison"])
def test_real_steps_on_a_cluster(content, tmp_path, killed):
    """Masked LM resumes from its last checkpoint if its worker is lost, and no step outlives its comparison."""
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    content |= {"methods": {"dapt": {"tasks": ["animals"]}}, "budget": {"tokens": 32_000}, "seeds": [1]}
    path, log = write_plan(content, tmp_path), tmp_path / "log.txt"
    command = [sys.executable, "-m", "hf_domain.examples.compare", str(path)]
    output_dir = path.with_suffix("")

    def start(*options):
        with log.open("w") as file:
            return subprocess.Popen([*command, *options], stderr=file, stdout=file)

    with start_cluster(tmp_path, num_workers=1) as (file, (nanny,)):
        process = start("--dask_scheduler", file)
        while not list(output_dir.glob("steps/dapt-pets-*/checkpoint-*/trainer_state.json")):
            assert process.poll() is None, log.read_text()
            time.sleep(0.05)
        family = psutil.Process(nanny.pid).children(recursive=True)
        (worker,) = (child for child in family if child.ppid() == nanny.pid and "spawn_main" in str(child.cmdline()))
        steps = [child for child in family if "forkserver" in str(child.parent().cmdline())]
        assert len(steps) == 1
        (worker if killed == "worker" else process).kill()
        assert not psutil.wait_procs(steps, timeout=30)[1]
        if killed == "comparison":
            assert not any((output_dir / "results").glob("dapt-pets-????????.json"))
            process = start("--dask_scheduler", file)
        assert process.wait(timeout=300) == 0, log.read_text()
    resumed = (output_dir / "steps" / get_address(output_dir, "dapt-pets") / "log.txt").read_text()
    assert "Resuming from" in resumed
    assert start("--output_dir", str(tmp_path / "local")).wait(timeout=300) == 0, log.read_text()
    remote, local = read_results(output_dir), read_results(tmp_path / "local")
    assert remote.keys() == local.keys() and all(result.is_done for result in remote.values())
    loss = local["dapt-pets-on-pets"].masked_lm_loss
    assert remote["dapt-pets-on-pets"].masked_lm_loss == pytest.approx(loss, rel=1e-2)
    assert read_json(get_result(output_dir, "dapt-pets"))["tokens"] == local["dapt-pets"].tokens


@pytest.mark.faults
def test_real_steps_are_equal_on_both_clusters(content, tmp_path):
    """Two workers of the comparison's own, and two that a scheduler of its own has as processes."""
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    content |= {"methods": {"dapt": None, "no_adaptation": None}, "budget": {"tokens": 2000}, "seeds": [1]}
    command = [sys.executable, "-m", "hf_domain.examples.compare", str(write_plan(content, tmp_path))]

    def run(name, *options):
        output_dir = tmp_path / name
        done = subprocess.run([*command, "--output_dir", output_dir, *options], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        return read_results(output_dir)

    local = run("local", "--num_processes", "2")
    # A step of such a worker computes with half of the cores, as one of two local processes does. With other numbers of
    # threads, sums round differently.
    with start_cluster(tmp_path, "--nthreads", "2") as (file, _):
        remote = run("remote", "--dask_scheduler", file)
    assert {result.step.kind for result in local.values()} == {"pretraining", "held_out_loss", "fine_tuning"}
    assert local.keys() == remote.keys()
    for name, one in local.items():
        other = remote[name]
        assert one.is_done and other.is_done, (one.error, other.error)
        assert one.masked_lm_loss == other.masked_lm_loss
        assert (one.score, one.predictions) == (other.score, other.predictions)
