"""The configuration that every model of this package extends: an encoder's configuration inside one of ours."""

import copy
from collections.abc import Collection
from dataclasses import fields
from typing import Any, Self

from transformers import AutoConfig, PreTrainedConfig

# Keys with which a nested configuration could switch on code that nobody asked for (CVE-2026-5241). The code of a
# checkpoint is named once, at the top level, and runs only when the caller passes trust_remote_code.
REMOTE_CODE_KEYS = frozenset({"auto_map", "custom_pipelines", "trust_remote_code"})


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
    # Our own types are named here instead of being looked up: on the Hub nothing has registered them.
    if model_type == "varmae":
        from .configuration_varmae import VarMAEConfig

        return VarMAEConfig(**config)
    if model_type == "exbert":
        from .configuration_exbert import ExBertConfig

        return ExBertConfig(**config)
    if model_type == "gmap":
        from .configuration_gmap import GMapConfig

        return GMapConfig(**config)
    if model_type == "rada":
        from .configuration_rada import RadaConfig

        return RadaConfig(**config)
    return AutoConfig.for_model(model_type, **config)


class BackboneConfig(PreTrainedConfig):
    """A configuration around the configuration of an encoder.

    Args:
        backbone_config: Configuration of the encoder, one of transformers' or one of ours, or its dictionary; None is a
            small BERT.
        tie_word_embeddings: Whether the decoder of the masked-LM head is the embedding table.
        classifier_dropout: Dropout probability before the output layer of a task head; None takes the encoder's
            `hidden_dropout_prob`, as BERT's and RoBERTa's heads do.
        initializer_range: Standard deviation of new weights, those of a head too; None takes the encoder's, with which
            the head of the encoder alone would begin.
    """

    sub_configs = {"backbone_config": AutoConfig}

    backbone_config: Any = None
    tie_word_embeddings: bool = True
    classifier_dropout: float | None = None
    initializer_range: float | None = None

    def __post_init__(self, **kwargs) -> None:
        self.backbone_config = build_backbone_config(self.backbone_config)
        if self.initializer_range is None:
            self.initializer_range = getattr(self.backbone_config, "initializer_range", 0.02)
        super().__post_init__(**kwargs)

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs) -> Self:
        """Build from a dictionary and overrides.

        The overrides of our own fields are checked as if they had been saved: transformers would set them afterwards,
        and a run could train with an option that does not exist and save what nothing can load. A dictionary for a
        nested configuration changes what it names, as in transformers.
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
        return super().from_dict({**config_dict, **overrides}, **kwargs)

    @property
    def hidden_size(self) -> int:
        """Width of the hidden states."""
        return self.backbone_config.hidden_size

    @property
    def num_hidden_layers(self) -> int:
        """Layers of the encoder."""
        return self.backbone_config.num_hidden_layers

    @property
    def num_attention_heads(self) -> int:
        """Attention heads of the encoder."""
        return self.backbone_config.num_attention_heads

    @property
    def vocab_size(self) -> int:
        """Rows of the embedding table; `resize_token_embeddings` writes it."""
        return self.backbone_config.vocab_size

    @vocab_size.setter
    def vocab_size(self, value: int) -> None:
        self.backbone_config.vocab_size = value

    def to_dict(self) -> dict[str, Any]:
        """Serialise; the nested configuration carries no key that could run code, and no path of this machine."""
        output = super().to_dict()
        output["backbone_config"] = strip_private_keys(output["backbone_config"])
        return output
