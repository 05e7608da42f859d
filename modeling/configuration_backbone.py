"""The configuration that every model of this package extends: an encoder's configuration inside one of ours."""

import copy
import os
from collections.abc import Collection
from dataclasses import fields
from typing import Any, Self

from transformers import AutoConfig, PreTrainedConfig

from .nested_models import find_config_class, save_nested_code

# Keys with which a nested configuration could switch on code that nobody asked for (CVE-2026-5241). The code of a
# checkpoint is named once, at the top level, and runs only when the caller passes trust_remote_code.
REMOTE_CODE_KEYS = frozenset({"auto_map", "custom_pipelines", "trust_remote_code"})

# The shape of the encoder as other programs read it from the top level of a config.json.
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

# Fields that stay in the encoder's configuration: transformers would convert the rotary parameters a second time, and
# would take the whole model for quantized.
ENCODER_ONLY_FIELDS = frozenset({"rope_parameters", "quantization_config"})


def strip_keys(config: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """Return `config` without some keys, at every depth."""
    return {
        key: strip_keys(value, keys) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in keys
    }


def strip_remote_code_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Return `config` without the keys of `REMOTE_CODE_KEYS`, at every depth."""
    return strip_keys(config, REMOTE_CODE_KEYS)


def strip_private_keys(config: dict[str, Any]) -> dict[str, Any]:
    """Return what is saved of a nested `config`: no key that could run code, and not where an encoder was read from.

    transformers leaves that path out at the top level alone, and a saved model may be published.
    """
    return strip_keys(config, REMOTE_CODE_KEYS | {"_name_or_path"})


def build_backbone_config(config: dict[str, Any] | PreTrainedConfig | None) -> PreTrainedConfig:
    """Turn what a user or a config.json gives as `backbone_config` into a configuration object of its own.

    Args:
        config: A configuration, its dictionary, or None for a BERT of 2 layers, 128 wide (small enough for any test).

    Returns:
        A copy: changing it (a resized vocabulary, say) never changes the encoder it came from.
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
    """Return whether `name` is a field that a model of ours shares with its encoder, by any name of the family."""
    while isinstance(config, BackboneConfig):
        config = config.backbone_config
    if name.startswith("_") or name in ENCODER_ONLY_FIELDS | REMOTE_CODE_KEYS:
        return False
    return name in vars(config) or name in config.attribute_map


class BackboneConfig(PreTrainedConfig):
    """A configuration around the configuration of an encoder.

    Every field of the encoder is a field of this configuration too, by the names of its family: `hidden_size`,
    `max_position_embeddings`, `hidden_dropout_prob` (`dropout` in DistilBERT). The value lives in `backbone_config`
    alone; reading and writing go there. `SHAPE_FIELDS` are also saved at the top level, for programs that read no
    nested configuration.

    Args:
        backbone_config: Configuration of the encoder, one of transformers' or one of ours, or its dictionary; None is a
            small BERT.
        tie_word_embeddings: Whether the decoder of the masked-LM head is the embedding table.
        classifier_dropout: Dropout probability before the output layer of a task head; None takes the encoder's
            `hidden_dropout_prob`, as BERT's and RoBERTa's heads do.
        initializer_range: Standard deviation of the weights that a method adds to the encoder (BERT's 0.02). The
            encoder's own is not read: it may have been chosen for a head.
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
        """Do nothing. `import hf_domain` registers its models here: importing them at once would take seconds."""

    def __post_init__(self, **kwargs) -> None:
        self.prepare_models()
        self.backbone_config = build_backbone_config(self.backbone_config)
        for name in [name for name in kwargs if has_encoder_field(self.backbone_config, name)]:
            setattr(self.backbone_config, name, kwargs.pop(name))
        if self.chunk_size_feed_forward:
            self.backbone_config.chunk_size_feed_forward = self.chunk_size_feed_forward
        super().__post_init__(**kwargs)

    def __getattr__(self, name: str) -> Any:
        """Return a field of the encoder; only called for what this configuration does not have itself."""
        encoder = self.__dict__.get("backbone_config")
        if isinstance(encoder, PreTrainedConfig) and has_encoder_field(encoder, name):
            return getattr(encoder, name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        """Set a field of this configuration or, if it has no such field, that of the encoder."""
        encoder = self.__dict__.get("backbone_config")
        is_own = name in self.__dict__ or hasattr(type(self), name)
        if not is_own and isinstance(encoder, PreTrainedConfig) and has_encoder_field(encoder, name):
            setattr(encoder, name, value)
        else:
            super().__setattr__(name, value)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs) -> Self:
        """Build from a dictionary and overrides.

        The overrides of our own fields are checked as if they had been saved: transformers would set them afterwards,
        and a run could train with an option that does not exist and save what nothing can load. A dictionary for a
        nested configuration changes what it names, as in transformers. An override of a field of the encoder changes
        `backbone_config`. What a dictionary says of the encoder beside its `backbone_config` is a copy and is left.
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
        config_dict = {**config_dict, **overrides}
        encoder = build_backbone_config(config_dict.get("backbone_config"))
        shared = {name for name in (config_dict.keys() | kwargs.keys()) - own - inherited}
        shared = {name for name in shared if has_encoder_field(encoder, name)}
        if config_dict.get("backbone_config") is not None:
            config_dict = {name: value for name, value in config_dict.items() if name not in shared}
        changes = {name: kwargs.pop(name) for name in shared & kwargs.keys()}
        return super().from_dict({**config_dict, **changes}, **kwargs)

    def to_dict(self) -> dict[str, Any]:
        """Serialize, with the shape of the encoder.

        The nested configuration carries no key that could run code, and no path of this machine.
        """
        output = super().to_dict()
        output["backbone_config"] = strip_private_keys(output["backbone_config"])
        return output | {name: getattr(self, name) for name in SHAPE_FIELDS if hasattr(self, name)}

    def save_pretrained(self, save_directory: str | os.PathLike, push_to_hub: bool = False, **kwargs) -> None:
        """Save as transformers does, and the code of the methods inside this model with it.

        The models call this between their own code and their push, so it is where the code is whole.
        """
        super().save_pretrained(save_directory)
        save_nested_code(self, save_directory)
        if push_to_hub:
            self.push_to_hub(kwargs.pop("repo_id", os.path.basename(save_directory)), **kwargs)
