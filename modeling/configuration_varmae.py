"""Configuration of VarMAE."""

from dataclasses import field
from typing import Literal

from .configuration_backbone import BackboneConfig


class VarMAEConfig(BackboneConfig):
    """Configuration of VarMAE (Hu et al., Findings of EMNLP 2022).

    The paper names the parts and leaves most sizes open; every default says where it is from.

    Args:
        latent_intermediate_size: Hidden units of the three perceptrons; None takes the width of the encoder
            (our choice: the paper gives "a fully-connected neural network with a single hidden layer", no size).
        latent_activation: Their activation (our choice: the encoder families' own).
        residual: Whether the mean is `c + f_mu(c)` instead of `f_mu(c)` (off as in section 2.2). With it and without
            `batch_norm` a fresh module returns the encoder's hidden states unchanged; with both,
            `VarMAEForMaskedLM.calibrate` keeps the encoder's predictions.
        batch_norm: Whether batch normalization is applied to the mean (section 2.2, after Zhu et al. 2020); without it
            the posterior collapses, which the logged `kl` shows.
        norm_scale: The fixed scale gamma of that normalization. It bounds the KL of a dimension from below by
            gamma^2 / 2 (Zhu et al., Eq. 8). 0.5 is the example of Zhu et al.; VarMAE gives no value.
        norm_momentum: Momentum of its running statistics (torch's default).
        log_variance_init: Where log sigma^2 starts, give or take what small weights add. 0 is the initial bias of any
            linear layer, and sigma then starts near 1, twice `norm_scale`. -4 (ours) starts with a noise that leaves
            the states of the encoder readable.
        log_variance_range: log-variances are clamped to +- this value (our choice: float32 safety).
        kl_weight: lambda of the masked tokens (section 3.2: 10).
        unmasked_kl_weight: lambda of the unmasked tokens (section 3.2: 10).
        kl_reduction: "mean" or "sum" of the KL over the latent dimensions. Our choice is the mean: with the sum,
            lambda = 10 outweighs the reconstruction by two orders of magnitude.
        loss_weighting: "sequence" divides both terms by the number of masked / unmasked tokens of the sequence
            (section 2.3: "normalization factors of masked/unmasked tokens in the current sequence"); "token" by their
            number in the batch.
        unmasked_ratio: Share of the unmasked tokens that enter the loss, drawn anew for each sequence and step. 1 is
            the paper; less is an unbiased and cheaper estimate of the same loss.
        special_token_ids: Ids that are neither masked nor unmasked tokens ([CLS], [SEP], padding); their
            reconstruction is trivial. run_mlm.py takes them from the tokenizer.
        freeze_backbone: Whether embeddings and encoder stay as they are (section 3.2). They then run without gradient.
        backbone_dropout: Whether the frozen encoder keeps its dropout in training. Our choice is no: the states of a
            frozen encoder are then the same in every epoch, as they are in fine-tuning, and cheaper. Table 6 of
            appendix C.2 gives a dropout of 0.1 without saying where.
        tie_word_embeddings: Whether the decoder is the (frozen) embedding table. Our choice is a trainable copy: the
            paper optimizes the LM head, which a frozen table would not allow.
    """

    model_type = "varmae"
    keys_to_ignore_at_inference = [
        "masked_reconstruction_loss",
        "unmasked_reconstruction_loss",
        "masked_kl",
        "unmasked_kl",
        "active_latent_share",
    ]

    latent_intermediate_size: int | None = None
    latent_activation: str = "gelu"
    residual: bool = False
    batch_norm: bool = True
    norm_scale: float = 0.5
    norm_momentum: float = 0.1
    log_variance_init: float = 0.0
    log_variance_range: float = 10.0
    kl_weight: float = 10.0
    unmasked_kl_weight: float = 10.0
    kl_reduction: Literal["mean", "sum"] = "mean"
    loss_weighting: Literal["sequence", "token"] = "sequence"
    unmasked_ratio: float = 1.0
    special_token_ids: list[int] = field(default_factory=list)
    freeze_backbone: bool = True
    backbone_dropout: bool = False
    tie_word_embeddings: bool = False

    def __post_init__(self, **kwargs) -> None:
        super().__post_init__(**kwargs)
        if not 0.0 < self.unmasked_ratio <= 1.0:
            raise ValueError(f"unmasked_ratio must lie in (0, 1], got {self.unmasked_ratio}; 1 takes all tokens")
        if abs(self.log_variance_init) > self.log_variance_range:
            raise ValueError(
                f"log_variance_init must lie within the log_variance_range of +-{self.log_variance_range}, got "
                f"{self.log_variance_init}"
            )
        if self.kl_reduction not in ("mean", "sum"):
            raise ValueError(f"kl_reduction must be 'mean' or 'sum', got {self.kl_reduction!r}")
        if self.loss_weighting not in ("sequence", "token"):
            raise ValueError(f"loss_weighting must be 'sequence' or 'token', got {self.loss_weighting!r}")
