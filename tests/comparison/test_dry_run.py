"""What a dry run says: steps, hours, and commands that run."""

import json
import os
import subprocess

import pytest
from pretended_runs import SENTENCES, pretend, run_comparison, write_plan
from script_runs import save_tiny_bert

from hf_domain.comparison import costs
from hf_domain.comparison.costs import SECONDS_OF_START, Speeds, count_work
from hf_domain.comparison.descriptions import list_jobs
from hf_domain.comparison.dry_run import describe_work
from hf_domain.comparison.engine import list_work
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.safe_io import read_json, write_json


@pytest.fixture
def jobs(plan, tmp_path):
    return {job.name: job for job in list_jobs(plan, tmp_path / "plan")}


def test_work_is_counted_in_tokens_of_training(plan, jobs, tmp_path):
    def count(name, **flags):
        step = jobs[name].step.change(**flags)
        return count_work(step.kind, step.command, step.flags, [tmp_path])

    assert count("dapt-pets") == 16 * 4 * 16  # 1,000 tokens, rounded up to whole steps
    assert count("varmae-pets") == pytest.approx(0.33 * 1024)
    assert count("dapt-pets", resume_from_checkpoint="plan/steps/a/checkpoint-10") == 6 * 4 * 16
    assert count("dapt-pets-on-pets") == pytest.approx(256 * 16 / 3)
    assert count("vocabulary-pets") == 0
    texts = (tmp_path / "animals" / "train.jsonl").read_text().splitlines()
    characters = sum(len(" ".join(json.loads(line).values())) for line in texts)
    tokens = characters / 4
    assert count("dapt-animals-seed1") == pytest.approx(tokens * (1 + 2 / 3))
    assert count("dapt-animals-seed1", num_train_epochs=3) == pytest.approx(tokens * (3 + 2 / 3))
    assert count("dapt-animals-seed1", max_train_samples=12) == pytest.approx(tokens * (1 / 2 + 2 / 3), rel=0.02)
    row = {"text": "c" * 400, "prediction": "cat", "probabilities": {"cat": 1.0}}
    (tmp_path / "more.jsonl").write_text(f"{json.dumps(row)}\n" * 5)
    longer = count("dapt-animals-seed1", num_train_epochs=3, pseudo_labeled_file="more.jsonl", max_seq_length=90)
    assert longer - count("dapt-animals-seed1", num_train_epochs=3) == pytest.approx(3 * 5 * 90)
    assert count("dapt-animals-seed1", max_seq_length=2) == pytest.approx(24 * 2 * (1 + 2 / 3))


def test_windows_of_a_question_repeat_it_and_what_they_share(tmp_path):
    """1,000 tokens of context and 10 of a question: 12 windows have room for 115 each, 32 of them shared."""
    row = {"id": "1", "question": "q" * 40, "context": "c" * 4000, "answers": {"text": ["c"], "answer_start": [0]}}
    (tmp_path / "train.jsonl").write_text(json.dumps(row))
    flags = {"train_file": "train.jsonl", "num_train_epochs": 2, "max_seq_length": 128, "doc_stride": 32}
    assert count_work("fine_tuning", "qa", flags, [tmp_path]) == 2 * (1000 + 12 * 13 + 11 * 32)
    flags |= {"max_seq_length": 1024, "doc_stride": 128}
    assert count_work("fine_tuning", "qa", flags, [tmp_path]) == 2 * 1013  # one window


def test_seconds_follow_from_the_most_similar_steps(plan, jobs, tmp_path):
    speeds = Speeds(plan, tmp_path / "plan")
    large, small, other = (jobs[name].step for name in ("dapt-pets", "dapt-animals-seed1", "varmae-animals-seed1"))
    assert speeds.estimate(large) is None
    speeds.add_result(small, SECONDS_OF_START + 10, None)
    rate = 10 / speeds.count_work(small)
    assert speeds.estimate(small) == pytest.approx(SECONDS_OF_START + 10)
    assert speeds.estimate(large) == pytest.approx(SECONDS_OF_START + rate * 1024)  # as any training
    speeds.add_result(other, SECONDS_OF_START + 30, None)
    assert speeds.estimate(other) == pytest.approx(SECONDS_OF_START + 30)  # as the same row
    ner = jobs["tapt-animals-seed1"].step
    assert speeds.estimate(ner) == pytest.approx(SECONDS_OF_START + 20)  # as the same command
    assert speeds.estimate(jobs["average-pets"].step) == SECONDS_OF_START
    speeds.add_result(jobs["average-pets"].step, 2.0, None)
    assert speeds.estimate(jobs["average-pets"].step) == 2.0


def test_a_long_step_is_not_taken_for_the_short_ones_before_it(plan, jobs, tmp_path):
    """Ten small steps ended first; the mean of their seconds would predict a tenth of the time."""
    speeds = Speeds(plan, tmp_path / "plan")
    short = jobs["dapt-pets"].step.change(max_steps=10)
    for _ in range(10):
        speeds.add_result(short, SECONDS_OF_START + 1, None)
    assert speeds.estimate(short.change(max_steps=10_000)) == pytest.approx(SECONDS_OF_START + 1500, rel=0.01)


def set_seconds(output_dir, seconds):
    """Let every result of a training have taken so long for each token of its work."""
    for file in (output_dir / "results").glob("*.json"):
        write_json(file, read_json(file) | {"seconds": seconds})


def test_hours_follow_from_earlier_results_also_of_another_plan(content, tmp_path):
    content |= {"methods": {"fine_tune": None, "dapt": None}, "tasks": {"animals": content["tasks"]["animals"]}}
    output_dir = tmp_path / "plan"
    run_comparison(load_plan(write_plan(content, tmp_path)), output_dir, pretend)
    set_seconds(output_dir, SECONDS_OF_START + 3600)
    content["methods"]["varmae"] = {"pretraining": {"learning_rate": 1e-4}}
    content["fine_tuning"]["warmup_steps"] = 0.2  # another plan: all fine-tunings run again
    told = describe_work(load_plan(write_plan(content, tmp_path)), output_dir)
    first, *lines = told.splitlines()
    # Four hours of known fine-tunings, two more of VarMAE's, its masked LM, and two losses.
    assert first.startswith("9 steps are missing: about 8.3 h one after the other, by the seconds of 9 earlier results")
    table = [line.split() for line in lines if line.startswith(("VarMAE", "DAPT", "fine-tuning only", "steps", "time"))]
    assert ["DAPT", "2", "2.0", "h"] in table and ["steps", "1", "2", "6", "8.3", "h"] in table
    assert len(told.splitlines()) < 20
    assert "This plan can see differences of about" in told


def test_machine_is_measured_where_nothing_is_known(content, tmp_path, monkeypatch):
    content["methods"] = {"fine_tune": None, "dapt": None}
    plan = load_plan(write_plan(content, tmp_path))
    assert "how long is not known: the encoder cannot be loaded" in describe_work(plan, tmp_path / "plan")
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    asked = []

    def time_training(model, batch_size, length, bf16):
        asked.append((model.config.model_type, batch_size, length, bf16))
        return 1.0

    monkeypatch.setattr(costs, "time_training", time_training)
    told = describe_work(plan, tmp_path / "plan")
    assert "by the speed of the encoder here, which was just measured" in told and asked == [("bert", 4, 16, False)]
    (row,) = (line for line in told.splitlines() if line.startswith("time"))
    assert row.split()[1:3] == ["17", "min"]  # 1,024 tokens


def test_commands_run_in_their_order_from_any_folder(content, tmp_path, monkeypatch):
    content |= {"methods": {"tapt": None, "rada": None}, "learning_rates": [1e-4, 2e-4], "seeds": [1]}
    folder = tmp_path / "it's here"
    folder.mkdir()
    for path in list(tmp_path.iterdir()):
        if path != folder:
            path.rename(folder / path.name)
    plan = load_plan(write_plan(content, folder))
    steps = list_work(plan, folder / "plan")
    assert f"The commands: {folder / 'plan' / 'commands.sh'}" in describe_work(plan, folder / "plan")
    tool = tmp_path / "bin" / "hf-domain"
    tool.parent.mkdir()
    tool.write_text('#!/bin/sh\nfor part in "$PWD" "$@"; do printf "%s\\n" "$part"; done >> "$RAN"; echo >> "$RAN"\n')
    tool.chmod(0o755)
    environment = os.environ | {"PATH": f"{tool.parent}:{os.environ['PATH']}", "RAN": str(tmp_path / "ran.txt")}
    subprocess.run(["sh", folder / "plan" / "commands.sh"], cwd="/", env=environment, check=True)
    ran = [run.split("\n") for run in (tmp_path / "ran.txt").read_text().strip().split("\n\n")]
    assert ran == [[str(folder), step.command, *step.list_arguments()] for step in steps]
    assert (folder / "plan" / "texts" / "animals.txt").is_file()  # what TAPT trains on
    text = (folder / "plan" / "commands.sh").read_text()
    assert text.count("adds the --learning_rate that is best on validation") == 4


def test_nothing_is_missing_once_all_is_there(content, tmp_path):
    content["methods"] = {"fine_tune": {"tasks": ["animals"]}}
    plan = load_plan(write_plan(content, tmp_path))
    run_comparison(plan, tmp_path / "plan", pretend)
    assert describe_work(plan, tmp_path / "plan") == (
        f"No step is missing: hf-domain compare {plan.path} writes the report."
    )


def test_a_plan_that_compares_nothing_tells_no_difference(content, tmp_path):
    content |= {"methods": {"tapt": None}, "evaluation": "probe"}
    told = describe_work(load_plan(write_plan(content, tmp_path)), tmp_path / "plan")
    assert "steps" in told and "This plan can" not in told
