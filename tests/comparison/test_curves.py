"""Budgets of several numbers of tokens: one trunk, a branch for each of them, and the curves of the report."""

import json
import shutil
from itertools import pairwise

import pytest
import torch
from pretended_runs import SENTENCES, pretend, run_comparison, write_plan
from safetensors.torch import load_file
from script_runs import run_script, save_tiny_bert

from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.step_checks import check_flags
from hf_domain.comparison.steps import list_steps
from hf_domain.examples import run_mlm

# In steps of 4 x 16 tokens: 10, 20 and 40.
RUNGS = [640, 1280, 2560]


@pytest.fixture
def several(content):
    content["budget"] = {"tokens": RUNGS}
    content["methods"] = {"fine_tune": None, "dapt": None, "varmae": None}
    return content


def list_by_name(content, folder):
    return {step.name: step for step in list_steps(load_plan(write_plan(content, folder)), folder / "plan")}


def test_rungs_branch_off_one_trunk(several, tmp_path):
    steps = list_by_name(several, tmp_path)
    check_flags(steps.values())
    trunk = [steps[f"dapt-pets-{rung}-trunk"] for rung in RUNGS]
    ends = [steps[f"dapt-pets-{rung}"] for rung in RUNGS]
    assert [step.flags["max_steps"] for step in trunk] == [9, 17, 34]  # 85 %, rounded up
    assert [step.flags["max_steps"] for step in ends] == [10, 20, 40]
    assert "resume_from_checkpoint" not in trunk[0].flags
    for before, after in pairwise(trunk):
        assert after.needs == [before.name]
        folder = f"plan/steps/{before.name}"
        assert after.flags["resume_from_checkpoint"] == f"{folder}/checkpoint-{before.flags['max_steps']}"
    for before, end in zip(trunk, ends, strict=True):
        assert end.flags["resume_from_checkpoint"].endswith(f"{before.name}/checkpoint-{before.flags['max_steps']}")
        decay = end.flags["max_steps"] - before.flags["max_steps"]
        assert json.loads(end.flags["lr_scheduler_kwargs"])["num_decay_steps"] == decay
    assert {step.flags["warmup_steps"] for step in trunk + ends} == {1}  # a tenth of the first rung
    assert {step.flags["lr_scheduler_type"] for step in trunk} == {"constant_with_warmup"}
    scored = [name for name in steps if name.startswith("dapt-animals")]
    assert scored == [f"dapt-animals-{rung}-seed{seed}" for rung in RUNGS for seed in (1, 2)]
    assert [name for name in steps if name.startswith("fine_tune-animals")] == [
        "fine_tune-animals-seed1", "fine_tune-animals-seed2"
    ]  # fmt: skip


def test_a_larger_rung_leaves_the_others_as_they_are(several, tmp_path):
    before = list_by_name(several, tmp_path)
    several["budget"]["tokens"] = [*RUNGS, 5120]
    after = list_by_name(several, tmp_path)
    assert before.items() <= after.items()
    trained = [name for name in after.keys() - before.keys() if after[name].kind in ("trunk", "pretraining")]
    assert sorted(trained) == ["dapt-pets-5120", "dapt-pets-5120-trunk", "varmae-pets-5120", "varmae-pets-5120-trunk"]


def test_rows_of_two_stages_share_each_rung(several, tmp_path):
    several["methods"] |= {"then_tapt": {"recipe": "tapt", "after": "dapt", "share": 0.25}, "gmap": {"after": "dapt"}}
    steps = list_by_name(several, tmp_path)
    last = steps["then_tapt-animals-2560"]
    assert last.flags["model_name_or_path"] == "plan/steps/dapt-pets-1920"
    assert (steps["dapt-pets-1920"].flags["max_steps"], last.flags["max_steps"]) == (30, 10)
    assert "resume_from_checkpoint" not in last.flags
    assert steps["gmap-animals-2560-seed1"].flags["model_name_or_path"] == "plan/steps/dapt-pets-2560"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": {"tokens": [640]}}, "two different numbers above 0 or more, but is [640]"),
        ({"budget": {"tokens": [640, 640]}}, "two different numbers above 0 or more, but is [640, 640]"),
        ({"methods": {"dapt": {"share": 1.5}}}, "methods: dapt: share must be between 0 and 1, but is 1.5"),
        ({"pretraining": {"lr_scheduler_type": "linear"}}, "a schedule of its own: leave out lr_scheduler_type"),
    ],
)
def test_what_a_list_of_tokens_cannot_have(several, tmp_path, change, message):
    with pytest.raises(ValueError) as error:
        load_plan(write_plan(several | change, tmp_path))
    assert message in str(error.value)


def test_rungs_of_too_few_steps_are_refused(several, tmp_path):
    several["budget"]["tokens"] = [128, 192]
    with pytest.raises(ValueError, match="some steps apart, but those of dapt are 2, 3 steps"):
        list_by_name(several, tmp_path)


def test_a_curve_has_the_scores_of_each_rung(several, tmp_path):
    plan = load_plan(write_plan(several, tmp_path))
    results = {result.step.name: result for result in run_comparison(plan, tmp_path / "plan", execute=pretend)}
    report = write_report(tmp_path / "plan")
    budgets = [*report.smaller, report]
    assert [at.plan["budget"]["tokens"] for at in budgets] == RUNGS
    for rung, at in zip(RUNGS, budgets, strict=True):
        scores = {f"42-{seed}": results[f"varmae-animals-{rung}-seed{seed}"].score for seed in (1, 2)}
        assert at.scores["varmae"]["animals"] == scores
        assert at.scores["fine_tune"]["animals"].keys() == {"1", "2"}
        assert at.costs["dapt"]["tokens"] == rung
        trunks = [results[f"dapt-pets-{other}-trunk"].seconds for other in RUNGS if other <= rung]
        assert at.costs["dapt"]["pre-training s"] == sum(trunks) + results[f"dapt-pets-{rung}"].seconds
    gain = report.gains["dapt"]
    lines = (tmp_path / "plan" / "report.md").read_text().splitlines()
    row = next(line for line in lines if line.startswith("| DAPT | ") and line.count("[") >= 3)
    assert f"({gain.mean:+.1f} [{gain.low:+.1f} to {gain.high:+.1f}])" in row.split(" | ")[-1]
    assert (tmp_path / "plan" / "curves.png").is_file()


def test_a_branch_is_the_training_that_its_budget_has_alone(several, tmp_path, monkeypatch):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    several["methods"] = {"varmae": None}
    steps = list_by_name(several, tmp_path)
    monkeypatch.chdir(tmp_path)

    def train(name, **changes):
        flags = {flag: value for flag, value in {**steps[name].flags, **changes}.items() if value is not None}
        run_script(run_mlm.main, monkeypatch, flags.pop("output_dir"), **flags)
        return load_file(tmp_path / "plan" / "steps" / name / "model.safetensors")

    for name in [name for name in steps if name.endswith("-trunk")]:
        train(name)
    branched = train("varmae-pets-2560")
    shutil.rmtree(tmp_path / "plan" / "steps" / "varmae-pets-2560-trunk")
    alone = train("varmae-pets-2560", resume_from_checkpoint=None, save_strategy="no")
    assert alone.keys() == branched.keys()
    for tensor in alone:
        torch.testing.assert_close(branched[tensor], alone[tensor], rtol=0, atol=0)
