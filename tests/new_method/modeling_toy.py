"""The toy method: the last hidden states are scaled, each dimension by a number of its own.

Symbols, and what they are called here:

    h    hidden states of the backbone
    s    `ToyModel.scale`; the heads read s * h
"""

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput
from transformers.utils.generic import can_return_tuple

from .backbone import BackbonePreTrainedModel, build_backbone
from .configuration_toy import ToyConfig
from .heads import BackboneForMaskedLM, BackboneForSequenceClassification


class ToyPreTrainedModel(BackbonePreTrainedModel):
    """Base of the toy models."""

    config_class = ToyConfig
    auto_classes = {
        "AutoConfig": "configuration_toy.ToyConfig",
        "AutoModel": "modeling_toy.ToyModel",
        "AutoModelForMaskedLM": "modeling_toy.ToyForMaskedLM",
        "AutoModelForSequenceClassification": "modeling_toy.ToyForSequenceClassification",
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ToyModel):
            init.constant_(module.scale, self.config.scale_start)


class ToyModel(ToyPreTrainedModel):
    """The encoder and the scale."""

    def __init__(self, config: ToyConfig):
        super().__init__(config)
        self.backbone = build_backbone(config.backbone_config)
        self.scale = nn.Parameter(torch.empty(config.hidden_size))
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
        """Encode a batch; arguments as in `BackbonePreTrainedModel.encode`."""
        outputs = self.encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        return BaseModelOutput(
            last_hidden_state=self.scale * outputs.last_hidden_state,
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class ToyForMaskedLM(ToyPreTrainedModel, BackboneForMaskedLM):
    """Masked LM on the scaled states."""

    base_class = ToyModel

    def __init__(self, config: ToyConfig):
        super().__init__(config)
        self.post_init()


class ToyForSequenceClassification(ToyPreTrainedModel, BackboneForSequenceClassification):
    """Classification on the scaled state of the first token."""

    base_class = ToyModel


ToyConfig.register_for_auto_class()
ToyModel.register_for_auto_class("AutoModel")
ToyForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
ToyForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
