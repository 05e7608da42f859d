import pytest
import torch
from peft.tuners.lora import Linear
from tiny_models import VOCAB_SIZE, make_batch, make_masked_lm

from hf_domain.methods.lora import LowRankLinear, add_lora
from hf_domain.methods.stock_models import decode_labeled_rows_only
from hf_domain.tokenization import VocabularyDelta


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_layer_computes_what_pefts_layer_computes(dtype):
    """The weights of a bfloat16 model are of two types, which peft casts; autocast casts those of a float32 model."""
    model = add_lora(decode_labeled_rows_only(make_masked_lm("bert").to(dtype)), rank=4)
    layers = [module for module in model.modules() if isinstance(module, LowRankLinear)]
    assert len(layers) == 13  # six of each layer, and one of the LM head
    layer, states = layers[0], torch.randn(2, 5, 32, dtype=dtype)
    torch.nn.init.normal_(layer.lora_B["default"].weight)
    torch.manual_seed(0)
    output = layer(states)
    torch.manual_seed(0)
    torch.testing.assert_close(output, Linear.forward(layer, states))
    layer.eval()
    change = layer.lora_B["default"].weight @ layer.lora_A["default"].weight  # times alpha over rank: 2
    expected = layer.base_layer(states).float() + states.float() @ (2 * change).T
    torch.testing.assert_close(
        layer(states).float(), expected, rtol=1e-2, atol=5e-2 if dtype != torch.float32 else 1e-5
    )
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer(states)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.float(), expected, rtol=3e-2, atol=0.2)


def test_without_its_adapter_a_model_is_as_it_was():
    stock = make_masked_lm("bert")
    batch = make_batch(masked=False)
    expected = stock(**batch).logits.detach()
    model = add_lora(stock).eval()
    torch.testing.assert_close(model(**batch).logits, expected)
    for module in model.modules():
        if isinstance(module, LowRankLinear):
            torch.nn.init.normal_(module.lora_B["default"].weight)
    assert not torch.allclose(model(**batch).logits, expected, atol=1e-2)
    with model.disable_adapter():
        torch.testing.assert_close(model(**batch).logits, expected)
    trained = model(**batch).logits
    torch.testing.assert_close(model.merge_and_unload()(**batch).logits, trained, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("tied", [True, False])
def test_new_rows_of_both_tables_train(tied):
    stock = make_masked_lm("bert", tie_word_embeddings=tied)
    batch = make_batch()
    expected = stock(**batch).logits.detach()
    delta = VocabularyDelta(VOCAB_SIZE - 3, {"a": [5], "b": [6], "c": [7]})
    model = add_lora(stock, delta)
    rows = [each for name, each in model.named_parameters() if "trainable_tokens_delta" in name and each.requires_grad]
    assert [tuple(each.shape) for each in rows] == [(3, 32)] * (1 if tied else 2)
    with torch.no_grad():
        for each in rows:
            each.add_(1.0)
    changed = (model.eval()(**batch).logits - expected).abs().amax((0, 1)) > 0.1
    assert changed[-3:].all() and not changed[:-3].all()
    with model.disable_adapter():
        torch.testing.assert_close(model(**batch).logits, expected)
