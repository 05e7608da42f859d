"""Continued pre-training with LoRA, the usual inexpensive way; peft does the work."""

import re
from pathlib import Path
from typing import Any

from peft import LoraConfig, PeftModel, get_peft_model
from transformers import PreTrainedModel

from hf_domain.files import write_folder
from hf_domain.lora_targets import SECOND_ENCODERS
from hf_domain.modeling.backbone import get_module_name
from hf_domain.tokenization import VocabularyDelta


def add_lora(model: PreTrainedModel, delta: VocabularyDelta | None = None, rank: int = 16) -> PeftModel:
    """Freeze a model, and train low-rank changes of its linear layers and the embedding rows of new tokens.

    Args:
        model: Must already have the rows of new tokens.
        delta: Delta of an expanded vocabulary. Its rows are trained in full, because a low-rank change of the table
            cannot move each new row on its own.
        rank: Rank of the changes. Our choice is 16, with alpha twice as large, as in peft's examples.

    Returns:
        The model to train; `merge_lora` turns it into an ordinary model.
    """
    tokens = None
    if delta is not None:
        tokens = {get_module_name(model, model.get_input_embeddings()): list(range(delta.old_size, delta.new_size))}
    has_second_encoder = any(re.fullmatch(SECOND_ENCODERS, name) for name, _ in model.named_modules())
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank,
        lora_dropout=0.05,
        target_modules="all-linear",
        exclude_modules=SECOND_ENCODERS if has_second_encoder else None,
        trainable_token_indices=tokens,
    )
    adapted: Any = get_peft_model(model, config)
    return adapted


def merge_lora(model: PeftModel, output_dir: str | Path) -> PreTrainedModel:
    """Merge the changes of `add_lora` into the weights, save the ordinary model over the adapter, and return it."""
    merged: Any = model.merge_and_unload()
    # Also replace the card: Trainer reads from it that the folder contains an adapter.
    with write_folder(output_dir, replaced=("adapter_*", "README.md")) as folder:
        merged.save_pretrained(folder)
    return merged
