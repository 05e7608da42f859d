"""Class weights: the values of scikit-learn, the loss of torch, and a rare label that is found."""

import logging
import random

import numpy as np
import pytest
import torch
from script_runs import run_script, save_tiny_bert, write_jsonl
from sklearn.utils.class_weight import compute_class_weight
from torch.nn import functional as F

from hf_domain.examples import run_classification
from hf_domain.tasks.class_weights import compute_class_weights, make_weighted_loss

WORDS = [f"word{number}" for number in range(12)]


def test_weights_are_those_of_scikit_learn():
    labels = np.random.default_rng(0).choice(4, p=[0.7, 0.2, 0.06, 0.04], size=300)
    expected = compute_class_weight("balanced", classes=np.arange(4), y=labels)
    np.testing.assert_allclose(compute_class_weights(labels, 4), expected)
    assert compute_class_weights(labels, 5)[4] == 1  # no example has it
    assert compute_class_weights(labels, 4)[labels].mean() == pytest.approx(1)


def test_weights_of_several_labels_balance_each():
    labels = np.array([[1, 0], [0, 0], [0, 1], [1, 0], [1, 0]])
    np.testing.assert_allclose(compute_class_weights(labels, 2), [2 / 3, 4])


def test_loss_is_that_of_torch():
    logits, names = torch.randn(6, 3), ["a", "b", "c"]
    ids = torch.tensor([0, 0, 0, 1, 1, 2])
    loss = make_weighted_loss("balanced", "single_label_classification", ids, names)
    weights = torch.tensor(compute_class_weights(ids, 3), dtype=torch.float32)
    # The weights of all examples have the mean 1: the sum over the examples is that of torch's weighted mean.
    torch.testing.assert_close(loss({"logits": logits}, ids), F.cross_entropy(logits, ids, weight=weights))
    # An accumulated batch is divided by the examples of all of its parts.
    parts = sum(loss({"logits": logits[part]}, ids[part], num_items_in_batch=6) for part in (slice(4), slice(4, 6)))
    torch.testing.assert_close(parts, loss({"logits": logits}, ids))
    rows = F.one_hot(ids, 3)
    several = make_weighted_loss("balanced", "multi_label_classification", rows, names)
    positive = torch.tensor(compute_class_weights(rows, 3), dtype=torch.float32)
    expected = F.binary_cross_entropy_with_logits(logits, rows.float(), pos_weight=positive)
    torch.testing.assert_close(several({"logits": logits}, rows), expected)
    assert make_weighted_loss("none", "single_label_classification", ids, names) is None
    with pytest.raises(ValueError, match="needs labels that are classes, but the labels are numbers"):
        make_weighted_loss("balanced", "regression", ids, names)


def test_a_rare_label_is_found(tmp_path, monkeypatch, caplog):
    """One text in sixteen has the rare label, and one of its two marks occurs in as many other texts."""
    rng = random.Random(0)

    def make_rows(count):
        rows = []
        for number in range(count):
            is_rare = number % 16 == 0
            mark = "word0" if is_rare or number % 16 < 3 else "word1"
            rows.append({"text": " ".join([mark, *rng.choices(WORDS[2:], k=4)]), "label": "rare" if is_rare else "no"})
        return rows

    files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", make_rows(128)) for split in ("train", "test")}
    encoder = save_tiny_bert(tmp_path / "encoder", [" ".join(WORDS)])
    options = {"model_name_or_path": encoder, "do_train": True, "do_predict": True, "max_seq_length": 16, **files}
    options |= {"num_train_epochs": 6, "per_device_train_batch_size": 16, "learning_rate": 3e-3, "warmup_steps": 0}
    recall = {}
    for weights in ("none", "balanced"):
        with caplog.at_level(logging.INFO, logger="hf_domain"):
            run_script(run_classification.main, monkeypatch, tmp_path / weights, **options, class_weights=weights)
        lines = (tmp_path / weights / "predict_results.txt").read_text().splitlines()[1:]
        recall[weights] = sum(line.endswith("rare") for line in lines[::16]) / 8
    assert recall == {"none": 0, "balanced": 1}
    assert "Class weights: no 0.533, rare 8" in caplog.text
