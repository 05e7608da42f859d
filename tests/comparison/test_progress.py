"""What a person sees while a comparison runs."""

import sys
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from pretended_runs import pretend, run_comparison, write_plan

from hf_domain.comparison import progress
from hf_domain.comparison.costs import SECONDS_OF_START, Speeds
from hf_domain.comparison.descriptions import list_jobs
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.progress import Run, estimate_minutes, read_run
from hf_domain.comparison.runner import Attempt


def test_run_is_read_from_its_log(tmp_path):
    assert read_run(tmp_path) is None
    Attempt("dapt-pets-00000000", time.time() - 90, 0.0).write(tmp_path)
    run = read_run(tmp_path)
    assert run.seconds == pytest.approx(90, abs=5) and str(run).startswith("0:01:3")
    lines = "".join(f"step {step}/200: loss {1 + 1 / step:.4g}, 0:10:00 left\n" for step in range(1, 151))
    (tmp_path / "log.txt").write_text(f"Training on cpu: 200 steps of 4 examples\n{lines}step 151/2")
    run = read_run(tmp_path)
    assert (run.step, run.max_steps, run.loss) == (150, 200, "1.007") and run.left == pytest.approx(600, abs=5)
    assert str(run).startswith("step 150/200, loss 1.007, 0:01:3")
    Attempt("dapt-pets-00000000", time.time(), 0.0, done=True).write(tmp_path)
    assert read_run(tmp_path) is None


def test_minutes_left_follow_from_measured_speeds(plan, tmp_path):
    """A running step's own estimate counts, also for the other steps until some have ended."""
    jobs = {job.name: job for job in list_jobs(plan, tmp_path / "plan")}
    speeds = Speeds(plan, tmp_path / "plan")
    dapt, again = jobs["dapt-animals-seed1"], jobs["dapt-animals-seed2"]
    assert estimate_minutes([dapt], speeds, {}) is None
    assert estimate_minutes([dapt, again], speeds, {dapt.name: Run(30.0)}) is None
    run = Run(30.0, 10, 40, "1.0", left=90.0)
    assert estimate_minutes([dapt], speeds, {dapt.name: run}) == pytest.approx(1.5)
    whole = 90.0 * 40 / 30 + SECONDS_OF_START
    assert estimate_minutes([dapt, again], speeds, {dapt.name: run}) == pytest.approx((90 + whole) / 60)
    assert estimate_minutes([again], speeds, {}) is None  # nothing is kept of what only ran
    speeds.add_result(dapt.step, 60.0, None)
    assert estimate_minutes([again], speeds, {}) == pytest.approx(1)
    assert estimate_minutes([again], speeds, {again.name: Run(45.0)}) == pytest.approx(0.25)


def test_a_step_that_goes_on_from_a_checkpoint_tells_the_speed_of_its_own_part(plan, tmp_path):
    jobs = {job.name: job for job in list_jobs(plan, tmp_path / "plan")}
    step = jobs["dapt-pets"].step.change(max_steps=100, resume_from_checkpoint="plan/steps/a/checkpoint-80")
    run = Run(1.0, 90, 100, "1.0", left=10.0)  # ten steps in ten seconds
    other = replace(jobs["slow-pets"], step=jobs["slow-pets"].step.change(max_steps=200))
    minutes = estimate_minutes(
        [replace(jobs["dapt-pets"], step=step), other], Speeds(plan, tmp_path), {"dapt-pets": run}
    )
    assert minutes == pytest.approx((10 + SECONDS_OF_START + 200) / 60)


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
        with progress.ProgressView([], None, tmp_path, client):
            pass
        assert capsys.readouterr().err.count(client.dashboard_link) == expected
