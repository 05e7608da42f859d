"""RADA: retrieval-augmented domain adaptation (Xu et al., RepL4NLP 2023).

The model gets passages that were retrieved for its input. An interface on top of the encoder chooses one of them,
weighs its words, and adds what it read to the state of every token of the input.

Symbols of the paper, and what they are called here (one head; d is its size):

    h_i^x, h_j^p            `hidden_states`, `passage_states`
    W^Q, W^K, W^V, W        `RetrievalInterface.query`, `.key`, `.value`, `.output`
    alpha_ij, alpha_j       scores of words: q_i . k_j / sqrt(d), and their mean over i; `word_scores`
    alpha^k                 the score of passage k, summed over its words and the heads; `logits`
    g, tau, beta^k          noise, `temperature`, `passage_weights`
    k-hat                   `selected_passages`
    alpha-tilde_j           `word_weights`, normalized within a passage (Eq. 12)
    h-hat                   `fused`, the same vector at every position (Eq. 13)
"""

from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import (
    MaskedLMOutput,
    MultipleChoiceModelOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)
from transformers.utils.generic import can_return_tuple

from .backbone import BackbonePreTrainedModel, build_backbone, list_auto_classes, needs_gradient
from .configuration_rada import RadaConfig
from .heads import (
    BackboneForMaskedLM,
    BackboneForMultipleChoice,
    BackboneForQuestionAnswering,
    BackboneForSequenceClassification,
    BackboneForTokenClassification,
    accept_inputs,
)
from .selection_rada import PassageReading, RadaModelOutput, RetrievalInterface, add_zero_gradients, average_states

# Passages encoded at once; a batch of 16 inputs with 10 passages each would otherwise be one of 160.
ENCODED_AT_ONCE = 64


class PassageStates(Protocol):
    """Encoded passages, read on demand; `hf_domain.methods.rada.states.PassageCache` is one."""

    def read_vectors(self, passage_ids: torch.Tensor) -> torch.Tensor:
        """Read the mean states of passages, `[...]` to `[..., hidden_size]`, float32."""

    def read_states(self, passage_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Read the states of passages, `[rows]` to `[rows, passage_length, hidden_size]`, and their mask."""


class RadaPreTrainedModel(BackbonePreTrainedModel):
    """Base of the RADA models."""

    config_class = RadaConfig
    auto_classes = list_auto_classes(RadaConfig)
    reading_output_class: type[PassageReading]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, RetrievalInterface):
            # Random weights would add noise to every state: at an `initializer_range` of 0.05, six tenths of the size
            # of a small encoder's first state.
            init.zeros_(module.output.weight)
            if module.scores in ("pooled", "logsumexp"):
                init.constant_(module.scale, module.query.in_features**0.5)
            if module.prior_scale_init is not None:
                init.constant_(module.prior_scale, module.prior_scale_init)

    @classmethod
    def from_backbone(cls, backbone: str | PreTrainedModel, **options: Any) -> Self:
        """Build a RADA around a pretrained encoder; arguments as in `BackbonePreTrainedModel.from_backbone`."""
        model = super().from_backbone(backbone, **options)
        rada: Any = model.base_model
        rada.copy_passage_encoder()
        return model

    @classmethod
    def from_pretrained(cls, *args, output_loading_info: bool = False, **kwargs) -> Any:
        """Load as transformers does; if a frozen passage encoder is not in the checkpoint, copy it from the encoder."""
        model, info = super().from_pretrained(*args, output_loading_info=True, **kwargs)
        missing = {key for key in info["missing_keys"] if "passage_backbone." in key}
        if missing:
            model.base_model.copy_passage_encoder()
            info["missing_keys"] = type(info["missing_keys"])(set(info["missing_keys"]) - missing)
        return (model, info) if output_loading_info else model

    def freeze_parameters(self) -> None:
        """Freeze the copy that encodes passages."""
        if self.config.passage_encoder == "frozen":
            self.base_model.passage_backbone.requires_grad_(False)

    def use_passage_cache(self, cache: PassageStates | None) -> None:
        """Read encoded passages by their ids, which batches then bring as `passage_ids`.

        Args:
            cache: Passages encoded by the present passage encoder; None removes the cache.
        """
        rada: Any = self.base_model
        rada.passage_cache = cache

    def build_output(self, output_class: Any, outputs: Any, **fields: Any) -> Any:
        """Return the output of a head, with what was read."""
        reading = {name: outputs[name] for name in PassageReading.__dataclass_fields__ if name in outputs}
        return super().build_output(self.reading_output_class, outputs, **fields, **reading)


class RadaModel(RadaPreTrainedModel):
    """An encoder and the interface that reads passages."""

    passage_cache: PassageStates | None = None

    def __init__(self, config: RadaConfig):
        super().__init__(config)
        self.backbone = build_backbone(config.backbone_config)
        if config.passage_encoder == "frozen":
            self.passage_backbone = build_backbone(config.backbone_config)
        self.interface = RetrievalInterface(
            config.hidden_size,
            config.num_heads or 1,
            config.scores,
            config.selection,
            config.temperature,
            config.final_temperature,
            config.final_noise,
            config.prior_scale_init,
        )
        self.freeze_parameters()
        self.post_init()

    def train(self, mode: bool = True) -> "RadaModel":
        """Switch the mode; a frozen passage encoder stays in evaluation mode."""
        super().train(mode)
        if self.config.passage_encoder == "frozen":
            self.passage_backbone.eval()
        return self

    def anneal(self, progress: float) -> None:
        """Set the temperature and the noise of the selection; `hf_domain.training.callbacks.Annealing` calls this.

        Args:
            progress: Share of the training that is done, from 0 to 1.
        """
        self.interface.anneal(progress)

    def follow_resized_table(self, table: Any, old_size: int) -> None:
        """Give a frozen passage encoder the new rows as they begin."""
        if self.config.passage_encoder == "frozen":
            frozen = self.passage_backbone.resize_token_embeddings(table.num_embeddings, mean_resizing=False)
            with torch.no_grad():
                frozen.weight[old_size:] = table.weight[old_size:]
            self.freeze_parameters()

    def copy_passage_encoder(self) -> None:
        """Copy the encoder's weights into the frozen passage encoder, if there is one."""
        if self.config.passage_encoder == "frozen":
            self.passage_backbone.load_state_dict(self.backbone.state_dict())

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        passage_input_ids: torch.LongTensor | None = None,
        passage_attention_mask: torch.Tensor | None = None,
        passage_index: torch.LongTensor | None = None,
        passage_states: torch.FloatTensor | None = None,
        passage_vectors: torch.FloatTensor | None = None,
        passage_ids: torch.LongTensor | None = None,
        passage_scores: torch.FloatTensor | None = None,
        **kwargs,
    ) -> RadaModelOutput:
        """Encode a batch and read a passage for each input. Without passages the output is the encoder's.

        Args:
            input_ids: `[batch, length]`.
            attention_mask: `[batch, length]`, 0 at padding.
            token_type_ids: `[batch, length]`, for families that have them.
            position_ids: `[batch, length]`.
            inputs_embeds: `[batch, length, hidden_size]` instead of `input_ids`.
            passage_input_ids: `[batch, passages, passage_length]`, or `[rows, passage_length]` with `passage_index`.
            passage_attention_mask: The same shape, 0 at padding; a passage of only padding counts as none.
            passage_index: `[batch, passages]`, the row of each passage; -1 for none. A passage that several inputs
                share is then encoded once.
            passage_states: Encoded passages instead of `passage_input_ids`, with `hidden_size` as last dimension.
            passage_vectors: Mean states of the passages, `[rows, hidden_size]` or `[batch, passages, hidden_size]`.
                With them, only the chosen passage is encoded in evaluation with pooled scores. Otherwise they have no
                use.
            passage_ids: `[batch, passages]`, the passages to read from the cache (see `use_passage_cache`) instead of
                all the above; -1 for none.
            passage_scores: `[batch, passages]`, the retrieval's, above 0; needed with `prior_scale_init`.
            kwargs: Passed to the encoder.

        Returns:
            `last_hidden_state` and what was read; `hidden_states` and `attentions` are the encoder's.

        Raises:
            ValueError: `passage_ids` without a cache, or with one that goes stale because the shared encoder trains; or
                passages of another shape.
        """
        outputs = self.encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        hidden_states: Any = outputs.last_hidden_state
        if passage_ids is not None:
            reading = self.read_cached_passages(hidden_states, attention_mask, passage_ids, passage_scores)
        elif passage_input_ids is not None or passage_states is not None:
            reading = self.read_passages(
                hidden_states,
                attention_mask,
                passage_input_ids,
                passage_attention_mask,
                passage_index,
                passage_states,
                passage_vectors,
                passage_scores,
            )
        else:
            reading = RadaModelOutput(last_hidden_state=hidden_states)
        if self.training:
            states: Any = reading.last_hidden_state
            reading["last_hidden_state"] = add_zero_gradients(states, self.interface)
        return RadaModelOutput(**reading, hidden_states=outputs.hidden_states, attentions=outputs.attentions)

    def encode_passages(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """Encode passages; gradients only with `passage_gradient`.

        Args:
            input_ids: `[rows, passage_length]`.
            attention_mask: `[rows, passage_length]`, 0 at padding.

        Returns:
            `[rows, passage_length, hidden_size]`.
        """
        encoder, is_trained = self.backbone, self.config.passage_gradient
        if self.config.passage_encoder == "frozen":
            encoder, is_trained = self.passage_backbone, needs_gradient(self.passage_backbone)
        # Let a row of only padding attend to its first token: some encoders would return NaN.
        first = torch.arange(input_ids.shape[1], device=input_ids.device) == 0
        mask = attention_mask.bool() | (first & ~attention_mask.bool().any(dim=1, keepdim=True))
        mask = mask.to(attention_mask.dtype)
        with torch.set_grad_enabled(torch.is_grad_enabled() and is_trained):
            return torch.cat(
                [
                    encoder(input_ids=ids, attention_mask=ids_mask, return_dict=True).last_hidden_state
                    for ids, ids_mask in zip(input_ids.split(ENCODED_AT_ONCE), mask.split(ENCODED_AT_ONCE), strict=True)
                ]
            )

    @property
    def chooses_first(self) -> bool:
        """Whether to choose a passage by the mean states of all, and only then read its own states."""
        return not self.training and self.config.scores == "pooled" and self.config.selection != "all"

    def read_passages(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        input_ids: torch.Tensor | None,
        mask: torch.Tensor | None,
        index: torch.Tensor | None,
        states: torch.Tensor | None,
        vectors: torch.Tensor | None,
        scores: torch.Tensor | None,
    ) -> RadaModelOutput:
        """Read the passages of a batch; arguments as in `forward`."""
        shape = input_ids.shape if states is None else states.shape[:-1]  # type: ignore[union-attr]
        if len(shape) != (3 if index is None else 2) or (mask is not None and mask.shape != shape):
            raise ValueError(
                "passages must be [batch, passages, passage_length], or [rows, passage_length] with passage_index, and "
                f"passage_attention_mask of their shape, but they are {list(shape)} with "
                f"{'no' if index is None else 'a'} passage_index, and the mask is "
                f"{None if mask is None else list(mask.shape)}. Make batches with DataCollatorWithPassages."
            )
        device = hidden_states.device
        mask = torch.ones(shape, dtype=torch.long, device=device) if mask is None else mask
        if index is None:
            index = torch.arange(shape[0] * shape[1], device=device).view(shape[:2])
            mask = mask.flatten(0, 1)
            input_ids = None if input_ids is None else input_ids.flatten(0, 1)
            states = None if states is None else states.flatten(0, 1)
        if not index.shape[1] or not mask.numel():
            return RadaModelOutput(last_hidden_state=hidden_states)
        rows = index.clamp(min=0)
        available = (index >= 0) & mask.bool().any(dim=-1)[rows]
        if states is None and not (self.chooses_first and vectors is not None):
            states = self.encode_passages(input_ids, mask)  # type: ignore[arg-type]
        if not self.chooses_first:
            return self.interface(hidden_states, states, attention_mask, mask, index, scores)
        if vectors is None:
            vectors = average_states(states, mask.bool())  # type: ignore[arg-type]
        vectors = vectors[rows] if vectors.dim() == 2 else vectors
        selected, weights = self.interface.select(hidden_states, vectors, available, attention_mask, scores)
        chosen = rows.gather(1, selected.unsqueeze(1)).squeeze(1)
        chosen_mask = mask[chosen] * available.any(dim=1, keepdim=True)
        states = self.encode_passages(input_ids[chosen], mask[chosen]) if states is None else states[chosen]  # type: ignore[index]
        return self.read_chosen(hidden_states, attention_mask, states, chosen_mask, selected, weights)

    def read_cached_passages(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        passage_ids: torch.Tensor,
        scores: torch.Tensor | None,
    ) -> RadaModelOutput:
        """Read passages from the cache; arguments as in `forward`."""
        if self.passage_cache is None:
            raise ValueError("passage_ids need a cache, but the model has none. Call use_passage_cache first.")
        if self.training and (self.config.passage_encoder == "shared" or needs_gradient(self.passage_backbone)):
            raise ValueError(
                "the encoder of cached passages must be frozen, but it trains, so that the cache goes stale. Use "
                "passage_encoder='frozen', and exclude passage_backbone from an adapter with exclude_modules."
            )
        ids = passage_ids.cpu()  # the cache is on the host
        if ids.numpy().max(initial=-1) < 0:
            return RadaModelOutput(last_hidden_state=hidden_states)
        device, available = hidden_states.device, passage_ids >= 0
        known = ids.masked_fill(ids < 0, ids.max())
        if not self.chooses_first:
            unique, index = known.unique(return_inverse=True)
            states, mask = (tensor.to(device) for tensor in self.passage_cache.read_states(unique))
            index = index.masked_fill(ids < 0, -1).to(device)
            return self.interface(hidden_states, states, attention_mask, mask, index, scores)
        vectors = self.passage_cache.read_vectors(known).to(device)
        selected, weights = self.interface.select(hidden_states, vectors, available, attention_mask, scores)
        chosen = known.gather(1, selected.cpu().unsqueeze(1)).squeeze(1)
        states, mask = (tensor.to(device) for tensor in self.passage_cache.read_states(chosen))
        mask = mask * available.any(dim=1, keepdim=True)
        return self.read_chosen(hidden_states, attention_mask, states, mask, selected, weights)

    def read_chosen(
        self,
        hidden_states: torch.Tensor,
        attention_mask: torch.Tensor | None,
        states: torch.Tensor,
        mask: torch.Tensor,
        selected: torch.Tensor,
        weights: torch.Tensor,
    ) -> RadaModelOutput:
        """Read one passage for each input.

        Args:
            hidden_states: `[batch, length, hidden_size]`.
            attention_mask: `[batch, length]`.
            states: `[batch, passage_length, hidden_size]`, of the chosen passage.
            mask: `[batch, passage_length]`; zeros if the input has no passage.
            selected: `[batch]`, see `RetrievalInterface.select`.
            weights: `[batch, passages]`, see `RetrievalInterface.select`.
        """
        alone = hidden_states.new_ones(len(selected), 1)  # a passage without rivals is chosen at any score
        reading = self.interface(
            hidden_states, states.unsqueeze(1), attention_mask, mask.unsqueeze(1), passage_scores=alone
        )
        reading.selected_passages = selected.masked_fill(reading.selected_passages < 0, -1)
        reading.passage_weights = weights.detach()
        return reading


# ------------------------------------------------------------------------------------------------- the heads


@dataclass
class RadaMaskedLMOutput(PassageReading, MaskedLMOutput):
    """Output of `RadaForMaskedLM`."""


@dataclass
class RadaSequenceClassifierOutput(PassageReading, SequenceClassifierOutput):
    """Output of `RadaForSequenceClassification`."""


@dataclass
class RadaTokenClassifierOutput(PassageReading, TokenClassifierOutput):
    """Output of `RadaForTokenClassification`."""


@dataclass
class RadaQuestionAnsweringModelOutput(PassageReading, QuestionAnsweringModelOutput):
    """Output of `RadaForQuestionAnswering`."""


@dataclass
class RadaMultipleChoiceModelOutput(PassageReading, MultipleChoiceModelOutput):
    """Output of `RadaForMultipleChoice`."""


class RadaForMaskedLM(RadaPreTrainedModel, BackboneForMaskedLM):
    """Masked LM on the encoder's states and what was read."""

    base_class = RadaModel
    reading_output_class = RadaMaskedLMOutput
    forward = accept_inputs(BackboneForMaskedLM.forward, RadaModel.forward)

    def __init__(self, config: RadaConfig):
        super().__init__(config)
        self.post_init()


class RadaForSequenceClassification(RadaPreTrainedModel, BackboneForSequenceClassification):
    """Classification, multi-label classification or regression on the first token."""

    base_class = RadaModel
    reading_output_class = RadaSequenceClassifierOutput
    forward = accept_inputs(BackboneForSequenceClassification.forward, RadaModel.forward)


class RadaForTokenClassification(RadaPreTrainedModel, BackboneForTokenClassification):
    """Token classification."""

    base_class = RadaModel
    reading_output_class = RadaTokenClassifierOutput
    forward = accept_inputs(BackboneForTokenClassification.forward, RadaModel.forward)


class RadaForQuestionAnswering(RadaPreTrainedModel, BackboneForQuestionAnswering):
    """Extractive question answering."""

    base_class = RadaModel
    reading_output_class = RadaQuestionAnsweringModelOutput
    forward = accept_inputs(BackboneForQuestionAnswering.forward, RadaModel.forward)


class RadaForMultipleChoice(RadaPreTrainedModel, BackboneForMultipleChoice):
    """Multiple choice by the first token."""

    base_class = RadaModel
    reading_output_class = RadaMultipleChoiceModelOutput
    forward = accept_inputs(BackboneForMultipleChoice.forward, RadaModel.forward)


RadaConfig.register_for_auto_class()
RadaModel.register_for_auto_class("AutoModel")
RadaForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
RadaForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
RadaForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
RadaForQuestionAnswering.register_for_auto_class("AutoModelForQuestionAnswering")
RadaForMultipleChoice.register_for_auto_class("AutoModelForMultipleChoice")
