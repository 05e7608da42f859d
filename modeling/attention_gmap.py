"""How a layer of G-MAP's domain encoder reads the memory: attention functions and gates.

The layers that read the memory use "memory_sdpa" and "memory_eager" instead of "sdpa" and "eager"; both are registered
in transformers' attention interface. Each of these layers has a copy of the encoder's configuration that names the
function; all other configurations keep the user's choice. Padding is masked in both parts, in the released code in
neither.

A family whose attention does not go through the interface (MPNet, RoFormer, DeBERTa) reads the memory by the fusion
"cross", which needs the context of its attention alone: a hook takes it where the attention module returns it, or where
a linear layer inside this module reads it.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

ATTENTION_FUNCTIONS = {"sdpa": "memory_sdpa", "eager": "memory_eager"}
# The key projection of a family, and its value projection.
PROJECTIONS = {"k_lin": "v_lin", "k_proj": "v_proj", "key": "value", "key_proj": "value_proj", "k": "v"}
KEY_PROJECTIONS = ("Wqkv", *PROJECTIONS)
OUTPUT_PROJECTIONS = ("o", "dense")


class Memory(NamedTuple):
    """What one layer reads of the memory."""

    states: torch.Tensor
    """`[batch, memory_length, hidden_size]`, before the layer's key and value projections."""
    mask: torch.Tensor | None
    """`[batch, 1, 1 or length, memory_length]`, bool, True where to attend; None: everywhere."""
    rotation: tuple[torch.Tensor, torch.Tensor] | None
    """Cosine and sine `[batch, memory_length, head size]` that rotate the keys; None in families without rotation."""
    head_gate: torch.Tensor | None
    """`[heads]`, the memory's weight before the sigmoid; only for the fusion "gate"."""
    output: nn.Module | None
    """Maps what the memory changes, `[..., hidden_size]`; None: the paper's, no map."""


def attend_with_memory(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    memories: list[Memory] | None = None,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Compute the self-attention of a layer of the domain encoder, including its memory if any (section 2.2).

    Args:
        module: The attention module; its `memory_index` is its place in `memories`.
        query: `[batch, heads, length, head size]`.
        key: The same shape.
        value: The same shape.
        attention_mask: As sdpa (bool or None) or eager attention (0 and the lowest float) gets it.
        memories: One for each layer that reads the memory; None is plain self-attention.
        kwargs: Passed to the attention function of transformers.

    Returns:
        Context `[batch, length, heads, head size]`, and the attention weights if the function returns them. With the
        fusion "memory" the weights cover `length + memory_length` keys, otherwise the self-attention only.
    """
    mask_dtype = torch.bool
    if module.config._attn_implementation == "memory_sdpa":
        attend: Callable = ALL_ATTENTION_FUNCTIONS["sdpa"]
    else:
        mask_dtype = query.dtype
        attend = sys.modules[type(module).__module__].eager_attention_forward  # the family's own
    index: Any = getattr(module, "memory_index", None)
    if memories is None or index is None:
        return attend(module, query, key, value, attention_mask, **kwargs)
    memory, fusion = memories[index], module.memory_fusion
    memory_key, memory_value = project_memory(module, memory.states.to(key.dtype), key.shape[1])
    if memory.rotation is not None and fusion != "cross":  # the query of "cross" has no position
        memory_key = rotate(memory_key, *memory.rotation)
    if fusion == "memory":
        mask = join_masks(attention_mask, memory.mask, query, memory_key, mask_dtype)
        keys, values = torch.cat([key, memory_key], dim=2), torch.cat([value, memory_value], dim=2)
        fused, weights = attend(module, query, keys, values, mask, **kwargs)
        if memory.output is not None:
            context = attend(module, query, key, value, attention_mask, **kwargs)[0]
            fused = context + map_heads(memory.output, fused - context)
        return fused, weights
    context, weights = attend(module, query, key, value, attention_mask, **kwargs)
    memory_query = context.transpose(1, 2) if fusion == "cross" else query
    fused = attend_to_memory(attend, module, context, memory_query, memory, memory_key, memory_value, **kwargs)
    return fused, weights


def attend_to_memory(
    attend: Callable,
    module: Any,
    context: torch.Tensor,
    query: torch.Tensor,
    memory: Memory,
    memory_key: torch.Tensor,
    memory_value: torch.Tensor,
    **kwargs,
) -> torch.Tensor:
    """Return what a second attention, over the memory alone, makes of the context `[batch, length, heads, head size]`.

    Args:
        attend: A function of transformers' attention interface, called with `module` and `kwargs`.
        query: `[batch, heads, length, head size]`.
        memory_key: `[batch, heads, memory_length, head size]`; `memory_value` has the same shape.
    """
    mask = memory.mask
    if mask is not None:
        has_memory = mask.any(dim=-1, keepdim=True)  # a softmax over nothing would be NaN
        is_sdpa = attend is ALL_ATTENTION_FUNCTIONS["sdpa"]
        mask = convert_mask(mask | ~has_memory, torch.bool if is_sdpa else query.dtype)
    fused = attend(module, query, memory_key, memory_value, mask, **kwargs)[0]
    if memory.head_gate is not None:
        share = memory.head_gate.sigmoid().to(context.dtype).unsqueeze(-1)
        fused = (1 - share) * context + share * fused
    if memory.mask is not None:
        fused = torch.where(has_memory.transpose(1, 2), fused, context)
    if memory.output is not None:
        fused = context + map_heads(memory.output, fused - context)
    return fused


# ---------------------------------------------------------------------------- families with their own attention


def find_reader(module: nn.Module) -> nn.Module:
    """Return where the context of an attention module shows: a linear layer inside that reads it, else the module."""
    inside = (getattr(module, name, None) for name in OUTPUT_PROJECTIONS)
    return next((each for each in inside if isinstance(each, nn.Module)), module)


def add_reader(module: nn.Module) -> None:
    """Let an attention module read the memory that `give_memories` gives, from now on."""
    reader = find_reader(module)
    if hasattr(reader, "memory_read"):
        return
    setattr(reader, "memory_read", None)  # noqa: B010  torch types attributes as tensors
    if reader is module:
        reader.register_forward_hook(_change_output)
    else:
        reader.register_forward_pre_hook(_change_input)


def _change_output(module: Any, inputs: Any, output: Any) -> Any:
    # Hooks must not refer to a model: its copies would read the memory of the first.
    if isinstance(output, tuple):
        return (read_context(module, output[0]), *output[1:])
    return read_context(module, output)


def _change_input(module: Any, inputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (read_context(module, inputs[0]), *inputs[1:])


def read_context(reader: Any, context: torch.Tensor) -> torch.Tensor:
    """Return the context `[batch, length, hidden_size]` of a layer after it has read its memory, if it has one."""
    if reader.memory_read is None:
        return context
    memory, key, value = reader.memory_read
    heads = context.unflatten(-1, (key.shape[1], -1))
    attend = ALL_ATTENTION_FUNCTIONS["sdpa"]
    return attend_to_memory(attend, reader, heads, heads.transpose(1, 2), memory, key, value, is_causal=False).flatten(
        2
    )


@contextmanager
def give_memories(modules: list[nn.Module], memories: list[Memory] | None, heads: int, keeps: bool) -> Iterator[None]:
    """Let attention modules of `add_reader` read a memory each.

    Args:
        modules: In the order of the memories; None is plain self-attention.
        heads: Attention heads of a layer.
        keeps: Whether the memories stay afterwards, for layers that are computed again in the backward pass.
    """
    readers: list[Any] = [find_reader(module) for module in modules]
    for number, (module, reader) in enumerate(zip(modules, readers, strict=True)):
        memory = None if memories is None else memories[number]
        reader.memory_read = memory and (memory, *project_memory(module, memory.states, heads))
    try:
        yield
    finally:
        for reader in readers:
            if not keeps:
                reader.memory_read = None


def map_heads(linear: nn.Module, change: torch.Tensor) -> torch.Tensor:
    """Map all heads together, `[batch, length, heads, head size]`."""
    return linear(change.reshape(-1, change.shape[-2] * change.shape[-1])).view_as(change)


def project_memory(module: Any, states: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values `[batch, heads, memory_length, head size]`, projected by the layer's own weights."""
    if hasattr(module, "Wqkv"):
        _, key, value = module.Wqkv(states.flatten(0, 1)).view(*states.shape[:2], 3, heads, -1).unbind(2)
    else:
        name = next(name for name in PROJECTIONS if isinstance(getattr(module, name, None), nn.Module))
        projections = getattr(module, name), getattr(module, PROJECTIONS[name])
        key, value = (projection(states).unflatten(-1, (heads, -1)) for projection in projections)
    return key.transpose(1, 2), value.transpose(1, 2)


def rotate(key: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate keys `[batch, heads, length, head size]` by their positions."""
    first, second = key.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (key.float() * cosine.unsqueeze(1) + turned * sine.unsqueeze(1)).to(key.dtype)


def convert_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a boolean mask as `dtype`: bool for sdpa, or 0 and the lowest float for eager attention."""
    if dtype == torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill(~mask, torch.finfo(dtype).min)


def join_masks(
    attention_mask: torch.Tensor | None,
    memory_mask: torch.Tensor | None,
    query: torch.Tensor,
    memory_key: torch.Tensor,
    dtype: torch.dtype,
) -> torch.Tensor | None:
    """Return the layer's own mask, followed by the memory's along the keys.

    The released code multiplies the two additive masks, which masks nothing.

    Args:
        attention_mask: `[batch, 1 or heads, length, length]`, or None.
        memory_mask: `[batch, 1, 1 or length, memory_length]`, bool, or None.
        query: `[batch, heads, length, head size]`.
        memory_key: `[batch, heads, memory_length, head size]`.
        dtype: Type of the mask if `attention_mask` is None; see `convert_mask`.
    """
    if attention_mask is None and memory_mask is None:
        return None
    batch, _, length, _ = query.shape
    if attention_mask is None:
        everywhere = torch.ones(batch, 1, length, length, dtype=torch.bool, device=query.device)
        attention_mask = convert_mask(everywhere, dtype)
    if memory_mask is None:
        memory_mask = torch.ones(batch, 1, 1, memory_key.shape[2], dtype=torch.bool, device=query.device)
    memory_mask = convert_mask(memory_mask, attention_mask.dtype)
    heads = attention_mask.shape[1]
    attention_mask = attention_mask.expand(batch, heads, length, -1)
    return torch.cat([attention_mask, memory_mask.expand(batch, heads, length, -1)], dim=-1)


def find_self_attention(layer: nn.Module) -> nn.Module:
    """Return the module of a layer that holds its key and value projections.

    Raises:
        ValueError: The family of the layer is not supported.
    """
    for module in layer.modules():
        if any(isinstance(getattr(module, name, None), nn.Module) for name in KEY_PROJECTIONS):
            return module
    raise ValueError(
        f"the layers of the domain encoder must have key and value projections, but a {type(layer).__name__} has none. "
        "Use another family."
    )


def find_input_norm(layer: nn.Module, norm_first: bool) -> nn.Module | None:
    """Return the norm before the attention of a layer that normalizes its inputs; None for other layers.

    Args:
        norm_first: See `normalizes_first`.
    """
    names = ("attn_norm", "input_layernorm", "attention.self_attn_layer_norm", "attention.LayerNorm", "attention.ln")
    modules = dict(layer.named_modules()) if norm_first else {}
    return next((modules[name] for name in names if name in modules), None)


AttentionInterface.register("memory_sdpa", attend_with_memory)
AttentionInterface.register("memory_eager", attend_with_memory)


def check_attention(implementation: Any) -> None:
    """Raise unless the memory is read under this attention implementation.

    Raises:
        ValueError: The implementation is not sdpa or eager.
    """
    if implementation not in (None, *ATTENTION_FUNCTIONS):
        raise ValueError(
            f"G-MAP needs sdpa or eager attention, because {implementation} would skip the memory. Use "
            "attn_implementation='sdpa'."
        )


# --------------------------------------------------------------------------------------------------- gates


class LayerGate(nn.Linear):
    """g of section 2.3: scores the memory's layers token by token, `[..., layers, hidden_size]` to `[..., layers, 1]`.

    `mix_layers` applies the softmax: peft adds an adapter's change to the output of a linear layer and merges it into
    the weight, and the two agree for a purely linear module only. The bias is in the paper's parameter count but has no
    effect, because it moves the scores of all layers alike.
    """

    def __init__(self, hidden_size: int):
        super().__init__(hidden_size, 1)


def mix_layers(gate: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """Mix `[batch, memory_length, layers, hidden_size]` to `[batch, memory_length, hidden_size]` by a `LayerGate`."""
    rows = states.flatten(0, 1)
    weights = gate(rows).float().softmax(dim=1).to(states.dtype)
    return torch.bmm(weights.mT, rows).view(*states.shape[:2], -1)


class HeadGate(nn.Module):
    """The learned weight of the memory in each head, for the fusion "gate" (Wu et al. 2022); starts near a half."""

    def __init__(self, num_heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_heads))


class MemoryOutput(nn.Linear):
    """Maps what the memory changes in the context of a layer; zero at first. See `GMapConfig.starts_as_encoder`."""

    def __init__(self, hidden_size: int):
        super().__init__(hidden_size, hidden_size, bias=False)
