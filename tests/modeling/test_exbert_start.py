"""exBERT's recommended start: side modules cut from the layers they stand beside, and gates that start constant."""

import copy
import math

import pytest
import torch
from peft import get_peft_model
from tiny_models import VOCAB_SIZE, make_batch, make_masked_lm, reload

from hf_domain import ExBertForMaskedLM, ExBertForSequenceClassification
from hf_domain.methods import METHODS
from hf_domain.methods.exbert.adapter import ExBertAdapterConfig
from hf_domain.methods.exbert.convert import convert_to_adapter, convert_to_model
from hf_domain.modeling.layers_exbert import truncate_product

START = METHODS["exbert"].start
VOCABULARY = {VOCAB_SIZE + i: [i + 5, i + 20] for i in range(10)}
# Their layers have what cannot be cut: positions in the attention, and a gated feed-forward network.
UNLIKE = ("deberta-v2", "modernbert")


def make_exbert(family="bert", head=ExBertForMaskedLM, **options):
    stock = make_masked_lm(family)
    return stock, head.from_backbone(stock, **{**START, "extension_vocabulary": VOCABULARY, **options})


def compute_divergence(model, stock, batch):
    """KL of the predictions from those of the encoder, over the base vocabulary; its mean over real tokens, nats."""
    expected = stock(**batch).logits.log_softmax(-1)
    found = model(**batch).logits[..., :VOCAB_SIZE].log_softmax(-1)
    divergence = (expected.exp() * (expected - found)).sum(-1)
    return divergence[batch["attention_mask"].bool()].mean().item()


def test_predictions_begin_at_those_of_the_encoder(family):
    batch = make_batch(masked=False)
    stock, model = make_exbert(family)
    _, paper = make_exbert(family, side_init="normal", gate_bias_init=0.0)
    divergence = compute_divergence(model, stock, batch)
    assert divergence < 0.005
    assert divergence < compute_divergence(paper, stock, batch) / 10


@pytest.mark.parametrize("size", [100.0, 33.2])
def test_a_part_of_full_size_is_the_layer(family, size):
    """Gates closed to the base leave the side modules alone: a whole copy predicts the same, a third predicts better
    than drawn modules do."""
    batch = make_batch(masked=False)
    options = {"extension_size": size, "extension_vocabulary": None, "gate_bias_init": -30.0}
    stock, model = make_exbert(family, **options)
    _, drawn = make_exbert(family, side_init="normal", **options)
    divergence = compute_divergence(model, stock, batch)
    if size == 100.0 and family not in UNLIKE:
        assert divergence < 1e-5
    elif family != "modernbert":
        assert divergence < compute_divergence(drawn, stock, batch)


def test_module_wider_than_its_base_is_the_layer_too():
    batch = make_batch(masked=False)
    options = {"extension_hidden_size": 48, "extension_intermediate_size": 64, "extension_vocabulary": None}
    stock, model = make_exbert(**options, gate_bias_init=-30.0)
    assert compute_divergence(model, stock, batch) < 1e-5
    model.train()(**make_batch()).loss.backward()
    side = model.get_base_layers()[0].side
    # What is wider can still learn: either factor of a product with zeros has a gradient.
    assert side.attention_output.weight.grad.view(32, 4, 12)[..., 8:].any()
    assert side.output.weight.grad[:, 48:].any()


def test_gates_start_constant(family):
    _, model = make_exbert(family)
    for layer in model.get_base_layers():
        states = 20 * torch.randn(3, 5, 32)
        gate = layer.side.gate(states).sigmoid()
        torch.testing.assert_close(gate, torch.full_like(gate, 1 / (1 + math.exp(-3.0))))
    model.train()(**make_batch()).loss.backward()
    assert all(layer.side.gate.weight.grad.any() for layer in model.get_base_layers())


def test_nearest_product_of_a_rank():
    left, right = torch.randn(3, 20, 8), torch.randn(3, 8, 15)
    for rank in (3, 8, 12):
        own_left, own_right = truncate_product(left, right, rank)
        u, singular, vh = torch.linalg.svd(left @ right, full_matrices=False)
        singular[..., rank:] = 0
        torch.testing.assert_close(own_left @ own_right, (u * singular[..., None, :]) @ vh, rtol=1e-4, atol=1e-4)
        assert own_left.shape[-1] == own_right.shape[-2] == min(rank, 8)


def test_neurons_with_the_largest_weights_are_kept():
    stock = make_masked_lm("bert")
    layer = stock.base_model.encoder.layer[0]
    weights = torch.cat([layer.intermediate.dense.weight, layer.intermediate.dense.bias[:, None]], dim=1)
    strength = weights.square().sum(1).sqrt() * layer.output.dense.weight.square().sum(0).sqrt()
    best = sorted(range(48), key=lambda neuron: -strength[neuron])[:16]
    model = ExBertForMaskedLM.from_backbone(stock, side_init="base", extension_intermediate_size=16)
    side = model.get_base_layers()[0].side
    assert torch.equal(side.intermediate.weight, layer.intermediate.dense.weight[sorted(best)])
    scale = (strength.square().sum() / strength[best].square().sum()).sqrt()
    torch.testing.assert_close(side.output.weight, scale * layer.output.dense.weight[:, sorted(best)])
    assert torch.equal(side.output.bias, layer.output.dense.bias)
    assert torch.equal(side.output_norm.weight, layer.output.LayerNorm.weight)


def test_saved_and_loaded_and_read_by_task_heads(family, tmp_path):
    stock, model = make_exbert(family)
    loaded = reload(model, tmp_path)
    for name, value in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value), name
    classifier = ExBertForSequenceClassification.from_pretrained(tmp_path, num_labels=3).eval()
    batch = make_batch(masked=False)
    states = classifier.base_model(**batch).last_hidden_state
    assert torch.equal(states, model.eval().model(**batch).last_hidden_state)
    expected = stock.base_model(**batch).last_hidden_state
    real = batch["attention_mask"].bool()
    assert (states - expected)[real].norm() < 0.2 * expected[real].norm()


def test_adapter_is_cut_from_its_base():
    stock, model = make_exbert(extension_vocabulary=None)
    config = ExBertAdapterConfig(side_init="base", gate_bias_init=3.0)
    adapter = get_peft_model(copy.deepcopy(stock), config)
    batch = make_batch(masked=False)
    with torch.no_grad():
        expected = model.eval()(**batch).logits
        torch.testing.assert_close(adapter.eval()(**batch).logits, expected, rtol=1e-4, atol=1e-5)
        converted = convert_to_adapter(model, copy.deepcopy(stock)).eval()
        torch.testing.assert_close(converted(**batch).logits, expected, rtol=1e-4, atol=1e-5)
        back = convert_to_model(converted).eval()
        torch.testing.assert_close(back(**batch).logits, expected, rtol=1e-4, atol=1e-5)
    assert back.config.side_init == "base"


def test_drawn_side_modules_are_those_of_the_released_code():
    """Without asking for it nothing is cut: small normal weights, biases of zero, gates that depend on the token."""
    model = ExBertForMaskedLM.from_backbone(make_masked_lm("bert"))
    for layer in model.get_base_layers():
        for part in (layer.side.query_key_value, layer.side.attention_output, layer.side.output):
            assert 0.01 < part.weight.std() < 0.03 and not part.bias.any()
        assert layer.side.gate.weight.any() and layer.side.gate.bias == 0
    with pytest.raises(ValueError, match="side_init must be 'normal' or 'base', but is 'copy'"):
        ExBertForMaskedLM.from_backbone(make_masked_lm("bert"), side_init="copy")
