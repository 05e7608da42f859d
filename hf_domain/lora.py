"""Continued pre-training with LoRA, the cheap way that most people use today; peft does the work."""

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
    """Freeze a model and train a low-rank change of each of its linear layers, and the rows of new tokens.

    Args:
        model: With the new rows already, if there are any.
        delta: What an expanded vocabulary added; its rows are trained in full. A low-rank change of the table would
            not help them: a row that was made today has to move on its own.
        rank: Of the change. Our choice is 16, with twice that as alpha, as in peft's examples.

    Returns:
        The model to train; `merge_lora` makes an ordinary one of it.
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
    """Add the changes to the weights, and save the ordinary model where the adapter was saved.

    Args:
        model: Made by `add_lora`.

    Returns:
        The ordinary model.
    """
    merged: Any = model.merge_and_unload()
    # The card is replaced too: Trainer reads from it that the folder holds an adapter.
    with write_folder(output_dir, replaced=("adapter_*", "README.md")) as folder:
        merged.save_pretrained(folder)
    return merged
