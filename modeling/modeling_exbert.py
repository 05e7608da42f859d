"""exBERT: an extension vocabulary and side modules over a frozen base (Tai et al., Findings of EMNLP 2020).

Each layer of the base gets a smaller side module that reads the same input, and a gate mixes the two outputs token by
token. New vocabulary entries have their own table. The layers are in layers_exbert.py.

Symbols of the paper, and what they are called here:

    H^l                     `hidden_states`, the input of layer l
    T_ofs                   the layer of the base ("off-the-shelf"), `base_output`
    T_ext                   `SideLayer`, one a layer
    sigma(w(H^l))           `SideLayer.gate`, the weight of the base: H^(l+1) = T_ofs * gate + T_ext * (1 - gate)
"""

from collections.abc import Mapping
from typing import Any, Literal, Self

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple

from .backbone import (
    BackbonePreTrainedModel,
    build_backbone,
    find_encoder,
    find_layers,
    get_native_config,
    list_auto_classes,
    normalizes_first,
    train_top_layers,
)
from .configuration_exbert import ExBertConfig
from .heads import (
    BackboneForMaskedLM,
    BackboneForMultipleChoice,
    BackboneForQuestionAnswering,
    BackboneForSequenceClassification,
    BackboneForTokenClassification,
)
from .layers_exbert import (
    ExtendedDecoder,
    ExtendedEmbedding,
    ExtendedLayer,
    ExtendedModel,
    ExtensionDecoder,
    ExtensionTable,
    SideLayer,
    VocabularyDelta,
    add_extension,
    check_extension_start,
    check_layer_mask,
    extend,
    fill_from_pieces,
    read_extension_vocabulary,
    start_rows,
)


class ExBertPreTrainedModel(BackbonePreTrainedModel):
    """Base of the exBERT models."""

    config_class = ExBertConfig
    _supports_flex_attn = False  # its masks are no tensors, and the side modules need the mask
    added_modules = ("extension", "side")
    auto_classes = list_auto_classes(ExBertConfig)

    @classmethod
    def from_backbone(
        cls,
        backbone: str | PreTrainedModel,
        *,
        extension_vocabulary: VocabularyDelta | Mapping[int, list[int]] | None = None,
        extension_init: Literal["normal", "pieces"] = "normal",
        **options: Any,
    ) -> Self:
        """Build an exBERT around a pretrained encoder; other arguments as in `BackbonePreTrainedModel.from_backbone`.

        Args:
            backbone: Name or folder of a checkpoint, or a loaded model.
            extension_vocabulary: A `VocabularyDelta`, or a mapping of each new id to the old ids that spelled it.
            extension_init: "normal" draws the new rows from N(0, `initializer_range`), with zero biases in the decoder
                (the paper). "pieces" sets rows and biases to the means over their pieces (AdaLM's initialization).
            options: Further arguments, and fields of `ExBertConfig`.

        Raises:
            ValueError: The extension vocabulary does not start where the base's ends, or an option is wrong.
        """
        if extension_init not in ("normal", "pieces"):
            raise ValueError(
                f"extension_init must be 'normal' or 'pieces', but is {extension_init!r}. Choose one of them."
            )
        start, pieces = 0, list[list[int]]()
        if extension_vocabulary is not None:
            start, pieces = read_extension_vocabulary(extension_vocabulary)
            options |= {"extension_vocab_size": len(pieces), "base_vocab_size": start}
        model = super().from_backbone(backbone, **options)
        if model.config.side_init == "base" and model.config.extension_hidden_size:
            layer: Any
            for layer in model.get_base_layers():
                layer.side.cut_from_base(layer)
        if extension_vocabulary is None:
            return model
        check_extension_start(start, model.config.backbone_config.vocab_size)
        if extension_init == "pieces":
            table: Any = model.get_input_embeddings()
            fill_from_pieces(table.extension.weight, table.weight[:start], pieces)
            decoder: Any = model.get_output_embeddings()
            if decoder is not None and not model.config.tie_word_embeddings:
                fill_from_pieces(decoder.extension.weight, decoder.weight[:start], pieces)
            if decoder is not None and decoder.bias is not None:
                # Old biases may all lie far below zero; new entries with zero biases would beat every old one.
                fill_from_pieces(decoder.extension.bias, decoder.bias[:start], pieces)
        return model

    @property
    def _supports_flash_attn(self) -> bool:  # type: ignore[override]
        """Whether transformers may load the model with flash attention; see `check_window`."""
        config: Any = self.config
        layer_types = getattr(get_native_config(config), "layer_types", None) or ()
        return not config.extension_hidden_size or "sliding_attention" not in layer_types

    @property
    def embeddings(self) -> nn.Module:
        """The embeddings of the encoder, where peft looks for the table of a prompt.

        peft could also search by number of rows, but would not find a table that has an extension.
        """
        encoder: Any = find_encoder(self)
        return encoder.embeddings

    def get_base_layers(self) -> nn.ModuleList:
        """Return the layers; each holds both branches."""
        return find_layers(find_encoder(self))

    def train_top_layers(self, num_layers: int = 3) -> None:
        """Train the head and both branches of the top layers; freeze the rest.

        `from_pretrained` undoes this: it makes every parameter trainable.

        Args:
            num_layers: How many layers; 3 as in section 4.1.

        Raises:
            ValueError: The model has fewer layers.
        """
        train_top_layers(self, num_layers)

    def resize_token_embeddings(
        self,
        new_num_tokens: int | None = None,
        pad_to_multiple_of: int | None = None,
        mean_resizing: bool = True,
    ) -> Any:
        """Give the extension rows for added tokens; every existing id keeps its row.

        Args:
            new_num_tokens: Ids of base and extension together.
            pad_to_multiple_of: Rounds the number up.
            mean_resizing: Start new rows as the mean of the base's; False draws them like the extension's. New biases
                are the mean of the base's either way.

        Raises:
            ValueError: `new_num_tokens` is below the present number.
        """
        config: Any = self.config
        size = new_num_tokens or config.vocab_size
        size = -(-size // (pad_to_multiple_of or 1)) * (pad_to_multiple_of or 1)
        if size < config.vocab_size:
            raise ValueError(
                f"the vocabulary of an exBERT can only grow: its size must be at least {config.vocab_size}, but would "
                f"be {size}. Resize it to more entries."
            )
        table: Any = self.get_input_embeddings()
        if size == config.vocab_size:
            return table
        config.vocab_size = size
        self.grow_extensions(mean_resizing)
        return table

    @torch.no_grad()
    def grow_extensions(self, mean_resizing: bool) -> None:
        """Grow the extensions to the configured size."""
        config: Any = self.config
        table: Any = self.get_input_embeddings()
        extension = ExtensionTable(config.extension_vocab_size, table.embedding_dim).to(table.weight)
        start_rows(extension.weight, table.weight[: config.base_vocab_size], mean_resizing, config.initializer_range)
        add_extension(table, ExtendedEmbedding, extension, config.base_vocab_size)


class ExBertModel(ExBertPreTrainedModel):
    """The base, its side modules and the extension vocabulary."""

    def __init__(self, config: ExBertConfig):
        super().__init__(config)
        self.backbone = build_backbone(config.backbone_config)
        encoder = find_encoder(self.backbone)
        extend(encoder, ExtendedModel, added_spread=config.initializer_range)
        if config.extension_hidden_size:
            norm_first = normalizes_first(encoder)
            for layer in find_layers(encoder):
                check_layer_mask(encoder, layer)
                extend(layer, ExtendedLayer, side=SideLayer(config, norm_first))
        if config.extension_vocab_size:
            table: Any = encoder.get_input_embeddings()
            extension = ExtensionTable(config.extension_vocab_size, table.embedding_dim)
            add_extension(table, ExtendedEmbedding, extension, config.base_vocab_size)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        """Encode a batch.

        Args:
            input_ids: `[batch, length]`, ids of base and extension.
            attention_mask: `[batch, length]`, 0 at padding.
            token_type_ids: `[batch, length]`, for families that have them.
            position_ids: `[batch, length]`.
            inputs_embeds: `[batch, length, hidden_size]` instead of `input_ids`.
            kwargs: Passed to the encoder.

        Returns:
            The encoder's output, whose hidden states are the mixed ones.
        """
        outputs = self.encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        return BaseModelOutput(outputs.last_hidden_state, outputs.hidden_states, outputs.attentions)


class ExBertForMaskedLM(ExBertPreTrainedModel, BackboneForMaskedLM):
    """Masked LM over base and extension vocabulary; the decoder is tied to both tables.

    With `freeze_backbone` it trains the extension, the side modules with their gates, and the LM head except for the
    base's decoder: its transform and its biases, as in the released code.
    """

    base_class = ExBertModel

    def __init__(self, config: ExBertConfig):
        super().__init__(config)
        if config.extension_vocab_size:
            decoder: Any = self.get_output_embeddings()
            self.extend_decoder(ExtensionDecoder(decoder.in_features, config.extension_vocab_size))
        self.freeze_parameters()
        self.post_init()

    def extend_decoder(self, extension: ExtensionDecoder) -> None:
        """Give the decoder an extension that is tied to the table's."""
        if not isinstance(self.lm_head, ExtendedModel):
            extend(self.lm_head, ExtendedModel, added_spread=self.config.initializer_range)
        add_extension(self.get_output_embeddings(), ExtendedDecoder, extension, self.config.base_vocab_size)
        self._tied_weights_keys |= {
            f"{target.removesuffix('weight')}extension.weight": f"{source.removesuffix('weight')}extension.weight"
            for target, source in self._tied_weights_keys.items()
            if "extension" not in target.split(".")
        }

    @torch.no_grad()
    def grow_extensions(self, mean_resizing: bool) -> None:
        """Also grow the decoder. New biases are the mean of the base's; zero could beat every old entry."""
        super().grow_extensions(mean_resizing)
        config, decoder = self.config, self.get_output_embeddings()
        assert isinstance(decoder, nn.Linear)
        extension = ExtensionDecoder(decoder.in_features, config.extension_vocab_size).to(decoder.weight)
        start_rows(extension.weight, decoder.weight[: config.base_vocab_size], mean_resizing, config.initializer_range)
        extension.bias.fill_(0.0 if decoder.bias is None else decoder.bias[: config.base_vocab_size].mean())
        self.extend_decoder(extension)
        self.all_tied_weights_keys |= self._tied_weights_keys if config.tie_word_embeddings else {}
        self.tie_weights()

    def freeze_parameters(self) -> None:
        """Freeze the base, including the decoder's table."""
        if self.config.freeze_backbone:
            self.model.backbone.requires_grad_(True)
            for parameter in self.get_base_parameters():
                parameter.requires_grad_(False)
            self.get_output_embeddings().weight.requires_grad_(False)

    def get_base_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the base, without those that exBERT adds."""
        return [
            parameter
            for name, parameter in self.model.backbone.named_parameters()
            if set(self.added_modules).isdisjoint(name.split("."))
        ]

    def train(self, mode: bool = True) -> "ExBertForMaskedLM":
        """Switch the mode; a frozen base without `backbone_dropout` stays in evaluation mode."""
        super().train(mode)
        is_trained = any(parameter.requires_grad for parameter in self.get_base_parameters())
        if self.config.freeze_backbone and not is_trained and not self.config.backbone_dropout:
            self.model.backbone.eval()
            layer: Any
            for layer in self.get_base_layers():
                layer.training = mode  # the layer's own flag, which activation checkpointing reads
                if self.config.extension_hidden_size:
                    layer.side.train(mode)
        return self


class ExBertForSequenceClassification(ExBertPreTrainedModel, BackboneForSequenceClassification):
    """Classification, multi-label classification or regression on the first token."""

    base_class = ExBertModel


class ExBertForTokenClassification(ExBertPreTrainedModel, BackboneForTokenClassification):
    """Token classification."""

    base_class = ExBertModel


class ExBertForQuestionAnswering(ExBertPreTrainedModel, BackboneForQuestionAnswering):
    """Extractive question answering."""

    base_class = ExBertModel


class ExBertForMultipleChoice(ExBertPreTrainedModel, BackboneForMultipleChoice):
    """Multiple choice by the first token."""

    base_class = ExBertModel


ExBertConfig.register_for_auto_class()
ExBertModel.register_for_auto_class("AutoModel")
ExBertForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
ExBertForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
ExBertForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
ExBertForQuestionAnswering.register_for_auto_class("AutoModelForQuestionAnswering")
ExBertForMultipleChoice.register_for_auto_class("AutoModelForMultipleChoice")
