"""Configuration of RADA."""

from typing import Literal

from .configuration_backbone import BackboneConfig


class RadaConfig(BackboneConfig):
    """Configuration of RADA (Xu et al., RepL4NLP 2023).

    Args:
        num_heads: Heads of the interface (section 3.3.3: "multi-head attentions", no number); None takes as many as
            the encoder has.
        scores: How words and passages are scored. "pooled" (our choice): the mean over the positions of the input of
            q_i . k_j / sqrt(d), a softmax over the words of a passage, and their mean as the score of the passage, by
            a learned scale, at first the root of the hidden size; its cost is linear. "joint": a softmax over all
            words of all passages at each position, so that the score of a passage is the attention it gets. "literal":
            Eqs. 5-12 as printed, whose weights may be negative and not finite and whose noise cancels; for study.
        selection: How the passage is chosen. "gumbel": straight-through Gumbel-softmax in training, the best passage
            in evaluation (section 3.3.2). "top1": the best passage, through which the scores of passages get no
            gradient (table 5). "all": the mean of all passages, weighed by the softmax of their scores (ours).
        temperature: tau of Eq. 9. 1 is our choice: the paper gives none.
        passage_encoder: "shared": passages are encoded by the encoder itself (section 4.3.6). "frozen": by a copy of
            it that is never trained and is saved beside it, so that encoded passages can be cached and reused.
        passage_gradient: Whether the shared encoder is trained through the passages as well. No is our choice: the
            paper does not say, and with 10 passages of 256 tokens it costs more memory than all else together.
    """

    model_type = "rada"
    keys_to_ignore_at_inference = ["selected_passages", "passage_weights", "word_weights"]

    num_heads: int | None = None
    scores: Literal["pooled", "joint", "literal"] = "pooled"
    selection: Literal["gumbel", "top1", "all"] = "gumbel"
    temperature: float = 1.0
    passage_encoder: Literal["shared", "frozen"] = "shared"
    passage_gradient: bool = False

    def __post_init__(self, **kwargs) -> None:
        super().__post_init__(**kwargs)
        if self.num_heads is None:
            self.num_heads = self.num_attention_heads
        if self.num_heads < 1 or self.hidden_size % self.num_heads:
            raise ValueError(f"num_heads must divide the hidden size {self.hidden_size}, got {self.num_heads}")
        for name, allowed in (
            ("scores", ("pooled", "joint", "literal")),
            ("selection", ("gumbel", "top1", "all")),
            ("passage_encoder", ("shared", "frozen")),
        ):
            if getattr(self, name) not in allowed:
                raise ValueError(f"{name} must be one of {', '.join(allowed)}, got {getattr(self, name)!r}")
        if not self.temperature > 0:
            raise ValueError(f"temperature must be above 0, got {self.temperature}; 1 is the default")
        if self.passage_gradient and self.passage_encoder == "frozen":
            raise ValueError("passage_gradient=True trains the shared encoder, got passage_encoder='frozen'")
