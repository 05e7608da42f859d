"""What a person sees while a comparison runs."""

import sys
import time
from types import SimpleNamespace

import pytest
from pretended_runs import pretend, run_comparison, write_plan

from hf_domain.comparison import progress
from hf_domain.comparison.descriptions import list_jobs
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.progress import Run, estimate_minutes, read_run
from hf_domain.comparison.results import Result
from hf_domain.comparison.runner import Attempt


def test_run_is_read_from_its_log(tmp_path):
    assert read_run(tmp_path) is None
    Attempt("dapt-pets-00000000", time.time() - 90, 0.0).write(tmp_path)
    run = read_run(tmp_path)
    assert run.seconds == pytest.approx(90, abs=5) and str(run).startswith("0:01:3")
    lines = "".join(f"step {step}/200: loss {1 + 1 / step:.4g}, 0:10:00 left\n" for step in range(1, 151))
    (tmp_path / "log.txt").write_text(f"Training on cpu: 200 steps of 4 examples\n{lines}step 151/2")
    run = read_run(tmp_path)
    assert (run.step, run.max_steps, run.loss) == (150, 200, "1.007")
    assert str(run).startswith("step 150/200, loss 1.007, 0:01:3")
    Attempt("dapt-pets-00000000", time.time(), 0.0, done=True).write(tmp_path)
    assert read_run(tmp_path) is None


def test_minutes_left_follow_from_measured_speeds(plan, tmp_path):
    jobs = {job.name: job for job in list_jobs(plan, tmp_path / "plan")}

    def measure(name, seconds):
        return Result(jobs[name].description, "done", seconds=seconds)

    dapt, other = jobs["dapt-animals-seed2"], jobs["varmae-animals-seed1"]
    assert estimate_minutes([dapt], [], {}) is None
    results = [measure("dapt-animals-seed1", 60.0), measure("fine_tune-animals-seed1", 120.0)]
    assert estimate_minutes([dapt], results, {}) == pytest.approx(1)  # as the same method
    assert estimate_minutes([other], results, {}) == pytest.approx(1.5)  # as the same kind
    assert estimate_minutes([jobs["dapt-pets"]], results, {}) == pytest.approx(1.5)  # as anything
    assert estimate_minutes([dapt], results, {dapt.name: Run(45.0)}) == pytest.approx(0.25)
    assert estimate_minutes([dapt], results, {dapt.name: Run(30.0, 10, 40, "1.0")}) == pytest.approx(1.5)


def test_terminal_shows_what_runs(content, tmp_path, monkeypatch, capsys):
    """Each step that runs has a line with its training step and loss."""
    content["methods"] = {"fine_tune": {"tasks": ["animals"]}}
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    monkeypatch.setattr("hf_domain.comparison.engine.SECONDS_BETWEEN_LOOKS", 0.05)

    def run(step, plan, folder):
        (folder / "log.txt").write_text("step 3/40: loss 1.25, 0:00:10 left\n")
        time.sleep(0.3)
        pretend(step, plan, folder)

    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", run)
    shown = capsys.readouterr().err
    assert "4 steps to run in" in shown and "4/4 steps" in shown
    assert "fine_tune-animals-seed1: step 3/40, loss 1.25, 0:00:00" in shown


def test_log_gets_a_line_for_each_step(content, tmp_path, capsys):
    content["methods"] = {"fine_tune": {"tasks": ["animals"]}}

    def run(step, plan, folder):
        if step.kind == "evaluation":
            raise RuntimeError("exit code 1\nout of memory")
        pretend(step, plan, folder)

    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", run)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 5
    assert lines[1] == "1/4 encoder-on-general: failed: out of memory" and lines[-1].startswith("4/4 fine_tune-animals")


def test_dashboard_is_linked_where_it_has_pages(monkeypatch, tmp_path, capsys):
    client = SimpleNamespace(dashboard_link="http://127.0.0.1:8787/status")
    for found, expected in ((None, 0), (object(), 1)):
        monkeypatch.setattr(progress, "find_spec", lambda name, found=found: found)
        with progress.ProgressView([], {}, tmp_path, client):
            pass
        assert capsys.readouterr().err.count(client.dashboard_link) == expected
