import pytest
import torch
from peft.tuners.lora import Linear
from tiny_models import make_masked_lm

from hf_domain.methods.lora import LowRankLinear, add_lora
from hf_domain.methods.stock_models import decode_labeled_rows_only


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_layer_computes_what_pefts_layer_computes(dtype):
    """The weights of a bfloat16 model are of two types, which peft casts; autocast casts those of a float32 model."""
    model = add_lora(decode_labeled_rows_only(make_masked_lm("bert").to(dtype)), rank=4)
    layers = [module for module in model.modules() if isinstance(module, LowRankLinear)]
    assert len(layers) == 13  # six of each layer, and one of the LM head
    layer, states = layers[0], torch.randn(2, 5, 32, dtype=dtype)
    torch.nn.init.normal_(layer.lora_B["default"].weight)
    torch.testing.assert_close(layer(states), Linear.forward(layer, states))
    assert layer(states[0, :0]).shape == (0, 32)  # no row is masked
    change = layer.lora_B["default"].weight @ layer.lora_A["default"].weight  # times alpha over rank: 2
    expected = layer.base_layer(states).float() + states.float() @ (2 * change).T
    torch.testing.assert_close(
        layer(states).float(), expected, rtol=1e-2, atol=5e-2 if dtype != torch.float32 else 1e-5
    )
    with torch.autocast("cpu", torch.bfloat16):
        mixed = layer(states)
    assert mixed.dtype == torch.bfloat16
    torch.testing.assert_close(mixed.float(), expected, rtol=3e-2, atol=0.2)
