"""Sequence classification: rows to inputs, logits to predictions."""

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from sklearn.metrics import f1_score
from tiny_tokenizers import make_bert_tokenizer

from hf_domain.tasks.classification import (
    Classification,
    ClassificationArguments,
    choose_thresholds,
    decode_logits,
    encode_labels,
    name_predictions,
    tokenize_texts,
)


@pytest.mark.parametrize(
    ("labels", "problem_type", "names"),
    [
        ([0.0, 2.0, 1.0], "single_label_classification", ["0", "1", "2"]),
        ([0.0, 2.0, 1.5], "regression", ["value"]),
        ([[1, 0, 1], [0, 0, 1]], "multi_label_classification", ["0", "1", "2"]),
    ],
)
def test_whole_numbers_are_classes_also_as_floats(labels, problem_type, names):
    task = Classification(ClassificationArguments())
    rows = Dataset.from_dict({"text": [f"text {number}" for number in range(len(labels))], "label": labels})
    splits = task.read(DatasetDict(train=rows))
    assert (task.problem_type, [name for name in task.label_names if name in names]) == (
        problem_type,
        [name for name in names if name in task.label_names],
    )
    task.tokenizer = make_bert_tokenizer(["text"])
    assert len(task.tokenize(splits["train"][:])["labels"]) == len(labels)


@pytest.mark.parametrize(
    ("label", "message"),
    [
        ({"a": 1}, r"label is \{'a': 1\} in example 0 of train. Give each label a column"),
        ([{"a": 1}], r"label is \[\{'a': 1\}\] in example 0 of train"),
        ([[0, 7], [3, 4]], "as for a span of characters. To find spans, give lists of words as tokens"),
    ],
)
def test_a_label_is_a_name_a_number_or_a_list_of_these(label, message):
    rows = Dataset.from_dict({"text": ["a text"] * 5, "label": [label] * 5})
    assert len(Classification.hold_out(rows)) == 1  # a table without splits is refused by the check
    with pytest.raises(ValueError, match=message):
        Classification(ClassificationArguments()).read(DatasetDict(train=rows))


def test_hidden_labels_of_a_test_set_are_left_out(caplog):
    caplog.set_level("INFO")
    train, test = (Dataset.from_dict({"text": ["a", "b"], "label": labels}) for labels in ([0, 1], [-1, -1]))
    splits = Classification(ClassificationArguments()).read(DatasetDict(train=train, test=test))
    assert splits["test"].column_names == ["text"]
    assert "The labels of test are hidden (label is -1): its rows are predicted, not scored" in caplog.messages
    known = DatasetDict(train=train.map(lambda row: {"label": row["label"] - 1}), test=test)
    assert "label" in Classification(ClassificationArguments()).read(known)["test"].column_names


def test_labels_are_encoded_by_problem_type():
    ids = {"a": 0, "b": 1, "c": 2}
    assert encode_labels(["c", "a"], "single_label_classification", ids) == [2, 0]
    assert encode_labels([["c", "a"], []], "multi_label_classification", ids) == [[1, 0, 1], [0, 0, 0]]
    assert encode_labels([1, 2.5], "regression", {}) == [1.0, 2.5]


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
