"""The configuration that every method extends: it wraps the configuration of an encoder."""

import copy
import os
from collections.abc import Collection
from dataclasses import fields
from typing import Any, Self

from transformers import AutoConfig, PreTrainedConfig

from .nested_models import comes_with_code, find_config_class, save_nested_code

# A nested configuration with these keys could make transformers run code unasked (CVE-2026-5241). The code of a
# checkpoint is named at the top level only, and runs only if the caller passes trust_remote_code.
REMOTE_CODE_KEYS = frozenset({"auto_map", "custom_pipelines", "trust_remote_code"})

# The encoder's shape, saved at the top level of config.json for other programs.
SHAPE_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "type_vocab_size",
    "pad_token_id",
)

# Fields that stay in the encoder's configuration. At the top level, transformers would convert the rotary parameters
# twice and take the whole model for quantized.
ENCODER_ONLY_FIELDS = frozenset({"rope_parameters", "quantization_config"})


def strip_keys(config: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return `config` without `keys`, at every depth."""
    return {
        key: strip_keys(value, keys) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in keys
    }


def strip_remote_code_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Return `config` without `REMOTE_CODE_KEYS`, at every depth."""
    return strip_keys(config, REMOTE_CODE_KEYS)


def strip_private_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Return a nested `config` as it is saved: without keys that could run code, and without local paths.

    transformers removes the path at the top level only, and a saved model may be published.
    """
    return strip_keys(config, REMOTE_CODE_KEYS | {"_name_or_path"})


def leave_unloaded(config: dict[str, Any], types: Collection[str]) -> dict[str, Any]:
    """Return a saved configuration in which the nested ones of these types have all fields, but not their own class."""
    inner: dict[str, Any] = {key: value for key, value in config.items() if isinstance(value, dict)}
    for key, value in inner.items():
        if (model_type := value.get("model_type")) in types:
            members = {"model_type": model_type, "is_unloaded": True, "__module__": PreTrainedConfig.__module__}
            inner[key] = type("UnloadedConfig", (PreTrainedConfig,), members)(**value)
        else:
            inner[key] = leave_unloaded(value, types)
    return config | inner


def build_backbone_config(config: dict[str, Any] | PreTrainedConfig | None) -> PreTrainedConfig:
    """Build a configuration object from a user's `backbone_config` or that of a config.json.

    Args:
        config: A configuration, its dictionary, or None for a BERT of 2 layers, 128 wide (small enough for tests).

    Returns:
        A copy, so that resizing the vocabulary, for example, never changes the encoder it came from.
    """
    if isinstance(config, PreTrainedConfig):
        config = copy.deepcopy(config)
        for key in REMOTE_CODE_KEYS & vars(config).keys():
            delattr(config, key)
        return config
    if config is None:
        small = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}
        return AutoConfig.for_model("bert", **small)
    config = strip_remote_code_keys(config)
    model_type = config.pop("model_type", "bert")
    own_class = find_config_class(model_type)
    if own_class is not None:
        return own_class.from_dict(config)
    return AutoConfig.for_model(model_type, **config)


def has_encoder_field(config: PreTrainedConfig, name: str) -> bool:
    """Return whether `name` is a field of the encoder that our models share, under any of the family's names."""
    while isinstance(config, BackboneConfig):
        config = config.backbone_config
    if name.startswith("_") or name in ENCODER_ONLY_FIELDS | REMOTE_CODE_KEYS:
        return False
    return name in vars(config) or name in config.attribute_map


class BackboneConfig(PreTrainedConfig):
    """A configuration that wraps the configuration of an encoder.

    Every field of the encoder is also a field of this configuration, under its family's name: `hidden_size`,
    `max_position_embeddings`, `hidden_dropout_prob` (`dropout` in DistilBERT). Its value lives in `backbone_config`
    only; reading and writing go there. `SHAPE_FIELDS` are also saved at the top level, for programs that do not read
    nested configurations.

    Args:
        backbone_config: Configuration of the encoder, stock or ours, or its dictionary; None is a small BERT.
        tie_word_embeddings: Whether the decoder of the masked-LM head is the embedding table. `from_backbone` sets
            False for an encoder whose decoder is untied.
        classifier_dropout: Dropout before the output layer of a task head; None takes the encoder's
            `hidden_dropout_prob`, as BERT and RoBERTa do.
        initializer_range: Standard deviation of the weights that a method adds to the encoder (BERT's 0.02). The
            encoder's own value is ignored, because it may have been chosen for a head.
        head_initializer_range: Standard deviation of the weights of a new task head. None: see `HeadLinear`.
    """

    sub_configs = {"backbone_config": AutoConfig}

    backbone_config: Any = None
    tie_word_embeddings: bool = True
    classifier_dropout: float | None = None
    initializer_range: float = 0.02
    head_initializer_range: float | None = None

    @staticmethod
    def prepare_models() -> None:
        """Do nothing. `import hf_domain` puts the import of a method's models here, which would take seconds."""

    def __post_init__(self, **kwargs) -> None:
        self.prepare_models()
        self.backbone_config = build_backbone_config(self.backbone_config)
        for name in [name for name in kwargs if has_encoder_field(self.backbone_config, name)]:
            setattr(self.backbone_config, name, kwargs.pop(name))
        if self.chunk_size_feed_forward:
            self.backbone_config.chunk_size_feed_forward = self.chunk_size_feed_forward
        super().__post_init__(**kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return a field of the encoder; Python calls this only for names that this configuration does not have."""
        encoder = self.__dict__.get("backbone_config")
        if isinstance(encoder, PreTrainedConfig) and has_encoder_field(encoder, name):
            return getattr(encoder, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field of this configuration, or of the encoder if this configuration has no such field."""
        encoder = self.__dict__.get("backbone_config")
        is_own = name in self.__dict__ or hasattr(type(self), name)
        if not is_own and isinstance(encoder, PreTrainedConfig) and has_encoder_field(encoder, name):
            setattr(encoder, name, value)
        else:
            super().__setattr__(name, value)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs) -> Self:
        """Build from a dictionary and overrides.

        Overrides of our own fields are validated. transformers would set them after the validation, so that a run could
        train with an invalid option and save a model that nothing can load. An override of an encoder's field changes
        `backbone_config`, and a dictionary for a nested configuration changes the fields that it names. Top-level
        copies of the encoder's fields are ignored.
        """
        inherited = {item.name for item in fields(PreTrainedConfig)}
        own = {item.name for item in fields(cls)} - inherited
        overrides = {name: kwargs.pop(name) for name in own & kwargs.keys()}
        for name in cls.sub_configs.keys() & overrides.keys():
            saved: Any = config_dict.get(name)
            given: Any = overrides[name]
            is_change = isinstance(saved, dict) and isinstance(given, dict)
            if is_change and given.get("model_type", saved.get("model_type")) == saved.get("model_type"):
                overrides[name] = {**saved, **given}
        types = {key.rpartition(".")[0] for key in config_dict.get("auto_map") or ()} - {""}
        config_dict = leave_unloaded({**config_dict, **overrides}, types)
        encoder = build_backbone_config(config_dict.get("backbone_config"))
        shared = {name for name in (config_dict.keys() | kwargs.keys()) - own - inherited}
        shared = {name for name in shared if has_encoder_field(encoder, name)}
        if config_dict.get("backbone_config") is not None:
            config_dict = {name: value for name, value in config_dict.items() if name not in shared}
        changes = {name: kwargs.pop(name) for name in shared & kwargs.keys()}
        return super().from_dict({**config_dict, **changes}, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Serialize, with the encoder's shape at the top level.

        Nested configurations are saved without keys that could run code and without local paths.
        """
        output = super().to_dict()
        for field in self.sub_configs:
            inner = getattr(self, field)
            # Its fields must have their common names before its code is loaded, too.
            names = {"attribute_map": inner.attribute_map} if comes_with_code(inner) and inner.attribute_map else {}
            output[field] = strip_private_keys(output[field] | names)
        return output | {name: getattr(self, name) for name in SHAPE_FIELDS if hasattr(self, name)}

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs) -> None:
        """Save as transformers does, together with the code of nested methods.

        Models call this after they save their own code and before they push, so the code is complete on the Hub.
        """
        super().save_pretrained(save_directory)
        save_nested_code(self, save_directory)
        if push_to_hub:
            self.push_to_hub(kwargs.pop("repo_id", os.path.basename(save_directory)), **kwargs)
