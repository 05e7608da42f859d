"""Let stock models train under Trainer with an exact loss over accumulation, decoded at labeled positions only."""

import logging
from functools import partial
from types import MethodType
from typing import Any

import torch
from peft import PeftModel
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)
from transformers.modeling_outputs import MaskedLMOutput

from hf_domain.modeling.backbone import BackbonePreTrainedModel
from hf_domain.modeling.heads import EncoderPassthrough, NumItems, compute_masked_lm_loss
from hf_domain.modeling.layers_exbert import LARGEST_PADDING

logger = logging.getLogger(__name__)

# Share of entries with capitals from which a tokenizer that lowercases is suspicious. Those of uncased encoders have
# none beside special tokens; a cased vocabulary has a third.
MOST_LOST = 0.01


def autocast_as_trained(training_args: TrainingArguments) -> torch.autocast:
    """Return a context with the precision that Trainer trains in, for states that are computed before training."""
    dtype = torch.float16 if training_args.fp16 else torch.bfloat16
    return torch.autocast(training_args.device.type, dtype, enabled=training_args.fp16 or training_args.bf16)


def match_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Check that a tokenizer and its model agree, and let the tokenizer leave out token types that the model lacks.

    A warning tells what looks wrong: capitals that the tokenizer never makes, or the table of another tokenizer.

    Args:
        tokenizer: `model_input_names` may change; it is saved with the change.

    Raises:
        ValueError: An id has no row in the embedding tables, or nothing pads a batch.
    """
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model  # PeftModel's own config may be older
    name, rows = tokenizer.name_or_path or "the tokenizer", base.config.vocab_size  # an exBERT has two tables
    if len(tokenizer) > rows:
        raise ValueError(
            f"the embedding table must have a row for every entry of the tokenizer, but has {rows:,} rows for "
            f"{len(tokenizer):,} entries. Use the tokenizer that the model was trained with, or expand the model "
            "together with the tokenizer."
        )
    if tokenizer.pad_token_id is None:
        raise ValueError(
            f"a tokenizer must have a padding token, but {name} has none. Set pad_token in its tokenizer_config.json."
        )
    if rows > len(tokenizer) + LARGEST_PADDING:
        logger.warning(
            f"The embedding table has {rows:,} rows for the {len(tokenizer):,} entries of {name}. Check that it is the "
            "model's own tokenizer."
        )
    if (lost := count_lost_capitals(tokenizer)) > MOST_LOST * len(tokenizer):
        logger.warning(
            f"{name} turns capitals into small letters, so that {lost:,} entries with capitals are never used. If the "
            'model tells them apart, write "do_lower_case": false into its tokenizer_config.json.'
        )
    if "token_type_ids" in tokenizer.model_input_names and getattr(base.config, "type_vocab_size", None) == 1:
        kept = [each for each in tokenizer.model_input_names if each != "token_type_ids"]
        tokenizer.model_input_names = tokenizer.init_kwargs["model_input_names"] = kept
        logger.info(f"{name} leaves out token types, because the model knows only one")


def count_lost_capitals(tokenizer: PreTrainedTokenizerBase) -> int:
    """Count the entries with capitals of a tokenizer that lowercases every text; 0 if it keeps capitals."""
    normalizer = getattr(getattr(tokenizer, "backend_tokenizer", None), "normalizer", None)
    if normalizer is None or normalizer.normalize_str("A") == "A":
        return 0
    added = {token.content for token in tokenizer.added_tokens_decoder.values()}
    entries = [entry for entry in tokenizer.get_vocab() if entry not in added]
    return sum(entry.lower() != entry for entry in entries if not entry.startswith("["))


def normalize_stock_loss(model: PreTrainedModel) -> PreTrainedModel:
    """Make Trainer divide the loss of a stock model by the accumulation steps.

    Most stock heads accept `num_items_in_batch` but ignore it. Trainer then does not divide, so that batch 2 x 4 trains
    with four times the loss and gradient of batch 8 x 1. Our own models are returned unchanged.
    """
    if not isinstance(model, BackbonePreTrainedModel):
        setattr(model, "accepts_loss_kwargs", False)  # noqa: B010  torch types attributes of a module as tensors
    return model


def decode_labeled_rows_only(model: PreTrainedModel) -> PreTrainedModel:
    """Make a stock masked LM project only labeled positions to the vocabulary while training.

    The loss is the same but takes less time and memory. It is also divided by `num_items_in_batch`, which stock heads
    ignore. In training with labels, the model then returns only the loss; evaluation is unchanged. Only the instance's
    `forward` is replaced, so the model saves and loads as before.

    A family whose head reads more than the encoder's states trains as it is, and projects all positions.

    Args:
        model: A stock `...ForMaskedLM`. Our own models do this already and are returned unchanged.
    """
    if isinstance(model, BackbonePreTrainedModel):
        return model
    is_plain = not _decodes(model)

    def forward_labeled_rows(
        self: Any,
        *args,
        labels: torch.Tensor | None = None,
        num_items_in_batch: NumItems = None,
        target_places: torch.Tensor | None = None,
        **kwargs,
    ) -> MaskedLMOutput:
        if labels is None or not self.training or is_plain:
            return type(self).forward(self, *args, labels=labels, **kwargs)
        kwargs["return_dict"] = True
        hidden_states = self.base_model(*args, **kwargs).last_hidden_state
        decode = partial(_decode, self)
        loss = compute_masked_lm_loss(decode, hidden_states, labels, num_items_in_batch, target_places)
        return MaskedLMOutput(loss=loss)

    # Trainer drops dataset columns that forward does not name, so keep the stock signature.
    forward_labeled_rows.__wrapped__ = type(model).forward  # type: ignore[attr-defined]
    # A bound method: a deep copy of the model binds it to the copy. A closure would keep running the original.
    model.forward = MethodType(forward_labeled_rows, model)
    setattr(model, "accepts_loss_kwargs", not is_plain)  # noqa: B010
    return model


@torch.no_grad()
def _decodes(model: Any) -> bool:
    """Return whether the head of a stock masked LM reads hidden states alone."""
    states = torch.zeros(2, model.config.get_text_config().hidden_size, device=model.device, dtype=model.dtype)
    try:
        return _decode(model, states).dim() == 2
    except (AttributeError, LookupError, RuntimeError, TypeError):
        return False


def _decode(model: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Map hidden states `[rows, hidden_size]` to logits by the head of a stock masked LM."""
    # A shallow copy for each call, so that a replaced decoder (after a resize, say) takes effect at once.
    head = object.__new__(type(model))  # the class of a sharded model would make another
    modules = {**model._modules, model.base_model_prefix: EncoderPassthrough()}
    head.__dict__ = {**model.__dict__, "_modules": modules}
    return type(model).forward(head, hidden_states).logits
