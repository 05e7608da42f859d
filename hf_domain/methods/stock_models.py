"""Let stock models train under Trainer with an exact loss over accumulation, decoded at labeled positions only."""

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


def autocast_as_trained(training_args: TrainingArguments) -> torch.autocast:
    """Return a context with the precision that Trainer trains in, for states that are computed before training."""
    dtype = torch.float16 if training_args.fp16 else torch.bfloat16
    return torch.autocast(training_args.device.type, dtype, enabled=training_args.fp16 or training_args.bf16)


def check_tokenizer_fits(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Raise a ValueError unless every id of `tokenizer` has a row in the embedding tables of `model`."""
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model  # PeftModel's own config may be older
    rows = base.config.vocab_size  # an exBERT has two tables
    if len(tokenizer) > rows:
        raise ValueError(
            f"the embedding table must have a row for every entry of the tokenizer, but has {rows:,} rows for "
            f"{len(tokenizer):,} entries. Use the tokenizer that the model was trained with, or expand the model "
            "together with the tokenizer."
        )


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

    Args:
        model: A stock `...ForMaskedLM`. Our own models do this already and are returned unchanged.
    """
    if isinstance(model, BackbonePreTrainedModel):
        return model

    def forward_labeled_rows(
        self: Any, *args, labels: torch.Tensor | None = None, num_items_in_batch: NumItems = None, **kwargs
    ) -> MaskedLMOutput:
        if labels is None or not self.training:
            return type(self).forward(self, *args, labels=labels, **kwargs)
        kwargs["return_dict"] = True
        hidden_states = self.base_model(*args, **kwargs).last_hidden_state
        decode = partial(_decode, self)
        return MaskedLMOutput(loss=compute_masked_lm_loss(decode, hidden_states, labels, num_items_in_batch))

    # Trainer drops dataset columns that forward does not name, so keep the stock signature.
    forward_labeled_rows.__wrapped__ = type(model).forward  # type: ignore[attr-defined]
    # A bound method: a deep copy of the model binds it to the copy. A closure would keep running the original.
    model.forward = MethodType(forward_labeled_rows, model)
    setattr(model, "accepts_loss_kwargs", True)  # noqa: B010
    return model


def _decode(model: Any, hidden_states: torch.Tensor) -> torch.Tensor:
    """Map hidden states `[rows, hidden_size]` to logits by the head of a stock masked LM."""
    # A shallow copy for each call, so that a replaced decoder (after a resize, say) takes effect at once.
    head = object.__new__(type(model))  # the class of a sharded model would make another
    modules = {**model._modules, model.base_model_prefix: EncoderPassthrough()}
    head.__dict__ = {**model.__dict__, "_modules": modules}
    return type(model).forward(head, hidden_states).logits
