"""Differences, intervals and p values, against scipy, by hand, and by simulation."""

import math

import numpy as np
import pytest
from scipy.stats import sem, t, ttest_ind, ttest_rel

from hf_domain.comparison import statistics
from hf_domain.comparison.statistics import (
    Difference,
    compare_draws,
    compare_rows,
    compute_interval,
    correct,
    draw_scores,
    find_visible_difference,
)
from hf_domain.tasks.scores import ExampleCounts, score_labels


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch):
    monkeypatch.setattr(statistics, "RESAMPLES", 200)


def make_scores(points):
    """Scores of examples in percent."""
    column = np.asarray(points, dtype=float)[:, None] / 100
    return ExampleCounts(column, column, column, "mean")


def draw(tasks):
    """Draws of rows, from `{task: {row: {run: points of the examples}}}`."""
    rows = {}
    for number, (task, row_runs) in enumerate(tasks.items()):
        scores = {row: {run: make_scores(points) for run, points in runs.items()} for row, runs in row_runs.items()}
        for row, runs in draw_scores(scores, seed=number).items():
            rows.setdefault(row, {})[task] = runs
    return rows


def make_seeds(*means, count=40):
    """Runs of several seeds that are the same for every example."""
    return {(None, seed): np.full(count, mean) for seed, mean in enumerate(means)}


def test_where_only_seeds_vary_it_is_welchs_test():
    own, other = [50.0, 53.0, 55.0, 51.0], [49.0, 48.0, 53.5]
    rows = draw({"task": {"own": make_seeds(*own), "other": make_seeds(*other)}})
    difference, expected = compare_draws(rows["own"], rows["other"]), ttest_ind(own, other, equal_var=False)
    assert difference.mean == pytest.approx(np.mean(own) - np.mean(other))
    assert difference.p == pytest.approx(expected.pvalue)
    assert [difference.low, difference.high] == pytest.approx(list(expected.confidence_interval(0.95)))
    assert difference.freedom == pytest.approx(expected.df)


def test_examples_are_paired():
    """What makes an example hard counts for both rows: it is no part of the error of their difference."""
    hardness = 100 * np.random.default_rng(0).random(400)
    rows = draw(
        {"task": {row: {(None, 1): hardness + s, (None, 2): hardness + s} for row, s in (("own", 1), ("o", 0))}}
    )
    difference = compare_draws(rows["own"], rows["o"])
    assert difference.mean == pytest.approx(1.0)
    assert difference.high - difference.low < 0.01


def test_error_of_the_examples_is_that_of_their_mean():
    """Runs that are all alike differ by the examples alone."""
    points = 10 * np.random.default_rng(0).normal(size=500)
    rows = draw({"task": {"own": {(None, 1): points, (None, 2): points}, "other": make_seeds(0, 0, count=500)}})
    difference = compare_draws(rows["own"], rows["other"])
    assert difference.of_seeds == 0 and math.isinf(difference.freedom)
    assert math.sqrt(difference.of_examples) == pytest.approx(points.std() / math.sqrt(500), rel=0.15)


def test_the_error_is_never_less_than_the_scatter_of_the_runs():
    """The noise of examples, which runs share with opposite signs, leaves their mean; they scatter all the same."""
    noise = 30 * np.random.default_rng(0).normal(size=400)
    noise -= noise.mean()
    own, other = [52.0, 55.0], [48.0, 51.0]
    noisy = {(None, seed): mean + sign * noise for seed, mean, sign in zip(range(2), own, (1, -1), strict=True)}
    rows = draw({"task": {"own": noisy, "other": make_seeds(*other, count=400)}})
    difference, expected = compare_draws(rows["own"], rows["other"]), ttest_ind(own, other, equal_var=False)
    assert difference.p == pytest.approx(expected.pvalue) and difference.freedom == pytest.approx(expected.df)


def test_the_mean_over_tasks_decides():
    """A row is better on one task and worse on another; a task that only one row was tested on is left out."""
    tasks = {
        "a": {"own": make_seeds(60, 62), "other": make_seeds(50, 52)},
        "b": {"own": make_seeds(40, 42), "other": make_seeds(50, 52)},
        "c": {"own": make_seeds(99, 99)},
    }
    rows = draw(tasks)
    difference = compare_draws(rows["own"], rows["other"])
    assert difference.tasks == ("a", "b")
    assert difference.mean == pytest.approx(0, abs=1e-9)
    assert difference.p == pytest.approx(1)
    # Four variances of 2, each of the mean of two seeds, of the mean of two tasks.
    assert difference.of_seeds == pytest.approx(4 * (2 / 2) / 2**2)
    assert difference.freedom == pytest.approx(4)
    half = t.ppf(0.975, 1) * sem([10, -10])
    assert difference.new_task == pytest.approx((-half, half))


def test_seeds_of_pretraining_are_counted_and_not_their_fine_tunings():
    """Ten fine-tunings of two encoders are two values, whose variance is that of all rows together."""

    def pretrain(*means):
        return {(p, seed): np.full(40, mean) for p, mean in enumerate(means) for seed in range(5)}

    tasks = {"task": {"own": pretrain(50, 54), "other": pretrain(40, 40), "third": pretrain(10, 12, 14)}}
    rows = draw(tasks)
    difference = compare_rows(rows, [("own", "other")])["own", "other"]
    pooled = (8 + 0 + 8) / (1 + 1 + 2)
    assert difference.mean == pytest.approx(12)
    assert difference.of_seeds == pytest.approx(pooled / 2 + pooled / 2)
    assert difference.freedom == pytest.approx(4)
    alone = compare_draws(rows["own"], rows["other"])
    assert alone.of_seeds == pytest.approx(4 / 2 + 4 / 2) and alone.freedom == pytest.approx(2)


def test_pretraining_moves_all_tasks_together():
    """An encoder that is better on every task is one value, whatever the number of tasks."""
    runs = {(p, seed): np.full(40, 50.0 + 4 * p) for p in range(2) for seed in range(2)}
    one, three = ({name: {"own": runs, "other": make_seeds(50, 50)} for name in names} for names in ("a", "abc"))
    errors = [compare_draws(rows["own"], rows["other"]).of_seeds for rows in map(draw, (one, three))]
    assert errors == pytest.approx([4.0, 4.0])


def test_rows_with_the_same_models_are_paired_by_their_seeds():
    """A good model is good with a vote and without: the test is the paired one, of the runs of both rows."""
    own, other = [52.0, 45.0, 61.0, 50.0], [50.0, 44.0, 60.0, 48.0, 90.0]
    rows = draw({"task": {"own": make_seeds(*own), "other": make_seeds(*other)}})
    same, others = (
        compare_rows(rows, [("own", "other")], same=same)["own", "other"]
        for same in ([{"other", "own"}], [{"own", "third"}])
    )
    expected = ttest_rel(own, other[:4])
    assert same.mean == pytest.approx(1.5) and same.p == pytest.approx(expected.pvalue)
    assert [same.low, same.high] == pytest.approx(list(expected.confidence_interval(0.95)))
    assert others.mean == pytest.approx(np.mean(own) - np.mean(other))
    one = draw({"task": {"own": make_seeds(52.0), "other": make_seeds(*other)}})
    assert compare_draws(one["own"], one["other"], has_same_models=True).p is None


def test_pretrainings_of_rows_with_the_same_models_are_paired():
    """Each pre-training is one value: the difference of its fine-tunings; those of other rows say nothing about it."""

    def pretrain(*means):
        return {(p, seed): np.full(40, mean) for p, mean in enumerate(means) for seed in range(2)}

    rows = draw({"task": {"own": pretrain(50, 64, 41), "other": pretrain(48, 60, 40), "third": pretrain(10, 90)}})
    difference = compare_rows(rows, [("own", "other")], same=[{"own", "other"}])["own", "other"]
    assert difference.p == pytest.approx(ttest_rel([50, 64, 41], [48, 60, 40]).pvalue)


def test_one_seed_is_no_test():
    rows = draw({"task": {"own": make_seeds(51), "other": make_seeds(50, 51)}})
    difference = compare_draws(rows["own"], rows["other"])
    assert difference.mean == pytest.approx(0.5) and difference.p is difference.low is None
    assert compare_draws(rows["own"], {}) is None


def test_same_predictions_do_not_differ():
    rows = draw({"task": {"own": make_seeds(50, 50), "other": make_seeds(50, 50)}})
    difference = compare_draws(rows["own"], rows["other"])
    assert (difference.mean, difference.low, difference.high, difference.p) == (0, 0, 0, 1)


def test_p_values_are_corrected_for_every_comparison_of_the_plan():
    """By Holm; a row that failed counts, or leaving it out would make the others sure."""
    ps = {"a": 0.01, "b": 0.035, "c": 0.03, "d": None}
    differences = {(name, "dapt"): Difference(("task",), 1.0, p=p) for name, p in ps.items()}
    corrected = correct({**differences, ("e", "dapt"): None})
    told = {own: d and d.corrected for (own, _), d in corrected.items()}
    assert told == {"a": pytest.approx(0.05), "c": pytest.approx(0.12), "b": pytest.approx(0.12), "d": None, "e": None}
    assert [d.is_sure for d in corrected.values() if d] == [False] * 4
    alone = correct({("a", "dapt"): differences["a", "dapt"]})["a", "dapt"]
    assert alone.corrected == 0.01 and alone.is_sure


def simulate(generator, better=0.0, rows=6, seeds=3, sizes=(150, 150)):
    """A plan of rows that differ by chance, and of a first one that is better."""
    tasks = {}
    for number, size in enumerate(sizes):
        tasks[str(number)] = {}
        for row in range(rows):
            suits = 10 * generator.normal(size=size) + better * (row == 0)
            runs = {(None, s): suits + 20 * generator.normal(size=size) + generator.normal() for s in range(seeds)}
            tasks[str(number)][str(row)] = runs
    drawn = draw(tasks)
    return list(compare_rows(drawn, [("0", str(row)) for row in range(1, rows)]).values())


def test_equal_rows_rarely_differ_and_different_rows_often_do(monkeypatch):
    """One in twenty comparisons is wrong, and one in twenty plans once they are corrected: not one in four."""
    monkeypatch.setattr(statistics, "RESAMPLES", 100)
    generator = np.random.default_rng(0)
    plans = [simulate(generator) for _ in range(150)]
    assert 0.02 < np.mean([d.p < 0.05 for plan in plans for d in plan]) < 0.08
    assert 0.92 < np.mean([d.low < 0 < d.high for plan in plans for d in plan]) < 0.98
    assert np.mean([any(d.p < 0.05 for d in plan) for plan in plans]) > 0.1
    assert np.mean([any(d.is_sure for d in plan) for plan in plans]) < 0.09
    assert np.mean([plan[0].is_sure for plan in (simulate(generator, better=9.0) for _ in range(20))]) > 0.8


def test_difference_of_two_classifiers():
    gold = ["a", "b"] * 100

    def predict(share, seed):
        numbers = np.random.default_rng(seed).random(len(gold))
        return score_labels([g if x < share else "c" for g, x in zip(gold, numbers, strict=True)], gold, "micro_f1")

    good, bad = (
        {(None, seed): predict(share, seed + start) for seed in range(3)} for share, start in ((0.9, 0), (0.6, 3))
    )
    drawn = draw_scores({"good": good, "bad": bad})
    difference = compare_draws({"task": drawn["good"]}, {"task": drawn["bad"]})
    expected = np.mean([a.compute() for a in good.values()]) - np.mean([b.compute() for b in bad.values()])
    assert difference.mean == pytest.approx(expected)
    assert difference.low < expected < difference.high and difference.p < 0.01


def test_what_a_plan_can_see():
    """More seeds, examples and tasks see smaller differences, and more comparisons larger ones alone."""
    few = find_visible_difference([1000] * 3, seeds=3)
    assert find_visible_difference([1000] * 3, seeds=1) is None
    assert find_visible_difference([1000] * 3, seeds=10) < few < find_visible_difference([200] * 3, seeds=3)
    assert find_visible_difference([1000] * 6, seeds=3) < few < find_visible_difference([1000] * 3, 3, comparisons=20)
    assert find_visible_difference([1000] * 3, 3, 2, rows=4) > find_visible_difference([1000] * 3, 3, 2, rows=20)


def test_interval_over_seeds():
    assert compute_interval([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / np.sqrt(3))
    assert np.isnan(compute_interval([1.0]))
