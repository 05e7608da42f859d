"""Start a new task head, stock or ours, from the states it reads instead of with a constant spread.

A constant fits only one encoder. The norm of the first token's state is 1.4 in the demo's encoder, 1.9 in MiniLM and
8 in the same MiniLM with rescaled states. A head whose outputs start near zero learns slowly.
"""

from collections.abc import Collection, Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_domain.modeling.backbone import BackbonePreTrainedModel, HeadLinear


def list_head_weights(model: PreTrainedModel) -> set[str]:
    """List the weights of linear layers that may belong to a head; for a stock model, all of them."""
    kind = HeadLinear if isinstance(model, BackbonePreTrainedModel) else nn.Linear
    return {f"{name}.weight" for name, module in model.named_modules() if isinstance(module, kind)}


def choose_start(model: PreTrainedModel, new_weights: Collection[str], spread: float | None) -> None:
    """Record the weights that `FineTuningTrainer` will start; the spread is saved with the model."""
    if spread is not None and not spread > 0:
        raise ValueError(
            f"--head_initializer_range must be above 0, but is {spread}. Leave the flag out for the default."
        )
    if spread is not None:
        setattr(model.config, "head_initializer_range", spread)  # noqa: B010  stock configurations lack the field
    setattr(model, "new_weights", frozenset(new_weights))  # noqa: B010  torch types attributes as tensors


@torch.no_grad()
def start_head(model: PreTrainedModel, new_weights: Collection[str], batch: Mapping[str, Any]) -> None:
    """Draw the weights of a new head, in place, and set its biases to 0.

    Each layer draws from N(0, `config.head_initializer_range`). If this field is None or absent, each layer gets the
    spread at which its outputs on `batch` have the standard deviation `HeadLinear.OUTPUT_SPREAD`. Layer-wise
    initialization does the same with all layers (Mishkin and Matas, ICLR 2016).

    Args:
        model: Any encoder with a task head.
        new_weights: Names of weights that are missing in the checkpoint (`missing_keys` of transformers' loading info).
        batch: Inputs of `model`, on its device; 8 texts are enough.
    """
    spread = getattr(model.config, "head_initializer_range", None)
    mask = batch.get("attention_mask")

    def draw(layer: Any, inputs: tuple[torch.Tensor, ...]) -> None:
        states = inputs[0]
        if mask is not None and states.shape[:-1] == mask.shape:
            states = states[mask.bool()]  # leave out the states of padding
        norm = states.float().norm(dim=-1).square().mean().sqrt().item()
        layer.weight.normal_(std=HeadLinear.OUTPUT_SPREAD / norm if spread is None else spread)
        if layer.bias is not None:
            layer.bias.zero_()

    layers = [model.get_submodule(name.removesuffix(".weight")) for name in new_weights if name.endswith(".weight")]
    hooks = [layer.register_forward_pre_hook(draw) for layer in layers if isinstance(layer, nn.Linear)]
    was_training = model.training
    try:
        model.eval()(**{name: value for name, value in batch.items() if name != "labels"})
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
