"""VarMAE: variational masked autoencoding (Hu et al., Findings of EMNLP 2022).

A frozen encoder gives every token a context. A small context-uncertainty module turns the context into a Gaussian, and
the LM head decodes a sample from it. Fine-tuning keeps the encoder and the mean network.

Symbols of the paper, and what they are called here:

    C = {c_i}                hidden states of the backbone (`context`)
    f_mu                     `VarMAEModel.mean_network`, shared by masked and unmasked tokens
    f_sigma^m, f_sigma^u     `VarMAEForMaskedLM.masked_log_variance`, `.unmasked_log_variance`; they give log sigma^2
    z = mu + sigma * eps     `latent`; in evaluation z is mu
    tau in {m, m-bar}        masked tokens (label is not -100) and unmasked tokens (all other real tokens)
    lambda_m, lambda_m-bar   `kl_weight`, `unmasked_kl_weight`
    gamma (Zhu et al. 2020)  `norm_scale`
"""

import logging
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput
from transformers.utils.generic import can_return_tuple

from .backbone import BackbonePreTrainedModel, build_backbone, list_auto_classes, needs_gradient
from .configuration_varmae import VarMAEConfig
from .heads import (
    BackboneForMaskedLM,
    BackboneForMultipleChoice,
    BackboneForQuestionAnswering,
    BackboneForSequenceClassification,
    BackboneForTokenClassification,
    compute_vocabulary_losses,
    find_places,
)
from .layers_varmae import LogVarianceLinear, MeanNetwork, Perceptron, ZeroLinear, compute_kl

logger = logging.getLogger(__name__)

# A latent dimension is active when its mean varies over the data by more than this (Burda et al. 2016, section 5.2).
ACTIVE_VARIANCE = 0.01


@dataclass
class VarMAEMaskedLMOutput(MaskedLMOutput):
    """Output of `VarMAEForMaskedLM`. The terms of the loss are detached and set only if labels are given.

    Args:
        masked_reconstruction_loss: Mean cross-entropy of the masked tokens, nats.
        unmasked_reconstruction_loss: Mean cross-entropy of the unmasked tokens, nats.
        masked_kl: Mean KL of the masked tokens, reduced over dimensions by `kl_reduction`, nats.
        unmasked_kl: The same for the unmasked tokens.
        active_latent_share: Share of the latent dimensions whose mean varies over the batch; 0 is full collapse.
    """

    masked_reconstruction_loss: torch.FloatTensor | None = None
    unmasked_reconstruction_loss: torch.FloatTensor | None = None
    masked_kl: torch.FloatTensor | None = None
    unmasked_kl: torch.FloatTensor | None = None
    active_latent_share: torch.FloatTensor | None = None


def sample_tokens(tokens: torch.Tensor, ratio: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a random share of the chosen tokens of each sequence.

    Args:
        tokens: `[batch, length]`, bool.
        ratio: Share to keep; a sequence of n chosen tokens keeps ceil(ratio * n).

    Returns:
        The drawn tokens, `[batch, length]`, bool; and places in the flattened batch, as many for each batch of this
        shape, among which all drawn tokens are.
    """
    batch, length = tokens.shape
    most = min(math.ceil(length * ratio) + 1, length)  # one more, as the device may round up what is a whole number
    order = torch.rand(tokens.shape, device=tokens.device).masked_fill(~tokens, 2.0).argsort(dim=1)[:, :most]
    keep = (tokens.sum(dim=1, keepdim=True) * ratio).ceil()
    drawn = torch.arange(most, device=tokens.device) < keep
    kept = torch.zeros_like(tokens).scatter(1, order, drawn)
    return kept, (order + length * torch.arange(batch, device=tokens.device)[:, None]).flatten()


class VarMAEPreTrainedModel(BackbonePreTrainedModel):
    """Base of the VarMAE models."""

    config_class = VarMAEConfig
    _keys_to_ignore_on_load_missing = [r"mean_network\.num_batches_tracked$"]  # older checkpoints lack it
    auto_classes = list_auto_classes(VarMAEConfig)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, ZeroLinear):
            init.zeros_(module.weight)
        elif isinstance(module, LogVarianceLinear):
            init.constant_(module.bias, self.config.log_variance_init)
        elif isinstance(module, MeanNetwork) and module.batch_norm:
            init.zeros_(module.shift)
            init.zeros_(module.running_mean)
            init.ones_(module.running_var)
            # transformers marks what it has loaded. Statistics without a number of batches count as those of many.
            was_loaded = getattr(module.running_mean, "_is_hf_initialized", False)
            init.constant_(module.num_batches_tracked, module.enough_batches if was_loaded else 0)


class VarMAEModel(VarMAEPreTrainedModel):
    """The encoder and the mean network, which every head builds on (section 2.3, last sentence)."""

    def __init__(self, config: VarMAEConfig):
        super().__init__(config)
        self.backbone = build_backbone(config.backbone_config)
        self.mean_network = MeanNetwork(config)
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
            input_ids: `[batch, length]`.
            attention_mask: `[batch, length]`, 0 at padding.
            token_type_ids: `[batch, length]`, for families that have them.
            position_ids: `[batch, length]`.
            inputs_embeds: `[batch, length, hidden_size]` instead of `input_ids`.
            kwargs: Passed to the encoder.

        Returns:
            `last_hidden_state` has the means `[batch, length, hidden_size]`; `hidden_states` and `attentions` are the
            encoder's.
        """
        outputs = self.encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        config: Any = self.config
        return BaseModelOutput(
            last_hidden_state=self.mean_network(outputs.last_hidden_state, normalize=config.normalized_states),
            hidden_states=outputs.hidden_states,
            attentions=outputs.attentions,
        )


class VarMAEForMaskedLM(VarMAEPreTrainedModel, BackboneForMaskedLM):
    """Context uncertainty learning over a masked LM (sections 2.2 and 2.3).

    Trains with the stock collator and the stock Trainer. The loss of a batch is the mean over its sequences of

        sum over tau of  w_tau * sum over i in tau of [ -log p(x_i | z_i) + lambda_tau * KL_i ],   w_tau = 1 / |tau|.

    In evaluation z is the mean, and the loss is the cross-entropy of the masked tokens, as in any masked LM: its
    exponential is a perplexity. The output also has the other terms, over all unmasked tokens.
    """

    base_class = VarMAEModel
    # Trainer counts masked tokens, but this loss is a mean over sequences: Trainer must divide by accumulation steps.
    accepts_loss_kwargs = False
    is_warned = False

    def __init__(self, config: VarMAEConfig):
        super().__init__(config)
        self.masked_log_variance = Perceptron(config, LogVarianceLinear)
        self.unmasked_log_variance = Perceptron(config, LogVarianceLinear)
        self.freeze_parameters()
        self.post_init()

    def freeze_parameters(self) -> None:
        """Freeze the encoder, as the paper does."""
        if self.config.freeze_backbone:
            self.model.backbone.requires_grad_(False)

    def train(self, mode: bool = True) -> "VarMAEForMaskedLM":
        """Switch the mode; a frozen encoder without `backbone_dropout` stays in evaluation mode."""
        super().train(mode)
        frozen = self.config.freeze_backbone and not needs_gradient(self.model.backbone)
        if frozen and not self.config.backbone_dropout:
            self.model.backbone.eval()
        return self

    def give_head_its_states(self, backbone: Any) -> None:
        """Let a VarMAE return normalized means, which this LM head was trained to read."""
        backbone.config.normalized_states = True

    @torch.no_grad()
    def calibrate(self, batches: Iterable[Mapping[str, torch.Tensor]]) -> None:
        """Start a new model at its encoder's predictions; a random mean network would destroy what the LM head reads.

        Sets the running statistics to those of `batches`, and changes the LM head so that it undoes the normalization.

        Args:
            batches: Masked text with labels, as in training; ten batches of a few hundred tokens are enough.

        Raises:
            ValueError: The model is not `residual`, has no batch normalization, or is already trained or calibrated.
        """
        network, decoder = self.model.mean_network, self.get_output_embeddings()
        if not (network.residual and network.batch_norm):
            raise ValueError(
                "calibrate needs residual=True and batch_norm=True, which only rescale the encoder's states, but they "
                f"are {network.residual} and {network.batch_norm}. Set both, or train without calibrate."
            )
        if network.num_batches_tracked > 0:
            raise ValueError(
                "calibrate needs a new model, but this one already has statistics of "
                f"{int(network.num_batches_tracked)} batches. Train it as it is."
            )
        layers = [layer for layer in self.lm_head.modules() if isinstance(layer, nn.Linear) and layer is not decoder]
        if not layers and self.config.tie_word_embeddings:
            raise ValueError(
                "calibrate needs a layer that reads the means alone, but this LM head is one decoder that is tied to "
                "the embeddings. Set tie_word_embeddings=False."
            )
        was_training = self.training
        self.train()
        for batch in batches:
            self(**batch)
        self.train(was_training)
        network.fold_inverse_into([*layers, decoder][0])  # an LM head has one layer before its decoder, or none

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        labels: torch.LongTensor | None = None,
        target_places: torch.LongTensor | None = None,
        **kwargs,
    ) -> VarMAEMaskedLMOutput:
        """Reconstruct masked and unmasked tokens; arguments as in `BackboneForMaskedLM.forward`.

        Raises:
            ValueError: `labels` without `input_ids`: unmasked tokens have their ids as targets.
        """
        is_prompted = inputs_embeds is not None and inputs_embeds.requires_grad
        is_trained = is_prompted or needs_gradient(self.model.backbone)
        with torch.set_grad_enabled(torch.is_grad_enabled() and is_trained):
            outputs = self.model.encode(
                input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs
            )
        context = outputs.last_hidden_state
        terms: dict[str, Any] = {}
        if labels is not None:
            if input_ids is None:
                raise ValueError(
                    "labels need input_ids, the targets of VarMAE's unmasked tokens, but only inputs_embeds are given. "
                    "Pass input_ids."
                )
            real = torch.ones_like(input_ids, dtype=torch.bool) if attention_mask is None else attention_mask.bool()
            terms = self.compute_objective(context, input_ids, labels, real, target_places)
        elif self.training and not self.is_warned and not torch.compiler.is_compiling():
            self.is_warned = True
            logger.warning(
                "VarMAE trains without labels, so that its own loss is not computed. Trainer's label_smoothing_factor "
                "takes them away and replaces the loss: leave it out"
            )
        logits = None if self.training and labels is not None else self.decode(self.model.mean_network(context))
        return VarMAEMaskedLMOutput(
            logits=logits, hidden_states=outputs.hidden_states, attentions=outputs.attentions, **terms
        )

    def compute_objective(
        self,
        context: torch.Tensor,
        input_ids: torch.Tensor,
        labels: torch.Tensor,
        real: torch.Tensor,
        target_places: torch.Tensor | None = None,
    ) -> dict[str, torch.Tensor]:
        """Compute the loss and its terms; in training the loss of Eq. 4.

        Args:
            context: `[batch, length, hidden_size]`.
            input_ids: `[batch, length]`, targets of the unmasked tokens.
            labels: `[batch, length]`, targets of the masked tokens, -100 elsewhere.
            real: `[batch, length]`, bool, False at padding.
            target_places: See `compute_masked_lm_loss`.

        Returns:
            `loss` and the other fields of `VarMAEMaskedLMOutput`.
        """
        config = self.config
        masked = labels != -100
        unmasked = real & ~masked
        for token_id in config.special_token_ids:
            unmasked = unmasked & (input_ids != token_id)
        drawn = None
        if self.training and config.unmasked_ratio < 1:
            unmasked, drawn = sample_tokens(unmasked, config.unmasked_ratio)

        # Masked and unmasked tokens in one block, masked first: mean network, normalization and decoder are shared.
        # Where counting them would wait for the device, the block also has tokens of no weight.
        contexts, ids = context.flatten(0, 1), input_ids.flatten()
        found, others = find_places(masked), find_places(unmasked)
        is_exact = others is not None
        everywhere = torch.arange(len(ids), device=ids.device)
        if target_places is not None and not is_exact and drawn is None:
            is_other = torch.ones_like(ids).index_fill(0, target_places, 0)
            drawn = is_other.argsort(descending=True)[: len(ids) - len(target_places)]
        first = next(each for each in (target_places, found, everywhere) if each is not None)
        second = next(each for each in (others, drawn, everywhere) if each is not None)
        weights = torch.cat(
            [self.weigh_tokens(kind).flatten()[each] for kind, each in ((masked, first), (unmasked, second))]
        )
        num_masked, counted = len(first), weights > 0
        blocks = [contexts.index_select(0, each) for each in (first, second)]
        targets = torch.cat([labels.flatten()[first], ids[second]])
        mean = self.model.mean_network(
            torch.cat(blocks), use_batch_statistics=self.training, counted=None if is_exact else counted
        )
        log_variance = torch.cat([self.masked_log_variance(blocks[0]), self.unmasked_log_variance(blocks[1])])
        log_variance = log_variance.clamp(-config.log_variance_range, config.log_variance_range)
        latent = mean
        if self.training:
            latent = mean + (0.5 * log_variance).exp() * torch.randn_like(mean)

        reconstruction = compute_vocabulary_losses(self.decode, latent, targets)
        kl = compute_kl(mean, log_variance)
        kl = kl.mean(-1) if config.kl_reduction == "mean" else kl.sum(-1)
        kl_weights = torch.full_like(kl, config.unmasked_kl_weight)
        kl_weights[:num_masked] = config.kl_weight
        loss = (weights * (reconstruction + kl_weights * kl)).sum()

        def average(values: torch.Tensor, part: slice) -> torch.Tensor:
            share = counted[part].float()
            return values[part].detach() @ share / share.sum().clamp(min=1)

        of_masked, of_unmasked = slice(num_masked), slice(num_masked, None)
        if not self.training:
            loss = reconstruction[of_masked].sum() / masked.sum().clamp(min=1)
        mean, share = mean.detach().float(), counted / counted.sum().clamp(min=1)
        active = share @ (mean - share @ mean).square() > ACTIVE_VARIANCE
        return {
            "loss": loss,
            "masked_reconstruction_loss": average(reconstruction, of_masked),
            "unmasked_reconstruction_loss": average(reconstruction, of_unmasked),
            "masked_kl": average(kl, of_masked),
            "unmasked_kl": average(kl, of_unmasked),
            "active_latent_share": active.float().mean(),
        }

    def weigh_tokens(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return each chosen token's weight: w_tau over the number of sequences, or 1 over the number of chosen tokens.

        Args:
            tokens: `[batch, length]`, bool.

        Returns:
            `[batch, length]`, float32, 0 for other tokens.
        """
        count = tokens.sum() if self.config.loss_weighting == "token" else tokens.sum(dim=1, keepdim=True) * len(tokens)
        return tokens / count.clamp(min=1)


class VarMAEForSequenceClassification(VarMAEPreTrainedModel, BackboneForSequenceClassification):
    """Classification, multi-label classification or regression on the mean of the first token."""

    base_class = VarMAEModel


class VarMAEForTokenClassification(VarMAEPreTrainedModel, BackboneForTokenClassification):
    """Token classification on the means."""

    base_class = VarMAEModel


class VarMAEForQuestionAnswering(VarMAEPreTrainedModel, BackboneForQuestionAnswering):
    """Extractive question answering on the means."""

    base_class = VarMAEModel


class VarMAEForMultipleChoice(VarMAEPreTrainedModel, BackboneForMultipleChoice):
    """Multiple choice by the mean of the first token."""

    base_class = VarMAEModel


VarMAEConfig.register_for_auto_class()
VarMAEModel.register_for_auto_class("AutoModel")
VarMAEForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
VarMAEForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
VarMAEForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
VarMAEForQuestionAnswering.register_for_auto_class("AutoModelForQuestionAnswering")
VarMAEForMultipleChoice.register_for_auto_class("AutoModelForMultipleChoice")
