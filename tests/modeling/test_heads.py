"""The heads that all methods share: their losses, their start, and the dropout of a classifier."""

from types import SimpleNamespace

import pytest
import torch
from families import make_family
from tiny_models import FAMILIES, make_config
from torch.nn import functional as F

import hf_domain
from hf_domain import VarMAEConfig, VarMAEForSequenceClassification
from hf_domain.modeling import heads
from hf_domain.modeling.backbone import HeadLinear

METHODS = ["VarMAE", "ExBert", "GMap", "Rada"]


@pytest.mark.parametrize("kept_rows", [4, 1000])
def test_masked_lm_loss_counts_each_label_once(kept_rows, monkeypatch):
    decoder = torch.nn.Linear(8, 50)
    hidden_states = torch.randn(3, 40, 8, requires_grad=True)
    labels = torch.randint(0, 50, (3, 40)).masked_fill(torch.rand(3, 40) < 0.5, -100)
    expected = F.cross_entropy(decoder(hidden_states).view(-1, 50), labels.view(-1))
    (gradient,) = torch.autograd.grad(expected, hidden_states)

    loss = heads.compute_masked_lm_loss(decoder, hidden_states, labels)
    torch.testing.assert_close(loss, expected)
    monkeypatch.setattr(heads, "KEPT_ROWS", kept_rows)
    monkeypatch.setattr(heads, "CHUNK_ROWS", 7)
    chunked = heads.compute_masked_lm_loss(decoder, hidden_states, labels)
    torch.testing.assert_close(chunked, expected)
    torch.testing.assert_close(torch.autograd.grad(chunked, hidden_states)[0], gradient)
    window = 2 * int((labels != -100).sum())
    torch.testing.assert_close(heads.compute_masked_lm_loss(decoder, hidden_states, labels, window), expected / 2)


def test_pieces_are_as_large_as_memory_allows(monkeypatch):
    assert heads.choose_chunk(torch.device("cpu")) == (512, 2048)
    for gib, expected in ((80, (10240, 20480)), (1, (512, 1024))):
        device = SimpleNamespace(total_memory=gib * 2**30)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _, device=device: device)
        assert heads.choose_chunk(torch.device("cuda")) == expected


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


def test_classifier_reads_the_first_token():
    head, states = heads.ClassificationHead(VarMAEConfig(num_labels=3), 8).eval(), torch.randn(2, 5, 8)
    expected = torch.tanh(states[:, 0] @ head.dense.weight.T + head.dense.bias) @ head.out_proj.weight.T
    torch.testing.assert_close(head(states), expected + head.out_proj.bias)


def test_classifier_of_an_encoder_without_dropout_has_none():
    assert heads.get_classifier_dropout(VarMAEConfig(backbone_config=make_family("eurobert").config)) == 0.0


def build(method, head, encoder_range=0.3, **options):
    backbone = make_config("bert")
    backbone.initializer_range = encoder_range
    if method == "GMap":
        options["memory_config"] = make_config("bert")
    elif method == "ExBert":
        options["extension_vocab_size"] = 50
    config = getattr(hf_domain, f"{method}Config")(backbone_config=backbone, num_labels=200, **options)
    return getattr(hf_domain, f"{method}For{head}")(config)


@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification", "QuestionAnswering"])
@pytest.mark.parametrize("method", METHODS)
def test_spread_of_a_new_head(method, head):
    """It is chosen by itself, and by the width where nothing is chosen."""
    model = build(method, head)
    layers = [module for module in model.modules() if isinstance(module, HeadLinear)]
    assert layers
    for layer in layers:
        assert layer.weight.std().item() == pytest.approx(0.5 / 32**0.5, rel=0.25)  # of 64 numbers or more
        assert torch.all(layer.bias == 0)
    model = build(method, head, head_initializer_range=0.7)
    assert all(
        layer.weight.std().item() == pytest.approx(0.7, rel=0.25)
        for layer in model.modules()
        if isinstance(layer, HeadLinear)
    )
    assert model.config.to_dict()["head_initializer_range"] == 0.7
    assert type(model.config)(**model.config.to_dict()).head_initializer_range == 0.7


@pytest.mark.parametrize("method", METHODS)
def test_what_a_method_adds_does_not_read_the_spread_of_heads(method):
    def draw(**options):
        torch.manual_seed(0)
        model = build(method, "SequenceClassification", **options)
        added = ("mean_network", "extension", "side", "interface", "memory_projection", "gates")
        parameters = model.named_parameters()
        return {name: each for name, each in parameters if any(part in name for part in added)}

    expected = draw(encoder_range=0.02)
    assert expected
    for options in ({"encoder_range": 0.3}, {"encoder_range": 0.02, "head_initializer_range": 0.3}):
        for name, parameter in draw(**options).items():
            given, wanted = (each.std(correction=0) for each in (parameter, expected[name]))
            assert given.item() == pytest.approx(wanted.item(), rel=0.2, abs=0.005), name
