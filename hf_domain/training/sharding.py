"""Train with FSDP: what accelerate and torch need to shard encoders with their masked-LM heads."""

from typing import Any

import torch
from peft import PeftModel
from transformers import Trainer


def prepare_sharding(trainer: Trainer) -> None:
    """Let accelerate shard any encoder with its masked-LM head; call before `trainer.train`.

    torch refuses a weight in two groups, and accelerate puts two weights there:

    - The table of the embeddings, which is that of the decoder as well: in transformers' list of what to keep together,
      the embeddings are a group. Here only the layers are.
    - The bias of BERT's and RoBERTa's decoder: the head holds it a second time, as it is saved, and never reads it.
      Here the second name is removed while accelerate shards.

    Raises:
        ValueError: The run trains an adapter, which needs whole weights in each process.
    """
    from torch.distributed.fsdp import FSDPModule  # slow, and only sharded runs need it

    if isinstance(trainer.model, PeftModel):
        raise ValueError(
            "an adapter (lora, exbert_adapter) needs whole weights in each process, but FSDP shards them. Train with "
            "torchrun or examples/accelerate/ddp.yaml."
        )
    model: Any = trainer.model
    kept = getattr(model, "_no_split_modules", None) or ()
    model._no_split_modules = [name for name in kept if not name.endswith("Embeddings")]
    heads: list[Any] = [module for module in model.modules() if holds_bias_of_decoder(module)]
    prepare, get_state_dict = trainer.accelerator.prepare, trainer.accelerator.get_state_dict

    def prepare_apart(*parts: Any, **options: Any) -> Any:
        if any(part is model for part in parts) and not isinstance(model, FSDPModule):
            copy_first(model, trainer.accelerator.device)
        for head in heads:
            del head.bias
        try:
            return prepare(*parts, **options)
        finally:
            for head in heads:
                head.bias = head.decoder.bias

    def get_tied_state(*parts: Any, **options: Any) -> dict[str, torch.Tensor]:
        state = get_state_dict(*parts, **options)
        # Gathered weights are copies, and both would be saved.
        for name, source in getattr(model, "all_tied_weights_keys", {}).items():
            if name in state and source in state:
                state[name] = state[source]
        return state

    trainer.accelerator.prepare = prepare_apart
    trainer.accelerator.get_state_dict = get_tied_state


def copy_first(model: torch.nn.Module, device: torch.device) -> None:
    """Give all processes the weights of the first, as DDP does: a new head may start otherwise in each."""
    for weight in (*model.parameters(), *model.buffers()):
        first = weight.detach().to(device)
        torch.distributed.broadcast(first, 0)
        weight.data.copy_(first)


def holds_bias_of_decoder(module: Any) -> bool:
    """Return whether a module has the bias of its decoder under a name of its own."""
    decoder, bias = getattr(module, "decoder", None), module._parameters.get("bias")
    return isinstance(decoder, torch.nn.Linear) and bias is not None and decoder.bias is bias
