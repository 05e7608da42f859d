"""Scores, their intervals and differences, against scikit-learn, seqeval, SQuAD and simulation."""

import json

import numpy as np
import pytest
from scipy.stats import ttest_rel
from script_runs import write_jsonl
from seqeval.metrics import f1_score as entity_f1_score
from sklearn.metrics import f1_score

from hf_domain.comparison import scores as scores_module
from hf_domain.comparison.plan import Task
from hf_domain.comparison.scores import (
    Difference,
    ExampleScores,
    Predictions,
    compare,
    compute_interval,
    read_predictions,
    score_labels,
    score_tags,
)
from hf_domain.data.metrics import compute_squad_metrics, compute_token_f1


def make_labels(generator, count=200):
    gold = generator.choice(["a", "b", "c", "none"], size=count).tolist()
    return [label if generator.random() < 0.6 else str(generator.choice(["a", "b", "none"])) for label in gold], gold


@pytest.mark.parametrize("metric", ["macro_f1", "micro_f1", "positive_micro_f1"])
def test_scores_of_labels_are_those_of_scikit_learn(metric):
    generator = np.random.default_rng(0)
    predictions, gold = make_labels(generator)
    scores = score_labels(predictions, gold, metric, ["none"] if metric == "positive_micro_f1" else [])
    labels = ["a", "b", "c"] if metric == "positive_micro_f1" else None
    average = "macro" if metric == "macro_f1" else "micro"
    chosen = generator.integers(len(gold), size=len(gold))
    weights = np.bincount(chosen, minlength=len(gold))
    for rows, counts in ((range(len(gold)), None), (chosen, weights)):
        expected = f1_score([gold[i] for i in rows], [predictions[i] for i in rows], labels=labels, average=average)
        assert scores.compute(counts) == pytest.approx(100 * expected)


def test_scores_of_tags_are_those_of_seqeval_and_of_tokens():
    generator = np.random.default_rng(0)
    gold = [["O", "B-X", "I-X", "O", "B-Y"] for _ in range(50)]
    predictions = [[tag if generator.random() < 0.7 else "O" for tag in tags] for tags in gold]
    entities, tokens = (score_tags(predictions, gold, metric) for metric in ("entity_f1", "token_f1"))
    assert entities.compute() == pytest.approx(100 * entity_f1_score(gold, predictions))
    assert tokens.compute() == pytest.approx(100 * compute_token_f1(predictions, gold))
    shorter = [tags[:3] for tags in predictions]
    assert score_tags(shorter, gold, "entity_f1").compute() == pytest.approx(
        100 * entity_f1_score(gold, [[*tags, "O", "O"] for tags in shorter])
    )
    with pytest.raises(ValueError, match=r"sentence 0 .* has 5 tags, 6 were predicted"):
        score_tags([["O"] * 6], gold[:1], "entity_f1")


def test_scores_without_any_class_are_read_again():
    """No entity anywhere, only negative labels: a smoke test of a few examples."""
    for predictions in (
        Predictions.of_names([["O"]] * 3, [["O"]] * 3, "token_f1"),
        Predictions.of_names([["none"]] * 3, [["none"]] * 3, "positive_micro_f1", ["none"]),
    ):
        again = Predictions.from_json(json.loads(json.dumps(predictions.to_json())))
        assert again == predictions
        scores = again.score()
        assert scores.right.shape == (3, 0)
        assert scores.compute() == 0
        assert compare([scores, scores], [scores, scores]) == Difference(0, 0, 0, 1)


def test_tags_without_prefixes_are_classes():
    gold, predictions = [["PAR", "O", "INT"]] * 3, [["PAR", "INT", "INT"]] * 3
    scores = score_tags(predictions, gold, "token_f1")
    assert scores.compute() == pytest.approx(100 * compute_token_f1(predictions, gold))
    assert scores.compute() > 0


def test_scores_of_answers_are_those_of_squad(tmp_path):
    answers = {"1": "the red cat", "2": "", "3": "a dog"}
    references = {"1": ["red cat"], "2": [], "3": ["dogs", "a big dog"]}
    expected = compute_squad_metrics(answers, references)
    write_jsonl(tmp_path / "test.jsonl", [{"id": i, "answers": {"text": texts}} for i, texts in references.items()])
    (tmp_path / "predict_predictions.json").write_text(json.dumps(answers))
    for metric in ("f1", "exact_match"):
        predictions = read_predictions(Task("qa", str(tmp_path), "pets", metric), {}, tmp_path, tmp_path)
        assert predictions.score().compute() == pytest.approx(expected[metric])
        again = Predictions.from_json(json.loads(json.dumps(predictions.to_json())))
        assert again.score().compute() == pytest.approx(expected[metric])


def test_scores_are_read_from_what_the_scripts_leave(tmp_path):
    rows = {
        "classification": [{"text": "a", "label": label} for label in (0, 1, 1)],
        "qa": [{"id": number, "context": "a b", "answers": {"text": ["b"]}} for number in (7, 8, 9)],
    }
    (tmp_path / "predict_results.txt").write_text("index\tprediction\n0\t0\n1\t0\n")
    (tmp_path / "predict_predictions.json").write_text(json.dumps({"7": "b", "8": "a"}))
    for kind, metric in (("classification", "micro_f1"), ("qa", "exact_match")):
        write_jsonl(tmp_path / "test.jsonl", rows[kind])
        task = Task(kind, str(tmp_path), "pets", metric)
        predictions = read_predictions(task, {"max_predict_samples": "2"}, tmp_path, tmp_path)
        assert predictions.score().compute() == 50.0, kind


def test_predictions_survive_json_as_ids():
    names, gold = make_labels(np.random.default_rng(0), 1000)
    predictions = Predictions.of_names([[name] for name in names], [[name] for name in gold], "macro_f1")
    text = json.dumps(predictions.to_json())
    assert Predictions.from_json(json.loads(text)) == predictions
    assert predictions.score().compute() == pytest.approx(100 * f1_score(gold, names, average="macro"))
    assert len(text) < 4 * len(gold) + 200  # an id and a separator on each side
    sentences = Predictions.of_names([["O", "B-X"], ["O"]], [["B-X", "I-X", "O"], ["O"]], "entity_f1")
    assert Predictions.from_json(json.loads(json.dumps(sentences.to_json()))) == sentences


def test_difference_of_two_methods():
    gold = ["a", "b"] * 100

    def predict(share, seed):
        random_numbers = np.random.default_rng(seed).random(len(gold))
        return score_labels(
            [g if x < share else "c" for g, x in zip(gold, random_numbers, strict=True)], gold, "micro_f1"
        )

    good, bad = [predict(0.9, seed) for seed in range(3)], [predict(0.6, seed) for seed in range(3, 6)]
    difference = compare(good, bad)
    expected = np.mean([a.compute() for a in good]) - np.mean([b.compute() for b in bad])
    assert difference.mean == pytest.approx(expected)
    assert difference.low < expected < difference.high
    assert difference.p < 0.01 < 0.9 < compare(good, good).p
    assert compare(bad, good).mean == pytest.approx(-expected)
    # Of 200 examples with these rates the interval is what the normal approximation says.
    spread = 100 * np.sqrt((0.9 * 0.1 + 0.6 * 0.4) / 200)
    assert 0.3 * spread < (difference.high - difference.low) / (2 * 1.96) < 2 * spread
    assert compare(good[:1], bad[:1]) == Difference(good[0].compute() - bad[0].compute(), None, None, None)


@pytest.mark.parametrize("of_seeds, of_examples", [(0.0, 0.5), (3.0, 0.0), (3.0, 0.5), (0.5, 0.5)])
def test_alike_methods_are_rarely_told_apart(monkeypatch, of_seeds, of_examples):
    """Three seeds of two methods that differ by chance alone: p < 0.05 at most about once in twenty."""
    monkeypatch.setattr(scores_module, "RESAMPLES", 200)
    generator = np.random.default_rng(0)

    def run():
        values = 0.5 + of_seeds / 100 * generator.normal() + of_examples * generator.normal(size=(300, 1))
        return ExampleScores(values, np.zeros_like(values), np.zeros_like(values), "mean")

    trials = [compare([run() for _ in range(3)], [run() for _ in range(3)], seed) for seed in range(300)]
    share = np.mean([difference.p < 0.05 for difference in trials])
    covered = np.mean([difference.low < 0 < difference.high for difference in trials])
    assert share <= 0.09 and covered == 1 - share
    shifted = [run() for _ in range(3)]
    for one in shifted:
        one.right = one.right + 0.5
    assert compare(shifted, [run() for _ in range(3)]).p < 0.05


def test_methods_are_compared_on_the_same_examples():
    """What makes an example hard counts for both: it is no part of the error of their difference."""
    hardness = np.random.default_rng(0).random((400, 1))

    def run(shift):
        return ExampleScores(hardness + shift, np.zeros_like(hardness), np.zeros_like(hardness), "mean")

    difference = compare([run(0.01), run(0.011)], [run(0.0), run(0.001)])
    assert difference.mean == pytest.approx(1.0)
    assert difference.high - difference.low < 0.01


def test_p_is_that_of_a_t_test_where_only_seeds_vary():
    values = [[50.0, 53.0, 55.0], [49.0, 48.0, 53.5]]
    runs = [[ExampleScores(*[np.full((40, 1), v / 100)] * 3, "mean") for v in row] for row in values]
    expected = ttest_rel(*values)
    difference = compare(*runs)
    assert difference.p == pytest.approx(expected.pvalue)
    assert [difference.low, difference.high] == pytest.approx(list(expected.confidence_interval(0.95)))


def test_interval_over_seeds():
    assert compute_interval([1.0, 2.0, 3.0]) == pytest.approx(4.302653 / np.sqrt(3))
    assert np.isnan(compute_interval([1.0]))
