"""The heads that all methods share: their losses, and the dropout of a classifier."""

import pytest
import torch
from tiny_models import FAMILIES, make_config
from torch.nn import functional as F

from hf_domain import VarMAEConfig, VarMAEForSequenceClassification
from hf_domain.modeling import heads


def test_masked_lm_loss_counts_each_label_once(monkeypatch):
    decoder = torch.nn.Linear(8, 50)
    hidden_states = torch.randn(3, 40, 8, requires_grad=True)
    labels = torch.randint(0, 50, (3, 40)).masked_fill(torch.rand(3, 40) < 0.5, -100)
    expected = F.cross_entropy(decoder(hidden_states).view(-1, 50), labels.view(-1))
    (gradient,) = torch.autograd.grad(expected, hidden_states)

    loss = heads.compute_masked_lm_loss(decoder, hidden_states, labels)
    torch.testing.assert_close(loss, expected)
    monkeypatch.setattr(heads, "DIRECT_ROWS", 4)
    monkeypatch.setattr(heads, "CHUNK_ROWS", 7)
    chunked = heads.compute_masked_lm_loss(decoder, hidden_states, labels)
    torch.testing.assert_close(chunked, expected)
    torch.testing.assert_close(torch.autograd.grad(chunked, hidden_states)[0], gradient)
    window = 2 * int((labels != -100).sum())
    torch.testing.assert_close(heads.compute_masked_lm_loss(decoder, hidden_states, labels, window), expected / 2)


def test_masked_lm_loss_of_nothing_is_zero():
    decoder = torch.nn.Linear(8, 50)
    loss = heads.compute_masked_lm_loss(decoder, torch.randn(2, 3, 8), torch.full((2, 3), -100))
    assert loss == 0


@pytest.mark.parametrize(
    ("num_labels", "labels", "problem_type"),
    [
        (3, torch.tensor([0, 2, 1]), "single_label_classification"),
        (1, torch.tensor([0.5, -1.0, 2.0]), "regression"),
        (2, torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 0.0]]), "multi_label_classification"),
    ],
)
def test_classification_loss(num_labels, labels, problem_type):
    config = VarMAEConfig(num_labels=num_labels)
    logits = torch.randn(3, num_labels)
    expected = {
        "single_label_classification": lambda: F.cross_entropy(logits, labels),
        "regression": lambda: F.mse_loss(logits.squeeze(), labels),
        "multi_label_classification": lambda: F.binary_cross_entropy_with_logits(logits, labels),
    }[problem_type]()
    torch.testing.assert_close(heads.compute_classification_loss(logits, labels, config), expected)
    assert config.problem_type == problem_type
    halved = heads.compute_classification_loss(logits, labels, config, 2 * labels.numel())
    torch.testing.assert_close(halved, expected / 2)


@pytest.mark.parametrize("family", FAMILIES)
def test_classifier_takes_the_encoders_dropout(family):
    config = VarMAEConfig(backbone_config=make_config(family, dropout=0.3))
    assert heads.get_classifier_dropout(config) == 0.3
    config.classifier_dropout = 0.0
    assert VarMAEForSequenceClassification(config).classifier.dropout.p == 0.0


@pytest.mark.parametrize(("option", "expected"), [(None, 0.3), (0.01, 0.01)])
def test_new_head_begins_like_that_of_the_encoder(option, expected):
    backbone = make_config("bert")
    backbone.initializer_range = 0.3
    config = VarMAEConfig(backbone_config=backbone, num_labels=200, initializer_range=option)
    assert config.initializer_range == expected
    weight = VarMAEForSequenceClassification(config).classifier.out_proj.weight
    assert weight.std().item() == pytest.approx(expected, rel=0.1)
    assert VarMAEConfig(**config.to_dict()).initializer_range == expected
