"""Run an encoder on rows that several texts share, without attention between them.

`remove_padding` packs the texts of a padded batch. `separate_documents` reads blocks that were packed before.

A padded batch has a row for each text, as long as the longest. Here the encoder reads fewer rows of that length: texts
are put into rows (first-fit decreasing), positions restart with every text, and a mask keeps each text to itself. The
states return to the padded batch, so heads, losses and collators are unchanged. Rows instead of one long row keep the
cost of attention below that of the padded batch: sdpa computes all pairs of a row.
"""

from functools import wraps
from types import MethodType
from typing import Any

import torch
from peft import PeftModel
from transformers import PreTrainedModel
from transformers.loss.loss_utils import ForQuestionAnsweringLoss
from transformers.masking_utils import (
    create_bidirectional_mask,
    create_bidirectional_sliding_window_mask,
    packed_sequence_mask_function,
)

from hf_domain.data.corpora import choose_rows
from hf_domain.methods import find_methods
from hf_domain.modeling.backbone import find_encoder


def remove_padding(model: Any) -> None:
    """Make the encoder of a model read its batches without padding.

    Only the instance's `forward` is replaced, so the model saves and loads as before. A call that asks for hidden
    states or attentions is padded. No answer to a question begins or ends at padding, whose states are 0 here.

    Raises:
        ValueError: The model cannot read packed texts.
    """
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    encoder = find_encoder(base)
    if type(base).__name__.endswith("ForQuestionAnswering"):
        base.register_forward_hook(_leave_out_padding, with_kwargs=True)
    remedy = "Leave --padding_free out; --train_sampling_strategy group_by_length reduces padding, too."
    check_packable(base, encoder, "--padding_free", ("sdpa", "eager"), remedy)
    # A bound method: a deep copy of the model binds it to the copy. A closure would keep running the original.
    encoder.forward = MethodType(_pack_around(encoder), encoder)


def separate_documents(model: Any) -> None:
    """Make the encoder of a model keep the documents of a packed example apart.

    No token attends to another document, and positions restart with each. `attention_mask` numbers the documents of an
    example from 1, and is 0 at padding; see `tokenize_corpus`. Only the instance's `forward` is replaced.

    Raises:
        ValueError: The model cannot read packed texts.
    """
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model
    encoder, name = find_encoder(base), "--document_boundaries"
    check_packable(base, encoder, name, ("sdpa", "eager", "flash_attention_2"), f"Leave {name} out.")
    encoder.forward = MethodType(wraps(type(encoder).forward)(_forward_separated), encoder)


def check_packable(
    model: PreTrainedModel, encoder: PreTrainedModel, flag: str, attentions: tuple[str, ...], remedy: str
) -> None:
    """Raise a ValueError unless a model can read packed texts.

    Args:
        flag: What asks for it, for errors.
        attentions: Implementations of attention that can.
        remedy: What to do instead.
    """
    config: Any = model.config
    while hasattr(config, "backbone_config"):
        if any(method.reads_memory or method.reads_passages for method in find_methods(config.model_type)):
            raise ValueError(
                f"{flag} needs a model that reads the texts alone, but {config.model_type} reads other states "
                f"beside each text. {remedy}"
            )
        config = config.backbone_config
    if (attention := encoder.config._attn_implementation) not in attentions:
        raise ValueError(
            f"{flag} needs the attention {' or '.join(attentions)}, but the model uses {attention}. {remedy}"
        )
    if not keeps_texts_apart(encoder):
        raise ValueError(
            f"{flag} needs an encoder that takes positions and a mask of any form, but a {config.model_type} does not. "
            f"{remedy}"
        )


@torch.no_grad()
def keeps_texts_apart(encoder: Any) -> bool:
    """Return whether an encoder gives two texts in a row the states that each has alone, as a few tokens show."""
    forward, was_training, attention = type(encoder).forward, encoder.training, encoder.config._attn_implementation
    ids = torch.arange(1, 8, device=encoder.device)[None] + (getattr(encoder.config, "pad_token_id", None) or 0)
    texts = torch.tensor([[1, 1, 1, 1, 2, 2, 2]], device=encoder.device)
    encoder.eval()
    try:
        encoder.config._attn_implementation = "sdpa" if attention == "flash_attention_2" else attention
        alone = [forward(encoder, each, attention_mask=torch.ones_like(each)) for each in ids.split((4, 3), dim=1)]
        expected = torch.cat([each.last_hidden_state for each in alone], dim=1)
        together = forward(encoder, ids, attention_mask=torch.ones_like(ids)).last_hidden_state
        packed = _forward_separated(encoder, ids, texts).last_hidden_state
    except Exception:  # each family has its own
        return False
    finally:
        encoder.config._attn_implementation = attention
        encoder.train(was_training)
    # What remains of the influence of the other text is rounding: at most 4e-6 in float32; a convolution leaves 5e-3.
    leak, influence = ((each - expected).abs().max() for each in (packed, together))
    return bool(leak <= torch.finfo(encoder.dtype).eps ** 0.5 * influence)


def make_masks(config: Any, texts: torch.Tensor, dtype: torch.dtype) -> Any:
    """Return the mask that keeps each text of a row to itself, in the form of the encoder's attention.

    Args:
        texts: `[rows, width]`, the number of the text at each place.
    """
    options = {
        "config": config,
        "inputs_embeds": torch.empty((*texts.shape, 0), dtype=dtype, device=texts.device),  # only read for its shape
        "attention_mask": None,
        "and_mask_function": packed_sequence_mask_function(texts),
    }
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()):
        return {
            "full_attention": create_bidirectional_mask(**options),
            "sliding_attention": create_bidirectional_sliding_window_mask(**options),
        }
    return create_bidirectional_mask(**options)


def _forward_separated(
    self: Any, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None, **kwargs: Any
) -> Any:
    """Run an encoder on rows whose documents `attention_mask` numbers."""
    forward = type(self).forward
    inputs = {**kwargs, "input_ids": input_ids, "attention_mask": attention_mask}
    if input_ids is None or attention_mask is None or attention_mask.dim() != 2:
        return forward(self, **inputs)
    place = torch.arange(input_ids.shape[1], device=input_ids.device).expand_as(input_ids)
    is_first = torch.ones_like(attention_mask, dtype=torch.bool)
    is_first[:, 1:] = attention_mask[:, 1:] != attention_mask[:, :-1]
    inputs["position_ids"] = place - torch.where(is_first, place, 0).cummax(1).values
    real = attention_mask > 0
    embeddings: Any = getattr(self, "embeddings", None)
    if hasattr(embeddings, "create_position_ids_from_input_ids"):  # RoBERTa's start behind the id of padding
        first = embeddings.padding_idx
        inputs["position_ids"] = torch.where(real, inputs["position_ids"] + first + 1, first)
    if self.config._attn_implementation != "flash_attention_2":
        return forward(self, **inputs | {"attention_mask": make_masks(self.config, attention_mask, self.dtype)})
    # Flash attention reads no mask, but one long row and where its documents begin.
    for name in ("input_ids", "position_ids", "token_type_ids"):
        if inputs.get(name) is not None:
            inputs[name] = inputs[name][real][None]
    bounds = torch.cat([is_first[real].nonzero().flatten(), real.sum()[None]]).to(torch.int32)
    longest = int(bounds.diff().max())
    inputs |= {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
    outputs = forward(self, **inputs | {"attention_mask": None})
    states = outputs.last_hidden_state
    rows = states.new_zeros((*input_ids.shape, states.shape[-1]))
    outputs.last_hidden_state = rows.masked_scatter(real[..., None], states)
    return outputs


def _leave_out_padding(model: Any, args: Any, kwargs: dict[str, Any], output: Any) -> Any:
    """Return the output of a model for questions whose logits and loss have no part in padding."""
    padding = kwargs["attention_mask"] == 0
    for name in ("start_logits", "end_logits"):
        output[name] = output[name].masked_fill(padding, torch.finfo(output[name].dtype).min)
    if output.loss is not None:
        positions = kwargs["start_positions"], kwargs["end_positions"]
        output.loss = ForQuestionAnsweringLoss(output.start_logits, output.end_logits, *positions)
    return output


def _asks_for_more(config: Any, kwargs: dict[str, Any]) -> bool:
    """Return whether a call sets positions itself, or wants more than the last states."""
    wants = any(kwargs.get(name) or getattr(config, name) for name in ("output_hidden_states", "output_attentions"))
    gives = any(kwargs.get(name) is not None for name in ("position_ids", "inputs_embeds"))
    return wants or gives or kwargs.get("return_dict") is False


def _pack_around(encoder: Any) -> Any:
    """Return the `forward` of the encoder's class between packing and unpacking."""
    unpack: Any = None

    def unpack_first(pooler: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
        return inputs if unpack is None else (unpack(inputs[0]), *inputs[1:])

    if getattr(encoder, "pooler", None) is not None:  # it reads the first state of each text, not of each row
        encoder.pooler.register_forward_pre_hook(unpack_first)

    @wraps(type(encoder).forward)
    def forward_packed(
        self: Any, input_ids: torch.Tensor | None = None, attention_mask: torch.Tensor | None = None, **kwargs: Any
    ) -> Any:
        nonlocal unpack
        inputs = {"input_ids": input_ids, "attention_mask": attention_mask, **kwargs}
        if input_ids is None or attention_mask is None or attention_mask.dim() != 2:
            return type(self).forward(self, **inputs)
        size, width = input_ids.shape
        rows, columns, count = choose_rows(attention_mask.sum(1).tolist(), width)
        if count == size or _asks_for_more(self.config, kwargs):  # no two texts fit into a row
            return type(self).forward(self, **inputs)
        real = attention_mask.bool()
        starts = torch.tensor([row * width + column for row, column in zip(rows, columns, strict=True)])
        places = (starts.to(real.device)[:, None] + real.cumsum(1) - 1)[real]

        def pack(values: torch.Tensor, filler: int) -> torch.Tensor:
            packed = values.new_full((count * width,), filler)
            return packed.index_copy(0, places, values[real]).view(count, width)

        def unpack_states(packed: torch.Tensor) -> torch.Tensor:
            states = packed.new_zeros((size * width, packed.shape[-1]))
            states = states.index_copy(0, real.flatten().nonzero().flatten(), packed.flatten(0, 1)[places])
            return states.view(size, width, -1)

        numbers = torch.arange(1, size + 1, device=real.device)[:, None].expand(size, width)
        inputs |= {
            "input_ids": pack(input_ids, self.config.pad_token_id or 0),
            "attention_mask": pack(numbers, 0),
        }
        if kwargs.get("token_type_ids") is not None:
            inputs["token_type_ids"] = pack(kwargs["token_type_ids"], 0)
        unpack = unpack_states
        try:
            outputs = _forward_separated(self, **inputs)
        finally:
            unpack = None
        outputs.last_hidden_state = unpack_states(outputs.last_hidden_state)
        return outputs

    return forward_packed
