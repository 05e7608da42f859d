"""Configuration of exBERT."""

from typing import Literal

from .configuration_backbone import BackboneConfig

# The five sizes of section 4.1 for a base of width 768: (hidden size, feed-forward size). The keys are the paper's
# names: the share of the base's layers in percent.
EXTENSION_SIZES = {16.3: (120, 512), 23.4: (180, 720), 33.2: (252, 1024), 66.3: (504, 2048), 100.0: (768, 3072)}
PAPER_HIDDEN_SIZE = 768


def scale_extension_size(extension_size: float, hidden_size: int, num_attention_heads: int) -> tuple[int, int]:
    """Scale one of the paper's sizes to a base of another width.

    Args:
        extension_size: A key of `EXTENSION_SIZES`.
        hidden_size: Width of the base.
        num_attention_heads: Heads of the base; a side module has as many.

    Returns:
        Hidden size (a multiple of the heads) and feed-forward size of the side modules; at width 768 the paper's.

    Raises:
        ValueError: `extension_size` is not one of the paper's.
    """
    if extension_size not in EXTENSION_SIZES:
        raise ValueError(
            f"extension_size must be one of {', '.join(map(str, EXTENSION_SIZES))}, but is {extension_size}. "
            "For any other size set extension_hidden_size and extension_intermediate_size."
        )
    inner, intermediate = (size * hidden_size / PAPER_HIDDEN_SIZE for size in EXTENSION_SIZES[extension_size])
    return max(round(inner / num_attention_heads), 1) * num_attention_heads, round(intermediate)


class ExBertConfig(BackboneConfig):
    """Configuration of exBERT (Tai et al., Findings of EMNLP 2020).

    Args:
        extension_vocab_size: Entries of the extension vocabulary; 0 has none (the ablation of figure 2).
        base_vocab_size: Ids below it belong to the base, the others to the extension. None takes all rows of the
            base's table; `from_backbone` takes the size of the tokenizer that was expanded. The table may be padded
            beyond it (ModernBERT, DeBERTa-v3); the spare rows are then never used.
        extension_size: A size of the paper, in percent of the base's layers: 16.3, 23.4, 33.2 (the paper's choice),
            66.3 or 100, scaled to the width of the base. The next two fields override it.
        extension_hidden_size: Width inside the attention of a side module, a multiple of the base's heads; 0 has no
            side modules.
        extension_intermediate_size: Width of its feed-forward layer.
        side_init: How side modules start. "normal" draws them (the released code). "base" (ours) cuts each out of its
            layer of the base (`SideLayer.cut_from_base`) and starts constant gates; `from_backbone` does the cutting,
            as does a new peft adapter.
        gate_bias_init: Initial bias of the gates. 0 (the released code) weighs both branches equally, which loses the
            base's function at the start. 6 keeps 99.8 % of the base.
        freeze_backbone: Whether masked-LM training freezes the base (section 4.1; stage 1). False trains everything
            (the "whole model" of figure 3b; stage 2). Task heads train everything either way.
        backbone_dropout: Whether the frozen base keeps its dropout in masked-LM training, as in the released code. Our
            choice is no: frozen weights cannot overfit, and without dropout a step is faster and smaller.
    """

    model_type = "exbert"

    extension_vocab_size: int = 0
    base_vocab_size: int | None = None
    extension_size: float = 33.2
    extension_hidden_size: int | None = None
    extension_intermediate_size: int | None = None
    side_init: Literal["normal", "base"] = "normal"
    gate_bias_init: float = 0.0
    freeze_backbone: bool = True
    backbone_dropout: bool = False

    def __post_init__(self, **kwargs) -> None:
        vocab_size = kwargs.pop("vocab_size", None)
        if vocab_size is not None and self.backbone_config is None:
            kwargs["vocab_size"] = vocab_size - self.extension_vocab_size  # for the base created below
        super().__post_init__(**kwargs)
        if self.side_init not in ("normal", "base"):
            raise ValueError(f"side_init must be 'normal' or 'base', but is {self.side_init!r}. Choose one of them.")
        heads = self.num_attention_heads
        hidden_size, intermediate_size = scale_extension_size(self.extension_size, self.hidden_size, heads)
        if self.extension_hidden_size is None:
            self.extension_hidden_size = hidden_size
        if self.extension_intermediate_size is None:
            self.extension_intermediate_size = intermediate_size
        if self.extension_hidden_size % heads:
            raise ValueError(
                f"extension_hidden_size must be a multiple of the base's {heads} attention heads, "
                f"but is {self.extension_hidden_size}. Use {-(-self.extension_hidden_size // heads) * heads}."
            )
        if not (self.extension_vocab_size or self.extension_hidden_size):
            raise ValueError(
                "exBERT needs an extension vocabulary or side modules, but the size of both is 0. Set one of them."
            )
        rows = self.backbone_config.vocab_size
        if self.base_vocab_size is None:
            self.base_vocab_size = rows
        if self.base_vocab_size > rows:
            raise ValueError(
                f"base_vocab_size must be at most {rows}, the rows of the base's table, but is {self.base_vocab_size}. "
                "Use the tokenizer of the base."
            )
        if vocab_size is not None:
            self.vocab_size = vocab_size

    @property
    def vocab_size(self) -> int:
        """Number of ids of base and extension together. Setting it resizes the extension."""
        return (self.base_vocab_size or 0) + self.extension_vocab_size

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        self.base_vocab_size = min(self.base_vocab_size or 0, value)
        self.extension_vocab_size = value - self.base_vocab_size
