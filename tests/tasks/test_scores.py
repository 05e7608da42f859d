"""Scores, against scikit-learn, seqeval and SQuAD."""

import json

import numpy as np
import pytest
from scipy.stats import pearsonr, spearmanr
from script_runs import write_jsonl
from seqeval.metrics import f1_score as entity_f1_score
from sklearn.metrics import f1_score

from hf_domain.tasks.files import Task, read_predictions
from hf_domain.tasks.metrics import compute_squad_metrics
from hf_domain.tasks.scores import Predictions, score_tags

NAMES = ["a", "b", "c", "none"]


def make_labels(generator, count=200):
    gold = generator.choice(NAMES, size=count).tolist()
    return [label if generator.random() < 0.6 else str(generator.choice(["a", "b", "none"])) for label in gold], gold


@pytest.mark.parametrize("metric", ["macro_f1", "micro_f1", "positive_micro_f1"])
@pytest.mark.parametrize("several", [False, True])
def test_scores_of_labels_are_those_of_scikit_learn(metric, several):
    """On the test set and on a resample of it, also after they were stored."""
    generator = np.random.default_rng(0)
    if several:
        matrices = [generator.random((200, 4)) < 0.4 for _ in range(2)]
        predicted, gold = ([[NAMES[label] for label in np.flatnonzero(row)] for row in matrix] for matrix in matrices)
        assert [] in predicted and [] in gold
    else:
        predicted, gold = ([[name] for name in names] for names in make_labels(generator))
        matrices = [np.array([[name in row for name in NAMES] for row in rows]) for rows in (predicted, gold)]
    predictions = Predictions.pair(predicted, gold, metric, ["none"] if metric == "positive_micro_f1" else [])
    again = Predictions.from_json(json.loads(json.dumps(predictions.to_json())))
    assert again == predictions
    labels, average = ([0, 1, 2], "micro") if metric == "positive_micro_f1" else (None, metric.removesuffix("_f1"))
    chosen = generator.integers(200, size=200)
    for rows, counts in ((np.arange(200), None), (chosen, np.bincount(chosen, minlength=200))):
        expected = f1_score(matrices[1][rows], matrices[0][rows], labels=labels, average=average)
        assert again.score().compute(counts) == pytest.approx(100 * expected)


def test_scores_of_tags_are_those_of_seqeval_and_of_tokens():
    generator = np.random.default_rng(0)
    gold = [["O", "B-X", "I-X", "O", "B-Y"] for _ in range(50)]
    predictions = [[tag if generator.random() < 0.7 else "O" for tag in tags] for tags in gold]
    entities, tokens = (score_tags(predictions, gold, metric) for metric in ("entity_f1", "token_f1"))
    assert entities.compute() == pytest.approx(100 * entity_f1_score(gold, predictions))
    flat = [[tag.rpartition("-")[2] for tags in sentences for tag in tags] for sentences in (gold, predictions)]
    assert tokens.compute() == pytest.approx(100 * f1_score(*flat, labels=["X", "Y"], average="macro"))
    bare = [[tag[2:] or tag for tag in tags] for tags in (*predictions, *gold)]
    assert score_tags(bare[:50], bare[50:], "token_f1").compute() == pytest.approx(tokens.compute())
    shorter = [tags[:3] for tags in predictions]
    assert score_tags(shorter, gold, "entity_f1").compute() == pytest.approx(
        100 * entity_f1_score(gold, [[*tags, "O", "O"] for tags in shorter])
    )
    with pytest.raises(ValueError, match=r"but sentence 0 .* has 5 words and 6 tags"):
        score_tags([["O"] * 6], gold[:1], "entity_f1")
    assert score_tags([["U-X", "O"]], [["U-X", "U-X"]], "entity_f1").compute() == pytest.approx(200 / 3)


def test_scores_without_any_class_are_read_again():
    """No entity anywhere, only negative labels: a smoke test of a few examples."""
    for predictions in (
        Predictions.pair([["O"]] * 3, [["O"]] * 3, "token_f1"),
        Predictions.pair([["none"]] * 3, [["none"]] * 3, "positive_micro_f1", ["none"]),
    ):
        again = Predictions.from_json(json.loads(json.dumps(predictions.to_json())))
        assert again == predictions
        scores = again.score()
        assert scores.right.shape == (3, 0)
        assert scores.compute() == 0


def test_scores_of_answers_are_those_of_squad(tmp_path):
    answers = {"1": "the red cat", "2": "", "3": "a dog"}
    references = {"1": ["red cat"], "2": [], "3": ["dogs", "a big dog"]}
    expected = compute_squad_metrics(answers, references)
    write_jsonl(tmp_path / "test.jsonl", [{"id": i, "answers": {"text": texts}} for i, texts in references.items()])
    (tmp_path / "predict_predictions.json").write_text(json.dumps(answers))
    for metric in ("f1", "exact_match"):
        predictions = read_predictions(Task(str(tmp_path), "qa", "pets", metric), {}, tmp_path, tmp_path)
        assert predictions.score().compute() == pytest.approx(expected[metric])
        again = Predictions.from_json(json.loads(json.dumps(predictions.to_json())))
        assert again.score().compute() == pytest.approx(expected[metric])


def test_predictions_survive_json_as_ids():
    names, gold = make_labels(np.random.default_rng(0), 1000)
    predictions = Predictions.pair([[name] for name in names], [[name] for name in gold], "macro_f1")
    assert len(json.dumps(predictions.to_json())) < 4 * len(gold) + 200  # an id and a separator on each side
    sentences = Predictions.pair([["O", "B-X"], ["O"]], [["B-X", "I-X", "O"], ["O"]], "entity_f1")
    assert Predictions.from_json(json.loads(json.dumps(sentences.to_json()))) == sentences
    words = Predictions.pair([["B-X", *["O"] * 12, "B-X"]], [["O"] * 14], "entity_f1")
    content = json.loads(json.dumps(words.to_json()))
    assert (content["predicted"], content["gold"]) == ("0 1x12 0", "1x14")
    assert Predictions.from_json(content) == words


@pytest.mark.parametrize(("metric", "correlate"), [("pearson", pearsonr), ("spearman", spearmanr)])
def test_correlations_are_those_of_scipy_on_every_resample(metric, correlate):
    generator = np.random.default_rng(0)
    gold = np.round(generator.normal(size=60), 1) + 1000  # some are equal, all are far from 0
    predicted = np.round(gold + generator.normal(size=60), 1)
    predictions = Predictions(metric, scores=predicted.tolist(), values=gold.tolist())
    scores = Predictions.from_json(json.loads(json.dumps(predictions.to_json()))).score()
    assert scores.compute() == pytest.approx(100 * correlate(predicted, gold).statistic)
    chosen = generator.integers(60, size=(5, 60))
    weights = np.stack([np.bincount(rows, minlength=60) for rows in chosen])
    expected = [100 * correlate(predicted[rows], gold[rows]).statistic for rows in chosen]
    np.testing.assert_allclose(scores.compute(weights), expected)
    for constant in (0.1, 1e9 / 3):
        assert Predictions(metric, scores=[constant] * 60, values=gold.tolist()).score().compute() == 0
    tiny = Predictions(metric, scores=[1e-9 * x for x in predicted], values=[1e-9 * x for x in gold])
    assert tiny.score().compute() == pytest.approx(100 * correlate(predicted, gold).statistic)
