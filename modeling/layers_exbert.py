"""The layers of exBERT: the table of new entries, the side modules with their gates, and how they extend an encoder.

An extended part of the base gets a subclass of its own class. That keeps its keys, its place in `hidden_states`, its
activation checkpointing, and the names that sharding looks for.
"""

from collections.abc import Mapping
from functools import cache, partial
from inspect import signature
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN

from .backbone import get_native_config, read_without_waiting
from .configuration_exbert import ExBertConfig
from .nested_models import comes_with_code

# ------------------------------------------------------------------------------------- extension vocabulary

# Rows by which a table may exceed its tokenizer (our choice). Encoders pad by at most 99 rows (DeBERTa-v3) as far as we
# know. The table of another tokenizer usually differs by more than this.
LARGEST_PADDING = 1024


class VocabularyDelta(Protocol):
    """What an expanded tokenizer adds: the part of `hf_domain.tokenization.delta.VocabularyDelta` that is used here."""

    old_size: int
    """The first new id."""
    pieces: Mapping[str, list[int]]
    """The old ids that spelled each new entry, in the order of the new ids."""


def read_extension_vocabulary(vocabulary: VocabularyDelta | Mapping[int, list[int]]) -> tuple[int, list[list[int]]]:
    """Return the first id of an extension vocabulary and, in the order of its ids, the old ids of each entry.

    Args:
        vocabulary: A `VocabularyDelta`, or a mapping of each new id to the old ids that spelled it.

    Raises:
        ValueError: There is no entry, the ids have gaps, or an entry is spelled by a new id.
    """
    if isinstance(vocabulary, Mapping):
        start, spellings = min(vocabulary, default=0), dict(vocabulary)
    else:
        start, spellings = vocabulary.old_size, dict(enumerate(vocabulary.pieces.values(), vocabulary.old_size))
    if not spellings:
        raise ValueError(
            "the extension vocabulary must have an entry, but is empty. Use extension_vocab_size=0 for side modules "
            "only."
        )
    if missing := sorted(set(range(start, start + len(spellings))) - spellings.keys()):
        raise ValueError(
            f"the ids of an extension vocabulary must have no gap, but {missing[0]} is missing. Use the tokenizer as "
            "hf-domain expand_vocab wrote it."
        )
    pieces = [list(spellings[start + i]) for i in range(len(spellings))]
    if max(max(old_ids, default=0) for old_ids in pieces) >= start:
        raise ValueError(
            f"new entries must be spelled by old ids, which lie below {start}, but one is spelled by a new id. Expand "
            "the vocabulary again."
        )
    return start, pieces


def check_extension_start(start: int, rows: int) -> None:
    """Check that the extension vocabulary starts where the base's ids end.

    Args:
        start: The first id of the extension vocabulary.
        rows: Rows of the base's table, of which the last may be padding.

    Raises:
        ValueError: The base has too few rows, or so many that it belongs to another tokenizer.
    """
    if not start <= rows <= start + LARGEST_PADDING:
        raise ValueError(
            f"the extension vocabulary must start where the base ends, but starts at id {start} and the base has "
            f"{rows} rows. Expand the base's own tokenizer."
        )


@torch.no_grad()
def fill_from_pieces(new: torch.Tensor, old: torch.Tensor, pieces: list[list[int]]) -> None:
    """Set each entry of `new` to the mean of the `old` entries that spelled it, or of all if none did.

    Args:
        new: `[extension_vocab_size, ...]`, written in place.
        old: `[base_vocab_size, ...]`.
        pieces: The old ids of each new entry.
    """
    for row, old_ids in enumerate(pieces):
        new[row] = (old[old_ids] if old_ids else old).mean(dim=0)


@torch.no_grad()
def start_rows(new: torch.Tensor, old: torch.Tensor, as_mean: bool, spread: float) -> None:
    """Set the rows of added tokens, in place, to the mean of the old rows, or draw them from N(0, spread)."""
    if as_mean:
        new.copy_(old.float().mean(dim=0))
    else:
        new.normal_(std=spread)


class ExtendedEmbedding(nn.Embedding):
    """Mixed into the class of the base's embedding table; its child `extension` has the rows of the new ids.

    An extension without rows is an adapter that is switched off.
    """

    extension: nn.Embedding
    extension_start: int

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Look up ids `[...]` and return `[..., embedding_dim]`.

        Raises:
            IndexError: An id is beyond base and extension. Checked on the CPU; other devices fail with an assertion.
        """
        if not len(self.extension.weight):
            return super().forward(input_ids)
        size = self.extension_start + len(self.extension.weight)
        values = read_without_waiting(input_ids)
        if values is not None and values.max(initial=0) >= size:
            raise IndexError(
                f"input_ids must lie below {size} ({self.extension_start} of the base, {size - self.extension_start} "
                f"of the extension), but go up to {values.max()}. Use the tokenizer the model was trained with."
            )
        is_new = input_ids >= self.extension_start
        base = super().forward(input_ids.masked_fill(is_new, 0))
        extension = self.extension((input_ids - self.extension_start).clamp(min=0))
        return torch.where(is_new.unsqueeze(-1), extension.to(base.dtype), base)


class ExtensionTable(nn.Embedding):
    """The rows of the new ids."""


class ExtensionDecoder(nn.Module):
    """A linear map `[..., in_features]` to the logits of the new ids; its weight is the extension's table.

    It is not an `nn.Linear`, so that peft's "all-linear" skips it: merging an adapter would change the shared table.
    """

    def __init__(self, in_features: int, extension_vocab_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(extension_vocab_size, in_features))
        self.bias = nn.Parameter(torch.empty(extension_vocab_size))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Score the new ids."""
        return F.linear(hidden_states, self.weight, self.bias)


class ExtendedDecoder(nn.Linear):
    """Mixed into the class of the base's decoder; its child `extension` returns the logits of the new ids."""

    extension: ExtensionDecoder
    extension_start: int

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map `[..., in_features]` to logits `[..., base_vocab_size + extension_vocab_size]`."""
        base = super().forward(hidden_states)
        return torch.cat([base[..., : self.extension_start], self.extension(hidden_states)], dim=-1)


# --------------------------------------------------------------------------------------------- side modules


class AddedLinear(nn.Linear):
    """A layer of a side module, which `initialize_added` tells from the base's layers by its class."""


class Gate(AddedLinear):
    """The weighting block of a layer, `[..., hidden_size]` to `[..., 1]`; its sigmoid is the weight of the base.

    The caller applies the sigmoid: peft adds an adapter's change to the output of a linear layer and merges it into the
    weight, and the two agree for a purely linear module only. `ExtendedModel` sets the bias to `bias_init`. A constant
    gate starts with zero weights, because drawn weights would shift the gate by the size of the states.
    """

    def __init__(self, hidden_size: int, bias_init: float, starts_constant: bool):
        super().__init__(hidden_size, 1)
        self.bias_init = bias_init
        self.starts_constant = starts_constant


def get_option(config: PreTrainedConfig, default: Any, *names: str) -> Any:
    """Return the first of `names` that `config` has; families name the same option differently."""
    return next((getattr(config, name) for name in names if hasattr(config, name)), default)


class SideLayer(nn.Module):
    """The side module of a layer and its gate (section 3.2).

    A Transformer layer with the base's residual width and bottlenecks inside, as in the released code. Heads,
    activation, dropout and epsilon are the base's. Our choices: where the layers of the base normalize their inputs
    (ModernBERT), so does a side module. And no side module adds positions in its
    attention, even if the base does, since the base's layers have already put them into its input.
    """

    def __init__(self, exbert_config: ExBertConfig, norm_first: bool = False):
        super().__init__()
        config: Any = get_native_config(exbert_config)
        width, epsilon = config.hidden_size, get_option(config, 1e-12, "layer_norm_eps", "norm_eps", "rms_norm_eps")
        hidden_size: Any = exbert_config.extension_hidden_size
        intermediate_size: Any = exbert_config.extension_intermediate_size
        self.num_heads = config.num_attention_heads
        self.head_size = hidden_size // self.num_heads
        self.norm_first = norm_first
        self.attention_dropout = get_option(config, 0.0, "attention_probs_dropout_prob", "attention_dropout")
        self.gate = Gate(width, exbert_config.gate_bias_init, exbert_config.side_init == "base")
        self.query_key_value = AddedLinear(width, 3 * hidden_size)
        self.attention_output = AddedLinear(hidden_size, width)
        self.attention_norm = nn.LayerNorm(width, eps=epsilon)
        self.intermediate = AddedLinear(width, intermediate_size)
        self.activation = ACT2FN[get_option(config, "gelu", "hidden_act", "activation", "hidden_activation")]
        self.output = AddedLinear(intermediate_size, width)
        self.output_norm = nn.LayerNorm(width, eps=epsilon)
        self.dropout = nn.Dropout(
            get_option(config, 0.0, "hidden_dropout_prob", "dropout", "hidden_dropout", "mlp_dropout")
        )

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, base_output: torch.Tensor
    ) -> torch.Tensor:
        """Mix the output of this layer with that of the base's layer.

        Args:
            hidden_states: `[batch, length, hidden_size]`, the input of both layers.
            attention_mask: As the base's layer gets it; see `get_boolean_mask`.
            base_output: `[batch, length, hidden_size]`.
        """
        rows = hidden_states.flatten(0, 1)  # `[tokens, hidden_size]`: linear layers need no view of it
        gate = self.gate(rows).sigmoid()
        dropout = self.attention_dropout if self.training else 0.0
        attend = partial(self.attend, hidden_states.shape[0], get_boolean_mask(attention_mask), dropout)
        if dropout and torch.is_grad_enabled() and rows.device.type == "cpu":
            # Recompute in the backward pass. With dropout on CPU, attention keeps its probabilities three times over, a
            # third of all that exBERT would keep, and the narrow heads are cheap to recompute.
            attend = partial(checkpoint, attend, use_reentrant=False)
        if self.norm_first:
            attended = rows + attend(self.attention_norm(rows))
            output = attended + self.transform(self.output_norm(attended))
        else:
            attended = self.attention_norm(rows + attend(rows))
            output = self.output_norm(attended + self.transform(attended))
        base_rows = base_output.flatten(0, 1)
        return torch.addcmul(output, gate, base_rows - output).view_as(base_output)

    def attend(self, batch: int, mask: torch.Tensor | None, dropout: float, rows: torch.Tensor) -> torch.Tensor:
        """Compute self-attention within each of `batch` texts, without residual and norm."""
        states = self.query_key_value(rows).view(batch, -1, 3, self.num_heads, self.head_size)
        query, key, value = states.permute(2, 0, 3, 1, 4).unbind()
        context = F.scaled_dot_product_attention(query, key, value, mask, dropout)
        return self.dropout(self.attention_output(context.transpose(1, 2).reshape(rows.shape[0], -1)))

    def transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Apply the feed-forward network, without residual and norm."""
        return self.dropout(self.output(self.activation(self.intermediate(hidden_states))))

    @torch.no_grad()
    def cut_from_base(self, layer: nn.Module) -> None:
        """Start as the part of the base's layer that fits into this module; at the base's full size, as a copy of it.

        Positions inside the attention cannot be cut, nor can a gated feed-forward network (ModernBERT). The module then
        starts without them.

        Args:
            layer: A layer of the base, extended or not.
        """
        attention, feed_forward, norms = list_parts(layer, self.norm_first)
        shapes = [tuple(part.weight.shape) for part in attention]
        width = self.attention_output.out_features
        if shapes == [(width, width)] * 4 or shapes == [(3 * width, width), (width, width)]:
            *projections, attention_output = attention
            self.cut_attention(projections, attention_output)
            copy_bias(self.attention_output, attention_output)
        self.output.weight.zero_()
        *_, output = feed_forward or [self.output]
        if len(feed_forward) == 2 and feed_forward[0].out_features == output.in_features:
            self.cut_feed_forward(feed_forward[0], output)
        copy_bias(self.output, output)
        for own_norm, norm in zip((self.output_norm, self.attention_norm), reversed(norms), strict=False):
            own_norm.weight.copy_(norm.weight)
            copy_bias(own_norm, norm)

    def cut_attention(self, projections: list[nn.Linear], attention_output: nn.Linear) -> None:
        """Approximate each head's two products, query with key and output with value, as closely as the size allows.

        Where the module is wider than the base, the surplus stays as drawn and is multiplied by zeros.
        """
        num_heads, size = self.num_heads, self.attention_output.in_features // self.num_heads
        joined = torch.cat([join_bias(part) for part in projections])
        query, key, value = joined.view(3, num_heads, -1, joined.shape[1])
        out = attention_output.weight.float().unflatten(1, (num_heads, -1)).transpose(0, 1)
        scale = (size / query.shape[1]) ** 0.5  # each attention divides by the root of its own head size
        query, key = truncate_product(query.mT * scale, key, size)
        out, value = truncate_product(out, value, size)
        new, rank = torch.stack([query.mT, key, value]), query.shape[-1]
        weight = self.query_key_value.weight.view(3, num_heads, size, -1)
        weight[0] = 0
        weight[:, :, :rank] = new[..., :-1].to(weight)
        self.query_key_value.bias.view(3, num_heads, size)[:, :, :rank] = new[..., -1].to(weight)
        self.attention_output.weight.zero_()
        self.attention_output.weight.unflatten(1, (num_heads, size))[:, :, :rank] = out.transpose(0, 1).to(weight)

    def cut_feed_forward(self, intermediate: nn.Linear, output: nn.Linear) -> None:
        """Take the neurons with the largest weights, scaled up to the norm of all neurons."""
        joined = join_bias(intermediate)
        strength = joined.norm(dim=1) * output.weight.float().norm(dim=0)
        kept = strength.topk(min(len(strength), self.output.in_features)).indices.sort().values
        scale = strength.norm() / strength[kept].norm()
        self.intermediate.weight[: len(kept)] = joined[kept, :-1].to(self.intermediate.weight)
        self.intermediate.bias[: len(kept)] = joined[kept, -1].to(self.intermediate.weight)
        self.output.weight[:, : len(kept)] = (output.weight[:, kept] * scale).to(self.output.weight)


def list_parts(layer: nn.Module, norm_first: bool) -> tuple[list[nn.Linear], list[nn.Linear], list[Any]]:
    """List the linear layers of a layer's attention, those of its feed-forward network, and its norms.

    Query, key and value (one layer in ModernBERT) come first, then the output of the attention. The norm of the
    attention comes before the other, which not all families define in this order. DeBERTa-v2's projections of positions
    and exBERT's own side module are left out.
    """
    modules = layer.named_modules()
    parts = [(name, module) for name, module in modules if "side" not in name.split(".") and "pos_" not in name]
    linear = [(name, module) for name, module in parts if isinstance(module, nn.Linear)]
    norms = [(norm_first or "att" not in name, module) for name, module in parts if isinstance(module, nn.LayerNorm)]
    return (
        [module for name, module in linear if "att" in name],
        [module for name, module in linear if "att" not in name],
        [module for _, module in sorted(norms, key=lambda pair: pair[0])],
    )


def join_bias(layer: nn.Linear) -> torch.Tensor:
    """Return the weights with the biases as last column, `[out_features, in_features + 1]`, float32."""
    bias = layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias
    return torch.cat([layer.weight, bias[:, None]], dim=1).float()


def copy_bias(target: Any, source: Any) -> None:
    """Copy the bias of a linear layer or a norm, if it has one."""
    if source.bias is not None:
        target.bias.copy_(source.bias)


def truncate_product(left: torch.Tensor, right: torch.Tensor, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the factors of the nearest matrix to `left @ right` of at most this rank (Eckart and Young 1936).

    Args:
        left: `[..., m, size]`.
        right: `[..., size, n]`.
        rank: The factors are `[..., m, rank]` and `[..., rank, n]`; if `size` is smaller, it takes the place of rank.
    """
    left_basis, left = torch.linalg.qr(left)
    right_basis, right = torch.linalg.qr(right.mT)
    u, singular, vh = torch.linalg.svd(left @ right.mT)
    root = singular[..., :rank].sqrt()
    return left_basis @ (u[..., :rank] * root[..., None, :]), (root[..., None] * vh[..., :rank, :]) @ right_basis.mT


def get_boolean_mask(attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return a layer's mask of any form as `[batch, 1, 1 or length, length]`, True where to attend.

    Layers get None (no padding), bool, integers (DeBERTa-v2), 0 and the lowest float (eager attention), or
    `[batch, length]` (flash attention). A row that masks everything attends to everything, because a softmax over
    nothing is NaN. DeBERTa-v2 has such rows for padding.
    """
    if attention_mask is None or (attention_mask.dtype == torch.bool and attention_mask.dim() == 4):
        return attention_mask  # for sdpa, which gives zeros for such a row
    mask = attention_mask == 0 if attention_mask.is_floating_point() else attention_mask.bool()
    if mask.dim() == 2:
        mask = mask[:, None, None, :]
    return mask | ~mask.any(dim=-1, keepdim=True)


def check_window(layer: Any) -> None:
    """Check that the mask of a local layer has its window, which the side module takes from there.

    Flash attention gets the window as a number instead. Its side modules would attend to everything.

    Raises:
        ValueError: The layer is local, and its attention is neither sdpa nor eager.
    """
    if getattr(layer, "attention_type", None) != "sliding_attention":
        return
    if (attention := layer.config._attn_implementation) not in ("sdpa", "eager"):
        raise ValueError(
            "exBERT needs sdpa or eager attention around an encoder with local layers, whose window only their masks "
            f"contain, but the encoder uses {attention}. Load it with attn_implementation='sdpa'."
        )


def check_layer_mask(encoder: PreTrainedModel, layer: nn.Module) -> None:
    """Raise unless a layer of an encoder with its own code gets its mask where `ExtendedLayer` takes it from."""
    if comes_with_code(encoder) and [*signature(layer.forward).parameters][1:2] != ["attention_mask"]:
        raise ValueError(
            "the layers of an encoder with its own code must take attention_mask after the states, which exBERT needs, "
            f"but a {type(layer).__name__} does not. Use another encoder."
        )


class ExtendedLayer(nn.Module):
    """Mixed into the class of the base's layers; its child `side` reads the same input and mixes the two outputs."""

    side: nn.Module

    def forward(self, hidden_states: torch.Tensor, *args, **kwargs) -> Any:
        """Run both branches; arguments and output are the base layer's."""
        check_window(self)
        outputs = super().forward(hidden_states, *args, **kwargs)
        attention_mask = kwargs["attention_mask"] if "attention_mask" in kwargs else next(iter(args), None)
        if isinstance(outputs, tuple):
            return self.side(hidden_states, attention_mask, outputs[0]), *outputs[1:]
        return self.side(hidden_states, attention_mask, outputs)


# -------------------------------------------------------------------------------------- extending an encoder


class ExtendedModel(PreTrainedModel):
    """Mixed into the classes of the base and of its LM head, to initialize what exBERT adds inside them.

    Weights are drawn from N(0, `added_spread`) and biases are zero, as in the released code.
    """

    added_spread: float

    def _init_weights(self, module: nn.Module) -> None:
        # The common initializer first: ModernBERT's own in transformers 5.10 skips modules that it does not know.
        PreTrainedModel._init_weights(self, module)
        super()._init_weights(module)
        initialize_added(module, self.added_spread)


@torch.no_grad()
def initialize_added(module: nn.Module, spread: float) -> None:
    """Initialize `module` if exBERT added it: a layer of a side module, or the extension of a table or decoder."""
    if isinstance(module, AddedLinear | ExtensionTable | ExtensionDecoder):
        init.normal_(module.weight, std=spread)
    if isinstance(module, ExtensionDecoder):
        init.zeros_(module.bias)
    if isinstance(module, Gate):
        init.constant_(module.bias, module.bias_init)
        if module.starts_constant:
            init.zeros_(module.weight)


@cache
def build_extended_class(mixin: type[nn.Module], module_class: type[nn.Module]) -> type[nn.Module]:
    """Build a subclass of `module_class` with `mixin` in front and the name of `module_class`."""
    return type(module_class.__name__, (mixin, module_class), {"__module__": module_class.__module__})


def extend(module: nn.Module, mixin: type[nn.Module], **attributes: Any) -> None:
    """Give `module` the class of `build_extended_class` and the attributes that `mixin` reads.

    Raises:
        ValueError: `module` is already extended.
    """
    if isinstance(module, mixin):
        raise ValueError(
            f"the base must not be an exBERT, but its {type(module).__name__} is extended already. Use another base."
        )
    module.__class__ = build_extended_class(mixin, type(module))  # type: ignore[arg-type]
    for name, value in attributes.items():
        setattr(module, name, value)


@torch.no_grad()
def add_extension(module: Any, mixin: Any, extension: nn.Module, start: int | None) -> None:
    """Give a table or decoder the extension for the ids from `start` on, or replace its extension by a larger one."""
    if not isinstance(module, mixin):
        extend(module, mixin, extension=extension, extension_start=start)
        return
    for name, old in module.extension.named_parameters():
        new = extension.get_parameter(name)
        new[: len(old)] = old
        new.requires_grad_(old.requires_grad)
    module.extension = extension


def restore(module: nn.Module, *attributes: str) -> None:
    """Undo `extend`."""
    module.__class__ = type(module).__bases__[1]
    for name in attributes:
        delattr(module, name)
