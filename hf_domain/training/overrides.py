"""Read the options of a method from the command line: `--config_overrides name=value,...`."""

import json
import re
from dataclasses import fields
from typing import Any

from huggingface_hub.dataclasses import type_validator
from transformers import CONFIG_MAPPING, AutoConfig

from hf_domain.methods import METHODS
from hf_domain.modeling.configuration_backbone import BackboneConfig, has_encoder_field
from hf_domain.training.arguments import ModelArguments, check_method


def load_config(args: ModelArguments, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Load the configuration of the checkpoint that training starts from, and the options of the method.

    For a checkpoint of the method itself, the options are already in the configuration. Otherwise they belong to the
    model that will be built around the checkpoint, and include those of the recommended start.

    Args:
        options: Fields that the task sets, such as its labels.

    Raises:
        ValueError: An option is unknown or has the wrong type; see also `check_method`.
    """
    name, overrides = args.config_name or args.model_name_or_path, parse_overrides(args.config_overrides)
    config = AutoConfig.from_pretrained(name, **args.hub_options, **options)
    method = METHODS.get(args.method)
    is_built = method is not None and method.is_built_around(config.model_type)
    check_method(args, not is_built)
    if not is_built and overrides:
        check_names(overrides, config)
        check_types(overrides, type(config))
        config = AutoConfig.from_pretrained(name, **args.hub_options, **options, **overrides)
    elif method is not None and method.model_type is not None:  # an adapter has no model config
        check_types(overrides, CONFIG_MAPPING[method.model_type])
    if is_built and method is not None and args.start == "recommended":
        overrides = method.start | overrides
    return config, overrides


def parse_overrides(overrides: str | None) -> dict[str, Any]:
    """Parse `name=value,name=value`. A value is read as JSON if possible (lists included), else as a string.

    Raises:
        ValueError: A part does not have the form name=value, or a name occurs twice.
    """
    options: dict[str, Any] = {}
    for part in re.split(r",(?![^\[]*\])", overrides) if overrides else []:  # not at a comma inside brackets
        name, separator, value = part.partition("=")
        if not (name and separator):
            raise ValueError(f"--config_overrides must have the form name=value,name=value, but has the part {part!r}")
        if name.strip() in options:
            raise ValueError(f"--config_overrides must name an option once, but {name.strip()} occurs twice")
        try:
            options[name.strip()] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except json.JSONDecodeError:
            options[name.strip()] = value
    return options


def check_names(overrides: dict[str, Any], config: Any) -> None:
    """Raise a ValueError unless the options are fields of a configuration; transformers would accept any name."""
    known = {item.name for item in fields(config)}
    if isinstance(config, BackboneConfig):  # the fields of its encoder count too
        known |= {name for name in overrides if has_encoder_field(config, name)}
    if unknown := sorted(overrides.keys() - known):
        own = ", ".join(sorted(set(type(config).__annotations__)))
        raise ValueError(
            f"--config_overrides must name fields of {type(config).__name__} ({own}), but names {', '.join(unknown)}"
        )


def check_types(overrides: dict[str, Any], config_class: Any) -> None:
    """Raise a ValueError unless the values have the types that a config declares.

    A wrong type would fail much later, or never.
    """
    types = {item.name: item.type for item in fields(config_class) if not isinstance(item.type, str)}
    for name, value in overrides.items():
        if name not in types:
            continue
        is_whole = type(value) is int and types[name] in (float, float | None)
        try:
            type_validator(name, float(value) if is_whole else value, types[name])
        except TypeError:
            kind = getattr(types[name], "__name__", types[name])
            raise ValueError(f"--config_overrides: {name} must have the type {kind}, but is {value!r}") from None
