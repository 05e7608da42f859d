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
            words of all passages at each position; a passage's score is the attention it gets. "literal": Eqs. 5-12 as
            printed, for study; its weights can be negative or infinite, and its noise cancels.
        selection: How a passage is chosen. "gumbel": straight-through Gumbel-softmax in training, the best passage in
            evaluation (section 3.3.2). "top1": the best passage, which gives the passage scores no gradient (table 5).
            "all" (ours): the mean of all passages, weighted by the softmax of their scores.
        temperature: tau of Eq. 9. The paper gives no value; 1 is our choice.
        passage_encoder: "shared" encodes passages with the encoder itself (section 4.3.6). "frozen" uses a copy that is
            never trained and is saved beside it, so that encoded passages can be cached.
        passage_gradient: Whether passages train the shared encoder. The paper does not say. Our choice is no: with 10
            passages of 256 tokens it takes more memory than everything else together.
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
            raise ValueError(
                "passage_gradient=True needs passage_encoder='shared', got 'frozen', which is never trained"
            )
