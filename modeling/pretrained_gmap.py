"""Base of the G-MAP models: built from two encoders, saved with the memory or with a reference to it."""

import hashlib
import logging
import os
from collections.abc import Mapping
from typing import Any, Self

import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer, PreTrainedModel
from transformers import initialization as init

from .attention_gmap import KEY_PROJECTIONS, HeadGate, MemoryOutput, check_attention, find_self_attention
from .backbone import (
    BackbonePreTrainedModel,
    find_encoder,
    find_layers,
    list_auto_classes,
    load_matching_weights,
    register_encoder,
)
from .configuration_gmap import GMapConfig, check_memory_reference

logger = logging.getLogger(__name__)


def read_same_ids(tokenizer: Any, memory_tokenizer: Any) -> bool:
    """Return whether two tokenizers give the same ids for every text.

    Tokens that a user added to the first alone do not count: the memory skips them.
    """
    known, added = memory_tokenizer.get_vocab(), tokenizer.get_added_vocab()
    if {token: id_ for token, id_ in tokenizer.get_vocab().items() if token in known or token not in added} != known:
        return False
    steps = ("pre_tokenizer", "post_processor", "normalizer")
    backends = [getattr(each, "backend_tokenizer", None) for each in (tokenizer, memory_tokenizer)]
    return all(repr(getattr(backends[0], step, None)) == repr(getattr(backends[1], step, None)) for step in steps)


def compare_tokenizers(
    domain: str, memory: str, revision: str = "main", memory_revision: str = "main", **hub_options: Any
) -> str | None:
    """Return "same" or "own" for the tokenizers of two checkpoints; None if one has no tokenizer."""
    places = ((domain, revision), (memory, memory_revision))
    tokenizers: list[Any] = []
    for name, each in places:
        try:
            tokenizer: Any = AutoTokenizer.from_pretrained(name, revision=each, **hub_options)
        except (OSError, ValueError, KeyError):
            tokenizer = None
        # For a known family without tokenizer files, transformers makes a tokenizer of special tokens only.
        if tokenizer is None or set(tokenizer.get_vocab()) <= set(tokenizer.all_special_tokens):
            logger.warning(
                f"{name} has no tokenizer, so only the sizes of the vocabularies show whether the memory reads the "
                "same ids. Set memory_tokenizer if the guess is wrong"
            )
            return None
        tokenizers.append(tokenizer)
    return "same" if read_same_ids(*tokenizers) else "own"


def fingerprint_weights(tensors: Mapping[str, torch.Tensor]) -> str:
    """Return a digest of the parameters and buffers of a model; a VarMAE's buffers are trained, too."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


class GMapPreTrainedModel(BackbonePreTrainedModel):
    """Base of the G-MAP models."""

    config_class = GMapConfig
    _supports_flash_attn = False  # their masks are no tensors, and the memory needs one
    _supports_flex_attn = False
    auto_classes = list_auto_classes(GMapConfig)

    def __init__(self, config: GMapConfig):
        check_attention(config._attn_implementation)
        super().__init__(config)
        if not config.save_memory:
            self._keys_to_ignore_on_load_missing = [r"^(model\.)?memory\."]  # `load_memory` fills them

    @classmethod
    def check_is_new(cls, config: Any) -> None:
        """Leave this to `GMapConfig.check_encoders`, because a baseline may have a G-MAP as its domain encoder."""

    @classmethod
    def from_backbone(cls, *args, **kwargs) -> Self:
        """Refuse: a G-MAP needs two encoders.

        Raises:
            ValueError: Always.
        """
        raise ValueError(
            f"a {cls.__name__} needs two encoders, but from_backbone takes one. Use from_backbones(domain=..., "
            "memory=...)."
        )

    @classmethod
    def from_backbones(
        cls,
        domain: str | PreTrainedModel,
        memory: str | PreTrainedModel,
        *,
        memory_revision: str | None = None,
        **options: Any,
    ) -> Self:
        """Build a G-MAP from two pretrained encoders, with the domain encoder's masked-LM head if this model has one.

        Args:
            domain: Name or folder of a checkpoint adapted to the domain, or a loaded model, whose weights are copied.
            memory: The same for the general encoder.
            memory_revision: Branch, tag or commit of `memory` on the Hub. With `save_memory=False` the checkpoint
                refers to the commit that was loaded.
            options: Further arguments of `BackbonePreTrainedModel.from_backbone`, which apply to both encoders except
                for `revision`, and fields of `GMapConfig`.

        Raises:
            ValueError: The encoders do not fit together, or an option is wrong; see `GMapConfig`.
        """
        hub_options: Any = {name: options.get(name) for name in ("token", "cache_dir")}
        hub_options["trust_remote_code"] = options.get("trust_remote_code", False)
        source: Any = memory
        if isinstance(memory, str):
            dtype = options.get("dtype", torch.float32)
            source = AutoModel.from_pretrained(memory, revision=memory_revision or "main", dtype=dtype, **hub_options)
        encoder = source.base_model
        register_encoder(source)
        names: Any = [model if isinstance(model, str) else model.name_or_path for model in (domain, memory)]
        # Absolute: a relative path would be read from another folder later, or be taken for a name on the Hub.
        place = os.path.abspath(names[1]) if os.path.isdir(names[1] or "") else names[1] or None
        options = {
            "memory_name_or_path": place,
            "memory_revision": getattr(encoder.config, "_commit_hash", None) or memory_revision,
            **options,
        }
        # A domain model that was resized after loading reads ids that the memory has no rows for.
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
            config.memory_name_or_path = None  # never read again, and a checkpoint must not reveal a local path
        return model

    def run_on_a_few_tokens(self) -> None:
        """Run a new model, and raise if a layer reads no memory: an encoder's own code may attend as it likes."""
        encoder, calls = find_encoder(self), list[nn.Module]()
        plan: Any = self.base_model.plan
        modules = [find_self_attention(find_layers(encoder)[layer - 1]) for layer, _ in plan]
        keys: Any = [next(filter(None, (getattr(each, name, None) for name in KEY_PROJECTIONS))) for each in modules]
        hooks = [key.register_forward_hook(lambda module, *_: calls.append(module)) for key in keys]
        super().run_on_a_few_tokens()
        for hook in hooks:
            hook.remove()
        if any(calls.count(key) < 2 for key in keys):  # once for the layer's own states
            raise ValueError(
                "the domain encoder must pass what it is called with to transformers' attention interface in each "
                f"layer, but a {type(encoder).__name__} does not. Use another encoder."
            )

    @classmethod
    def from_pretrained(cls, *args, **kwargs) -> Any:
        """Load as transformers does, including a memory that the checkpoint only refers to.

        No code of the memory's repository runs, because `memory_config` gives its architecture.

        Raises:
            ValueError: The reference leads to other weights than the checkpoint was saved with.
        """
        output = super().from_pretrained(*args, **kwargs)
        model = output[0] if isinstance(output, tuple) else output
        if not model.config.save_memory:
            model.load_memory(**{name: kwargs[name] for name in ("token", "cache_dir") if name in kwargs})
        return output

    def load_memory(self, **options: Any) -> None:
        """Load the memory from `memory_name_or_path`; `options` are for the Hub.

        Raises:
            ValueError: `memory_name_or_path` holds another encoder than `memory_config` describes.
        """
        config, memory = self.config, self.get_memory()
        place = f"{config.memory_name_or_path} (revision {config.memory_revision})"
        dtype, _, digest = (config.memory_fingerprint or "").partition("-")
        try:
            loaded: Any = type(memory).from_pretrained(
                config.memory_name_or_path,
                revision=config.memory_revision or "main",
                dtype=dtype or memory.dtype,  # the digest's type, because rounding changes a digest
                use_safetensors=True,  # a checkpoint must never make us read a pickle
                output_loading_info=True,
                **options,
            )
        except OSError as error:
            raise ValueError(
                f"{place}, the memory of this checkpoint, must be readable, but is not: {error}. Restore it, or build "
                "the model again with from_backbones."
            ) from error
        source, info = loaded
        shapes = {name: parameter.shape for name, parameter in memory.named_parameters()}
        found = {name: parameter.shape for name, parameter in source.named_parameters() if "pooler." not in name}
        is_same = found == shapes and shapes.keys().isdisjoint(info["missing_keys"])
        weights = source.state_dict()
        weights = {name: weights[name] for name in memory.state_dict() if name in weights}
        if not is_same or (digest and digest != fingerprint_weights(weights)):
            raise ValueError(
                f"{place}, the memory of this checkpoint, must contain the encoder it was built with, but contains "
                "another one. Restore it, or build the model again with from_backbones."
            )
        memory.load_state_dict(weights, strict=False)

    def save_pretrained(self, *args, **kwargs) -> None:
        """Save as transformers does, without the memory if `save_memory` is off."""
        if kwargs.get("push_to_hub"):
            check_memory_reference(self.config.to_dict())
        prefix = "memory." if self.base_model is self else f"{self.base_model_prefix}.memory."
        # Of the whole model: a memory that trains in bfloat16 has its own weights in no other state dict.
        weights = {} if self.config.save_memory else self.state_dict()
        left_out = {name for name in weights if name.startswith(prefix)}
        if left_out:
            digest = fingerprint_weights({name.removeprefix(prefix): weights[name] for name in left_out})
            self.config.memory_fingerprint = f"{str(self.get_memory().dtype).removeprefix('torch.')}-{digest}"
        self._keys_to_ignore_on_save = left_out
        super().save_pretrained(*args, **kwargs)

    # mypy sees only transformers' docstring wrapper, which hides `self`.
    def push_to_hub(self, *args, **kwargs) -> Any:  # type: ignore[override]
        """Push as transformers does, but refuse a model that needs a local folder."""
        check_memory_reference(self.config.to_dict())
        return super().push_to_hub(*args, **kwargs)

    def get_memory(self) -> PreTrainedModel:
        """Return the memory encoder."""
        model: Any = self.base_model
        return model.memory

    def freeze_parameters(self) -> None:
        """Freeze the memory encoder and switch it to evaluation mode."""
        if self.config.freeze_memory:
            self.get_memory().requires_grad_(False).eval()

    def set_attn_implementation(self, attn_implementation: Any, *args, **kwargs) -> None:
        """Switch to "sdpa" or "eager".

        Raises:
            ValueError: Another implementation, which would skip the memory.
        """
        check_attention(attn_implementation)
        super().set_attn_implementation(attn_implementation, *args, **kwargs)
        model: Any = self.base_model
        model.use_memory_attention()

    def resize_token_embeddings(self, new_num_tokens: int | None = None, *args, **kwargs) -> Any:
        """Resize the domain encoder's table. The memory gets no new rows and skips the added tokens.

        This is meant for a few marker tokens. Add domain words before you build the model, so that `from_backbones`
        gives the memory its own tokenizer.
        """
        table = super().resize_token_embeddings(new_num_tokens, *args, **kwargs)
        config: Any = self.config
        added = config.vocab_size - config.memory_config.vocab_size
        if added > 0 and config.memory_tokenizer == "same":
            logger.warning(f"the memory skips the {added:,} added tokens, because it has no rows for them")
        return table

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, HeadGate):
            init.normal_(module.weight, std=0.05)  # the released code's
        elif isinstance(module, MemoryOutput):
            init.zeros_(module.weight)
