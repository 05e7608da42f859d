"""Read queries, keys and values of an attention layer in any family, by hooks."""

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.models.modernbert.modeling_modernbert import apply_rotary_pos_emb

from hf_domain.modeling.backbone import find_encoder, find_layers
from hf_domain.modeling.layers_exbert import get_boolean_mask

# The linear layers of Q, K and V in each family; one name means a single layer for all three.
PROJECTIONS = (
    ("query", "key", "value"),  # BERT, RoBERTa, XLM-R, ELECTRA
    ("q_lin", "k_lin", "v_lin"),  # DistilBERT
    ("query_proj", "key_proj", "value_proj"),  # DeBERTa-v2
    ("Wqkv",),  # ModernBERT
)


def compute_relation_scores(left: torch.Tensor, right: torch.Tensor, num_heads: int) -> torch.Tensor:
    """Compute the scaled dot products between all positions, head by head.

    Args:
        left: `[batch, length, width]`, heads side by side.
        right: `[batch, length, width]`.
        num_heads: Must divide `width`.

    Returns:
        `[batch, num_heads, length, length]`, float32.
    """
    heads = [states.float().unflatten(-1, (num_heads, -1)).transpose(1, 2) for states in (left, right)]
    return heads[0] @ heads[1].mT / math.sqrt(left.shape[-1] / num_heads)


@dataclass
class AttentionStates:
    """The states that the attention of one layer multiplies.

    Args:
        query: `[batch, length, width]`, heads side by side. With rotary positions (ModernBERT) they are rotated, so
            that the products equal the model's. MiniLMv2's relations also use the rotated states, for one rule.
        key: Like `query`.
        value: The same shape, never rotated.
        score_scale: Factor of the scaled products of queries and keys.
        score_bias: `[batch, num_heads, length, length]`, added to these products: DeBERTa-v2's position terms, which
            belong to its attention distribution and to no other relation.
        visible: `[batch, 1, 1 or length, length]`, True where a position attends; None: everywhere. In the local layers
            of ModernBERT it is narrower than the padding mask.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    num_heads: int
    score_scale: float = 1.0
    score_bias: torch.Tensor | None = None
    visible: torch.Tensor | None = None

    def compute_scores(self, relation: str, num_heads: int, also_visible: torch.Tensor | None = None) -> torch.Tensor:
        """Compute a relation before its softmax.

        Args:
            relation: "attention", or "query", "key" or "value" for the relation of each with itself.
            num_heads: Heads of the relation; for "attention" the layer's.
            also_visible: A further `visible` for "attention".

        Returns:
            `[batch, num_heads, length, length]`, float32; the lowest float where "attention" is masked.
        """
        if relation != "attention":
            states = getattr(self, relation)
            return compute_relation_scores(states, states, num_heads)
        scores = compute_relation_scores(self.query, self.key, num_heads) * self.score_scale
        if self.score_bias is not None:
            scores = scores + self.score_bias.float()
        for visible in (self.visible, also_visible):
            if visible is not None:
                scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
        return scores

    def select(self, rows: slice) -> "AttentionStates":
        """Return the states of some sequences."""
        bias, visible = self.score_bias, self.visible
        return replace(
            self,
            query=self.query[rows],
            key=self.key[rows],
            value=self.value[rows],
            score_bias=None if bias is None else bias[rows],
            visible=visible if visible is None or len(visible) == 1 else visible[rows],
        )


class LayerReached(Exception):
    """Ends a forward pass early, when everything needed is recorded."""


@contextmanager
def record_attention(layer: nn.Module, stop: bool = False) -> Iterator[dict[str, Any]]:
    """Record the arguments of a layer and the outputs of its Q, K and V projections, by forward hooks.

    Args:
        layer: A layer of any of the seven families. In an exBERT the base's branch is recorded.
        stop: Raise `LayerReached` as soon as everything is recorded.

    Yields:
        A dictionary that the forward pass fills: arguments and projections by name.
    """
    modules = {name.rpartition(".")[2]: module for name, module in layer.named_modules()}
    names = next(names for names in PROJECTIONS if modules.keys() >= set(names))
    record: dict[str, Any] = {}

    def record_arguments(module: nn.Module, arguments: tuple, options: dict[str, Any]) -> None:
        record.update({"attention_mask": arguments[1] if len(arguments) > 1 else None} | options)

    def record_projection(name: str, output: torch.Tensor) -> None:
        # Only the first call: DeBERTa-v2 may also send its position embeddings through these projections.
        record.setdefault(name, output)
        if stop and record.keys() >= set(names):
            raise LayerReached

    handles = [layer.register_forward_pre_hook(record_arguments, with_kwargs=True)]
    for name in names:
        handles.append(
            modules[name].register_forward_hook(
                lambda module, arguments, output, name=name: record_projection(name, output)
            )
        )
    try:
        yield record
    finally:
        for handle in handles:
            handle.remove()


def read_attention_states(layer: nn.Module, record: dict[str, Any], num_heads: int) -> AttentionStates:
    """Turn what `record_attention` recorded into the states that the layer's attention multiplies."""
    projected = [record[name] for names in PROJECTIONS for name in names if name in record]
    query, key, value = projected if len(projected) == 3 else projected[0].chunk(3, dim=-1)
    states = AttentionStates(query, key, value, num_heads, visible=get_boolean_mask(record["attention_mask"]))
    if (rotation := record.get("position_embeddings")) is not None:
        heads = [projection.unflatten(-1, (num_heads, -1)) for projection in (query, key)]
        rotated = apply_rotary_pos_emb(*heads, *rotation, unsqueeze_dim=2)
        states.query, states.key = (projection.flatten(2) for projection in rotated)
    if record.get("rel_embeddings") is not None:
        attention: Any = next(module for module in layer.modules() if hasattr(module, "disentangled_attention_bias"))
        terms = 1 + len({"c2p", "p2c"} & set(attention.pos_att_type))
        flat = [attention.transpose_for_scores(projection, num_heads) for projection in (query, key)]
        bias = attention.disentangled_attention_bias(*flat, record.get("relative_pos"), record["rel_embeddings"], terms)
        states.score_scale = 1 / math.sqrt(terms)
        states.score_bias = bias.unflatten(0, (-1, num_heads))
    return states


@torch.compiler.disable  # hooks of a traced model record nothing
def run_to_layer(
    model: PreTrainedModel,
    layer: int,
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    stop: bool = False,
) -> AttentionStates:
    """Run an encoder and return the attention states of one of its layers.

    Args:
        model: An encoder of the seven families or one of our models, with any head.
        layer: Index of the layer; -1 is the last.
        input_ids: `[batch, length]`.
        attention_mask: `[batch, length]`, 0 at padding.
        stop: Skip everything after this layer's projections.
    """
    encoder = find_encoder(model)
    chosen = find_layers(encoder)[layer]
    with record_attention(chosen, stop) as record, suppress(LayerReached):
        model.base_model(input_ids=input_ids, attention_mask=attention_mask)
    return read_attention_states(chosen, record, encoder.config.num_attention_heads)
