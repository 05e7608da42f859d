"""Sequence classification: kinds of tasks, labels there and back."""

import numpy as np
import pytest
from datasets import Dataset
from sklearn.metrics import f1_score
from tiny_tokenizers import make_bert_tokenizer

from hf_domain.tasks.classification import (
    choose_thresholds,
    decode_logits,
    encode_labels,
    name_predictions,
    tokenize_texts,
)
from hf_domain.tasks.labels import find_problem_type


@pytest.mark.parametrize(
    ("label", "do_regression", "multi_label", "problem_type"),
    [
        ("a", None, None, "single_label_classification"),
        (1, None, None, "single_label_classification"),
        (0.5, None, None, "regression"),
        (0.5, False, None, "single_label_classification"),
        (1, True, None, "regression"),
        (["a"], None, None, "multi_label_classification"),
        (["a"], False, True, "multi_label_classification"),
    ],
)
def test_problem_type_follows_labels_and_settings(label, do_regression, multi_label, problem_type):
    dataset = Dataset.from_dict({"label": [label]})
    assert find_problem_type(dataset, "label", do_regression, multi_label) == problem_type


def test_lists_written_as_text_are_no_names():
    """A .csv file cannot hold lists: each combination of labels would be a class."""
    dataset = Dataset.from_dict({"label": ['["a", "b"]', None, '["a"] ']})
    with pytest.raises(ValueError, match=r'such as \["a", "b"\]\. Write JSON lines, .* or set --multi_label false'):
        find_problem_type(dataset, "label", None, None)
    assert find_problem_type(dataset, "label", None, False) == "single_label_classification"
    dataset = Dataset.from_dict({"label": ["[a]", "b"]})
    assert find_problem_type(dataset, "label", None, None) == "single_label_classification"


@pytest.mark.parametrize("kind", [int, float, bool])
def test_rows_of_zeros_and_ones_are_no_lists_of_labels(kind):
    def find(*lists):
        labels = [None if row is None else [kind(value) for value in row] for row in lists]
        return find_problem_type(Dataset.from_dict({"label": labels}), "label", None, None)

    with pytest.raises(ValueError, match=r"3 values of 0 and 1, such as \[.*in example 1 of train.* for example \[\"a"):
        find(None, [1, 0, 0], [0, 1, 1])
    with pytest.raises(ValueError, match="2 values of 0 and 1"):
        find([0, 1], [1, 0])  # as names, both in every list
    for lists in ([[1], [0], [1]], [[1, 0], [0], []], [[0, 1], []]):
        assert find(*lists) == "multi_label_classification"
    assert find_problem_type(Dataset.from_dict({"label": [[1, 2], [0, 1]]}), "label", None, None) == (
        "multi_label_classification"
    )


def test_labels_are_encoded_by_problem_type():
    ids = {"a": 0, "b": 1, "c": 2}
    assert encode_labels(["c", "a"], "single_label_classification", ids) == [2, 0]
    assert encode_labels([["c", "a"], []], "multi_label_classification", ids) == [[1, 0, 1], [0, 0, 0]]
    assert encode_labels([1, 2.5], "regression", {}) == [1.0, 2.5]
    with pytest.raises(ValueError, match="must be a number, but one is empty"):
        encode_labels([1.0, None], "regression", {})


def test_logits_become_names_by_problem_type():
    logits = np.array([[0.5, 2.0], [-1.0, -3.0]])
    names = ["a", "b"]
    for problem_type, decoded, named in (
        ("single_label_classification", [1, 0], ["b", "a"]),
        ("multi_label_classification", [[1, 1], [0, 0]], [["a", "b"], []]),
    ):
        predictions = decode_logits((logits, "hidden states"), problem_type)
        assert predictions.tolist() == decoded
        assert name_predictions(predictions, problem_type, names) == named
    values = decode_logits(logits[:, :1], "regression")
    assert name_predictions(values, "regression", ["value"]) == [0.5, -1.0]


def test_pairs_are_tokenized_as_pairs():
    tokenizer = make_bert_tokenizer()
    encodings = tokenize_texts([["text", "text"], ["words", None]], tokenizer, max_seq_length=8, pad_to_max_length=True)
    expected = tokenizer([("text", "words"), ("text", "")], padding="max_length", max_length=8)
    assert dict(encodings) == dict(expected)


def test_thresholds_have_the_best_f1_of_each_label():
    rng = np.random.default_rng(0)
    labels = (rng.random((80, 4)) < [0.5, 0.2, 0.05, 0.0]).astype(float)
    logits = np.round(labels + rng.normal(size=labels.shape), 1)  # some are equal
    thresholds = choose_thresholds(logits, labels)
    predicted = decode_logits(logits, "multi_label_classification", thresholds)
    for label in range(3):
        scores = [f1_score(labels[:, label], logits[:, label] >= least) for least in logits[:, label]]
        assert f1_score(labels[:, label], predicted[:, label]) == max(scores)
    assert thresholds[3] == 0.5
    halves = decode_logits(logits, "multi_label_classification")
    np.testing.assert_array_equal(halves, decode_logits(logits, "multi_label_classification", [0.5] * 4))
