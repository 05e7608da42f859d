"""The heads that all methods share: the family's own masked-LM head, and the task heads.

Every head holds its model as `model`, so that a repository saved with one head loads with any other.
"""

from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers.modeling_outputs import (
    BaseModelOutput,
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from .backbone import (
    BackbonePreTrainedModel,
    HeadLinear,
    get_module_name,
    get_native_config,
    load_matching_weights,
    read_without_waiting,
)

# Rows projected to the vocabulary at once: on a CPU, one block of 2,048 rows took a fifth to a half longer, perhaps for
# the new memory that it needs. Beyond KEPT_ROWS the logits are not kept but computed again in the backward pass, which
# takes a quarter of the memory (benchmarks/steps.py). A GPU would spend its time on starting such small pieces.
CHUNK_ROWS = 512
KEPT_ROWS = 2048
GIB_OF_A_ROW = 2**-11  # logits of some 50,000 entries and their gradients, in bfloat16 and float32

NumItems = torch.Tensor | int | None


def accept_inputs(forward: Callable, model_forward: Callable) -> Callable:
    """Return `forward` with the model's extra inputs in its signature.

    The head passes them on in `kwargs` anyway, but Trainer drops every dataset column that the signature does not name.

    Args:
        forward: The head's, such as `BackboneForMaskedLM.forward`.
        model_forward: The model's.
    """
    own = signature(forward)
    *named, others = own.parameters.values()
    further = [
        parameter.replace(kind=Parameter.KEYWORD_ONLY)
        for name, parameter in signature(model_forward).parameters.items()
        if name not in own.parameters
    ]

    @wraps(forward)
    def forward_with_inputs(self: Any, *args, **kwargs) -> Any:
        return forward(self, *args, **kwargs)

    forward_with_inputs.__signature__ = own.replace(parameters=[*named, *further, others])  # type: ignore[attr-defined]
    return forward_with_inputs


# -------------------------------------------------------------------------------------- masked-LM head


class PassedStates(BaseModelOutput):
    """The output of `EncoderPassthrough`; what a family returns beside the states is None."""

    def __getattr__(self, name: str) -> None:
        """Return None; Python calls this only for what the output does not have."""
        if name.startswith("__"):
            raise AttributeError(name)


class EncoderPassthrough(nn.Module):
    """Takes the place of the encoder in a stock masked LM and returns the hidden states it is given."""

    def forward(self, input_ids: torch.Tensor | None = None, *args, **kwargs) -> BaseModelOutput:
        """Return `input_ids`, which here are hidden states, as the encoder's output."""
        return PassedStates(last_hidden_state=input_ids)


def build_native_lm_head(config: PreTrainedConfig) -> PreTrainedModel:
    """Build the family's masked-LM head: the stock model with `EncoderPassthrough` as its encoder.

    Called with hidden states `[..., hidden_size]`, it returns a `MaskedLMOutput` with logits `[..., vocab_size]`. The
    family's transform, activation, normalization and biases are kept, so the logits equal the stock model's.

    Raises:
        ValueError: The family's head reads the encoder's embeddings itself (DeBERTa-v2 with `legacy=False`).
    """
    config = get_native_config(config)
    if config.model_type == "deberta-v2" and not getattr(config, "legacy", True):
        raise ValueError(
            "DeBERTa-v2 must have legacy=True, because with False the encoder contains the masked-LM head. Use another "
            "checkpoint."
        )

    head = AutoModelForMaskedLM.from_config(config, dtype=torch.get_default_dtype())
    prefix, decoder = head.base_model_prefix, head.get_output_embeddings()
    if decoder is None:
        raise ValueError(
            f"the masked-LM head must have a decoder, but that of a {type(head).__name__} has none. Use another family."
        )
    head.decoder_name = get_module_name(head, decoder)  # some families find it only beside their encoder
    setattr(head, prefix, EncoderPassthrough())
    inner = {
        target: source for target, source in head.all_tied_weights_keys.items() if not source.startswith(prefix + ".")
    }
    head._tied_weights_keys, head.all_tied_weights_keys = inner, dict(inner)
    return head


def find_places(chosen: torch.Tensor) -> torch.Tensor | None:
    """Return the places of the chosen positions among all, `[chosen positions]`; None if counting them would wait.

    Args:
        chosen: `[batch, length]`, bool.
    """
    values = read_without_waiting(chosen)
    return None if values is None else torch.from_numpy(np.flatnonzero(values))


def choose_chunk(device: torch.device) -> tuple[int, int]:
    """Return `CHUNK_ROWS` and `KEPT_ROWS` for a device: on a GPU, a sixteenth and an eighth of its memory."""
    if device.type != "cuda":
        return CHUNK_ROWS, KEPT_ROWS
    gib = torch.cuda.get_device_properties(device).total_memory / 2**30
    rows = max(CHUNK_ROWS, int(gib / 16 / GIB_OF_A_ROW) // 128 * 128)
    return rows, 2 * rows


def compute_vocabulary_losses(
    decode: Callable[[torch.Tensor], torch.Tensor], hidden_states: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    """Return the cross-entropy of each row without holding all logits at once.

    Args:
        decode: Maps `[rows, hidden_size]` to logits `[rows, vocab_size]`.
        hidden_states: `[rows, hidden_size]`.
        labels: `[rows]`, token ids; -100 where nothing is predicted.

    Returns:
        `[rows]`, nats, float32; 0 where nothing is predicted.
    """

    def compute(rows: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(decode(rows).float(), targets, reduction="none")

    chunk, kept = choose_chunk(hidden_states.device)
    chunks = zip(hidden_states.split(chunk), labels.split(chunk), strict=True)
    if torch.is_grad_enabled() and len(hidden_states) > kept:
        return torch.cat([checkpoint(compute, rows, targets, use_reentrant=False) for rows, targets in chunks])
    return torch.cat([compute(rows, targets) for rows, targets in chunks])


def compute_masked_lm_loss(
    decode: Callable[[torch.Tensor], torch.Tensor],
    hidden_states: torch.Tensor,
    labels: torch.Tensor,
    num_items_in_batch: NumItems = None,
    target_places: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the masked-LM loss; only labeled positions are projected to the vocabulary, if their places are known.

    Args:
        decode: Maps hidden states to logits.
        hidden_states: `[batch, length, hidden_size]`.
        labels: `[batch, length]`; -100 where nothing is predicted.
        num_items_in_batch: Labels in the whole accumulation window, as Trainer counts them; None counts this batch's.
        target_places: `[labels]`, the places of the labels in `labels.flatten()`, which our collators know before the
            batch goes to a GPU. None finds them on a CPU; on a GPU, where counting would wait, and in a compiled graph,
            all positions are then projected.

    Returns:
        The summed losses divided by `num_items_in_batch`, so that 8 x 1 and 2 x 4 accumulation agree.
    """
    labeled = labels != -100
    rows, targets = hidden_states.flatten(0, 1), labels.flatten()
    places = find_places(labeled) if target_places is None else target_places
    if places is not None:
        rows, targets = rows.index_select(0, places), targets.index_select(0, places)
    losses = compute_vocabulary_losses(decode, rows, targets)
    return losses.sum() / count_items(labeled.sum(), num_items_in_batch)


def count_items(local_count: torch.Tensor, num_items_in_batch: NumItems) -> torch.Tensor | int:
    """Return the divisor of a summed loss: Trainer's count if given, else this batch's.

    It is at least 1, so that a batch without labels has the loss 0 instead of 0 / 0.
    """
    count = local_count if num_items_in_batch is None else num_items_in_batch
    return count.clamp(min=1) if isinstance(count, torch.Tensor) else max(count, 1)


class BackboneForMaskedLM(BackbonePreTrainedModel):
    """A model of ours under its encoder's own masked-LM head.

    A labeled training batch returns no logits, because only the labeled rows are projected.
    """

    accepts_loss_kwargs = True

    def __init__(self, config: Any):
        super().__init__(config)
        if config.backbone_config.vocab_size != get_native_config(config).vocab_size:
            raise ValueError(
                "the backbone of a masked LM must not be an exBERT, because only ExBertForMaskedLM decodes its "
                "extension vocabulary. Use another backbone."
            )
        self.model = self.base_class(config)
        self.lm_head = build_native_lm_head(config)
        decoder = get_module_name(self, self.get_output_embeddings())
        embeddings = get_module_name(self, self.get_input_embeddings())
        self._tied_weights_keys = {f"{decoder}.weight": f"{embeddings}.weight"}

    def load_head(self, source: PreTrainedModel) -> None:
        """Copy the masked-LM head of `source`, a stock masked LM or one of ours.

        Raises:
            ValueError: `source` has no masked-LM head.
        """
        if source.get_output_embeddings() is None:
            raise ValueError(
                f"{type(self).__name__} needs a backbone with a masked-LM head, but it is a {type(source).__name__}. "
                "Pass the name of a checkpoint or an AutoModelForMaskedLM."
            )
        if isinstance(source, BackboneForMaskedLM):
            source.give_head_its_states(self.get_backbone())
            state_dict = source.lm_head.state_dict()
        else:
            encoder = source.base_model_prefix + "."
            state_dict = {key: value for key, value in source.state_dict().items() if not key.startswith(encoder)}
        load_matching_weights(self.lm_head, state_dict, "the masked-LM head", self.added_modules)

    def give_head_its_states(self, backbone: PreTrainedModel) -> None:
        """Let a copy of this model's base, under a copy of its LM head, return what the head reads.

        Nothing by default: the head reads the last hidden state.
        """

    def decode(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map hidden states `[..., hidden_size]` to logits `[..., vocab_size]`."""
        return self.lm_head(hidden_states, return_dict=True).logits

    def get_output_embeddings(self) -> nn.Module:
        """Return the decoder."""
        return self.lm_head.get_submodule(self.lm_head.decoder_name)

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the decoder."""
        self.lm_head.set_output_embeddings(new_embeddings)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: NumItems = None,
        target_places: torch.LongTensor | None = None,
        **kwargs,
    ) -> MaskedLMOutput:
        """Predict masked tokens.

        Args:
            input_ids: `[batch, length]`.
            attention_mask: `[batch, length]`, 0 at padding.
            token_type_ids: `[batch, length]`, for families that have them.
            position_ids: `[batch, length]`.
            inputs_embeds: `[batch, length, hidden_size]` instead of `input_ids`.
            labels: `[batch, length]`, -100 where nothing is predicted.
            num_items_in_batch: Labels in the accumulation window; Trainer passes it.
            target_places: See `compute_masked_lm_loss`.
            kwargs: Passed to the encoder.
        """
        kwargs["return_dict"] = True
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        hidden_states = outputs.last_hidden_state
        loss = None
        if labels is not None:
            loss = compute_masked_lm_loss(self.decode, hidden_states, labels, num_items_in_batch, target_places)
        logits = None if self.training and labels is not None else self.decode(hidden_states)
        return self.build_output(MaskedLMOutput, outputs, loss=loss, logits=logits)


# ------------------------------------------------------------------------------------------ task heads


class ClassificationHead(nn.Module):
    """RoBERTa's head on the first token: dense, tanh and output layer, with dropout before both layers.

    We use it for every family: all put a [CLS] or <s> first, and several have no pooler.
    """

    def __init__(self, config: Any, hidden_size: int, num_outputs: int | None = None):
        super().__init__()
        self.dense = HeadLinear(hidden_size, hidden_size)
        self.dropout = nn.Dropout(get_classifier_dropout(config))
        self.out_proj = HeadLinear(hidden_size, num_outputs or config.num_labels)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map `[..., length, hidden_size]` to logits `[..., num_outputs]`, by default `config.num_labels`."""
        first = self.dropout(hidden_states[..., 0, :])
        return self.out_proj(self.dropout(torch.tanh(self.dense(first))))


def get_classifier_dropout(config: PreTrainedConfig) -> float:
    """Return `classifier_dropout`, or the encoder's hidden dropout, which each family names differently."""
    if config.classifier_dropout is not None:
        return config.classifier_dropout
    native = get_native_config(config)
    for name in ("hidden_dropout_prob", "dropout", "mlp_dropout"):
        if hasattr(native, name):
            return getattr(native, name)
    return 0.0


def compute_classification_loss(
    logits: torch.Tensor, labels: torch.Tensor, config: PreTrainedConfig, num_items_in_batch: NumItems = None
) -> torch.Tensor:
    """Return the loss of a sequence classifier by `config.problem_type`.

    Args:
        logits: `[batch, num_labels]`.
        labels: `[batch]` class ids or values, or `[batch, num_labels]` of 0 and 1 or values.
        config: If its `problem_type` is None, `choose_problem_type` sets it.
        num_items_in_batch: Labels in the accumulation window; None counts this batch's.
    """
    choose_problem_type(config, labels)
    logits = logits.float()
    if config.problem_type == "single_label_classification":
        total = F.cross_entropy(logits, labels.view(-1), reduction="sum")
        count = (labels != -100).sum()
    else:
        labels = labels.view_as(logits).float()
        loss_function = F.mse_loss if config.problem_type == "regression" else F.binary_cross_entropy_with_logits
        total = loss_function(logits, labels, reduction="sum")
        count = torch.tensor(labels.numel(), device=labels.device)
    return total / count_items(count, num_items_in_batch)


def choose_problem_type(config: PreTrainedConfig, labels: torch.Tensor) -> None:
    """Set `config.problem_type`, if None, from `num_labels` and the type of the labels, as transformers does."""
    if config.problem_type is None:
        if config.num_labels == 1:
            config.problem_type = "regression"
        elif labels.dtype in (torch.long, torch.int):
            config.problem_type = "single_label_classification"
        else:
            config.problem_type = "multi_label_classification"


class BackboneForSequenceClassification(BackbonePreTrainedModel):
    """A model of ours with a classification or regression head on the first token."""

    accepts_loss_kwargs = True

    def __init__(self, config: Any):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = self.base_class(config)
        self.classifier = self.build_head(config.hidden_size)
        self.post_init()

    def build_head(self, hidden_size: int) -> nn.Module:
        """Build the layer that maps `[batch, length, hidden_size]` to logits `[batch, num_labels]`."""
        return ClassificationHead(self.config, hidden_size)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.Tensor | None = None,
        num_items_in_batch: NumItems = None,
        **kwargs,
    ) -> SequenceClassifierOutput:
        """Classify sequences or pairs; arguments as in `BackboneForMaskedLM.forward`.

        Args:
            labels: `[batch]` class ids or values, or `[batch, num_labels]`; see `compute_classification_loss`.
        """
        kwargs["return_dict"] = True
        if labels is not None:
            choose_problem_type(self.config, labels)  # first, because an ensemble's head reads it
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(outputs.last_hidden_state)
        loss = None
        if labels is not None:
            loss = compute_classification_loss(logits, labels, self.config, num_items_in_batch)
        return self.build_output(SequenceClassifierOutput, outputs, loss=loss, logits=logits)


class BackboneForTokenClassification(BackbonePreTrainedModel):
    """A model of ours with a linear layer on every token."""

    accepts_loss_kwargs = True

    def __init__(self, config: Any):
        super().__init__(config)
        self.num_labels = config.num_labels
        self.model = self.base_class(config)
        self.dropout = nn.Dropout(get_classifier_dropout(config))
        self.classifier = self.build_head(config.hidden_size)
        self.post_init()

    def build_head(self, hidden_size: int) -> nn.Module:
        """Build the layer that maps `[batch, length, hidden_size]` to logits `[batch, length, num_labels]`."""
        return HeadLinear(hidden_size, self.num_labels)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: NumItems = None,
        **kwargs,
    ) -> TokenClassifierOutput:
        """Classify tokens; arguments as in `BackboneForMaskedLM.forward`.

        Args:
            labels: `[batch, length]` class ids, -100 where a token has none.
        """
        kwargs["return_dict"] = True
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        logits = self.classifier(self.dropout(outputs.last_hidden_state))
        loss = None
        if labels is not None:
            total = F.cross_entropy(logits.float().flatten(0, 1), labels.flatten(), reduction="sum")
            loss = total / count_items((labels != -100).sum(), num_items_in_batch)
        return self.build_output(TokenClassifierOutput, outputs, loss=loss, logits=logits)


class BackboneForQuestionAnswering(BackbonePreTrainedModel):
    """A model of ours with start and end scores for every token."""

    def __init__(self, config: Any):
        super().__init__(config)
        self.model = self.base_class(config)
        self.qa_outputs = self.build_head(config.hidden_size)
        self.post_init()

    def build_head(self, hidden_size: int) -> nn.Module:
        """Build the layer that maps `[batch, length, hidden_size]` to start and end scores `[batch, length, 2]`."""
        return HeadLinear(hidden_size, 2)

    def score_tokens(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Return the start and end score of every token, `[batch, length, 2]`."""
        return self.qa_outputs(hidden_states)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        start_positions: torch.LongTensor | None = None,
        end_positions: torch.LongTensor | None = None,
        **kwargs,
    ) -> QuestionAnsweringModelOutput:
        """Find the answer's span; arguments as in `BackboneForMaskedLM.forward`.

        Args:
            start_positions: `[batch]`, index of the answer's first token; a position beyond the length is no label.
            end_positions: `[batch]`, index of its last token.
        """
        kwargs["return_dict"] = True
        outputs = self.model(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        start_logits, end_logits = self.score_tokens(outputs.last_hidden_state, attention_mask).unbind(-1)
        loss = None
        if start_positions is not None and end_positions is not None:
            loss = self.loss_function(start_logits, end_logits, start_positions, end_positions)
        logits = {"start_logits": start_logits, "end_logits": end_logits}
        return self.build_output(QuestionAnsweringModelOutput, outputs, loss=loss, **logits)


class BackboneForMultipleChoice(BackbonePreTrainedModel):
    """A model of ours that scores each choice by its first token, and the choices of an example against each other."""

    accepts_loss_kwargs = True

    def __init__(self, config: Any):
        super().__init__(config)
        self.model = self.base_class(config)
        self.classifier = self.build_head(config.hidden_size)
        self.post_init()

    def build_head(self, hidden_size: int) -> nn.Module:
        """Build the layer that maps `[batch, choices, length, hidden_size]` to scores `[batch, choices, 1]`."""
        return ClassificationHead(self.config, hidden_size, num_outputs=1)

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        num_items_in_batch: NumItems = None,
        **kwargs,
    ) -> MultipleChoiceModelOutput:
        """Choose between texts; arguments as in `BackboneForMaskedLM.forward`, with the choices as second dimension.

        Args:
            labels: `[batch]`, number of the right choice, -100 where an example has none.
        """
        kwargs["return_dict"] = True
        inputs = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        shape = (inputs_embeds if input_ids is None else input_ids).shape[:2]  # type: ignore[union-attr]

        def flatten(value: Any) -> Any:
            """Make each choice a row; further inputs without the two dimensions, such as shared passages, stay."""
            has_choices = isinstance(value, torch.Tensor) and value.dim() > 2 and value.shape[:2] == shape
            return value.flatten(0, 1) if has_choices else value

        outputs = self.model(*map(flatten, inputs), **{name: flatten(value) for name, value in kwargs.items()})
        logits = self.classifier(outputs.last_hidden_state.unflatten(0, shape)).squeeze(-1)
        loss = None
        if labels is not None:
            total = F.cross_entropy(logits.float(), labels, reduction="sum")
            loss = total / count_items((labels != -100).sum(), num_items_in_batch)
        return self.build_output(MultipleChoiceModelOutput, outputs, loss=loss, logits=logits)
