"""Ensembles of fine-tunings: their votes and their errors by hand, and what a report says of them."""

from dataclasses import replace

import numpy as np
import pytest
from pretended_runs import pretend, run_comparison, write_plan

from hf_domain.comparison import statistics, together
from hf_domain.comparison.answer import describe_together
from hf_domain.comparison.plan_loading import load_plan
from hf_domain.comparison.report import write_report
from hf_domain.comparison.statistics import compare_draws
from hf_domain.comparison.together import compute_pseudo_values, join_votes, measure_cost
from hf_domain.tasks.scores import Predictions


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 200)


def test_members_vote_for_labels():
    """By hand: of a draw, the earliest member decides; of several labels, those of most members are chosen."""
    gold = [["a"], ["b"], ["c"]]
    own = [[["a"], ["b"], ["a"]], [["a"], ["a"], ["b"]], [["b"], ["b"], ["c"]]]
    joined = join_votes([Predictions.of_names(each, gold, "macro_f1") for each in own])
    assert [joined.labels[number] for (number,) in joined.predicted] == ["a", "b", "a"]
    assert [joined.labels[number] for (number,) in joined.gold] == ["a", "b", "c"]
    sets = [[["a", "b"], []], [["a"], ["b"]], [["c", "b"], []]]
    joined = join_votes([Predictions.of_names(each, [["a"], []], "micro_f1") for each in sets])
    assert [sorted(joined.labels[number] for number in row) for row in joined.predicted] == [["a", "b"], []]


@pytest.mark.parametrize("metric", ["entity_f1", "token_f1"])
def test_members_vote_for_each_word(metric):
    tags = [[["B-x", "O"]], [["B-x", "B-x"]], [["O", "O"]]]
    joined = join_votes([Predictions.of_names(each, [["B-x", "O"]], metric) for each in tags])
    assert joined.score().compute() == 100


def test_where_members_average_their_scores_the_pseudo_values_are_these_scores():
    """So that the error of ensembles is that of the mean, by the usual test."""
    scores = {seed: np.array([seed**2, 7.0 - seed]) for seed in range(4)}
    trios = {
        (8, m): np.mean([scores[seed] for seed in m], axis=0) for m in [(0, 1, 2), (0, 1, 3), (0, 2, 3), (1, 2, 3)]
    }
    values = compute_pseudo_values(trios)
    assert {run: list(value) for run, value in values.items()} == {
        (8, seed): pytest.approx(list(score)) for seed, score in scores.items()
    }


def test_costs_are_those_of_three_fine_tunings_and_one_pretraining():
    costs = {"dapt": {"pre-training s": 600.0, "fine-tuning s": 200.0}, "fine_tune": {"fine-tuning s": 200.0}}
    costs["adalm"] = {"preparation s": 200.0, "pre-training s": 600.0, "fine-tuning s": 100.0}
    assert [measure_cost(costs, row) for row in ("dapt", "fine_tune", "adalm")] == [1200 / 800, 600 / 800, 1100 / 800]
    assert measure_cost(costs, "gmap") is None and measure_cost({"fine_tune": costs["fine_tune"]}, "fine_tune") is None


def write_seeded_report(content, tmp_path, seeds, **options):
    content |= {"seeds": seeds, "methods": {"fine_tune": None, "dapt": None}, **options}
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "output", execute=pretend)
    return write_report(tmp_path / "output"), (tmp_path / "output" / "report.md").read_text()


def test_a_report_shows_the_ensembles_of_rows_with_more_seeds_than_members(content, tmp_path):
    report, text = write_seeded_report(content, tmp_path, [1, 2, 3, 4])
    assert report.together.keys() == {"fine_tune", "dapt"}
    for row, own in report.together.items():
        runs = {task: [run.predictions for (name, of, _), run in report.runs.items() if (name, of) == (row, task)]
                for task in own.tasks}  # fmt: skip
        scores = {
            task: [join_votes([each for each in of if each is not left]).score().compute() for left in of]
            for task, of in runs.items()
        }
        assert own.mean == pytest.approx(np.mean([*scores.values()]))
        assert own.over_baseline.mean == pytest.approx(own.mean - np.mean([*map(list, read_single(report, "dapt"))]))
        # Corrected for itself, the other ensembles, and DAPT's comparison with no adaptation.
        assert own.over_baseline.p <= own.over_baseline.corrected <= min(1, 3 * own.over_baseline.p)
    assert report.together["dapt"].over_baseline.high == pytest.approx(report.together["dapt"].over_one.high)
    row = report.together["fine_tune"]
    assert f"| fine-tuning only | {row.mean:.1f} (2 tasks) | {row.over_baseline.mean:+.1f} [" in text
    assert "## Three fine-tunings together" in text


def test_the_cost_of_other_tasks_than_those_of_dapt_is_not_compared(content, tmp_path):
    methods = {"fine_tune": {"tasks": ["animals"]}, "dapt": None}
    run_comparison(
        load_plan(write_plan(content | {"seeds": [1, 2, 3, 4], "methods": methods}, tmp_path)),
        tmp_path / "output",
        execute=pretend,
    )
    together = write_report(tmp_path / "output").together
    assert together["fine_tune"].tasks == ("animals",) and together["fine_tune"].cost is None


def test_the_pretrainings_of_single_runs_count_too(content, tmp_path):
    """Those of DAPT, which is compared with; not those of a row that did not learn."""
    report, _ = write_seeded_report(content | {"pretraining_seeds": [1, 2]}, tmp_path, [1, 2, 3, 4])
    tasks, base = list(report.plan["tasks"]), report.draws["dapt"]
    joined = together.draw_ensembles(report.runs, tasks)
    for stable, pool in ((["dapt"], [joined["dapt"], base]), ([], [])):
        found = together.compare_together(report.runs, report.draws, {}, [], report.costs, tasks, stable)
        high, expected, other = (
            difference.high
            for difference in (
                found["fine_tune"].over_baseline,
                compare_draws(joined["fine_tune"], base, pool),
                compare_draws(joined["fine_tune"], base, [joined["dapt"]]),
            )
        )
        assert high == pytest.approx(expected, rel=1e-12) and high != pytest.approx(other, rel=1e-12)


def read_single(report, row):
    return [report.scores[row][task].values() for task in report.plan["tasks"]]


def test_three_seeds_say_nothing_of_the_error_of_three_together(content, tmp_path):
    report, text = write_seeded_report(content, tmp_path, [1, 2, 3])
    assert report.together == {} and "together" not in text


def test_an_ensemble_has_the_seeds_of_its_members(content, tmp_path):
    """Three of DAPT are compared with one of DAPT seed by seed; those of no adaptation with other models are not."""
    report, _ = write_seeded_report(content, tmp_path, [1, 2, 3, 4])
    joined = together.draw_ensembles(report.runs, list(report.plan["tasks"]))
    for row, is_same in (("dapt", True), ("fine_tune", False)):
        expected = compare_draws(joined[row], report.draws["dapt"], has_same_models=is_same)
        found = report.together[row].over_baseline
        assert (found.low, found.high) == pytest.approx((expected.low, expected.high))


def test_ten_seeds_have_as_many_ensembles_as_six(content, tmp_path, monkeypatch):
    monkeypatch.setattr(together, "MOST_SEEDS", 4)
    report, _ = write_seeded_report(content, tmp_path, [1, 2, 3, 4, 5])
    joined = together.draw_ensembles(report.runs, ["animals"])
    assert [seed for _, seed in sorted(joined["fine_tune"]["animals"], key=str)] == [1, 2, 3, 4]


def test_the_answer_names_the_best_ensemble_and_the_best_at_equal_cost(content, tmp_path, monkeypatch):
    report, _ = write_seeded_report(content, tmp_path, [1, 2, 3, 4])

    def make(mean, corrected, cost):
        own = report.together["dapt"]
        return replace(
            own, cost=cost, over_baseline=replace(own.over_baseline, mean=mean, low=1, high=9, corrected=corrected)
        )

    report.together = {"dapt": make(4.0, 0.01, 1.5), "fine_tune": make(3.0, 0.02, 0.75)}
    assert describe_together(report) == (
        "Three fine-tunings together reach more than one of DAPT: DAPT +4.0 (2 tasks, +1.0 to +9.0, p 0.010) for 150% "
        "of its seconds; fine-tuning only +3.0 (2 tasks, +1.0 to +9.0, p 0.020) for 75% of its seconds. Each text is "
        "then read three times: `hf-domain predict --ensemble`."
    )
    few = replace(make(9.0, 0.001, 0.5), tasks=("animals",))
    report.together = {"fine_tune": few, "dapt": make(4.0, 0.01, 1.5)}
    assert "DAPT +4.0" in describe_together(report) and "fine-tuning only" not in describe_together(report)
    report.together = {"dapt": make(4.0, 0.06, 1.5), "fine_tune": make(-3.0, 0.02, 0.75)}
    assert describe_together(report) == ""
