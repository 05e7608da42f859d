"""Metrics against scikit-learn, seqeval, and values worked out by hand."""

import numpy as np
import pytest
import scipy.stats
import seqeval.metrics
import sklearn.metrics

from hf_domain.tasks.metrics import (
    compute_class_metrics,
    compute_entity_metrics,
    compute_squad_metrics,
    list_entity_metrics,
    normalize_answer,
)
from hf_domain.tasks.tags import find_entities, strip_prefix


def test_single_label_by_hand():
    # Label 0: 1 right, 1 missed, 1 invented: F1 1/2. Label 1: 2 right, 1 invented: 4/5. Label 2: 0 of 1.
    references, predictions = [0, 0, 1, 1, 2], [0, 1, 1, 1, 0]
    metrics = compute_class_metrics(predictions, references, "single_label_classification")
    assert metrics == pytest.approx({"accuracy": 0.6, "micro_f1": 0.6, "macro_f1": (0.5 + 0.8 + 0) / 3})
    # Without label 0: 2 right, 1 invented, 1 missed.
    metrics = compute_class_metrics(predictions, references, "single_label_classification", [0])
    assert metrics["positive_micro_f1"] == pytest.approx(2 * 2 / (2 * 2 + 1 + 1))
    assert compute_class_metrics([0, 0], [0, 0], "single_label_classification", [0])["positive_micro_f1"] == 0


def test_absence_of_a_single_label_is_no_hit():
    references, predictions = np.array([[0]] * 7 + [[1]] * 3), np.array([[0]] * 8 + [[1]] * 2)
    metrics = compute_class_metrics(predictions, references, "multi_label_classification")
    assert metrics["micro_f1"] == metrics["macro_f1"] == pytest.approx(2 * 2 / (2 + 3))
    assert compute_class_metrics(0 * predictions, references, "multi_label_classification")["micro_f1"] == 0
    # A label that nothing has is no part of the mean, as in the report of a comparison.
    wider = (np.pad(matrix, ((0, 0), (0, 1))) for matrix in (predictions, references))
    assert compute_class_metrics(*wider, "multi_label_classification") == metrics


SENTENCES = [["B-X", "I-X", "O", "B-Y"], ["O", "B-X", "O", "O"]]
TAGGED = [["B-X", "O", "O", "B-Y"], ["O", "B-X", "B-Y", "O"]]


def test_entities_by_hand_and_as_seqeval():
    metrics = compute_entity_metrics(TAGGED, SENTENCES, per_type=True)
    # Right: Y of the first and X of the second sentence, of 4 predicted and 3 gold entities.
    assert metrics["precision"] == pytest.approx(2 / 4) and metrics["recall"] == pytest.approx(2 / 3)
    assert metrics["f1"] == pytest.approx(seqeval.metrics.f1_score(SENTENCES, TAGGED)) == pytest.approx(4 / 7)
    assert metrics["accuracy"] == pytest.approx(6 / 8)
    assert metrics["X_precision"] == metrics["X_recall"] == metrics["X_f1"] == 0.5
    assert metrics["Y_precision"] == 0.5 and metrics["Y_recall"] == 1
    # X: 2 of 2 predicted and 3 gold tokens; Y: 1 of 2 predicted and 1 gold token.
    assert metrics["token_f1"] == pytest.approx((4 / 5 + 2 / 3) / 2)


def test_entities_of_bilou_are_those_of_iobes():
    gold, tagged = ["B-X", "I-X", "L-X", "O", "U-Y", "U-Y"], ["B-X", "L-X", "U-X", "O", "U-Y", "O"]
    metrics = compute_entity_metrics([tagged], [gold], per_type=True)
    # Right: one Y, of 3 predicted and 3 gold entities.
    assert metrics["precision"] == metrics["recall"] == pytest.approx(1 / 3)
    assert (
        metrics["X_f1"] == 0 and metrics["Y_f1"] == pytest.approx(2 / 3) and metrics["accuracy"] == pytest.approx(3 / 6)
    )
    rename = str.maketrans("LU", "ES")
    other = [[tag.translate(rename) for tag in tags] for tags in (tagged, gold)]
    assert compute_entity_metrics([other[0]], [other[1]], per_type=True) == metrics


def test_bare_types_are_entities():
    """seqeval reads Gene as an entity `ene`, and Organization as no entity."""
    gold, tagged = ["Gene", "Gene", "O", "Organization"], ["Gene", "O", "O", "Organization"]
    metrics = compute_entity_metrics([tagged], [gold], per_type=True)
    assert metrics["Gene_f1"] == 0 and metrics["Organization_f1"] == 1 and metrics["f1"] == 1 / 2
    io = [["O" if tag == "O" else f"I-{tag}" for tag in tags] for tags in (tagged, gold)]
    assert compute_entity_metrics([io[0]], [io[1]], per_type=True) == metrics
    assert {name for name in metrics if "_" in name} < {*list_entity_metrics(gold)}
    assert find_entities(["B", "I", "O", "B"]) == [("_", 0, 1), ("_", 3, 3)]


def test_sentences_without_entities():
    metrics = compute_entity_metrics([["O", "O"]], [["O", "O"]])
    assert metrics["f1"] == metrics["token_f1"] == 0 and metrics["accuracy"] == 1
    assert compute_entity_metrics([["O", "O"]], [["B-X", "O"]])["token_f1"] == 0


def test_squad_by_hand():
    references = {"exact": ["The  cat!"], "half": ["black cat", "dog"], "none": [], "missed": []}
    predictions = {"exact": "a Cat", "half": "big black animal", "none": "", "missed": "something"}
    # black of {big, black, animal} and {black, cat}: F1 2 * 1 / 5.
    assert compute_squad_metrics(predictions, references) == pytest.approx(
        {
            "exact_match": 100 * 2 / 4,
            "f1": 100 * (1 + 0.4 + 1 + 0) / 4,
            "has_answer_exact_match": 50,
            "has_answer_f1": 70,
            "no_answer_exact_match": 50,
            "no_answer_f1": 50,
        }
    )
    answered = {question: references[question] for question in ("exact", "half")}
    assert compute_squad_metrics(predictions, answered) == pytest.approx({"exact_match": 50, "f1": 70})
    # Words count as often as they occur.
    assert compute_squad_metrics({"a": "x x"}, {"a": ["x x x y"]})["f1"] == pytest.approx(100 * 2 * 2 / 6)
    assert normalize_answer("The  U.S. theatre, an Act") == "us theatre act"


@pytest.mark.parametrize("seed", range(20))
def test_random_tags_score_as_in_seqeval(seed):
    """Also sequences that no scheme allows: a lone I, an E after O, a type that changes within an entity."""
    draw = np.random.default_rng(seed)
    tags = ["O", "O", *(f"{place}-{kind}" for place in "BIES" for kind in ("X", "Y"))]
    gold, found = ([[str(tag) for tag in draw.choice(tags, 7)] for _ in range(9)] for _ in range(2))
    found = [
        [g if draw.random() < 0.7 else f for g, f in zip(*pair, strict=True)] for pair in zip(gold, found, strict=True)
    ]
    metrics = compute_entity_metrics(found, gold, per_type=True)
    for sentence in gold:
        assert find_entities(sentence) == seqeval.metrics.sequence_labeling.get_entities(sentence)
    for name in ("precision", "recall", "f1", "accuracy"):
        expected = getattr(seqeval.metrics, f"{name}_score")(gold, found)
        assert metrics[name] == pytest.approx(expected)
    report = seqeval.metrics.classification_report(gold, found, output_dict=True, zero_division=0)
    assert [metrics[f"{kind}_f1"] for kind in "XY"] == pytest.approx([report[kind]["f1-score"] for kind in "XY"])
    flat = [[strip_prefix(tag) for tags in sentences for tag in tags] for sentences in (gold, found)]
    expected = sklearn.metrics.f1_score(*flat, labels=["X", "Y"], average="macro", zero_division=0)
    assert metrics["token_f1"] == pytest.approx(expected)


@pytest.mark.parametrize("seed", range(10))
def test_random_labels_score_as_in_scikit_learn(seed):
    draw, f1 = np.random.default_rng(seed), sklearn.metrics.f1_score
    gold, found = draw.integers(0, 5, 30), draw.integers(0, 6, 30)
    metrics = compute_class_metrics(found, gold, "single_label_classification", [0, 3])
    expected = [f1(gold, found, average=average, zero_division=0) for average in ("micro", "macro")]
    expected.append(f1(gold, found, labels=[1, 2, 4, 5], average="micro"))
    assert [metrics[name] for name in ("micro_f1", "macro_f1", "positive_micro_f1")] == pytest.approx(expected)
    gold, found = (draw.integers(0, 2, (30, 4)) for _ in range(2))
    metrics = compute_class_metrics(found, gold, "multi_label_classification")
    expected = [f1(gold, found, average=average, zero_division=0) for average in ("micro", "macro")]
    expected.append(sklearn.metrics.accuracy_score(gold, found))
    assert [metrics[name] for name in ("micro_f1", "macro_f1", "accuracy")] == pytest.approx(expected)
    gold, found = draw.normal(size=30), draw.integers(0, 4, 30) / 3  # with ties
    metrics = compute_class_metrics(found, gold, "regression")
    expected = [measure(found, gold).statistic for measure in (scipy.stats.pearsonr, scipy.stats.spearmanr)]
    expected.append(sklearn.metrics.mean_squared_error(gold, found))
    assert [metrics[name] for name in ("pearson", "spearman", "mse")] == pytest.approx(expected)
