"""The layers of exBERT: a table of new entries, side modules with their gates, and how an encoder is extended by them.

Parts of the base are extended by a subclass made from their class: their keys, their place in `hidden_states`, their
activation checkpointing and the names that sharding looks for stay as they are.
"""

from collections.abc import Mapping
from functools import cache, partial
from typing import Any, Protocol

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.activations import ACT2FN

from .backbone import get_native_config
from .configuration_exbert import ExBertConfig

# ------------------------------------------------------------------------------------- extension vocabulary


class VocabularyDelta(Protocol):
    """What an expanded tokenizer adds, as `hf_domain.tokenization.delta.VocabularyDelta` says it."""

    old_size: int
    """The first new id."""
    pieces: Mapping[str, list[int]]
    """The old ids that spelled each new entry, in the order of the new ids."""


def read_extension_vocabulary(vocabulary: VocabularyDelta | Mapping[int, list[int]]) -> tuple[int, list[list[int]]]:
    """Return the first id of an extension vocabulary and, in the order of the ids, the old ids that spelled each.

    Args:
        vocabulary: A `VocabularyDelta`, or a mapping of each new id to the old ids that spelled it.

    Raises:
        ValueError: There is no entry, the ids have gaps, or an entry is spelled by an id that is new itself.
    """
    if isinstance(vocabulary, Mapping):
        start, spellings = min(vocabulary, default=0), dict(vocabulary)
    else:
        start, spellings = vocabulary.old_size, dict(enumerate(vocabulary.pieces.values(), vocabulary.old_size))
    if not spellings:
        raise ValueError("the extension vocabulary has no entry; use extension_vocab_size=0 for side modules alone")
    if missing := sorted(set(range(start, start + len(spellings))) - spellings.keys()):
        raise ValueError(f"the ids of an extension vocabulary must follow each other, {missing[0]} is missing")
    pieces = [list(spellings[start + i]) for i in range(len(spellings))]
    if max(max(old_ids, default=0) for old_ids in pieces) >= start:
        raise ValueError(f"the ids that spelled the extension vocabulary must be old, below {start}; one is not")
    return start, pieces


def check_extension_start(start: int, base_vocab_size: int) -> None:
    """Check that the first id of the extension vocabulary follows the last id of the base.

    Raises:
        ValueError: They overlap, or there are ids between them.
    """
    if start != base_vocab_size:
        raise ValueError(
            f"the extension vocabulary begins at id {start} but the base has {base_vocab_size} rows: it must begin "
            "where the base ends. Expand the base's own tokenizer; if the last rows of the table are padding beyond "
            f"it, pass base_vocab_size={start}"
        )


@torch.no_grad()
def fill_from_pieces(new: torch.Tensor, old: torch.Tensor, pieces: list[list[int]]) -> None:
    """Make each entry of `new` the mean of the `old` ones that spelled it; of all of them where none did.

    Args:
        new: `[extension_vocab_size, ...]`, written in place.
        old: `[base_vocab_size, ...]`.
        pieces: The old ids of each new entry.
    """
    for row, old_ids in enumerate(pieces):
        new[row] = (old[old_ids] if old_ids else old).mean(dim=0)


class ExtendedEmbedding(nn.Embedding):
    """Mixed into the class of the base's embedding table: its child `extension` holds the rows of the new ids.

    An extension of no rows is an adapter that is switched off.
    """

    extension: nn.Embedding
    extension_start: int

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Look up `[...]`, giving `[..., embedding_dim]`.

        Raises:
            IndexError: An id is beyond base and extension (on the CPU; elsewhere the device's own assertion fails).
        """
        if not len(self.extension.weight):
            return super().forward(input_ids)
        size = self.extension_start + len(self.extension.weight)
        if input_ids.device.type == "cpu" and not torch.compiler.is_compiling() and (input_ids >= size).any():
            raise IndexError(
                f"input_ids must lie below {size} ({self.extension_start} of the base, {size - self.extension_start} "
                f"of the extension), got {int(input_ids.max())}; use the tokenizer the model was trained with"
            )
        is_new = input_ids >= self.extension_start
        base = super().forward(input_ids.masked_fill(is_new, 0))
        extension = self.extension((input_ids - self.extension_start).clamp(min=0))
        return torch.where(is_new.unsqueeze(-1), extension.to(base.dtype), base)


class ExtensionTable(nn.Embedding):
    """The rows of the new ids."""


class ExtensionDecoder(nn.Module):
    """A linear map `[..., in_features]` to the logits of the new ids, whose weight is the extension's table.

    No `nn.Linear`, which the target "all-linear" of peft would find: a change of it, merged, would change the table.
    """

    def __init__(self, in_features: int, extension_vocab_size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.empty(extension_vocab_size, in_features))
        self.bias = nn.Parameter(torch.empty(extension_vocab_size))

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Score the new ids."""
        return F.linear(hidden_states, self.weight, self.bias)


class ExtendedDecoder(nn.Linear):
    """Mixed into the class of the base's decoder: its child `extension` gives the logits of the new ids."""

    extension: ExtensionDecoder
    extension_start: int

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map `[..., in_features]` to logits `[..., base_vocab_size + extension_vocab_size]`."""
        base = super().forward(hidden_states)
        return torch.cat([base[..., : self.extension_start], self.extension(hidden_states)], dim=-1)


# --------------------------------------------------------------------------------------------- side modules


class AddedLinear(nn.Linear):
    """A layer of a side module; `initialize_added` knows it from those of the base."""


class Gate(AddedLinear):
    """The weighting block of a layer, `[..., hidden_size]` to `[..., 1]`; a sigmoid of it weighs the base.

    The sigmoid is left to the caller: an adapter of peft adds its change to the output of a linear layer, and merges it
    into the weight, which is the same for a linear map alone. The bias starts at `bias_init`; `ExtendedModel` sets it.
    A constant gate starts with weights of zero: drawn ones add to the bias what the size of the states makes of them.
    """

    def __init__(self, hidden_size: int, bias_init: float, starts_constant: bool):
        super().__init__(hidden_size, 1)
        self.bias_init = bias_init
        self.starts_constant = starts_constant


def get_option(config: PreTrainedConfig, *names: str) -> Any:
    """Return the first of `names` that `config` has; the families call the same option by different names."""
    return next(getattr(config, name) for name in names if hasattr(config, name))


class SideLayer(nn.Module):
    """The extension module of a layer and its gate (section 3.2).

    A Transformer layer with the residual width of the base and bottlenecks inside, as in the released code; as many
    heads, the same activation, dropout and epsilon as the base. Our choice for ModernBERT, whose residual stream is not
    normalized: the norms stand before the sublayers, as in its own layers. Our choice for all: no positions of its own,
    also where the base adds them in its attention; its input carries what the base's layers have made of them.
    """

    def __init__(self, exbert_config: ExBertConfig):
        super().__init__()
        config: Any = get_native_config(exbert_config)
        width, epsilon = config.hidden_size, getattr(config, "layer_norm_eps", getattr(config, "norm_eps", 1e-12))
        hidden_size: Any = exbert_config.extension_hidden_size
        intermediate_size: Any = exbert_config.extension_intermediate_size
        self.num_heads = config.num_attention_heads
        self.norm_first = config.model_type == "modernbert"
        self.attention_dropout = get_option(config, "attention_probs_dropout_prob", "attention_dropout")
        self.gate = Gate(width, exbert_config.gate_bias_init, exbert_config.side_init == "base")
        self.query_key_value = AddedLinear(width, 3 * hidden_size)
        self.attention_output = AddedLinear(hidden_size, width)
        self.attention_norm = nn.LayerNorm(width, eps=epsilon)
        self.intermediate = AddedLinear(width, intermediate_size)
        self.activation = ACT2FN[get_option(config, "hidden_act", "activation", "hidden_activation")]
        self.output = AddedLinear(intermediate_size, width)
        self.output_norm = nn.LayerNorm(width, eps=epsilon)
        self.dropout = nn.Dropout(get_option(config, "hidden_dropout_prob", "dropout", "mlp_dropout"))

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, base_output: torch.Tensor
    ) -> torch.Tensor:
        """Mix the output of this layer with that of the base's layer.

        Args:
            hidden_states: `[batch, length, hidden_size]`, what both layers read.
            attention_mask: As the base's layer gets it; see `get_boolean_mask`.
            base_output: `[batch, length, hidden_size]`.
        """
        gate = self.gate(hidden_states).sigmoid()
        mask = get_boolean_mask(attention_mask)
        attend = self.attend
        if self.training and torch.is_grad_enabled():
            # Computed again in the backward pass: on CPU the attention keeps its probabilities three times over when it
            # drops some, a third of all that exBERT would keep, and its narrow heads are cheap.
            attend = partial(checkpoint, self.attend, use_reentrant=False)
        if self.norm_first:
            attended = hidden_states + attend(self.attention_norm(hidden_states), mask)
            output = attended + self.transform(self.output_norm(attended))
        else:
            attended = self.attention_norm(hidden_states + attend(hidden_states, mask))
            output = self.output_norm(attended + self.transform(attended))
        return base_output * gate + output * (1 - gate)

    def attend(self, hidden_states: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        """Self-attention, without residual and norm."""
        query, key, value = (
            states.unflatten(-1, (self.num_heads, -1)).transpose(1, 2)
            for states in self.query_key_value(hidden_states).chunk(3, dim=-1)
        )
        dropout = self.attention_dropout if self.training else 0.0
        context = F.scaled_dot_product_attention(query, key, value, mask, dropout)
        return self.dropout(self.attention_output(context.transpose(1, 2).flatten(2)))

    def transform(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Feed-forward network, without residual and norm."""
        return self.dropout(self.output(self.activation(self.intermediate(hidden_states))))

    @torch.no_grad()
    def cut_from_base(self, layer: nn.Module) -> None:
        """Start as the part of the base's layer that fits in; as large as its base a module is a copy of it.

        Two things cannot be cut: positions inside the attention, and a gated feed-forward network (ModernBERT), without
        which the module starts.

        Args:
            layer: A layer of the base, extended or not.
        """
        linear, norms = list_parts(layer)
        *projections, attention_output, intermediate, output = linear
        self.cut_attention(projections, attention_output)
        self.output.weight.zero_()
        if intermediate.out_features == output.in_features:
            self.cut_feed_forward(intermediate, output)
        for own, part in ((self.attention_output, attention_output), (self.output, output)):
            copy_bias(own, part)
        for own_norm, norm in zip((self.output_norm, self.attention_norm), reversed(norms), strict=False):
            own_norm.weight.copy_(norm.weight)
            copy_bias(own_norm, norm)

    def cut_attention(self, projections: list[nn.Linear], attention_output: nn.Linear) -> None:
        """Take of each head the best approximation of its products, query with key and output with value.

        What is wider than the base stays as it was drawn and is multiplied with zeros.
        """
        num_heads, size = self.num_heads, self.attention_output.in_features // self.num_heads
        joined = torch.cat([join_bias(part) for part in projections])
        query, key, value = joined.view(3, num_heads, -1, joined.shape[1])
        out = attention_output.weight.float().unflatten(1, (num_heads, -1)).transpose(0, 1)
        scale = (size / query.shape[1]) ** 0.5  # each attention divides by the root of its own size
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
        """Take the neurons with the largest weights, scaled so that their output has the norm of all."""
        joined = join_bias(intermediate)
        strength = joined.norm(dim=1) * output.weight.float().norm(dim=0)
        kept = strength.topk(min(len(strength), self.output.in_features)).indices.sort().values
        scale = strength.norm() / strength[kept].norm()
        self.intermediate.weight[: len(kept)] = joined[kept, :-1].to(self.intermediate.weight)
        self.intermediate.bias[: len(kept)] = joined[kept, -1].to(self.intermediate.weight)
        self.output.weight[:, : len(kept)] = (output.weight[:, kept] * scale).to(self.output.weight)


def list_parts(layer: nn.Module) -> tuple[list[nn.Linear], list[Any]]:
    """List the linear layers and the norms of a layer in their order, which is that of every family.

    The linear ones are query, key and value (one layer in ModernBERT), attention output, intermediate and output.
    DeBERTa-v2's projections of positions are left out, and what exBERT stands beside.
    """
    modules = layer.named_modules()
    parts = [module for name, module in modules if "side" not in name.split(".") and "pos_" not in name]
    linear = [module for module in parts if isinstance(module, nn.Linear)]
    return linear, [module for module in parts if isinstance(module, nn.LayerNorm)]


def join_bias(layer: nn.Linear) -> torch.Tensor:
    """Return weights and, in a last column, biases, `[out_features, in_features + 1]`, float32."""
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
        rank: The factors are `[..., m, rank]` and `[..., rank, n]`, or of `size` where that is less.
    """
    left_basis, left = torch.linalg.qr(left)
    right_basis, right = torch.linalg.qr(right.mT)
    u, singular, vh = torch.linalg.svd(left @ right.mT)
    root = singular[..., :rank].sqrt()
    return left_basis @ (u[..., :rank] * root[..., None, :]), (root[..., None] * vh[..., :rank, :]) @ right_basis.mT


def get_boolean_mask(attention_mask: torch.Tensor | None) -> torch.Tensor | None:
    """Return the mask of a layer, whatever its form, as `[batch, 1, 1 or length, length]`, True where to attend.

    Layers get None (no padding), bool, integers (DeBERTa-v2), 0 and the lowest float (eager attention), or
    `[batch, length]` (flash attention). A row that masks everything attends to everything: a softmax over nothing would
    be NaN, and DeBERTa-v2 masks the rows of padding so.
    """
    if attention_mask is None:
        return None
    mask = attention_mask == 0 if attention_mask.is_floating_point() else attention_mask.bool()
    if mask.dim() == 2:
        mask = mask[:, None, None, :]
    return mask | ~mask.any(dim=-1, keepdim=True)


class ExtendedLayer(nn.Module):
    """Mixed into the class of the base's layers: its child `side` reads the same input and mixes the outputs."""

    side: nn.Module

    def forward(self, hidden_states: torch.Tensor, *args, **kwargs) -> Any:
        """Run both branches; arguments and output are those of the base's layer."""
        outputs = super().forward(hidden_states, *args, **kwargs)
        attention_mask = kwargs["attention_mask"] if "attention_mask" in kwargs else next(iter(args), None)
        if isinstance(outputs, tuple):
            return self.side(hidden_states, attention_mask, outputs[0]), *outputs[1:]
        return self.side(hidden_states, attention_mask, outputs)


# -------------------------------------------------------------------------------------- extending an encoder


class ExtendedModel(PreTrainedModel):
    """Mixed into the class of the base and of its LM head: initializes what was added inside them.

    With N(0, `added_spread`) and biases of zero as in the released code, whatever the base's own spread is.
    """

    added_spread: float

    def _init_weights(self, module: nn.Module) -> None:
        # First of all the common initializer: ModernBERT's of transformers 5.10 leaves out modules it does not know.
        PreTrainedModel._init_weights(self, module)
        super()._init_weights(module)
        initialize_added(module, self.added_spread)


@torch.no_grad()
def initialize_added(module: nn.Module, spread: float) -> None:
    """Initialize `module` if exBERT adds it: a layer of a side module, or the extension of a table or decoder."""
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
    """Build the subclass of `module_class` with `mixin` in front, under the name of `module_class`."""
    return type(module_class.__name__, (mixin, module_class), {"__module__": module_class.__module__})


def extend(module: nn.Module, mixin: type[nn.Module], **attributes: Any) -> None:
    """Give `module` the class that `build_extended_class` builds, and the attributes that `mixin` reads.

    Raises:
        ValueError: It has that class already.
    """
    if isinstance(module, mixin):
        raise ValueError(f"{type(module).__name__} is extended by exBERT already; an exBERT cannot be its base")
    module.__class__ = build_extended_class(mixin, type(module))  # type: ignore[arg-type]
    for name, value in attributes.items():
        setattr(module, name, value)


@torch.no_grad()
def add_extension(module: Any, mixin: Any, extension: nn.Module, start: int | None) -> None:
    """Give a table or decoder the extension for the ids from `start` on; a larger one takes over what it replaces."""
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
