"""G-MAP: a frozen general encoder as memory inside the domain encoder (Wan et al., EMNLP 2022).

The memory encoder reads the same text. Some layers of the domain encoder append its states, mapped by their own key and
value projections, to their keys and values.

Symbols of the paper, and what they are called here:

    theta_general, theta_domain   `memory` and `backbone`
    M = {M_1, ..., M_l}           the states of `GMapModel.encode_memory`, of the layers of `config.plan_memory`
    H^(i-1)                       what layer i of the domain encoder reads
    M~                            `Memory.states`, what a layer reads beside it
    g                             `LayerGate`, one for each layer that reads mixed states
    alpha_(t,l)                   its softmax over the memory's layers l, for each token t

An attention function of transformers' interface reads the memory: "memory_sdpa" and "memory_eager" stand for "sdpa" and
"eager" in the layers that read it. Those layers hold a copy of the encoder's configuration that names the function; all
other configurations keep the user's choice. Keys and values of padding are masked, in either part: the released code
masks neither.

ModernBERT, decided here: its layers normalize before their projections, so they normalize the memory as well. A memory
key stands where its token does: it is rotated by that position, and a local layer sees it from within its window. With
a tokenizer of its own the memory is stretched to the length of the text it stands beside. As memory of another family
its states are normalized by its final norm, for they are sums that grow from layer to layer.
"""

import copy
import hashlib
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, signature
from typing import Any, NamedTuple, Self

import torch
from torch import nn
from transformers import AttentionInterface, AutoModel, AutoTokenizer, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import maybe_install_capturing_hooks

from .backbone import (
    BackbonePreTrainedModel,
    HeadLinear,
    build_backbone,
    find_encoder,
    find_layers,
    get_native_config,
    load_matching_weights,
    needs_gradient,
)
from .configuration_gmap import BASELINES, GATED_STRATEGIES, GMapConfig, check_memory_reference
from .heads import (
    BackboneForMaskedLM,
    BackboneForQuestionAnswering,
    BackboneForSequenceClassification,
    BackboneForTokenClassification,
    ClassificationHead,
)

logger = logging.getLogger(__name__)

ATTENTION_FUNCTIONS = {"sdpa": "memory_sdpa", "eager": "memory_eager"}

# ---------------------------------------------------------------------------------------- memory attention


class Memory(NamedTuple):
    """What one layer reads of the memory."""

    states: torch.Tensor
    """`[batch, memory_length, hidden_size]`, before the layer's key and value projections."""
    mask: torch.Tensor | None
    """`[batch, 1, 1 or length, memory_length]`, bool, True where to attend; None: everywhere."""
    rotation: tuple[torch.Tensor, torch.Tensor] | None
    """Cosine and sine `[batch, memory_length, head size]` that rotate the keys, where the family rotates them."""
    head_gate: torch.Tensor | None
    """`[heads]`, the weight of the memory before its sigmoid; for the fusion "gate"."""


def attend_with_memory(
    module: Any,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    memories: list[Memory] | None = None,
    **kwargs,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Self-attention of a layer of the domain encoder, which reads its memory if it has one (section 2.2).

    Args:
        module: The attention module; `memory_index` says which of `memories` is its own.
        query: `[batch, heads, length, head size]`.
        key: The same shape.
        value: The same shape.
        attention_mask: As sdpa (bool or None) or eager attention (0 and the lowest float) gets it.
        memories: One for each layer that reads the memory; None attends without.
        kwargs: Go to the attention function of transformers.

    Returns:
        Context `[batch, length, heads, head size]`, and the weights if the function gives them: with the fusion
        "memory" over `length + memory_length` keys, else of the self-attention alone.
    """
    mask_dtype = torch.bool
    if module.config._attn_implementation == "memory_sdpa":
        attend: Callable = ALL_ATTENTION_FUNCTIONS["sdpa"]
    else:
        mask_dtype = query.dtype
        attend = sys.modules[type(module).__module__].eager_attention_forward  # that of the family
    index: Any = getattr(module, "memory_index", None)
    if memories is None or index is None:
        return attend(module, query, key, value, attention_mask, **kwargs)
    memory, fusion = memories[index], module.memory_fusion
    memory_key, memory_value = project_memory(module, memory.states.to(key.dtype), key.shape[1])
    if memory.rotation is not None and fusion != "cross":  # there the query has no position
        memory_key = rotate(memory_key, *memory.rotation)
    if fusion == "memory":
        mask = join_masks(attention_mask, memory.mask, query, memory_key, mask_dtype)
        key, value = torch.cat([key, memory_key], dim=2), torch.cat([value, memory_value], dim=2)
        return attend(module, query, key, value, mask, **kwargs)
    context, weights = attend(module, query, key, value, attention_mask, **kwargs)
    mask = memory.mask
    if mask is not None:
        has_memory = mask.any(dim=-1, keepdim=True)  # a softmax over nothing would be NaN
        mask = convert_mask(mask | ~has_memory, mask_dtype)
    memory_query = context.transpose(1, 2) if fusion == "cross" else query
    fused = attend(module, memory_query, memory_key, memory_value, mask, **kwargs)[0]
    if memory.head_gate is not None:
        share = memory.head_gate.sigmoid().to(context.dtype).unsqueeze(-1)
        fused = (1 - share) * context + share * fused
    if memory.mask is not None:
        fused = torch.where(has_memory.transpose(1, 2), fused, context)
    return fused, weights


def project_memory(module: Any, states: torch.Tensor, heads: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return keys and values `[batch, heads, memory_length, head size]` by the projections of the layer itself."""
    if hasattr(module, "Wqkv"):
        _, key, value = module.Wqkv(states).chunk(3, dim=-1)
    elif hasattr(module, "k_lin"):
        key, value = module.k_lin(states), module.v_lin(states)
    else:
        key, value = module.key(states), module.value(states)
    return key.unflatten(-1, (heads, -1)).transpose(1, 2), value.unflatten(-1, (heads, -1)).transpose(1, 2)


def rotate(key: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotate keys `[batch, heads, length, head size]` by their positions."""
    first, second = key.float().chunk(2, dim=-1)
    turned = torch.cat([-second, first], dim=-1)
    return (key.float() * cosine.unsqueeze(1) + turned * sine.unsqueeze(1)).to(key.dtype)


def convert_mask(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return a boolean mask as sdpa takes it, bool, or as eager attention does, 0 and the lowest float."""
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
    """Return the mask of a layer's own keys with that of the memory's keys behind it.

    They are joined along the keys: multiplied, as in the released code, additive masks would mask nothing.

    Args:
        attention_mask: `[batch, 1 or heads, length, length]`, or None.
        memory_mask: `[batch, 1, 1 or length, memory_length]`, bool, or None.
        query: `[batch, heads, length, head size]`.
        memory_key: `[batch, heads, memory_length, head size]`.
        dtype: Of the mask where `attention_mask` does not say it; see `convert_mask`.
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


AttentionInterface.register("memory_sdpa", attend_with_memory)
AttentionInterface.register("memory_eager", attend_with_memory)


def check_attention(implementation: Any) -> None:
    """Raise unless a domain encoder with this attention implementation reads its memory.

    Raises:
        ValueError: It does not.
    """
    if implementation not in (None, *ATTENTION_FUNCTIONS):
        raise ValueError(
            f"G-MAP reads its memory in sdpa or eager attention, {implementation} would leave it out; "
            "use attn_implementation='sdpa'"
        )


# --------------------------------------------------------------------------------------------------- gates


class LayerGate(nn.Linear):
    """g of section 2.3: scores the memory's layers token by token, `[..., layers, hidden_size]` to `[..., layers, 1]`.

    The softmax is left to `mix_layers`: an adapter of peft adds its change to the output of a linear layer, and merges
    it into the weight, which is the same for a linear map alone. The bias is in the paper's count of parameters and has
    no effect: it moves the scores of all layers alike.
    """

    def __init__(self, hidden_size: int):
        super().__init__(hidden_size, 1)


def mix_layers(gate: nn.Module, states: torch.Tensor) -> torch.Tensor:
    """Mix `[batch, memory_length, layers, hidden_size]` to `[batch, memory_length, hidden_size]` by a `LayerGate`."""
    weights = gate(states).float().softmax(dim=2).to(states.dtype)
    return (weights.transpose(2, 3) @ states).squeeze(2)


class HeadGate(nn.Module):
    """The learned weight of the memory in each head, for the fusion "gate" (Wu et al. 2022); starts at about a half."""

    def __init__(self, num_heads: int):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_heads))


class TwoHeads(nn.Module):
    """The task heads of a baseline (section 3.2), one on each encoder, whose outputs are added.

    "logits_fusion" adds logits. "ensemble" adds probabilities: its output is the logarithm of their mean (for
    multi-label problems that of the odds), so that the loss is that of the mean.
    """

    def __init__(self, config: GMapConfig, domain_head: nn.Module, memory_head: nn.Module, choices_dim: int = -1):
        super().__init__()
        self.config = config
        self.choices_dim = choices_dim  # what a probability is spread over: labels, or tokens in question answering
        self.domain_head = domain_head
        self.memory_head = memory_head

    def adds_values(self) -> bool:
        """Return whether the outputs themselves are added: those of logits_fusion, and of a regression.

        A config without `problem_type` and with one label is one of a regression, as it is for the loss.
        """
        problem = self.config.problem_type
        is_single = self.choices_dim == -1 and self.config.num_labels == 1
        return self.config.strategy == "logits_fusion" or problem == "regression" or (problem is None and is_single)

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None = None) -> torch.Tensor:
        """Map the states of both encoders side by side, `[batch, length, both widths]`, to the logits of the task.

        Args:
            hidden_states: See above.
            attention_mask: `[batch, length]`, 0 at padding, where probabilities are spread over tokens.
        """
        config = self.config
        domain, memory = hidden_states.split([config.hidden_size, config.memory_config.hidden_size], dim=-1)
        logits = torch.stack([self.domain_head(domain), self.memory_head(memory)])
        if self.adds_values():
            return logits.sum(dim=0)
        if attention_mask is not None:
            # Each part is normalized alone: what it gives to padding would move its share in the mean.
            logits = logits.float().masked_fill(attention_mask[..., None] == 0, torch.finfo(torch.float).min)
        if config.problem_type == "multi_label_classification":
            probability = logits.float().sigmoid().mean(dim=0)
            return probability.logit(eps=1e-6)
        return logits.float().log_softmax(dim=self.choices_dim).logsumexp(dim=0) - math.log(2)


# ------------------------------------------------------------------------------------------------ the models


def read_same_ids(tokenizer: Any, memory_tokenizer: Any) -> bool:
    """Return whether two tokenizers make the same ids of any text."""
    if tokenizer.get_vocab() != memory_tokenizer.get_vocab():
        return False
    steps = ("pre_tokenizer", "post_processor", "normalizer")
    backends = [getattr(each, "backend_tokenizer", None) for each in (tokenizer, memory_tokenizer)]
    return all(repr(getattr(backends[0], step, None)) == repr(getattr(backends[1], step, None)) for step in steps)


def compare_tokenizers(
    domain: str, memory: str, revision: str = "main", memory_revision: str = "main", **hub_options: Any
) -> str | None:
    """Return "same" or "own" for the tokenizers of two checkpoints; None where one comes without."""
    places = ((domain, revision), (memory, memory_revision))
    tokenizers: list[Any] = []
    for name, each in places:
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(name, revision=each, **hub_options)
        except (OSError, ValueError, KeyError):
            tokenizer = None
        # Of a known family without files transformers makes a tokenizer of special tokens alone.
        if tokenizer is None or set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
            logger.warning(
                f"{name} has no tokenizer beside it: whether the memory reads the same ids is decided by the sizes of "
                "the vocabularies. Set memory_tokenizer if that is wrong"
            )
            return None
        tokenizers.append(tokenizer)
    return "same" if read_same_ids(*tokenizers) else "own"


def fingerprint_weights(model: nn.Module, names: Iterable[str]) -> str:
    """Return a digest of some parameters of a model."""
    digest = hashlib.sha256()
    parameters = dict(model.named_parameters())
    for name in sorted(names):
        digest.update(name.encode())
        digest.update(parameters[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class GMapPreTrainedModel(BackbonePreTrainedModel):
    """Base of the G-MAP models."""

    config_class = GMapConfig
    _supports_flash_attn = False  # their masks are no tensors, and the memory needs one
    _supports_flex_attn = False
    auto_classes = {
        "AutoConfig": "configuration_gmap.GMapConfig",
        "AutoModel": "modeling_gmap.GMapModel",
        "AutoModelForMaskedLM": "modeling_gmap.GMapForMaskedLM",
        "AutoModelForSequenceClassification": "modeling_gmap.GMapForSequenceClassification",
        "AutoModelForTokenClassification": "modeling_gmap.GMapForTokenClassification",
        "AutoModelForQuestionAnswering": "modeling_gmap.GMapForQuestionAnswering",
    }

    def __init__(self, config: GMapConfig):
        check_attention(config._attn_implementation)
        super().__init__(config)
        if not config.save_memory:
            self._keys_to_ignore_on_load_missing = [r"^(model\.)?memory\."]  # `load_memory` fills them

    @classmethod
    def from_backbone(cls, *args, **kwargs) -> Self:
        """Refuse: there are two encoders.

        Raises:
            ValueError: Always.
        """
        raise ValueError(f"{cls.__name__} is made of two encoders: use from_backbones(domain=..., memory=...)")

    @classmethod
    def from_backbones(
        cls,
        domain: str | PreTrainedModel,
        memory: str | PreTrainedModel,
        *,
        memory_revision: str | None = None,
        **options: Any,
    ) -> Self:
        """Build a G-MAP of two pretrained encoders; a masked-LM head of the domain encoder is taken over as well.

        Args:
            domain: Name or folder of a checkpoint adapted to the domain, or a loaded model, whose weights are copied.
            memory: The same of a general encoder.
            memory_revision: Branch, tag or commit of `memory` on the Hub. With `save_memory=False` the commit that was
                loaded is what the checkpoint refers to.
            options: Further arguments of `BackbonePreTrainedModel.from_backbone`, which count for both encoders but
                for `revision`, and fields of `GMapConfig`.

        Raises:
            ValueError: The two do not fit each other, or an option is wrong; see `GMapConfig`.
        """
        hub_options: Any = {name: options.get(name) for name in ("token", "cache_dir")}
        hub_options["trust_remote_code"] = options.get("trust_remote_code", False)
        source: Any = memory
        if isinstance(memory, str):
            dtype = options.get("dtype", torch.float32)
            source = AutoModel.from_pretrained(memory, revision=memory_revision or "main", dtype=dtype, **hub_options)
        encoder = source.base_model
        names: Any = [model if isinstance(model, str) else model.name_or_path for model in (domain, memory)]
        # A relative folder may be read from another one, or be taken for a name on the Hub.
        place = os.path.abspath(names[1]) if os.path.isdir(names[1] or "") else names[1] or None
        options = {
            "memory_name_or_path": place,
            "memory_revision": getattr(encoder.config, "_commit_hash", None) or memory_revision,
            **options,
        }
        # One that got new entries since it was loaded writes ids that the memory has no rows for.
        rows = 0 if isinstance(domain, str) else domain.config.get_text_config().vocab_size
        if all(names) and "memory_tokenizer" not in options and rows <= encoder.config.vocab_size:
            revision = options.get("revision") or "main"
            options["memory_tokenizer"] = compare_tokenizers(
                names[0], names[1], revision, memory_revision or "main", **hub_options
            )
        model = super().from_backbone(domain, memory_config=encoder.config, **options)
        load_matching_weights(model.get_memory(), encoder.state_dict(), "the memory")
        config = model.config
        if config.save_memory and config.memory_tokenizer == "same" and os.path.isdir(config.memory_name_or_path or ""):
            config.memory_name_or_path = None  # nothing is read there again, and a checkpoint tells no path
        return model

    @classmethod
    def from_pretrained(cls, *args, **kwargs) -> Any:
        """Load as transformers does; a memory that the checkpoint only refers to is loaded from where it is.

        That runs no code of the memory's repository: its architecture is that of `memory_config`.

        Raises:
            ValueError: The reference leads to other weights than those of `memory_config`.
        """
        output = super().from_pretrained(*args, **kwargs)
        model = output[0] if isinstance(output, tuple) else output
        if not model.config.save_memory:
            model.load_memory(**{name: kwargs[name] for name in ("token", "cache_dir") if name in kwargs})
        return output

    def load_memory(self, **options: Any) -> None:
        """Load the memory from `memory_name_or_path`; `options` are those of the Hub.

        Raises:
            ValueError: It is another encoder than that of `memory_config`.
        """
        config, memory = self.config, self.get_memory()
        place = f"{config.memory_name_or_path} (revision {config.memory_revision})"
        dtype, _, digest = (config.memory_fingerprint or "").partition("-")
        try:
            loaded: Any = type(memory).from_pretrained(
                config.memory_name_or_path,
                revision=config.memory_revision or "main",
                dtype=dtype or memory.dtype,  # that of the digest: rounded weights have another
                use_safetensors=True,  # a checkpoint must not lead to a pickle
                output_loading_info=True,
                **options,
            )
        except OSError as error:
            raise ValueError(
                f"the memory of this checkpoint is left to {place}, which cannot be read: {error}. Restore it, or "
                "build the model anew with from_backbones"
            ) from error
        source, info = loaded
        shapes = {name: parameter.shape for name, parameter in memory.named_parameters()}
        found = {name: parameter.shape for name, parameter in source.named_parameters() if "pooler." not in name}
        is_same = found == shapes and shapes.keys().isdisjoint(info["missing_keys"])
        if not is_same or (digest and digest != fingerprint_weights(source, shapes)):
            raise ValueError(
                f"the memory of this checkpoint is left to {place}, which holds another encoder than that it was built "
                "with; restore it, or build the model anew with from_backbones"
            )
        memory.load_state_dict(source.state_dict(), strict=False)

    def save_pretrained(self, *args, **kwargs) -> None:
        """Save as transformers does, without the memory if `save_memory` is off."""
        if kwargs.get("push_to_hub"):
            check_memory_reference(self.config.to_dict())
        prefix = "memory." if self.base_model is self else f"{self.base_model_prefix}.memory."
        left_out = set() if self.config.save_memory else {name for name in self.state_dict() if name.startswith(prefix)}
        if left_out:
            memory = self.get_memory()
            digest = fingerprint_weights(memory, dict(memory.named_parameters()))
            self.config.memory_fingerprint = f"{str(memory.dtype).removeprefix('torch.')}-{digest}"
        self._keys_to_ignore_on_save = left_out
        super().save_pretrained(*args, **kwargs)

    # What mypy reads of it is the wrapper of transformers' docstring, which hides `self`.
    def push_to_hub(self, *args, **kwargs) -> Any:  # type: ignore[override]
        """Push as transformers does, unless the model needs a folder of this machine."""
        check_memory_reference(self.config.to_dict())
        return super().push_to_hub(*args, **kwargs)

    def get_memory(self) -> PreTrainedModel:
        """Return the memory encoder."""
        model: Any = self.base_model
        return model.memory

    def freeze_parameters(self) -> None:
        """Freeze the memory encoder, which is in evaluation mode then."""
        if self.config.freeze_memory:
            self.get_memory().requires_grad_(False).eval()

    def set_attn_implementation(self, attn_implementation: Any, *args, **kwargs) -> None:
        """Switch to "sdpa" or "eager".

        Raises:
            ValueError: Another one, which would leave the memory out.
        """
        check_attention(attn_implementation)
        super().set_attn_implementation(attn_implementation, *args, **kwargs)
        model: Any = self.base_model
        model.use_memory_attention()

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args, **kwargs) -> Any:
        """Resize the domain encoder's table; the memory, which has no rows for added tokens, reads the text without.

        That serves a few markers. Words of the domain should be added before the model is built: `from_backbones` then
        sees that the memory needs `memory_input_ids` of its own tokenizer.
        """
        table = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        config: Any = self.config
        added = config.vocab_size - config.memory_config.vocab_size
        if added > 0 and config.memory_tokenizer == "same":
            logger.warning(f"the memory reads texts without the {added:,} tokens that it has no rows for")
        return table

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, HeadGate):
            init.normal_(module.weight, std=0.05)  # the released code's


class GMapModel(GMapPreTrainedModel):
    """The domain encoder, the memory encoder and the gates between them."""

    def __init__(self, config: GMapConfig):
        super().__init__(config)
        self.backbone = build_backbone(config.backbone_config)
        self.memory = build_backbone(config.memory_config)
        maybe_install_capturing_hooks(find_encoder(self.memory))  # left to the first call, it could not be compiled
        self.plan = config.plan_memory()
        self.state_indices = sorted({state for _, states in self.plan for state in states})
        width, has_gates = config.memory_config.hidden_size, config.strategy in GATED_STRATEGIES
        self.memory_gates = nn.ModuleList([LayerGate(width) for _ in self.plan if has_gates])
        self.head_gates = nn.ModuleList(
            [HeadGate(config.num_attention_heads) for _ in self.plan if config.fusion == "gate"]
        )
        if config.memory_projection:
            self.memory_projection = nn.Linear(width, config.hidden_size)
        self.use_memory_attention()
        self.freeze_parameters()
        self.post_init()

    def use_memory_attention(self) -> None:
        """Let the chosen layers of the domain encoder read the memory."""
        if not self.plan:
            return
        encoder = find_encoder(self.backbone)
        if not encoder._can_set_attn_implementation():
            raise ValueError(
                f"G-MAP reads its memory in attention that transformers lets one exchange, {encoder.config.model_type} "
                "has its own; take another family as the domain encoder"
            )
        self.attention: Any = encoder.config._attn_implementation
        check_attention(self.attention)
        config = copy.deepcopy(encoder.config)
        config._attn_implementation = ATTENTION_FUNCTIONS[self.attention]
        layers = find_layers(encoder)
        for index, (layer, _) in enumerate(self.plan):
            module: Any = find_self_attention(layers[layer - 1])
            module.memory_index, module.memory_fusion, module.config = index, self.config.fusion, config

    def train(self, mode: bool = True) -> "GMapModel":
        """Switch to training mode; a frozen memory stays in evaluation mode."""
        super().train(mode)
        if self.config.freeze_memory:
            self.memory.eval()
        return self

    @can_return_tuple
    def forward(
        self,
        input_ids: torch.LongTensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.LongTensor | None = None,
        position_ids: torch.LongTensor | None = None,
        inputs_embeds: torch.FloatTensor | None = None,
        memory_input_ids: torch.Tensor | None = None,
        memory_attention_mask: torch.Tensor | None = None,
        memory_token_type_ids: torch.Tensor | None = None,
        memory_states: torch.Tensor | None = None,
        **kwargs,
    ) -> BaseModelOutput:
        """Encode a batch.

        Args:
            input_ids: `[batch, length]`.
            attention_mask: `[batch, length]`, 0 at padding.
            token_type_ids: `[batch, length]`, for families that have them.
            position_ids: `[batch, length]`.
            inputs_embeds: `[batch, length, hidden_size]` instead of `input_ids`.
            memory_input_ids: `[batch, memory_length]`, the same text by the memory's tokenizer; None: `input_ids`,
                where the tokenizer is the same. In masked-LM training the masked words must be masked here too.
            memory_attention_mask: `[batch, memory_length]`, 0 at padding; None: `attention_mask` where the tokenizer
                is the same, else all ones. All zeros leave the plain domain encoder.
            memory_token_type_ids: `[batch, memory_length]`.
            memory_states: `[batch, memory_length, states, memory's hidden_size]` instead of running the memory
                encoder: what `encode_memory` returned for this text.
            kwargs: Go to the domain encoder.

        Returns:
            The domain encoder's output. For a baseline `last_hidden_state` holds the last states of both encoders side
            by side, `[batch, length, both widths]`.

        Raises:
            ValueError: The memory cannot read this text, or the domain encoder would not read the memory.
        """
        config: Any = self.config
        shared = memory_input_ids is None and memory_states is None
        if shared:
            if config.memory_tokenizer == "own" or input_ids is None:
                given = "a tokenizer of its own" if config.memory_tokenizer == "own" else "no input_ids"
                raise ValueError(
                    f"the memory encoder reads token ids of its own tokenizer and has {given}; give memory_input_ids "
                    "and memory_attention_mask"
                )
            memory_input_ids, memory_token_type_ids = input_ids, token_type_ids
        if memory_attention_mask is None and (shared or config.memory_tokenizer == "same"):
            memory_attention_mask = attention_mask
        if memory_attention_mask is not None and memory_attention_mask.dim() != 2:
            raise ValueError(
                "the memory's padding is masked by a memory_attention_mask [batch, memory_length], got "
                f"{list(memory_attention_mask.shape)}; give it beside an attention_mask of another shape"
            )
        length = (memory_states if memory_input_ids is None else memory_input_ids).shape[1]  # type: ignore[union-attr]
        if memory_attention_mask is not None and memory_attention_mask.shape[1] != length:
            raise ValueError(
                f"memory_attention_mask must have the length of the memory's text, {length}, but has "
                f"{memory_attention_mask.shape[1]}; give it beside memory_input_ids where attention_mask is of another "
                "length"
            )
        known_ids = input_ids if memory_input_ids is None else memory_input_ids
        known_ids, memory_attention_mask = self.leave_out_added_tokens(known_ids, memory_attention_mask)
        if memory_states is None:
            memory_states = self.encode_memory(known_ids, memory_attention_mask, memory_token_type_ids)
        elif not config.freeze_memory or needs_gradient(self.memory):
            raise ValueError(
                "memory_states must be those of a frozen memory, but this one is trained; use freeze_memory=True, and "
                "leave the memory out of an adapter by exclude_modules"
            )
        self.check_memory_is_read(memory_states)
        if self.plan:
            inputs: Any = input_ids if inputs_embeds is None else inputs_embeds
            kwargs["memories"] = self.build_memories(
                memory_states, memory_attention_mask, inputs, attention_mask, position_ids
            )
        outputs = self.encode(input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds, **kwargs)
        last_hidden_state = outputs.last_hidden_state
        if not self.plan:
            last_hidden_state = torch.cat([last_hidden_state, memory_states[:, :, -1].to(last_hidden_state)], dim=-1)
        return BaseModelOutput(last_hidden_state, outputs.hidden_states, outputs.attentions)

    def leave_out_added_tokens(
        self, input_ids: torch.Tensor | None, attention_mask: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """Turn ids that the memory has no rows for, which `resize_token_embeddings` adds, into padding.

        Args:
            input_ids: `[batch, memory_length]`.
            attention_mask: `[batch, memory_length]`, 0 at padding; None: nothing is.

        Returns:
            Ids and mask; the same where both encoders know the same ids, and where the memory has its own tokenizer.
        """
        config: Any = self.config
        size = config.memory_config.vocab_size
        if input_ids is None or config.memory_tokenizer == "own" or config.vocab_size <= size:
            return input_ids, attention_mask
        known = input_ids < size
        mask = known.long() if attention_mask is None else attention_mask * known
        padding = getattr(get_native_config(config.memory_config), "pad_token_id", None) or 0
        return input_ids.masked_fill(~known, padding), mask

    def encode_memory(
        self,
        input_ids: torch.Tensor | None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Run the memory encoder, without gradient if it is frozen.

        Args:
            input_ids: `[batch, memory_length]`, of its tokenizer.
            attention_mask: `[batch, memory_length]`, 0 at padding.
            token_type_ids: `[batch, memory_length]`; left out for families without them.

        Returns:
            `[batch, memory_length, states, hidden_size]`, the states that the strategy reads, in the order of
            `self.state_indices`; for a baseline the last hidden state.
        """
        input_ids, attention_mask = self.leave_out_added_tokens(input_ids, attention_mask)
        inputs: dict[str, Any] = {"input_ids": input_ids, "attention_mask": attention_mask}
        if token_type_ids is not None and "token_type_ids" in signature(self.memory.forward).parameters:
            inputs["token_type_ids"] = token_type_ids
        with torch.set_grad_enabled(torch.is_grad_enabled() and needs_gradient(self.memory)):
            if not self.plan:
                return self.memory(**inputs, return_dict=True).last_hidden_state.unsqueeze(2)
            states = self.memory(**inputs, output_hidden_states=True, return_dict=True).hidden_states
            encoder: Any = find_encoder(self.memory)
            if hasattr(encoder, "final_norm") and not hasattr(find_encoder(self.backbone), "final_norm"):
                states = (*map(encoder.final_norm, states[:-1]), states[-1])
            return torch.stack([states[state] for state in self.state_indices], dim=2)

    def check_memory_is_read(self, memory_states: torch.Tensor) -> None:
        """Raise unless the domain encoder's attention reads the memory and the states are those that it needs."""
        implementation = find_encoder(self.backbone).config._attn_implementation
        if self.plan and implementation != self.attention:
            raise ValueError(
                f"the domain encoder was switched to {implementation} attention, but its memory is read in "
                f"{self.attention}; use the set_attn_implementation of the {type(self).__name__}, with sdpa or eager"
            )
        expected = (len(self.state_indices) or 1, self.config.memory_config.hidden_size)
        if memory_states.shape[2:] != expected:
            raise ValueError(
                f"memory_states must be [batch, memory_length, {expected[0]}, {expected[1]}] for the strategy "
                f"{self.config.strategy}, got {list(memory_states.shape)}; compute them with this model's encode_memory"
            )

    def build_memories(
        self,
        memory_states: torch.Tensor,
        memory_attention_mask: torch.Tensor | None,
        inputs: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
    ) -> list[Memory] | None:
        """Build what each layer reads.

        Args:
            memory_states: As `encode_memory` returns them.
            memory_attention_mask: `[batch, memory_length]`, or None.
            inputs: `[batch, length, ...]`, what the domain encoder reads.
            attention_mask: `[batch, length]`, or None.
            position_ids: `[batch, length]`, or None.

        Returns:
            One `Memory` for each layer of the plan; None if all of the memory is masked, so that the domain encoder
            takes the very path it takes alone.
        """
        mask = None if memory_attention_mask is None else memory_attention_mask.bool()
        if mask is not None and not torch.compiler.is_compiling():
            if not mask.any():
                return None
            mask = None if mask.all() else mask
        padding = None if mask is None else mask[:, None, None, :]
        encoder: Any = find_encoder(self.backbone)
        layers: Any = find_layers(encoder)
        positions = None
        if hasattr(encoder, "rotary_emb"):
            positions = self.place_memory(memory_states, mask, inputs, attention_mask, position_ids)
        memories = []
        for index, (layer, chosen) in enumerate(self.plan):
            start = self.state_indices.index(chosen[0])
            states = memory_states[:, :, start : start + len(chosen)].to(self.dtype)
            states = mix_layers(self.memory_gates[index], states) if len(self.memory_gates) else states.squeeze(2)
            if self.config.memory_projection:
                states = self.memory_projection(states)
            layer_mask, rotation, module = padding, None, layers[layer - 1]
            if positions is not None:
                states = module.attn_norm(states)
                rotation = encoder.rotary_emb(states, positions, module.attention_type)
                if module.attention_type == "sliding_attention":
                    own = torch.arange(inputs.shape[1], device=inputs.device) if position_ids is None else position_ids
                    distance = (own.view(-1, inputs.shape[1], 1) - positions[:, None, :]).abs()
                    layer_mask = (distance <= encoder.config.sliding_window)[:, None]
                    layer_mask = layer_mask if padding is None else layer_mask & padding
            gate: Any = self.head_gates[index].weight if len(self.head_gates) else None
            memories.append(Memory(states, layer_mask, rotation, gate))
        return memories

    def place_memory(
        self,
        memory_states: torch.Tensor,
        mask: torch.Tensor | None,
        inputs: torch.Tensor,
        attention_mask: torch.Tensor | None,
        position_ids: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the positions of the memory's tokens in the domain encoder's sequence, `[batch, memory_length]`."""
        batch, memory_length = memory_states.shape[:2]
        device = memory_states.device
        if self.config.memory_tokenizer == "same":
            if position_ids is not None:
                return position_ids.expand(batch, -1)
            return torch.arange(memory_length, device=device).expand(batch, -1)
        domain = torch.ones(inputs.shape[:2], device=device) if attention_mask is None else attention_mask.float()
        memory = torch.ones(batch, memory_length, device=device) if mask is None else mask.float()
        first = domain.argmax(dim=1, keepdim=True)
        stretch = (domain.sum(1, keepdim=True) - 1) / (memory.sum(1, keepdim=True) - 1).clamp(min=1)
        return first + (memory.cumsum(dim=1) - 1) * stretch


def find_self_attention(layer: nn.Module) -> nn.Module:
    """Return the module of a layer that has its key and value projections.

    Raises:
        ValueError: There is none that is known.
    """
    for module in layer.modules():
        if any(hasattr(module, name) for name in ("Wqkv", "k_lin", "key")):
            return module
    raise ValueError(
        f"G-MAP knows the projections of BERT, RoBERTa, XLM-R, ELECTRA, DistilBERT and ModernBERT; a "
        f"{type(layer).__name__} has none of them. Take another family as the domain encoder"
    )


def accept_memory(forward: Callable) -> Callable:
    """Return the forward of a head with the memory's arguments in its signature.

    They travel to the model as they are; but Trainer drops dataset columns that a signature does not name.
    """
    parameters = dict(signature(forward).parameters)
    others = parameters.pop("kwargs")
    for name in ("memory_input_ids", "memory_attention_mask", "memory_token_type_ids", "memory_states"):
        annotation = signature(GMapModel.forward).parameters[name].annotation
        parameters[name] = Parameter(name, Parameter.POSITIONAL_OR_KEYWORD, default=None, annotation=annotation)

    @wraps(forward)
    def forward_with_memory(self: Any, *args, **kwargs) -> Any:
        return forward(self, *args, **kwargs)

    forward_with_memory.__signature__ = signature(forward).replace(  # type: ignore[attr-defined]
        parameters=[*parameters.values(), others]
    )
    return forward_with_memory


class GMapForMaskedLM(GMapPreTrainedModel, BackboneForMaskedLM):
    """Masked LM of the domain encoder, whose layers read the memory of the masked text (section 4.4)."""

    base_class = GMapModel
    forward = accept_memory(BackboneForMaskedLM.forward)

    def __init__(self, config: GMapConfig):
        if config.strategy in BASELINES:
            raise ValueError(f"{config.strategy} is a baseline for task heads, a masked LM needs another strategy")
        super().__init__(config)
        self.post_init()


class GMapForSequenceClassification(GMapPreTrainedModel, BackboneForSequenceClassification):
    """Classification, multi-label classification or regression on the first token."""

    base_class = GMapModel
    forward = accept_memory(BackboneForSequenceClassification.forward)

    def __init__(self, config: GMapConfig):
        super().__init__(config)
        if config.strategy in BASELINES:
            memory_head = ClassificationHead(config, config.memory_config.hidden_size)
            self.classifier = TwoHeads(config, self.classifier, memory_head)
        self.post_init()


class GMapForTokenClassification(GMapPreTrainedModel, BackboneForTokenClassification):
    """Token classification."""

    base_class = GMapModel
    forward = accept_memory(BackboneForTokenClassification.forward)

    def __init__(self, config: GMapConfig):
        super().__init__(config)
        if config.strategy in BASELINES:
            memory_head = HeadLinear(config.memory_config.hidden_size, self.num_labels)
            self.classifier = TwoHeads(config, self.classifier, memory_head)
        self.post_init()


class GMapForQuestionAnswering(GMapPreTrainedModel, BackboneForQuestionAnswering):
    """Extractive question answering."""

    base_class = GMapModel
    forward = accept_memory(BackboneForQuestionAnswering.forward)

    def __init__(self, config: GMapConfig):
        super().__init__(config)
        if config.strategy in BASELINES:
            memory_head = HeadLinear(config.memory_config.hidden_size, 2)
            self.qa_outputs = TwoHeads(config, self.qa_outputs, memory_head, choices_dim=-2)
        self.post_init()

    def score_tokens(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
        """Return start and end scores; the parts of a baseline compare tokens and leave padding out."""
        if self.config.strategy in BASELINES:
            return self.qa_outputs(hidden_states, attention_mask)
        return super().score_tokens(hidden_states, attention_mask)


GMapConfig.register_for_auto_class()
GMapModel.register_for_auto_class("AutoModel")
GMapForMaskedLM.register_for_auto_class("AutoModelForMaskedLM")
GMapForSequenceClassification.register_for_auto_class("AutoModelForSequenceClassification")
GMapForTokenClassification.register_for_auto_class("AutoModelForTokenClassification")
GMapForQuestionAnswering.register_for_auto_class("AutoModelForQuestionAnswering")
