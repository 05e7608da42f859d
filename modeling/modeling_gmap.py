"""G-MAP: a frozen general encoder as memory inside the domain encoder (Wan et al., EMNLP 2022).

The memory encoder reads the same text. Some layers of the domain encoder append its states, mapped by their own key and
value projections, to their keys and values.

Symbols of the paper, and what they are called here:

    theta_general, theta_domain   `memory` and `backbone`
    M = {M_1, ..., M_l}           the states of `GMapModel.encode_memory`, for the layers of `config.plan_memory`
    H^(i-1)                       the input of layer i of the domain encoder
    M~                            `Memory.states`, which the layer reads in addition
    g                             `LayerGate`, one for each layer that reads mixed states
    alpha_(t,l)                   its softmax over the memory's layers l, for each token t

Decided here for ModernBERT: its layers normalize before their projections, so they normalize the memory too. A memory
key is rotated by the position of its token, and a local layer sees it only within its window. A memory with its own
tokenizer is stretched to the length of the text. A ModernBERT that is the memory of another family passes its states
through its final norm, because they are sums that grow from layer to layer.
"""

import copy
import math
from inspect import signature
from typing import Any

import torch
from torch import nn
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import maybe_install_capturing_hooks

from .attention_gmap import (
    ATTENTION_FUNCTIONS,
    HeadGate,
    LayerGate,
    Memory,
    MemoryOutput,
    add_reader,
    check_attention,
    find_input_norm,
    find_self_attention,
    give_memories,
    mix_layers,
)
from .backbone import (
    build_backbone,
    find_encoder,
    find_layers,
    get_native_config,
    needs_gradient,
    normalizes_first,
    read_without_waiting,
)
from .configuration_gmap import BASELINES, GATED_STRATEGIES, GMapConfig
from .heads import (
    BackboneForMaskedLM,
    BackboneForMultipleChoice,
    BackboneForQuestionAnswering,
    BackboneForSequenceClassification,
    BackboneForTokenClassification,
    accept_inputs,
)
from .pretrained_gmap import GMapPreTrainedModel


class GMapModel(GMapPreTrainedModel):
    """The domain encoder, the memory encoder and the gates between them."""

    def __init__(self, config: GMapConfig):
        super().__init__(config)
        self.backbone = build_backbone(config.backbone_config)
        self.memory = build_backbone(config.memory_config)
        maybe_install_capturing_hooks(find_encoder(self.memory))  # now: the first call may be a compiled one
        self.plan = config.plan_memory()
        self.own_attentions: list[nn.Module] = []
        """Attention modules that read the memory by a hook; empty if they go through the attention interface."""
        if config.fusion is None:
            config.fusion = "memory" if find_encoder(self.backbone)._can_set_attn_implementation() else "cross"
        self.state_indices = sorted({state for _, states in self.plan for state in states})
        width, has_gates = config.memory_config.hidden_size, config.strategy in GATED_STRATEGIES
        self.memory_gates = nn.ModuleList([LayerGate(width) for _ in self.plan if has_gates])
        self.head_gates = nn.ModuleList(
            [HeadGate(config.num_attention_heads) for _ in self.plan if config.fusion == "gate"]
        )
        self.memory_outputs = nn.ModuleList(
            [MemoryOutput(config.hidden_size) for _ in self.plan if config.starts_as_encoder]
        )
        if config.memory_projection:
            self.memory_projection = nn.Linear(width, config.hidden_size)
        self.use_memory_attention()
        self.freeze_parameters()
        self.post_init()

    def use_memory_attention(self) -> None:
        """Let the chosen layers of the domain encoder read the memory."""
        if not self.plan:
            return
        encoder = find_encoder(self.backbone)
        layers = find_layers(encoder)
        if len(layers) < self.plan[-1][0]:
            raise ValueError(
                f"each layer of the domain encoder must have its own weights, but a {type(encoder).__name__} has one "
                "layer for several, which would read the memory of all. Use another family."
            )
        modules: list[Any] = [find_self_attention(layers[layer - 1]) for layer, _ in self.plan]
        if not encoder._can_set_attn_implementation():
            if self.config.fusion != "cross":
                raise ValueError(
                    f"fusion must be 'cross' for a {type(encoder).__name__}, whose attention is its own, but is "
                    f"{self.config.fusion!r}. Leave it out."
                )
            self.own_attentions = modules
            for module in modules:
                add_reader(module)
            return
        self.attention: Any = encoder.config._attn_implementation
        check_attention(self.attention)
        config = copy.deepcopy(encoder.config)
        config._attn_implementation = ATTENTION_FUNCTIONS[self.attention]
        for index, module in enumerate(modules):
            module.memory_index, module.memory_fusion, module.config = index, self.config.fusion, config

    def train(self, mode: bool = True) -> "GMapModel":
        """Switch the mode; a frozen memory stays in evaluation mode."""
        super().train(mode)
        if self.config.freeze_memory:
            self.memory.eval()
        return self

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        memory_input_ids: torch.Tensor | None = None,
        memory_attention_mask: torch.Tensor | None = None,
        memory_token_type_ids: torch.Tensor | None = None,
        memory_states: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        """Encode a batch.

        Args:
            input_ids: `[batch, length]`.
            attention_mask: `[batch, length]`, 0 at padding.
            token_type_ids: `[batch, length]`, for families that have them.
            position_ids: `[batch, length]`.
            inputs_embeds: `[batch, length, hidden_size]` instead of `input_ids`.
            memory_input_ids: `[batch, memory_length]`, the same text by the memory's tokenizer; None takes `input_ids`
                if the tokenizer is the same. In masked-LM training they must have the same words masked.
            memory_attention_mask: `[batch, memory_length]`, 0 at padding; None takes `attention_mask` if the tokenizer
                is the same, else ones. All zeros give the plain domain encoder.
            memory_token_type_ids: `[batch, memory_length]`.
            memory_states: `[batch, memory_length, states, memory's hidden_size]`, what `encode_memory` returned for
                this text. The memory encoder then does not run.
            kwargs: Passed to the domain encoder.

        Returns:
            The domain encoder's output. For a baseline `last_hidden_state` has the last states of both encoders side
            by side, `[batch, length, both widths]`.

        Raises:
            ValueError: The memory cannot read this text, or the domain encoder would not read the memory.
        """
        config: Any = self.config
        shared = memory_input_ids is None and memory_states is None
        if shared:
            if config.memory_tokenizer == "own" or input_ids is None:
                given = "a tokenizer of its own" if config.memory_tokenizer == "own" else "no input_ids"
                raise ValueError(
                    "memory_input_ids and memory_attention_mask must be given, because the memory encoder has "
                    f"{given}. Tokenize the text for it."
                )
            memory_input_ids, memory_token_type_ids = input_ids, token_type_ids
        if memory_attention_mask is None and (shared or config.memory_tokenizer == "same"):
            memory_attention_mask = attention_mask
        if memory_attention_mask is not None and memory_attention_mask.dim() != 2:
            raise ValueError(
                "memory_attention_mask must be [batch, memory_length], but is "
                f"{list(memory_attention_mask.shape)}. Pass it if attention_mask has another shape."
            )
        length = (memory_states if memory_input_ids is None else memory_input_ids).shape[1]  # type: ignore[union-attr]
        if memory_attention_mask is not None and memory_attention_mask.shape[1] != length:
            raise ValueError(
                f"memory_attention_mask must have the length of the memory's text, {length}, but has "
                f"{memory_attention_mask.shape[1]}. Pass it with memory_input_ids if attention_mask has another length."
            )
        known_ids = input_ids if memory_input_ids is None else memory_input_ids
        known_ids, memory_attention_mask = self.leave_out_added_tokens(known_ids, memory_attention_mask)
        if memory_states is None:
            positions = position_ids if shared else None
            memory_states = self.encode_memory(known_ids, memory_attention_mask, memory_token_type_ids, positions)
        elif not config.freeze_memory or needs_gradient(self.memory):
            raise ValueError(
                "memory_states must come from a frozen memory, but this memory is trained. Use freeze_memory=True, and "
                "exclude the memory from an adapter with exclude_modules."
            )
        self.check_memory_is_read(memory_states)
        texts = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        if self.plan:
            inputs: Any = input_ids if inputs_embeds is None else inputs_embeds
            memories = self.build_memories(memory_states, memory_attention_mask, inputs, attention_mask, position_ids)
            outputs: Any = self.encode_with_memories(memories, *texts, **kwargs)
        else:
            outputs = self.encode(*texts, **kwargs)
        last_hidden_state = outputs.last_hidden_state
        if not self.plan:
            last_hidden_state = torch.cat([last_hidden_state, memory_states[:, :, -1].to(last_hidden_state)], dim=-1)
        return BaseModelOutput(last_hidden_state, outputs.hidden_states, outputs.attentions)

    def encode_with_memories(self, memories: list[Memory] | None, *inputs: Any, **kwargs) -> BaseModelOutput:
        """Run the domain encoder, whose layers read the memories; `inputs` are those of `encode`."""
        if not self.own_attentions:
            return self.encode(*inputs, memories=memories, **kwargs)
        # Encoders answer this by a name that changes between versions of transformers.
        recomputes = any(getattr(each, "gradient_checkpointing", False) for each in self.backbone.modules())
        keeps = self.training and recomputes
        with give_memories(self.own_attentions, memories, self.config.num_attention_heads, keeps):
            return self.encode(*inputs, **kwargs)

    def leave_out_added_tokens(
        self, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Turn ids that the memory has no rows for into padding; `resize_token_embeddings` adds such ids.

        Args:
            input_ids: `[batch, memory_length]`.
            attention_mask: `[batch, memory_length]`, 0 at padding; None means no padding.

        Returns:
            Ids and mask, unchanged if both encoders know the same ids or the memory has its own tokenizer.
        """
        config: Any = self.config
        size = config.memory_config.vocab_size
        is_larger = config.vocab_size > size or hasattr(self.get_input_embeddings(), "extension")  # that of an exBERT
        if input_ids is None or config.memory_tokenizer == "own" or not is_larger:
            return input_ids, attention_mask
        known = input_ids < size
        mask = known.long() if attention_mask is None else attention_mask * known
        padding = getattr(get_native_config(config.memory_config), "pad_token_id", None) or 0
        return input_ids.masked_fill(~known, padding), mask

    def encode_memory(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run the memory encoder, without gradient if it is frozen.

        Args:
            input_ids: `[batch, memory_length]`, of the memory's tokenizer.
            attention_mask: `[batch, memory_length]`, 0 at padding.
            token_type_ids: `[batch, memory_length]`; ignored by families without them.
            position_ids: `[batch, memory_length]`; the same.

        Returns:
            `[batch, memory_length, states, hidden_size]`, the states that the strategy reads, in the order of
            `self.state_indices`; the last hidden state for a baseline.
        """
        input_ids, attention_mask = self.leave_out_added_tokens(input_ids, attention_mask)
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        for name, value in (("token_type_ids", token_type_ids), ("position_ids", position_ids)):
            if value is not None and name in signature(self.memory.forward).parameters:
                inputs[name] = value
        with torch.set_grad_enabled(torch.is_grad_enabled() and needs_gradient(self.memory)):
            if not self.plan:
                return self.memory(**inputs, return_dict=True).last_hidden_state.unsqueeze(2)
            states = self.memory(**inputs, output_hidden_states=True, return_dict=True).hidden_states
            encoder: Any = find_encoder(self.memory)
            if hasattr(encoder, "final_norm") and not hasattr(find_encoder(self.backbone), "final_norm"):
                states = (*map(encoder.final_norm, states[:-1]), states[-1])
            return torch.stack([states[state] for state in self.state_indices], dim=2)

    def check_memory_is_read(self, memory_states: torch.Tensor) -> None:
        """Raise unless the domain encoder's attention reads the memory and the states have the expected shape."""
        implementation = find_encoder(self.backbone).config._attn_implementation
        if self.plan and not self.own_attentions and implementation != self.attention:
            raise ValueError(
                f"the domain encoder must use {self.attention} attention to read its memory, but was switched to "
                f"{implementation}. Call set_attn_implementation of the {type(self).__name__} with sdpa or eager."
            )
        expected = (len(self.state_indices) or 1, self.config.memory_config.hidden_size)
        if memory_states.shape[2:] != expected:
            raise ValueError(
                f"memory_states must be [batch, memory_length, {expected[0]}, {expected[1]}] for the strategy "
                f"{self.config.strategy}, but are {list(memory_states.shape)}. Compute them with this model's "
                "encode_memory."
            )

    def build_memories(
        self,
        memory_states: torch.Tensor,
        memory_attention_mask: torch.Tensor | None,
        inputs: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
    ) -> list[Memory] | None:
        """Build the `Memory` of each layer that reads one.

        Args:
            memory_states: As `encode_memory` returns them.
            memory_attention_mask: `[batch, memory_length]`, or None.
            inputs: `[batch, length, ...]`, ids or embeddings of the domain encoder.
            attention_mask: `[batch, length]`, or None.
            position_ids: `[batch, length]`, or None.

        Returns:
            One `Memory` for each layer of the plan. None if the whole memory is masked and on the CPU, so that the
            domain encoder computes exactly what it computes alone.
        """
        mask = None if memory_attention_mask is None else memory_attention_mask.bool()
        values = None if mask is None else read_without_waiting(mask)
        if values is not None:
            if not values.any():
                return None
            mask = None if values.all() else mask
        padding = None if mask is None else mask[:, None, None, :]
        encoder: Any = find_encoder(self.backbone)
        layers: Any = find_layers(encoder)
        positions, norm_first = None, normalizes_first(encoder)
        if hasattr(encoder, "rotary_emb"):
            positions = self.place_memory(memory_states, mask, inputs, attention_mask, position_ids)
        memories = []
        for index, (layer, chosen) in enumerate(self.plan):
            start = self.state_indices.index(chosen[0])
            states = memory_states[:, :, start : start + len(chosen)].to(self.dtype)
            states = mix_layers(self.memory_gates[index], states) if len(self.memory_gates) else states.squeeze(2)
            if self.config.memory_projection:
                states = self.memory_projection(states)
            layer_mask, rotation, module = padding, None, layers[layer - 1]
            if (norm := find_input_norm(module, norm_first)) is not None:
                states = norm(states)
            if positions is not None:
                kind = getattr(module, "attention_type", None)
                rotation = encoder.rotary_emb(states, positions, *([] if kind is None else [kind]))
                if kind == "sliding_attention":
                    own = torch.arange(inputs.shape[1], device=inputs.device) if position_ids is None else position_ids
                    distance = (own.view(-1, inputs.shape[1], 1) - positions[:, None, :]).abs()
                    layer_mask = (distance <= encoder.config.sliding_window)[:, None]
                    layer_mask = layer_mask if padding is None else layer_mask & padding
            gate: Any = self.head_gates[index].weight if len(self.head_gates) else None
            output = self.memory_outputs[index] if len(self.memory_outputs) else None
            memories.append(Memory(states, layer_mask, rotation, gate, output))
        return memories

    def place_memory(
        self,
        memory_states: torch.Tensor,
        mask: torch.Tensor | None,
        inputs: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the positions of the memory's tokens in the domain encoder's sequence, `[batch, memory_length]`."""
        batch, memory_length = memory_states.shape[:2]
        device = memory_states.device
        if self.config.memory_tokenizer == "same":
            if position_ids is not None:
                return position_ids.expand(batch, -1)
            return torch.arange(memory_length, device=device).expand(batch, -1)
        domain = torch.ones(inputs.shape[:2], device=device) if attention_mask is None else attention_mask.float()
        memory = torch.ones(batch, memory_length, device=device) if mask is None else mask.float()
        first = domain.argmax(dim=1, keepdim=True)
        stretch = (domain.sum(1, keepdim=True) - 1) / (memory.sum(1, keepdim=True) - 1).clamp(min=1)
        return first + (memory.cumsum(dim=1) - 1) * stretch


# --------------------------------------------------------------------------------------------------- heads


class TwoHeads(nn.Module):
    """The task heads of a baseline (section 3.2): one on each encoder, with their outputs added.

    "logits_fusion" adds logits. "ensemble" averages probabilities and returns the logarithm of their mean (for
    multi-label problems, of the mean's odds), so that the usual loss applies to the mean.
    """

    def __init__(
        self,
        config: GMapConfig,
        domain_head: nn.Module,
        memory_head: nn.Module,
        choices_dim: int = -1,
        has_problem_type: bool = True,
    ):
        super().__init__()
        self.config = config
        self.choices_dim = choices_dim  # the softmax runs over labels, or over tokens in question answering
        # Only classification has one; a checkpoint of it may be loaded with another head.
        self.has_problem_type = has_problem_type
        self.domain_head = domain_head
        self.memory_head = memory_head

    def adds_values(self) -> bool:
        """Return whether the outputs are added as they are: for logits_fusion and for regression.

        A config with one label and no `problem_type` counts as regression, as in the loss.
        """
        problem = self.config.problem_type
        is_regression = problem == "regression" or (problem is None and self.config.num_labels == 1)
        return self.config.strategy == "logits_fusion" or (self.has_problem_type and is_regression)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Map the states of both encoders, `[batch, length, both widths]`, to the logits of the task.

        Args:
            hidden_states: The states of domain and memory encoder, side by side.
            attention_mask: `[batch, length]`, 0 at padding; only for probabilities over tokens.
        """
        config = self.config
        domain, memory = hidden_states.split([config.hidden_size, config.memory_config.hidden_size], dim=-1)
        logits = torch.stack([self.domain_head(domain), self.memory_head(memory)])
        if self.adds_values():
            return logits.sum(dim=0)
        if attention_mask is not None:
            # Leave padding out of each part's softmax; otherwise its share would distort the mean.
            logits = logits.float().masked_fill(attention_mask[..., None] == 0, torch.finfo(torch.float).min)
        if self.has_problem_type and config.problem_type == "multi_label_classification":
            probability = logits.float().sigmoid().mean(dim=0)
            return probability.logit(eps=1e-6)
        return logits.float().log_softmax(dim=self.choices_dim).logsumexp(dim=0) - math.log(2)


class GMapForMaskedLM(GMapPreTrainedModel, BackboneForMaskedLM):
    """Masked LM of the domain encoder, whose layers read the memory's states of the masked text (section 4.4)."""

    base_class = GMapModel
    forward = accept_inputs(BackboneForMaskedLM.forward, GMapModel.forward)

    def __init__(self, config: GMapConfig):
        if config.strategy in BASELINES:
            raise ValueError(
                f"the strategy of a masked LM must read the memory, but {config.strategy} is for task heads. Use "
                "chunk_gated."
            )
        super().__init__(config)
        self.post_init()


class GMapTaskHead(GMapPreTrainedModel):
    """A task head on the domain encoder; a baseline has one on each encoder."""

    base_class = GMapModel
    choices_dim = -1

    def build_head(self, hidden_size: int) -> nn.Module:
        """Build the head, or the two heads of a baseline."""
        config: Any = self.config
        build = super().build_head  # type: ignore[misc]
        if config.strategy not in BASELINES:
            return build(hidden_size)
        heads = build(hidden_size), build(config.memory_config.hidden_size)
        return TwoHeads(config, *heads, self.choices_dim, isinstance(self, BackboneForSequenceClassification))


class GMapForSequenceClassification(GMapTaskHead, BackboneForSequenceClassification):
    """Classification, multi-label classification or regression on the first token."""

    forward = accept_inputs(BackboneForSequenceClassification.forward, GMapModel.forward)


class GMapForTokenClassification(GMapTaskHead, BackboneForTokenClassification):
    """Token classification."""

    forward = accept_inputs(BackboneForTokenClassification.forward, GMapModel.forward)


class GMapForQuestionAnswering(GMapTaskHead, BackboneForQuestionAnswering):
    """Extractive question answering."""

    choices_dim = -2
    forward = accept_inputs(BackboneForQuestionAnswering.forward, GMapModel.forward)

    def score_tokens(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Return start and end scores; a baseline's softmax over tokens leaves padding out."""
        if self.config.strategy in BASELINES:
            return self.qa_outputs(hidden_states, attention_mask)
        return super().score_tokens(hidden_states, attention_mask)


class GMapForMultipleChoice(GMapTaskHead, BackboneForMultipleChoice):
    """Multiple choice by the first token."""

    choices_dim = -2
    forward = accept_inputs(BackboneForMultipleChoice.forward, GMapModel.forward)


GMapConfig.register_for_auto_class()
GMapModel.register_for_auto_class("AutoModel")
GMapForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
GMapForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
GMapForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
GMapForQuestionAnswering.register_for_auto_class("AutoModelForQuestionAnswering")
GMapForMultipleChoice.register_for_auto_class("AutoModelForMultipleChoice")
