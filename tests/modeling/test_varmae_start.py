"""VarMAE's recommended start: training begins at the masked loss of the encoder, and heads at its states."""

import copy

import pytest
import torch
from peft import LoraConfig, get_peft_model
from tiny_models import make_batch, make_masked_lm
from torch.nn import functional as F

from hf_domain import VarMAEForMaskedLM, VarMAEForSequenceClassification, VarMAEForTokenClassification
from hf_domain.methods import METHODS

START = METHODS["varmae"].start


def make_known_batches(encoder, count=10):
    """Batches whose labels the encoder knows: what it predicts itself, one token in a dozen apart."""
    batches = [make_batch(32) for _ in range(count)]
    for batch in batches:
        best = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits.argmax(-1)
        known = (batch["labels"] != -100) & (torch.rand(batch["labels"].shape) > 1 / 12)
        batch["labels"] = torch.where(known, best, batch["labels"])
    return batches


def make_calibrated(encoder, batches, **options):
    model = VarMAEForMaskedLM.from_backbone(encoder, **START | options)
    model.calibrate(batches)
    return model


@torch.no_grad()
def measure(model, batches):
    """Masked cross-entropy of a VarMAE in the mode it is in."""
    return torch.stack([model(**batch).masked_reconstruction_loss for batch in batches]).mean().item()


@torch.no_grad()
def measure_encoder(encoder, batches):
    losses = []
    for batch in batches:
        logits = encoder(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        losses.append(F.cross_entropy(logits[batch["labels"] != -100], batch["labels"][batch["labels"] != -100]))
    return torch.stack(losses).mean().item()


@pytest.mark.parametrize("freeze_backbone", [True, False])
def test_training_begins_at_the_loss_of_the_encoder(family, freeze_backbone):
    encoder = make_masked_lm(family, dropout=0.0)
    batches = make_known_batches(encoder)
    expected = measure_encoder(encoder, batches)
    calibrated = make_calibrated(encoder, batches, freeze_backbone=freeze_backbone)
    # Before the paper's start is measured: its first batches set its running statistics.
    paper = VarMAEForMaskedLM.from_backbone(encoder)
    assert measure(calibrated.train(), batches) == pytest.approx(expected, abs=0.2)
    assert measure(paper.train(), batches) > expected + 1


def test_predictions_are_those_of_the_encoder(family):
    encoder = make_masked_lm(family)
    model = make_calibrated(encoder, make_known_batches(encoder))
    assert not model.training
    batch = make_batch(masked=False)
    torch.testing.assert_close(model(**batch).logits, encoder(**batch).logits, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("head", [VarMAEForSequenceClassification, VarMAEForTokenClassification])
def test_task_heads_begin_at_the_states_of_the_encoder(family, head, tmp_path):
    encoder = make_masked_lm(family)
    batches = make_known_batches(encoder)
    make_calibrated(encoder, batches, unmasked_ratio=1.0).save_pretrained(tmp_path)
    model = head.from_pretrained(tmp_path, num_labels=3).eval()
    paper = head.from_pretrained(tmp_path, num_labels=3, normalized_states=True).eval()
    batch = make_batch(masked=False)
    states = encoder.base_model(**batch).last_hidden_state
    assert torch.equal(model.base_model(**batch).last_hidden_state, states)
    means = paper.base_model(**batch).last_hidden_state
    every = [
        encoder.base_model(b["input_ids"], b["attention_mask"]).last_hidden_state[b["attention_mask"].bool()]
        for b in batches
    ]
    # The paper's: scaled and shifted dimension by dimension, to the deviation that the KL asks for.
    network = paper.base_model.mean_network
    restored = (means - network.shift) / network.scale * (network.running_var + 1e-5).sqrt() + network.running_mean
    torch.testing.assert_close(restored, states, rtol=1e-3, atol=1e-3)
    center, deviation = torch.cat(every).mean(0), torch.cat(every).std(0)
    torch.testing.assert_close(network.running_mean, center, rtol=0, atol=0.15 * deviation.max().item())
    torch.testing.assert_close(network.running_var.sqrt(), deviation, rtol=0.2, atol=0.02)


def test_every_trained_weight_has_a_gradient(family, tmp_path):
    """One without a gradient stops training on several processes."""
    encoder = make_masked_lm(family)
    pretrained = make_calibrated(encoder, make_known_batches(encoder))
    pretrained.save_pretrained(tmp_path)
    batch = make_batch()
    classifier = VarMAEForSequenceClassification.from_pretrained(tmp_path, num_labels=3)
    texts = {key: batch[key] for key in ("input_ids", "attention_mask")} | {"labels": batch["labels"][:, 0] % 3}
    for model, inputs in ((pretrained, batch), (classifier, texts)):
        model.train()
        model(**inputs).loss.backward()
        assert not [name for name, weight in model.named_parameters() if weight.requires_grad and weight.grad is None]
    assert pretrained.model.mean_network.shift.grad.any()


def test_a_class_alone_builds_the_start_of_the_paper():
    """Nothing is set and nothing is measured: small normal weights, biases of zero, the head of the encoder."""
    encoder = make_masked_lm("bert")
    model = VarMAEForMaskedLM.from_backbone(encoder)
    for network in (model.masked_log_variance, model.unmasked_log_variance, model.model.mean_network.perceptron):
        for layer in (network.dense, network.out_proj):
            assert not layer.bias.any() and 0.015 < layer.weight.std() < 0.025
    assert not model.config.residual and model.model.mean_network.num_batches_tracked == 0
    for name, weight in model.lm_head.state_dict().items():
        assert torch.equal(weight, encoder.state_dict()[name])


def test_lora(tmp_path):
    encoder = make_masked_lm("bert", dropout=0.0)
    batches = make_known_batches(encoder)
    model = make_calibrated(encoder, batches)
    expected = measure(copy.deepcopy(model).train(), batches)
    adapted = get_peft_model(model, LoraConfig(r=4, target_modules="all-linear", modules_to_save=["mean_network"]))
    assert measure(adapted.train(), batches) == pytest.approx(expected, abs=0.1)
    optimizer = torch.optim.Adam([weight for weight in adapted.parameters() if weight.requires_grad], lr=1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        adapted(**batches[0]).loss.backward()
        optimizer.step()
    layer = "base_model.model.model.backbone.encoder.layer.0.attention.self.query.lora_B.default.weight"
    assert dict(adapted.named_parameters())[layer].any()
    batch = make_batch(masked=False)
    trained = adapted.eval()(**batch).logits
    torch.testing.assert_close(adapted.merge_and_unload()(**batch).logits, trained, rtol=1e-4, atol=1e-4)


def test_bias_less_head_takes_the_center_into_the_shift():
    encoder = make_masked_lm("modernbert")
    assert encoder.head.dense.bias is None
    model = make_calibrated(encoder, make_known_batches(encoder))
    network = model.model.mean_network
    expected = network.scale * network.running_mean / (network.running_var + 1e-5).sqrt()
    torch.testing.assert_close(network.shift, expected)
    assert not make_calibrated(make_masked_lm("bert"), [make_batch()]).model.mean_network.shift.any()


def test_what_cannot_be_calibrated():
    encoder = make_masked_lm("bert")
    batches = [make_batch()]
    for options in ({"residual": False}, {"batch_norm": False}):
        model = VarMAEForMaskedLM.from_backbone(encoder, **{**START, **options})
        with pytest.raises(ValueError, match="needs residual=True and batch_norm=True"):
            model.calibrate(batches)
    model = make_calibrated(encoder, batches)
    with pytest.raises(ValueError, match="statistics of 1 batches"):
        model.calibrate(batches)
    with pytest.raises(ValueError, match=r"log_variance_init must lie within .* but is -12.0"):
        VarMAEForMaskedLM.from_backbone(encoder, log_variance_init=-12.0)
