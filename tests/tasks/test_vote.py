"""The vote of the nearest labeled texts, against sums by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset

from hf_domain import extras
from hf_domain.tasks.classification import find_vote
from hf_domain.tasks.vote import (
    NearestVote,
    count_votes,
    join_columns,
    make_matrix,
    make_vote,
    measure_loss,
    mix_votes,
)

SINGLE, SEVERAL, VALUES = "single_label_classification", "multi_label_classification", "regression"
CONFIG = SimpleNamespace(problem_type=SINGLE, num_labels=2)


def test_votes_are_weighted_by_their_scores():
    values = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])
    found = [([1, 0, 2], [3.0, 2.0, 1.0]), ([2], [5.0]), ([], [])]
    assert count_votes(values, found, 2) == pytest.approx(np.array([[2 / 5, 3 / 5], [1, 0], [2 / 3, 1 / 3]]))
    assert count_votes(values, found, 50) == pytest.approx(np.array([[3 / 6, 3 / 6], [1, 0], [2 / 3, 1 / 3]]))
    assert count_votes(np.array([[0.5], [2.0], [8.0]]), found, 2)[:, 0] == pytest.approx([1.4, 8, 3.5])


def test_probabilities_are_mixed_and_not_logits():
    logits, votes = (
        np.array([[2.0, -1.0, 0.5], [0.0, 0.0, 9.0]], dtype=np.float32),
        np.array([[0, 1, 0], [0.5, 0.5, 0]]),
    )
    for problem_type, to_probabilities in ((SINGLE, lambda x: x.softmax(-1)), (SEVERAL, torch.sigmoid)):
        mixed = to_probabilities(torch.from_numpy(mix_votes(logits, votes, 0.25, problem_type)))
        own = to_probabilities(torch.from_numpy(logits))
        assert mixed.numpy() == pytest.approx((0.75 * own + 0.25 * torch.from_numpy(votes)).numpy(), abs=1e-5)
    assert mix_votes(np.array([[2.0]]), np.array([[4.0]]), 0.25, VALUES) == pytest.approx(2.5)
    assert mix_votes(logits, votes, 0, SINGLE) is logits
    certain = mix_votes(np.array([[100.0, -100.0]]), np.array([[1.0, 0.0]]), 0.5, SEVERAL)
    assert np.isfinite(certain).all()


def make_example(problem_type=SINGLE, labels=(0, 1, 0, 1)):
    """Four labeled texts; each query finds the two of its own topic first."""
    size = 1 if problem_type == VALUES else 2
    found = [([0, 2, 1], [3.0, 3.0, 0.1]), ([1, 3, 0], [3.0, 3.0, 0.1])] * 3
    return NearestVote(problem_type, make_matrix(labels, problem_type, size), {"validation": found})


def test_validation_chooses_the_weight():
    gold = np.array([0, 1] * 3)
    random = np.random.default_rng(0).normal(size=(6, 2)).astype(np.float32)
    vote = make_example()
    vote.choose(random, gold, "validation")
    assert vote.weight == 0.95 and vote.count == 1  # one text says as much as more, and less of others
    assert vote.mix(random, "validation").argmax(-1).tolist() == gold.tolist()
    sure = np.array([[9.0, -9.0], [-9.0, 9.0]] * 3, dtype=np.float32)
    vote.choose(sure, gold, "validation")
    wrong = make_example(labels=(1, 0, 1, 0))
    wrong.choose(sure, gold, "validation")
    assert wrong.weight == 0 and wrong.mix(sure, "validation") is sure


def test_several_labels_and_values_choose_as_well():
    gold = np.array([[1.0, 0.0], [1.0, 1.0]] * 3)
    vote = make_example(SEVERAL, [[1, 0], [1, 1], [1, 0], [1, 1]])
    vote.choose(np.zeros((6, 2), dtype=np.float32), gold, "validation")
    assert vote.weight == 0.95
    vote = make_example(VALUES, [1.0, 5.0, 1.0, 5.0])
    vote.choose(np.full((6, 1), 3, dtype=np.float32), np.array([1.0, 5.0] * 3), "validation")
    assert vote.weight == 0.95 and vote.mix(np.full((6, 1), 3.0), "validation")[0] == pytest.approx(1.1)


def test_labels_count_the_same_in_the_choice():
    """By hand: three texts of the first label and one of the second, whose losses are 1, 1, 1 and 5."""
    gold = np.array([[1.0, 0.0]] * 3 + [[0.0, 1.0]])
    logits = np.array([[-1.0, np.log(1 - np.exp(-1))]] * 3 + [[np.log(1 - np.exp(-5)), -5.0]])
    assert measure_loss(logits, gold, SINGLE) == pytest.approx((1 + 5) / 2)
    assert measure_loss(np.array([[2.0], [4.0]]), np.array([[1.0], [1.0]]), VALUES) == pytest.approx(5)
    # Of several labels the absence counts, too: of the first label log 2 each, of the second 3 log 2 and log 2.
    gold = np.array([[1.0, 0.0], [0.0, 0.0], [0.0, 1.0], [0.0, 0.0]])
    logits = np.zeros((4, 2))
    logits[2, 1] = np.log(1 / 7)  # a probability of an eighth
    assert measure_loss(logits, gold, SEVERAL) == pytest.approx(np.log(2) * ((1 + 1) + (3 + 1)) / 2)


def test_only_the_logits_of_a_tuple_change():
    vote = make_example()
    vote.count, vote.weight = 2, 0.5
    logits, passages = np.zeros((6, 2), dtype=np.float32), np.ones((6, 5))
    mixed, others = vote.mix((logits, passages), "validation")
    assert others is passages and np.exp(mixed[0]) == pytest.approx([0.75, 0.25])


def test_only_classifiers_have_a_vote():
    vote = {"count": 5, "weight": 0.4, "label_column": "label"}
    config = {"nearest_vote": vote, "architectures": ["BertForSequenceClassification"]}
    assert find_vote(config) == vote == find_vote({"nearest_vote": vote}, "VarMAEForSequenceClassification")
    assert find_vote(config | {"architectures": ["BertForMaskedLM"]}) is find_vote(config, "BertModel") is None
    assert find_vote({"architectures": ["BertForSequenceClassification"]}) is None
    assert find_vote(config | {"nearest_vote": vote | {"weight": 0.0}}) is None


def test_what_finds_the_nearest_texts_must_be_installed(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match="a vote of the nearest texts needs tantivy"):
        make_vote(["a text"], [0], {"validation": ["a text"]}, CONFIG, "label")


def test_texts_are_searched_by_their_words():
    pytest.importorskip("tantivy")
    texts = ["the court and the law", "a gene of a cell", "the law of the court", "cells and genes"]
    rows = Dataset.from_dict({"first": ["a law", "a gene", None], "second": ["of courts", "in a cell", ""]})
    queries = {"validation": join_columns(rows, ["first", "second"])}
    assert queries["validation"][0] == "a law of courts"
    vote = make_vote(texts, [0, 1, 0, 1], queries, CONFIG, "label")
    assert count_votes(vote.values, vote.found["validation"], 2).tolist() == [[1, 0], [0, 1], [0.5, 0.5]]
