"""What a report begins with: the decision, its chance and its price."""

import json
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
from pretended_runs import SENTENCES, pretend, run_comparison, write_plan
from scipy.stats import norm
from script_runs import call_main, write_jsonl

from hf_domain.comparison import decision
from hf_domain.comparison.decision import (
    choose,
    format_chance,
    format_seconds,
    is_command,
    list_bets,
    measure_error,
    shrink,
)
from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.examples import compare
from hf_domain.tasks.outputs import LABELS, format_labels

ROWS = {"no_adaptation": None, "general_text": None, "dapt": None, "varmae": None, "gmap": {"after": "dapt"}}


@pytest.fixture
def answer(content, tmp_path):
    """Run a plan of three tasks whose rows are right as often as is said, and return its report and its text."""
    texts = [{"text": f"{text} {i}", "label": text.split()[1]} for i, text in enumerate(SENTENCES * 3)]
    for task in ("a", "b", "c"):
        (tmp_path / task).mkdir()
        for split in ("train", "validation", "test"):
            write_jsonl(tmp_path / task / f"{split}.jsonl", texts)
    content["tasks"] = {task: {"kind": "classification", "folder": task, "corpus": "pets"} for task in "abc"}

    def answer(seeds=(1, 2, 3), **rates):
        def run(step, plan, folder):
            pretend(step, plan, folder)
            if step.kind == "fine_tuning":
                rows = [json.loads(line) for line in (plan.folder / step.flags["test_file"]).open()]
                numbers, rate = random.Random(step.name), rates.get(step.method, 0.6)
                right = [numbers.random() < rate for _ in rows]
                labels = [
                    row["label"] if r else numbers.choice(["cat", "dog"]) for row, r in zip(rows, right, strict=True)
                ]
                (folder / LABELS).write_text(format_labels(labels))

        content["methods"], content["seeds"] = dict(ROWS), list(seeds)
        run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", execute=run)
        report = write_report(tmp_path / "plan")
        return report, (tmp_path / "plan" / "report.md").read_text().split("\n\n")

    return answer


def test_a_training_counts_once_among_the_costs_of_more():
    """The rows gmap and vote start from the encoder of the row dapt, and cost no training of their own."""
    difference = SimpleNamespace(of_examples=0.0, of_seeds=0.0)
    costs = {row: {"pre-training s": 600.0, "tokens": 8.0} for row in ("dapt", "gmap", "vote")}
    plan = {"pretraining_seeds": [1], "methods": {row: {"recipe": row} for row in costs}}
    told = decision.describe_doubt(
        SimpleNamespace(costs=costs, runs={}, plan=plan), SimpleNamespace(difference=difference)
    )
    assert "another seed of pre-training (10 minutes)" in told and "twice the tokens (20 minutes)" in told


def test_without_a_kept_model_the_answer_says_how_to_get_one():
    report = SimpleNamespace(plan={"keep_models": "none", "path": "plan.yaml"}, models={})
    sentence, command = decision.list_next_commands(report)
    assert "set keep_models: best in the plan" in sentence and command == "hf-domain compare plan.yaml"


def test_the_best_bet_comes_first_with_its_chance_and_its_price(answer, tmp_path, monkeypatch, capsys):
    report, (_, first, *rest) = answer(no_adaptation=0.5, general_text=0.5, dapt=0.6, gmap=0.6, varmae=0.85)
    bets = list_bets(report)
    assert bets[0].row == choose(report) == "varmae" and 0 < bets[0].gain < bets[0].difference.mean
    told = f"Use VarMAE: {bets[0].gain:+.1f} points, better than the encoder as it is with 99 % chance; 0 seconds."
    assert first == f"**{told}**"
    assert [bet.gain for bet in bets] == sorted([bet.gain for bet in bets], reverse=True)
    assert any(text.startswith("What could change this: twice the seeds (") for text in rest)
    assert f"hf-domain predict plan/steps/{report.models['a'].step.id} new.jsonl" in "".join(rest)
    call_main(compare.main, monkeypatch, tmp_path / "plan.yaml", "--report_only")
    assert told in capsys.readouterr().out.split("The report: ")[1]  # the terminal ends with the same answer
    page = (tmp_path / "plan" / "report.html").read_text()
    assert f'<p class="answer">{told}</p>' in page


def test_a_row_that_is_far_ahead_is_named_however_few_seeds_there_are(content, tmp_path, run_plan):
    """300 texts of five roles: the encoder as it was scored 32, twice the epochs 61, and the report chose the first."""
    roles = ["background", "method", "objective", "other", "result"]
    for split, count in (("train", 300), ("validation", 60), ("test", 150)):
        rows = [{"text": f"{split} {number}", "label": roles[number % 5]} for number in range(count)]
        write_jsonl(tmp_path / "animals" / f"{split}.jsonl", rows)
    content |= {"seeds": [1, 2, 3], "general": None, "tasks": {"animals": content["tasks"]["animals"]}}
    longer = {"recipe": "no_adaptation", "fine_tuning": {"num_train_epochs": 12}}
    content["methods"] = {"no_adaptation": None, "dapt": None, "varmae": None, "longer": longer}

    def run(step, plan, folder):
        pretend(step, plan, folder)
        if step.kind == "fine_tuning":
            numbers, rate = random.Random(step.name), 0.5 if step.method == "longer" else 0.16
            right = [roles[number % 5] if numbers.random() < rate else numbers.choice(roles) for number in range(150)]
            (folder / LABELS).write_text(format_labels(right))

    report = run_plan(run)
    (best, *others) = list_bets(report)
    assert best.row == "longer" and best.gain > 20 and best.chance > 0.95 and all(bet.gain < 5 for bet in others)
    first = (tmp_path / "plan" / "report.md").read_text().split("\n\n")[1]
    assert first.startswith(f"**Use no adaptation (longer): {best.gain:+.1f} points, better than the encoder as it is")


def test_one_pre_training_leaves_a_doubt_that_two_show(answer):
    """The seeds of two pre-trainings scatter as pre-trainings do; those of one do not."""
    report, _ = answer(dapt=0.6)
    by_row = {bet.row: bet.difference for bet in list_bets(report)}
    measured = by_row["dapt"].of_examples + by_row["dapt"].of_seeds
    assert measure_error(by_row["dapt"], report, "dapt") == measured + decision.PRETRAINING_DEVIATION**2
    report.plan["pretraining_seeds"] = [1, 2]
    assert measure_error(by_row["dapt"], report, "dapt") == measured


def test_where_no_row_is_likely_better_it_says_what_to_run(answer):
    report, (_, *paragraphs) = answer(seeds=(1, 2), dapt=0.61, varmae=0.6, no_adaptation=0.61)
    assert max(bet.chance for bet in list_bets(report)) < decision.SURE
    assert paragraphs[0].startswith("**Nothing is decided. ") and "run more seeds:" in paragraphs[0]
    assert paragraphs[1] == "```bash\nhf-domain compare plan.yaml --num_seeds 4\n```"


def test_where_every_row_lost_a_little_the_encoder_as_it_is_stays_the_best_bet(answer):
    report, (_, first, *_) = answer(seeds=(1, 2), dapt=0.6, general_text=0.6, gmap=0.6, varmae=0.6, no_adaptation=0.615)
    best = list_bets(report)[0]
    assert best.gain < 0 and best.chance > 1 - decision.SURE and choose(report) == "no_adaptation"
    title = report.titles[best.row]
    assert first.startswith(f"**Nothing is decided. {title} comes nearest to the encoder as it is, the best bet: -")


def test_the_encoder_as_it_is_stays_where_everything_is_worse(answer):
    report, (_, first, *_) = answer(no_adaptation=0.95, dapt=0.5, varmae=0.5, gmap=0.5, general_text=0.5)
    assert choose(report) == "no_adaptation"
    assert first.startswith("**Use the encoder as it is: no other row is better with more than ")


def test_without_the_encoder_as_it_is_dapt_is_what_one_has(answer, content):
    del ROWS["no_adaptation"]
    try:
        report, (_, first, *_) = answer(dapt=0.5, varmae=0.9, gmap=0.5, general_text=0.5)
    finally:
        ROWS["no_adaptation"] = None
    assert choose(report) == "varmae" and "points, better than DAPT with 99 % chance" in first


def test_expected_gains_are_those_of_bayes():
    """A normal prior around zero and a normal error: the posterior mean and the probability above zero."""
    grid = np.linspace(-40, 40, 200_001)
    for gain, error, spread in ((2.0, 1.0, 4.0), (-1.0, 3.0, 0.5), (25.0, 16.0, 300.0)):
        weights = norm.pdf(grid, 0, math.sqrt(spread)) * norm.pdf(gain, grid, math.sqrt(error))
        mean, chance = (weights * grid).sum() / weights.sum(), weights[grid > 0].sum() / weights.sum()
        assert shrink(gain, error, spread) == pytest.approx((mean, chance), abs=1e-3)
    # Few degrees of freedom make it less sure.
    assert 0.5 < shrink(2.0, 1.0, 4.0, freedom=2)[1] < shrink(2.0, 1.0, 4.0)[1]
    assert shrink(0.0, 0.0, 4.0) == (0.0, 0.5)


def test_chances_and_times_are_written_as_a_person_would():
    assert [format_chance(chance) for chance in (0.0, 0.934, 1.0)] == ["1 %", "93 %", "99 %"]
    assert [format_seconds(s) for s in (7.4, 89, 660, 9000)] == ["7 seconds", "89 seconds", "11 minutes", "2.5 hours"]
    assert decision.format_points(-0.01) == "+0.0" and is_command("hf-domain compare a.yaml")


def test_an_unfinished_comparison_says_so_first(answer, tmp_path):
    answer(varmae=0.85)
    for file in tmp_path.glob("plan/results/gmap-*-seed*.json"):
        file.unlink()
    for file in tmp_path.glob("plan/results/varmae-c-*.json"):
        file.unlink()
    report = write_report(tmp_path / "plan")
    _, first, second, *_ = (tmp_path / "plan" / "report.md").read_text().split("\n\n")
    missing = "results are missing for VarMAE, G-MAP after DAPT. The answer may change."
    assert first == f"**This comparison is not finished: {missing}**" and second.startswith("Use VarMAE: ")
    text = (tmp_path / "plan" / "report.md").read_text()
    assert "| G-MAP" not in text
    assert report.costs["gmap"] == {}
