"""Configuration of VarMAE."""

from dataclasses import field
from typing import Literal

from .configuration_backbone import BackboneConfig


class VarMAEConfig(BackboneConfig):
    """Configuration of VarMAE (Hu et al., Findings of EMNLP 2022).

    The paper names the parts and leaves most sizes open. Each default gives its source.

    Args:
        latent_intermediate_size: Hidden units of the three perceptrons; None takes the width of the encoder
            (our choice: the paper gives "a fully-connected neural network with a single hidden layer", no size).
        latent_activation: Their activation (our choice: the one that most encoder families use).
        residual: Whether the mean is `c + f_mu(c)` instead of `f_mu(c)` (off as in section 2.2). A fresh module then
            returns the encoder's hidden states unchanged if `batch_norm` is off. If it is on,
            `VarMAEForMaskedLM.calibrate` keeps the encoder's predictions.
        batch_norm: Whether the mean is batch-normalized (section 2.2, after Zhu et al. 2020). Without it the posterior
            collapses, which the logged `kl` shows.
        norm_scale: Fixed scale gamma of that normalization. The KL of a dimension is then at least gamma^2 / 2 (Zhu et
            al., Eq. 8). 0.5 is the example of Zhu et al.; VarMAE gives no value.
        norm_momentum: Momentum of its running statistics (torch's default).
        normalized_states: Whether `VarMAEModel` and the heads of tasks read the normalized means, as the LM head does.
            False (ours) gives them the means before the normalization, at the scale of the encoder's states; a new
            module with `residual` then leaves these unchanged.
        log_variance_init: Initial log sigma^2, up to what small weights add. 0 is the usual initial bias of a linear
            layer; sigma then starts near 1, twice `norm_scale`. -4 (ours) starts with noise so small that the encoder's
            states stay readable.
        log_variance_range: Log-variances are clamped to +- this value (our choice: float32 safety).
        kl_weight: lambda of the masked tokens (section 3.2: 10).
        unmasked_kl_weight: lambda of the unmasked tokens (section 3.2: 10).
        kl_reduction: "mean" or "sum" of the KL over the latent dimensions. Our choice is the mean: with the sum,
            lambda = 10 outweighs the reconstruction by two orders of magnitude.
        loss_weighting: "sequence" divides both terms by the number of masked / unmasked tokens of the sequence
            (section 2.3: "normalization factors of masked/unmasked tokens in the current sequence"), "token" by their
            number in the batch.
        unmasked_ratio: Share of the unmasked tokens that enter the loss, drawn for each sequence in each step. 1 is
            the paper's; less is a cheaper, unbiased estimate of the same loss.
        special_token_ids: Ids that count neither as masked nor as unmasked tokens ([CLS], [SEP], padding), because
            reconstructing them is trivial. run_mlm.py takes them from the tokenizer.
        freeze_backbone: Whether embeddings and encoder are frozen (section 3.2) and run without gradient.
        backbone_dropout: Whether the frozen encoder keeps its dropout in training. Our choice is no: its states are
            then the same in every epoch and in fine-tuning, and cheaper. Table 6 of appendix C.2 gives a dropout of 0.1
            without saying where.
        tie_word_embeddings: Whether the decoder is the frozen embedding table. Our choice is a trainable copy, because
            the paper trains the LM head.
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
    normalized_states: bool = True
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
            raise ValueError(f"unmasked_ratio must lie in (0, 1], but is {self.unmasked_ratio}. Use 1 for all tokens.")
        if abs(self.log_variance_init) > self.log_variance_range:
            raise ValueError(
                f"log_variance_init must lie within the log_variance_range of +-{self.log_variance_range}, but is "
                f"{self.log_variance_init}. Change one of them."
            )
        if self.kl_reduction not in ("mean", "sum"):
            raise ValueError(f"kl_reduction must be 'mean' or 'sum', but is {self.kl_reduction!r}. Choose one of them.")
        if self.loss_weighting not in ("sequence", "token"):
            raise ValueError(
                f"loss_weighting must be 'sequence' or 'token', but is {self.loss_weighting!r}. Choose one of them."
            )
