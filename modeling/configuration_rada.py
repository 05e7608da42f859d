"""Configuration of RADA."""

from typing import Literal

from .configuration_backbone import BackboneConfig


class RadaConfig(BackboneConfig):
    """Configuration of RADA (Xu et al., RepL4NLP 2023).

    Args:
        num_heads: Heads of the interface (section 3.3.3: "multi-head attentions", no number); None takes as many as
            the encoder has.
        scores: How words and passages are scored. "pooled" (our choice): q_i . k_j / sqrt(d), averaged over the input's
            positions i; a softmax over the words of a passage; and the words' mean, times a learned scale that starts
            at the root of the hidden size, as the passage's score. Its cost is linear. "joint": a softmax over all
            words of all passages at each position; a passage's score is the attention it gets. "logsumexp"
            (ours): as "pooled", but a passage's score is the logarithm of the mean exponential of its scaled words,
            head by head. One decisive word can then win, and evaluation reads all passages. "literal": Eqs. 5-12 as
            printed, for study; its weights can be negative or infinite, and its noise cancels.
        selection: How a passage is chosen. "gumbel": straight-through Gumbel-softmax in training, the best passage in
            evaluation (section 3.3.2). "top1": the best passage, which gives the passage scores no gradient (table 5).
            "all" (ours): the mean of all passages, weighted by the softmax of their scores.
        temperature: tau of Eq. 9. The paper gives no value; 1 is our choice.
        final_temperature: tau at the end of training and in evaluation (ours); training approaches it geometrically.
            None: `temperature`.
        final_noise: Share of the noise that is left at the end of training (ours); training approaches it linearly.
        prior_scale_init: First value of the learned scale of the prior (ours): the logarithm of the retrieval's scores
            is added to the logits of the selection. The model then needs `passage_scores`. None: no prior.
        passage_encoder: "shared" encodes passages with the encoder itself (section 4.3.6). "frozen" uses a copy that is
            never trained and is saved with it, so that encoded passages can be cached.
        passage_gradient: Whether passages train the shared encoder. The paper does not say. Our choice is no: with 10
            passages of 256 tokens it takes more memory than everything else together.
        num_passages: How many passages of an example the model read in fine-tuning (section 4.1: 10). hf-domain
            retrieves as many for a prediction.
    """

    model_type = "rada"
    keys_to_ignore_at_inference = ["selected_passages", "passage_weights", "word_weights"]

    num_heads: int | None = None
    scores: Literal["pooled", "logsumexp", "joint", "literal"] = "pooled"
    selection: Literal["gumbel", "top1", "all"] = "gumbel"
    temperature: float = 1.0
    final_temperature: float | None = None
    final_noise: float = 1.0
    prior_scale_init: float | None = None
    passage_encoder: Literal["shared", "frozen"] = "shared"
    passage_gradient: bool = False
    num_passages: int = 10

    def __post_init__(self, **kwargs) -> None:
        super().__post_init__(**kwargs)
        if self.num_heads is None:
            self.num_heads = self.num_attention_heads
        if self.num_heads < 1 or self.hidden_size % self.num_heads:
            raise ValueError(
                f"num_heads must divide the hidden size {self.hidden_size}, but is {self.num_heads}. Leave it out for "
                "the encoder's number."
            )
        for name, allowed in (
            ("scores", ("pooled", "logsumexp", "joint", "literal")),
            ("selection", ("gumbel", "top1", "all")),
            ("passage_encoder", ("shared", "frozen")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(
                    f"{name} must be one of {', '.join(allowed)}, but is {getattr(self, name)!r}. Choose one of them."
                )
        for name in ("temperature", "final_temperature"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name} must be above 0, but is {value}. Use 1, the default.")
        if not self.final_noise >= 0:
            raise ValueError(f"final_noise must be at least 0, but is {self.final_noise}. Use 1, the default.")
        if not self.num_passages >= 1:
            raise ValueError(f"num_passages must be at least 1, but is {self.num_passages}. Use 10, the default.")
        if self.passage_gradient and self.passage_encoder == "frozen":
            raise ValueError(
                "passage_gradient=True needs passage_encoder='shared', but it is 'frozen', which is never trained. "
                "Change one of them."
            )
