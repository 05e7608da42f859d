"""Budgets of several numbers of tokens: one trunk, a branch for each of them, and the curves of the report."""

import json
import re
import shutil
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from pretended_runs import SENTENCES, pretend, run_comparison, write_plan
from safetensors.torch import load_file
from script_runs import run_script, save_tiny_bert

from hf_domain.comparison.curves import price_in_labels, say_price
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.step_checks import check_step_flags
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
    check_step_flags(steps.values())
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


def test_all_rows_warm_up_for_a_tenth_of_the_smallest_budget(several, tmp_path):
    """A row that others start from stops earlier as well, but its warm-up is that of the rows it is compared with."""
    several["methods"] |= {"then_tapt": {"recipe": "tapt", "after": "dapt", "share": 0.75}}
    several["budget"]["tokens"] = [2560, 5120]
    steps = list_by_name(several, tmp_path)
    assert "dapt-pets-640" in steps
    trained = [step for name, step in steps.items() if name.startswith(("dapt-pets", "varmae-pets")) and step.rung]
    assert {step.flags["warmup_steps"] for step in trained if step.kind != "evaluation"} == {4}
    several["pretraining"]["warmup_steps"] = 9
    with pytest.raises(ValueError, match="tokens must leave steps to warm up and decay, and those of a list"):
        list_by_name(several, tmp_path)  # 640 tokens are 10 steps, of which the last decays


def test_a_list_of_one_number_makes_no_curve_but_shares_its_tokens(several, tmp_path):
    several["methods"] |= {"then_tapt": {"recipe": "tapt", "after": "dapt"}}
    several["budget"]["tokens"] = [2560]
    steps = list_by_name(several, tmp_path)
    ends = {name: steps[name].flags["max_steps"] for name in ("dapt-pets-1280", "then_tapt-animals-2560")}
    assert ends == {"dapt-pets-1280": 20, "then_tapt-animals-2560": 20}
    assert steps["varmae-pets-2560"].flags["max_steps"] == steps["dapt-pets-2560"].flags["max_steps"] == 40


def test_the_text_of_a_task_is_there_for_its_trunk(several, tmp_path):
    several["methods"] = {"tapt": {"tasks": ["animals"]}}

    def run(step, plan, folder):
        if step.kind == "trunk":
            assert "the cat sat on the mat 0\n" in (plan.folder / step.flags["train_file"]).read_text()
        pretend(step, plan, folder)

    results = run_comparison(load_plan(write_plan(several, tmp_path)), tmp_path / "plan", run)
    assert {result.step.kind for result in results} >= {"trunk"} and all(result.is_done for result in results)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"budget": {"tokens": []}}, "must have different numbers above 0, but is []"),
        ({"budget": {"tokens": [0, 640]}}, "must have different numbers above 0, but is [0, 640]"),
        ({"budget": {"tokens": [640, 640]}}, "must have different numbers above 0, but is [640, 640]"),
        ({"methods": {"dapt": {"share": 1.5}}}, "methods: dapt: share must be between 0 and 1, but is 1.5"),
        (
            {"pretraining": {"lr_scheduler_type": "linear"}},
            "lr_scheduler_type must be left out, because a list of token budgets has its own",
        ),
    ],
)
def test_what_a_list_of_tokens_cannot_have(several, tmp_path, change, message):
    with pytest.raises(ValueError) as error:
        load_plan(write_plan(several | change, tmp_path))
    assert message in str(error.value)


def test_rungs_of_too_few_steps_are_refused(several, tmp_path):
    several["budget"]["tokens"] = [128, 192]
    with pytest.raises(ValueError, match="be some steps apart, but those of dapt are 2, 3 steps"):
        list_by_name(several, tmp_path)


@pytest.mark.figures
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


def test_a_row_of_two_stages_costs_what_it_reads_not_the_whole_of_what_it_starts_from(several, tmp_path):
    several["methods"] |= {"then_tapt": {"recipe": "tapt", "after": "dapt"}}
    several["budget"]["tokens"] = [2560]
    plan = load_plan(write_plan(several, tmp_path))
    results = {result.step.name: result for result in run_comparison(plan, tmp_path / "plan", execute=pretend)}
    report = write_report(tmp_path / "plan")
    assert report.costs["then_tapt"]["tokens"] == report.costs["dapt"]["tokens"] == 2560
    shared = sum(results[name].seconds for name in ("dapt-pets-1280-trunk", "dapt-pets-1280"))
    own = [results[f"then_tapt-{task}-2560"].seconds for task in ("animals", "entities")]
    assert report.costs["then_tapt"]["pre-training s"] == pytest.approx(shared + sum(own) / 2)
    assert "Every row has spent 2,560 tokens, including" in (tmp_path / "plan" / "report.md").read_text()


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
    for name in ("varmae-pets-2560", "varmae-pets-2560-trunk"):
        shutil.rmtree(tmp_path / "plan" / "steps" / name)
    with pytest.raises(ValueError, match="must be a complete checkpoint"):
        train("varmae-pets-2560")  # it read the trunk before
    alone = train("varmae-pets-2560", resume_from_checkpoint=None, save_strategy="no")
    assert alone.keys() == branched.keys()
    for tensor in alone:
        torch.testing.assert_close(branched[tensor], alone[tensor], rtol=0, atol=0)


@pytest.fixture
def with_shares(content):
    content["labels"] = [0.25, 0.5, 1]
    content["methods"] = {"fine_tune": None, "dapt": None, "gmap": {"after": "dapt"}}
    return content


def test_rows_are_scored_with_shares_of_the_labels(with_shares, tmp_path):
    steps = list_by_name(with_shares, tmp_path)
    check_step_flags(steps.values())
    for share, count in ((0.25, 6), (0.5, 12)):
        whole, part = steps["dapt-animals-seed1"], steps[f"dapt-animals-seed1-labels{share}"]
        assert (part.labels, part.needs) == (share, whole.needs)
        changed = {name for name in part.flags if part.flags[name] != whole.flags.get(name)}
        assert changed == {"max_train_samples", "output_dir"} and part.flags["max_train_samples"] == count
    assert "dapt-animals-seed1-labels1" not in steps
    memory = steps["gmap-animals-seed1"].flags["memory_cache"]
    assert steps["gmap-animals-seed2-labels0.5"].flags["memory_cache"] == f"{memory}-labels0.5"
    with_shares["fine_tuning"]["max_train_samples"] = 8
    assert list_by_name(with_shares, tmp_path)["dapt-animals-seed1-labels0.5"].flags["max_train_samples"] == 4


def test_labels_are_few_at_the_largest_budget_alone(with_shares, tmp_path):
    with_shares["budget"] = {"tokens": RUNGS}
    steps = list_by_name(with_shares, tmp_path)
    few = {step.rung for step in steps.values() if step.labels is not None and step.method == "dapt"}
    assert few == {RUNGS[-1]}


@pytest.mark.parametrize("shares", [[0.5, 0.5], [0.0], [1.5]])
def test_shares_that_are_none(with_shares, tmp_path, shares):
    message = f"labels must be different shares above 0 and up to 1, but are {shares}"
    with pytest.raises(ValueError, match=re.escape(message)):
        load_plan(write_plan(with_shares | {"labels": shares}, tmp_path))


@pytest.mark.figures
def test_the_report_has_a_curve_over_the_labels(with_shares, tmp_path):
    plan = load_plan(write_plan(with_shares, tmp_path))
    results = {result.step.name: result for result in run_comparison(plan, tmp_path / "plan", execute=pretend)}
    report = write_report(tmp_path / "plan")
    assert [*report.fewer_labels] == [0.25, 0.5]
    for ending, at in (("", report), ("-labels0.25", report.fewer_labels[0.25])):
        expected = {f"42-{seed}": results[f"dapt-animals-seed{seed}{ending}"].score for seed in (1, 2)}
        assert at.scores["dapt"]["animals"] == expected
    text = (tmp_path / "plan" / "report.md").read_text()
    assert "| 25% of the examples | 50% of the examples | 100% of the examples |" in text
    assert (tmp_path / "plan" / "labels.png").is_file()


def test_failures_of_a_smaller_budget_or_share_are_reported(with_shares, tmp_path):
    """The largest budget with all labels may be whole: the command ended as if all runs had."""
    with_shares["budget"] = {"tokens": RUNGS[:2]}

    def run(step, plan, folder):
        if step.labels == 0.5 or step.name.startswith("dapt-animals-640-"):
            raise RuntimeError("out of memory")
        pretend(step, plan, folder)

    results = run_comparison(load_plan(write_plan(with_shares, tmp_path)), tmp_path / "plan", run)
    failed = {result.step.name for result in results if not result.is_done}
    assert {"fine_tune-animals-seed1-labels0.5", "dapt-animals-640-seed2"} <= failed
    report = write_report(tmp_path / "plan")
    assert {*report.failed} == failed and say_price(report) == ""


def test_without_fine_tuning_alone_nothing_is_priced(with_shares, tmp_path):
    del with_shares["methods"]["fine_tune"]
    run_comparison(load_plan(write_plan(with_shares, tmp_path)), tmp_path / "plan", pretend)
    assert say_price(write_report(tmp_path / "plan")) == ""


def make_label_report(alone, adapted):
    """A report whose rows have these scores at the shares, the same on every resampled test set."""

    def make(number):
        rows = {"fine_tune": alone[number], "dapt": adapted[number]}
        draws = {name: {"task": {(None, 1): np.full(5, float(score))}} for name, score in rows.items()}
        return SimpleNamespace(draws=draws)

    whole = make(2)
    whole.plan, whole.examples = {"tasks": {"task": {}}}, {"task": 1000}
    whole.fewer_labels = {0.25: make(0), 0.5: make(1)}
    whole.titles = {"fine_tune": "fine-tuning only", "dapt": "DAPT"}
    return whole


@pytest.mark.parametrize(
    ("alone", "adapted", "share", "worth"),
    [
        ((40, 50, 60), (50, 55, 60), 1.0, 0.0),  # at all labels both score 60
        ((40, 50, 60), (50, 60, 70), 0.5, 500.0),  # 60 needs all of the 1,000
        ((40, 50, 60), (45, 65, 70), 0.25, 1000 * (0.25 * 2**0.5 - 0.25)),  # half-way from a quarter to a half
        ((40, 30, 60), (50, 65, 70), 0.25, 1000 * (0.5 * 2**0.5 - 0.25)),  # a fall counts as staying
    ],
)
def test_adapting_is_priced_in_labels(alone, adapted, share, worth):
    report = make_label_report(alone, adapted)
    price = price_in_labels(report)
    assert price.share == share
    assert (price.examples, price.low, price.high) == pytest.approx((worth, worth, worth))
    assert f"worth about {worth:,.0f} more labeled examples" in say_price(report)


def test_what_labels_never_reach_has_no_price():
    report = make_label_report((40, 50, 60), (61, 70, 80))
    assert price_in_labels(report) is None
    assert say_price(report) == "fine-tuning only reaches DAPT at none of the shares of labels."
