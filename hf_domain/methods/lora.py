"""Continued pre-training with LoRA, the usual inexpensive way; peft does the work."""

import re
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import Linear
from peft.tuners.trainable_tokens import TrainableTokensLayer
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from hf_domain.methods.lora_targets import SECOND_ENCODERS
from hf_domain.modeling.backbone import get_module_name
from hf_domain.safe_io import write_folder
from hf_domain.tokenization import VocabularyDelta


class DecoderTokens(TrainableTokensLayer):
    """Trains rows of a decoder, and keeps its bias. peft 0.21 leaves the bias out until the rows are merged."""

    def forward_adapters(self, x: torch.Tensor, active_adapters: list[str], *args, **kwargs) -> torch.Tensor:
        """Map `[..., in_features]` to logits."""
        if self.disable_adapters or self.merged or not active_adapters:
            return super().forward_adapters(x, active_adapters, *args, **kwargs)
        decoder: Any = self.get_base_layer()
        return F.linear(x, self.get_merged_weights(active_adapters), decoder.bias)


class LowRankLinear(Linear):
    """peft's layer in fewer operations: the change is added by one product, and nothing is cast.

    peft's own forward casts the input to the type of the change and the sum back, although autocast casts anyway.
    """

    def forward(self, x: torch.Tensor, *args, **kwargs) -> torch.Tensor:
        """Map `[..., in_features]` to `[..., out_features]`."""
        is_plain = not (self.disable_adapters or self.merged or args or kwargs) and len(self.active_adapters) == 1
        name = self.active_adapters[0] if is_plain else ""
        if not is_plain or not (x.dtype == self.lora_A[name].weight.dtype or torch.is_autocast_enabled(x.device.type)):
            return super().forward(x, *args, **kwargs)
        rows = x.reshape(-1, x.shape[-1])
        change = self.lora_A[name](self.lora_dropout[name](rows))
        up: Any = self.lora_B[name]
        output = self.base_layer(rows).addmm(change, up.weight.t(), alpha=self.scaling[name])
        return output.view(*x.shape[:-1], output.shape[-1])  # -1 is unknown where no row is masked


def add_lora(model: PreTrainedModel, delta: VocabularyDelta | None = None, rank: int = 16) -> PeftModel:
    """Freeze a model, and train low-rank changes of its linear layers and the embedding rows of new tokens.

    Args:
        model: Must already have the rows of new tokens.
        delta: Delta of an expanded vocabulary. Its rows are trained in full, those of an untied decoder too, because a
            low-rank change of the table cannot move each new row on its own.
        rank: Rank of the changes. Our choice is 16, with alpha twice as large, as in peft's examples. They have no
            dropout, by peft's default: 0.05 took a quarter of a step's time and changed no held-out loss.

    Returns:
        The model to train; `merge_lora` turns it into an ordinary model.
    """
    tokens = None
    if delta is not None:
        table, decoder = model.get_input_embeddings(), model.get_output_embeddings()
        is_untied = decoder is not None and decoder.weight is not table.weight
        tables = [table, decoder] if is_untied else [table]  # peft finds a tied decoder itself
        tokens = {get_module_name(model, each): list(range(delta.old_size, delta.new_size)) for each in tables}
    has_second_encoder = any(re.fullmatch(SECOND_ENCODERS, name) for name, _ in model.named_modules())
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        target_modules="all-linear",
        exclude_modules=SECOND_ENCODERS if has_second_encoder else None,
        trainable_token_indices=tokens,
    )
    adapted: Any = get_peft_model(model, config)
    for module in adapted.modules():
        if type(module) is Linear:
            module.__class__ = LowRankLinear
        if isinstance(module, TrainableTokensLayer) and isinstance(module.get_base_layer(), nn.Linear):
            module.__class__ = DecoderTokens
    return adapted


def merge_lora(model: PeftModel, output_dir: str | Path) -> PreTrainedModel:
    """Merge the changes of `add_lora` into the weights, save the ordinary model over the adapter, and return it."""
    merged: Any = model.merge_and_unload()
    # Also replace the card: Trainer reads from it that the folder contains an adapter.
    with write_folder(output_dir, replaced=("adapter_*", "README.md")) as folder:
        merged.save_pretrained(folder)
    return merged
