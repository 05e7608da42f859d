"""Configuration of G-MAP."""

import math
import os
import re
from itertools import pairwise
from typing import Any, Literal

from transformers import AutoConfig

from .configuration_backbone import BackboneConfig, build_backbone_config

GATED_STRATEGIES = ("gated", "chunk_gated")
MEMORY_STRATEGIES = ("single_layer", "multiple_layer", *GATED_STRATEGIES)
BASELINES = ("logits_fusion", "ensemble")
FUSIONS = ("memory", "cross", "gate")


def choose_memory_layers(strategy: str, depth: int) -> list[int]:
    """Return the layers that section 4.3 found best, scaled to `depth` and counted from 1.

    Args:
        strategy: One of `MEMORY_STRATEGIES`.
        depth: Number of layers of the domain encoder.

    Returns:
        For 12 layers: 9 (single_layer, gated), 6 and 12 (chunk_gated), all (multiple_layer).
    """
    if strategy == "multiple_layer":
        return list(range(1, depth + 1))
    if strategy == "chunk_gated":
        return sorted({math.ceil(depth / 2), depth})
    return [math.ceil(depth * 9 / 12)]


def assign_states(strategy: str, memory_layers: list[int], depth: int, memory_depth: int) -> list[list[int]]:
    """Return, for each layer that reads the memory, the layers of the memory encoder that it reads.

    Args:
        strategy: One of `MEMORY_STRATEGIES`.
        memory_layers: Layers of the domain encoder that read the memory, from 1.
        depth: Number of layers of the domain encoder.
        memory_depth: Number of layers of the memory encoder.

    Returns:
        Layers of the memory encoder, from 1, for each entry of `memory_layers`. chunk_gated splits them into one chunk
        for each entry; if they do not divide evenly, the lower chunks are one larger. With multiple_layer, layer i
        reads layer i, or the layer at the same relative height if the depths differ.
    """
    everything = list(range(1, memory_depth + 1))
    if strategy == "single_layer":
        return [everything[-1:] for _ in memory_layers]
    if strategy == "multiple_layer":
        return [[math.ceil(layer * memory_depth / depth)] for layer in memory_layers]
    if strategy == "gated":
        return [everything for _ in memory_layers]
    count = len(memory_layers)
    small, larger = divmod(memory_depth, count)
    ends = [small * number + min(number, larger) for number in range(count + 1)]
    return [everything[start:end] for start, end in pairwise(ends)]


class GMapConfig(BackboneConfig):
    """Configuration of G-MAP (Wan et al., EMNLP 2022).

    `backbone_config` is the domain encoder's.

    Args:
        memory_config: Configuration of the general encoder that serves as memory, or its dictionary; None is a small
            BERT.
        strategy: How the memory is built (section 2.3). "single_layer" uses its last state. "multiple_layer" gives
            layer i the state of layer i. "gated" mixes all states by a gate for each token. "chunk_gated" (the paper's
            best) mixes the lower and the upper layers separately, for two layers. Two baselines for task heads read
            the memory only at the end, with a head for each encoder: "logits_fusion" adds their logits, "ensemble"
            their probabilities. Our choice for "ensemble" is to train both parts together.
        memory_layers: Layers of the domain encoder that read the memory, from 1; layers that share their weights count
            once. None: 9 of 12 (single_layer, gated),
            6 and 12 of 12 (chunk_gated), scaled to the depth; all (multiple_layer).
        fusion: How a layer reads the memory (sections 2.2 and 4.2). "memory" appends the memory's keys and values to
            the layer's own. "cross" feeds the output of the self-attention as query to a second attention over the
            memory, whose output replaces it. "gate" mixes two attentions with the same query by a learned weight for
            each head. None: "memory", or "cross" for a family whose attention does not go through transformers'
            attention interface, which can read a memory in no other way.
        starts_as_encoder: Whether a new model computes what its domain encoder computes (ours). What the memory changes
            in the context of a layer then passes a linear map that starts at zero. The identity gives the paper's
            model.
        memory_source: "outputs" of the memory encoder's layers 1 to n (the paper), or their "inputs": the embeddings
            and the outputs of layers 1 to n - 1 (the released code).
        freeze_memory: Whether the memory encoder is frozen, in evaluation mode and without gradient (section 4.1).
            None: yes, except for "ensemble", which fine-tunes the general encoder (section 3.2).
        memory_tokenizer: Whether the memory encoder reads the "same" ids as the domain encoder, or has its "own"
            tokenizer and needs `memory_input_ids`. None: the same if the vocabularies have the same size;
            `from_backbones` compares the tokenizers instead.
        memory_projection: Whether a linear layer maps the memory to the width of the domain encoder. It must be True
            if and only if the widths differ; the paper has no such layer.
        save_memory: Whether a checkpoint contains the memory encoder. If not, loading the checkpoint also loads
            `memory_name_or_path`.
        memory_name_or_path: Where the memory encoder came from. `from_backbones` drops a local folder that nothing will
            read again: one with `save_memory` and the same tokenizer.
        memory_revision: Its commit, branch or tag on the Hub.
        memory_fingerprint: Digest of the memory's weights, saved with `save_memory=False` and checked after loading.
            Set by the code, not by users.
    """

    model_type = "gmap"
    sub_configs = {"backbone_config": AutoConfig, "memory_config": AutoConfig}

    memory_config: Any = None
    strategy: Literal["single_layer", "multiple_layer", "gated", "chunk_gated", "logits_fusion", "ensemble"] = (
        "chunk_gated"
    )
    memory_layers: list[int] | None = None
    fusion: Literal["memory", "cross", "gate"] | None = None
    starts_as_encoder: bool = False
    memory_source: Literal["outputs", "inputs"] = "outputs"
    freeze_memory: bool | None = None
    memory_tokenizer: Literal["same", "own"] | None = None
    memory_projection: bool = False
    save_memory: bool = True
    memory_name_or_path: str | None = None
    memory_revision: str | None = None
    memory_fingerprint: str | None = None

    def __post_init__(self, **kwargs) -> None:
        self.memory_config = build_backbone_config(self.memory_config)
        super().__post_init__(**kwargs)
        if self.freeze_memory is None:
            self.freeze_memory = self.strategy != "ensemble"
        if self.memory_tokenizer is None:
            same = self.vocab_size == self.memory_config.vocab_size
            self.memory_tokenizer = "same" if same else "own"
        if self.memory_layers is None and self.strategy in MEMORY_STRATEGIES:
            self.memory_layers = choose_memory_layers(self.strategy, self.count_layers())
        self.check_choices()
        if self.strategy in MEMORY_STRATEGIES:
            self.check_layers()
            self.check_encoders()
        if not self.save_memory and (self.memory_name_or_path is None or not self.freeze_memory):
            raise ValueError(
                "save_memory=False needs memory_name_or_path and a frozen memory, because the memory is loaded from "
                f"there, but they are {self.memory_name_or_path} and freeze_memory={self.freeze_memory}. Set both, or "
                "save the memory."
            )

    def count_layers(self) -> int:
        """Return the number of layers with weights of their own: those of a group share them (ALBERT).

        A layer that is shared reads the memory each time. If there is only one, chunk_gated has one chunk.
        """
        core = self.backbone_config
        while hasattr(core, "backbone_config"):
            core = core.backbone_config
        return getattr(core, "num_hidden_groups", self.num_hidden_layers)

    def check_choices(self) -> None:
        """Raise unless every option has one of its allowed values."""
        for name, allowed in (
            ("strategy", MEMORY_STRATEGIES + BASELINES),
            ("fusion", (*FUSIONS, None)),
            ("memory_source", ("outputs", "inputs")),
            ("memory_tokenizer", ("same", "own")),
        ):
            if getattr(self, name) not in allowed:
                known = ", ".join(filter(None, allowed))
                raise ValueError(f"{name} must be one of {known}, but is {getattr(self, name)!r}. Choose one of them.")
        if self.strategy in BASELINES and (
            self.memory_layers or self.memory_projection or self.memory_tokenizer == "own"
        ):
            raise ValueError(
                f"{self.strategy} needs one tokenizer, and no memory_layers or memory_projection, because it joins the "
                f"outputs of two encoders token by token, but memory_tokenizer is {self.memory_tokenizer!r}, "
                f"memory_layers {self.memory_layers} and memory_projection {self.memory_projection}. Leave them out."
            )

    def check_layers(self) -> None:
        """Raise unless `memory_layers` are layers of the domain encoder, in the number that the strategy needs."""
        layers: Any = self.memory_layers
        depth, memory_depth = self.count_layers(), self.memory_config.num_hidden_layers
        if self.strategy == "chunk_gated" and min(self.num_hidden_layers, memory_depth) < 2:
            raise ValueError(
                f"chunk_gated needs at least two layers in both encoders, but the domain encoder has {depth} and the "
                f"memory {memory_depth}. Use gated."
            )
        if not isinstance(layers, list | tuple) or not all(isinstance(layer, int) for layer in layers):
            raise ValueError(f"memory_layers must be a list of layer numbers, but is {layers!r}. Use [{depth}].")
        if list(layers) != sorted(set(layers)) or not layers or not 1 <= layers[0] <= layers[-1] <= depth:
            raise ValueError(
                f"memory_layers must be ascending layers from 1 to {depth}, but is {layers}. Sort them, and name each "
                "once."
            )
        if self.strategy in ("single_layer", "gated") and len(layers) != 1:
            raise ValueError(
                f"memory_layers must be one layer for {self.strategy}, but is {layers}. Name one, or use "
                "multiple_layer or chunk_gated."
            )
        if self.strategy == "chunk_gated" and not min(depth, 2) <= len(layers) <= memory_depth:
            raise ValueError(
                f"memory_layers must be 2 to {memory_depth} layers for chunk_gated, which splits the memory's "
                f"{memory_depth} layers among them, but is {layers}. With one layer use gated."
            )

    def check_encoders(self) -> None:
        """Raise unless the layers of the domain encoder can read states of the memory encoder."""
        core = self.backbone_config
        while hasattr(core, "backbone_config"):
            if core.model_type == self.model_type:
                raise ValueError(
                    "the domain encoder must not be a G-MAP: its layers would read the memory it already has, not the "
                    "new one. Join the memory to the encoder inside it."
                )
            core = core.backbone_config
        widths = self.hidden_size, self.memory_config.hidden_size
        if (widths[0] != widths[1]) != self.memory_projection:
            raise ValueError(
                f"memory_projection must be {widths[0] != widths[1]} for a domain encoder {widths[0]} wide and a "
                f"memory {widths[1]} wide, but is {self.memory_projection}. Set "
                f"memory_projection={widths[0] != widths[1]}."
            )

    def plan_memory(self) -> list[tuple[int, list[int]]]:
        """Return each layer that reads the memory, from 1, with the states of the memory encoder that it reads.

        State 0 is the embeddings' output, state i the output of layer i. The list is empty for a baseline.
        """
        if self.strategy in BASELINES:
            return []
        layers: Any = self.memory_layers
        states = assign_states(self.strategy, layers, self.count_layers(), self.memory_config.num_hidden_layers)
        offset = 1 if self.memory_source == "inputs" else 0
        return [(layer, [state - offset for state in chosen]) for layer, chosen in zip(layers, states, strict=True)]


def check_memory_reference(config: dict[str, Any]) -> None:
    """Check that a model about to be published does not refer to a local folder.

    Args:
        config: The saved configuration of any model.

    Raises:
        ValueError: The model is a G-MAP whose memory is a local folder.
    """
    memory = config.get("memory_name_or_path")
    if memory is None or (re.fullmatch(r"\w[\w.-]*(/\w[\w.-]*)?", memory) and not os.path.exists(memory)):
        return
    if not config.get("save_memory"):
        cure = "save the model with save_memory=True"
    elif config.get("memory_tokenizer") == "same":
        cure = "set it to None"
    else:
        cure = "use a memory with the same tokenizer"
    raise ValueError(
        f"a published model must not name a local folder, which nobody else has, but its memory_name_or_path is "
        f"{memory}. Build the model with a memory of the Hub, or {cure}."
    )
