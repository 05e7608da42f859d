"""What a dry run says and writes."""

import os
import subprocess

from pretended_runs import write_plan

from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.run import describe_work
from hf_domain.comparison.steps import list_steps


def test_missing_steps_are_counted_by_row_and_kind(load, run_plan, tmp_path):
    methods = {"no_adaptation": None, "dapt": None}
    told = describe_work(load(methods=methods), tmp_path / "plan")
    lines = [line.split() for line in told.splitlines()]
    assert told.startswith("13 steps are missing:") and "This plan can see differences of about" in told
    # Held-out losses, fine-tunings, pre-trainings.
    assert ["DAPT", "4", "1"] in lines and ["no", "adaptation", "4"] in lines and ["shared", "4"] in lines
    assert ["steps", "4", "8", "1"] in lines
    run_plan(methods=methods)
    told = describe_work(load(methods=methods), tmp_path / "plan")
    assert told == f"No step is missing: hf-domain compare {tmp_path / 'plan.yaml'} writes the report."


def test_commands_run_in_their_order_from_any_folder(content, tmp_path, monkeypatch):
    content |= {"methods": {"tapt": None, "rada": None}, "learning_rates": [1e-4, 2e-4], "seeds": [1]}
    folder = tmp_path / "it's here"
    folder.mkdir()
    for path in list(tmp_path.iterdir()):
        if path != folder:
            path.rename(folder / path.name)
    plan = load_plan(write_plan(content, folder))
    steps = list_steps(plan, folder / "plan")
    assert f"The commands: {folder / 'plan' / 'commands.sh'}" in describe_work(plan, folder / "plan")
    tool = tmp_path / "bin" / "hf-domain"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nfor part in "$PWD" "$@"; do printf "%s\\n" "$part"; done >> "$RAN"; echo >> "$RAN"\n')
    tool.chmod(0o755)
    environment = os.environ | {"PATH": f"{tool.parent}:{os.environ['PATH']}", "RAN": str(tmp_path / "ran.txt")}
    subprocess.run(["sh", folder / "plan" / "commands.sh"], cwd="/", env=environment, check=True)
    ran = [run.split("\n") for run in (tmp_path / "ran.txt").read_text().strip().split("\n\n")]
    assert ran == [[str(folder), step.command, *step.list_arguments("plan")] for step in steps]
    assert (folder / "plan" / "texts" / "animals.txt").is_file()  # what TAPT trains on
    text = (folder / "plan" / "commands.sh").read_text()
    assert text.count("adds the --learning_rate that is best on validation") == 4


def test_a_plan_that_compares_nothing_tells_no_difference(content, tmp_path, load):
    content["methods"] = {"tapt": None}
    told = describe_work(load(), tmp_path / "plan")
    assert "steps" in told and "This plan can" not in told
