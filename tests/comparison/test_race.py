"""Which rows leave a race, by what, and what a report says of them."""

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from pretended_runs import SENTENCES, pretend, run_comparison, write_plan
from script_runs import write_jsonl

from hf_domain.comparison.descriptions import list_jobs
from hf_domain.comparison.engine import list_work
from hf_domain.comparison.plan import Budget, Plan, Row
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.race import Left, find_left, find_slow
from hf_domain.comparison.report import write_report
from hf_domain.comparison.rows import RECIPES
from hf_domain.tasks.files import Task
from hf_domain.tasks.outputs import LABELS, VALIDATED, format_labels

# In steps of 4 x 16 tokens: 10, 20 and 40.
RUNGS = [640, 1280, 2560]
ROWS = {"fine_tune": None, "control": None, "dapt": None, "varmae": None, "slow": {"recipe": "dapt"}}


@pytest.fixture
def race(content, tmp_path):
    """Run a plan of two tasks whose rows are right as often as is said, on validation and on test."""
    texts = [{"text": f"{text} {i}", "label": text.split()[1]} for i, text in enumerate(SENTENCES[:60])]
    for task in ("a", "b"):
        (tmp_path / task).mkdir()
        for split in ("train", "validation", "test"):
            write_jsonl(tmp_path / task / f"{split}.jsonl", texts)
    content["tasks"] = {task: {"kind": "classification", "folder": task, "corpus": "pets"} for task in "ab"}
    content |= {"methods": dict(ROWS), "evaluation": "probe", "budget": {"tokens": RUNGS}, "race": True}
    content["general"] = None
    content["methods"]["control"] = {"recipe": "dapt", "pretraining": {"learning_rate": 1e-5}}
    content["methods"]["dapt"] = {"counterpart": "control"}

    class Race:
        ran: list[str] = []

        def run(self, validation, test=None, num_processes=1, **changes):
            self.plan = load_plan(write_plan(content | {"methods": content["methods"] | changes}, tmp_path))

            def execute(step, plan, folder):
                self.ran.append(step.name)
                pretend(step, plan, folder)
                if step.kind == "fine_tuning":
                    for rates, file in (((test or {}), LABELS), (validation, VALIDATED)):
                        numbers = random.Random(f"{step.name} {file}")
                        rate = rates.get(step.method, 0.7)
                        other = ["cat", "dog", "bird"]
                        labels = [row["label"] if numbers.random() < rate else numbers.choice(other) for row in texts]
                        (folder / file).write_text(format_labels(labels))

            self.ran.clear()
            options = {"num_processes": num_processes}
            self.results = run_comparison(self.plan, tmp_path / "plan", execute, **options)
            return json.loads((tmp_path / "plan" / "plan.json").read_text())["left"]

    return Race()


def test_a_row_that_is_behind_on_validation_leaves_whatever_it_tests(race, tmp_path):
    left = race.run({"varmae": 0.2}, {"varmae": 0.99, "slow": 0.1})
    assert left.keys() == {"varmae"} and left["varmae"]["rung"] == RUNGS[0]
    own = {name for name in race.ran if name.startswith("varmae")}
    first = {"varmae-pets-640-trunk", "varmae-pets-640", "varmae-pets-640-on-pets"}
    assert own == first | {f"varmae-{task}-640-frozen" for task in "ab"}
    assert {"slow-a-2560-frozen", "dapt-b-2560-frozen", "control-a-2560-frozen"} <= {*race.ran}
    report = write_report(tmp_path / "plan")
    text = (tmp_path / "plan" / "report.md").read_text()
    head, behind = text.partition("## ")[0], left["varmae"]["behind"]
    assert f"these rows left the race: VarMAE at 640 tokens ({behind:.1f} points behind " in head
    means = next(line for line in text.splitlines() if line.startswith("| VarMAE |"))
    assert means.split(" | ")[1] == "left at 640 tokens"
    assert report.failed == {}


def test_a_row_that_left_shows_no_score_from_before_the_race(race, content, tmp_path):
    content["race"] = False
    assert race.run({"varmae": 0.2}) == {} and "varmae-a-2560-frozen" in race.ran
    content["race"] = True
    assert race.run({"varmae": 0.2}).keys() == {"varmae"}
    report = write_report(tmp_path / "plan")
    scored = [{task for task, runs in at.scores["varmae"].items() if runs} for at in (*report.smaller, report)]
    assert scored == [{"a", "b"}, set(), set()]
    assert "| VarMAE | left at 640 tokens |" in (tmp_path / "plan" / "report.md").read_text()


def test_the_family_of_the_correction_is_that_of_the_whole_plan(race, tmp_path):
    """A row that left counts among the comparisons, or leaving would make the others look surer."""
    assert race.run({"varmae": 0.2}, {"slow": 0.4}).keys() == {"varmae"}
    decisions = write_report(tmp_path / "plan").decisions
    pairs = race.plan.list_pairs()
    assert [*decisions] == pairs and decisions["varmae", "dapt"] is None and len(pairs) == 6
    smallest = min((d for d in decisions.values() if d is not None), key=lambda d: d.p)
    assert smallest.corrected == pytest.approx(len(pairs) * smallest.p)


def test_baseline_and_no_adaptation_and_what_others_need_stay(race):
    bad = dict.fromkeys(["dapt", "fine_tune", "control", "slow"], 0.1)
    assert race.run(bad, mean={"recipe": "average", "after": "slow"}) == {}
    left = race.run(bad | {"other": 0.1}, other={"recipe": "average", "after": "slow"})
    assert left.keys() == {"slow", "other"}  # nothing that stays starts after it


def test_baseline_and_no_adaptation_stay_even_where_no_other_row_needs_them():
    scores = {"fine_tune": 10.0, "dapt": 10.0, "slow": 10.0, "leader": 90.0}
    methods = {name: Row(name if name in RECIPES else "control") for name in scores}
    plan = Plan("", {}, {"task": Task("")}, methods, Budget([1, 2]), race=True)
    draws = {name: {"task": {(None, None): np.full(9, score)}} for name, score in scores.items()}
    left = find_slow(plan, draws, {}, 1)
    assert left == {"slow": Left(rung=1, leader="leader", behind=80.0, p=0.0, bound=0.05 / 3)}


def test_nothing_of_the_test_sets_is_read(race, tmp_path):
    race.run({"varmae": 0.2})
    jobs = list_jobs(race.plan, tmp_path / "plan")
    blind = {result.step.name: replace(result, predictions=None, score=None) for result in race.results}
    (left,) = find_left(race.plan, jobs, blind).items()
    assert left[0] == "varmae"
    unseen = {name: replace(result, validation=None) for name, result in blind.items()}
    assert find_left(race.plan, jobs, unseen) == {}


def test_rows_wait_for_each_other_at_each_rung(race):
    race.run({"varmae": 0.2}, num_processes=3)
    of_rung = [next((rung for rung in RUNGS if f"-{rung}-frozen" in name), None) for name in race.ran]
    order = [rung for rung in of_rung if rung is not None]
    assert order == sorted(order) and {*order} == {*RUNGS}


def test_a_race_that_is_over_runs_nothing_more_and_equal_rows_stay(race, tmp_path):
    assert race.run({}) == {}
    assert {*race.ran} == {job.name for job in list_jobs(race.plan, tmp_path / "plan")}
    assert race.run({}) == {} and race.ran == [] and list_work(race.plan, tmp_path / "plan") == []


def test_a_row_that_failed_holds_nobody_up(race, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_domain.comparison.race.ALPHA", 1.0)  # the slightest lag counts
    whole = race.run({"slow": 0.5, "varmae": 0.5})
    assert {*whole} == {"slow", "varmae"}
    jobs = list_jobs(race.plan, tmp_path / "plan")
    results = {r.step.name: r for r in race.results}
    failed = {
        name: replace(r, status="failed", error="out of memory") if r.step.method == "slow" else r
        for name, r in results.items()
    }
    assert {*find_left(race.plan, jobs, failed)} == {"varmae"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"budget": {"tokens": 640}},
            "race needs at least two token budgets, because rows leave between them, but budget is 640",
        ),
        (
            {"learning_rates": [1e-4, 2e-4]},
            "race cannot be combined with learning_rates, which are chosen at the largest budget",
        ),
        ({"methods": {"dapt": None}}, "race needs two rows or more, but there is only dapt. Add a row, or remove race"),
        ({"seeds": [1]}, "race needs two seeds or more, or evaluation: probe, but seeds are [1]"),
    ],
)
def test_plans_without_a_race_are_refused(content, tmp_path, change, message):
    content |= {"budget": {"tokens": RUNGS}, "race": True, "methods": dict(ROWS)}
    with pytest.raises(ValueError) as error:
        load_plan(write_plan(content | change, tmp_path))
    assert message in str(error.value)
