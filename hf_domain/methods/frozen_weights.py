"""Hold frozen weights in the type of mixed precision, which autocast would otherwise cast again in every step."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import Trainer


@contextmanager
def hold_frozen_weights(trainer: Trainer) -> Iterator[None]:
    """Hold the frozen linear layers of a trainer's model in bfloat16 if it trains with `bf16`.

    The products are the same, since autocast would cast the same weights. `state_dict`, and so every checkpoint, has
    the weights as they were loaded, and the model has them again afterwards. Tables of embeddings stay as they are:
    autocast does not cast them, and a saved config names the type of the first.
    """
    args, model = trainer.args, trainer.model
    assert model is not None
    if not args.bf16 or args.deepspeed or args.fsdp:
        yield
        return
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    held = {
        parameter: parameter.data.cpu()
        for module in model.modules()
        if isinstance(module, nn.Linear)
        for parameter in module.parameters(recurse=False)
        if not parameter.requires_grad and parameter.dtype == torch.float32 and id(parameter) not in tables
    }
    names = {name: held[each] for name, each in model.named_parameters(remove_duplicate=False) if each in held}

    def restore(module: nn.Module, state_dict: dict[str, Any], prefix: str, metadata: Any) -> None:
        state_dict.update({prefix + name: weights for name, weights in names.items() if prefix + name in state_dict})

    for parameter in held:
        parameter.data = parameter.data.to(torch.bfloat16)
    hook = model._register_state_dict_hook(restore)
    try:
        yield
    finally:
        hook.remove()
        for parameter, weights in held.items():
            parameter.data = weights.to(parameter.device)
