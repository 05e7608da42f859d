"""Options of a method on the command line: `--config_overrides name=value,...`."""

import json
import re
from dataclasses import fields
from typing import Any

from transformers import CONFIG_MAPPING, AutoConfig

from hf_domain.methods import METHODS
from hf_domain.modeling.configuration_backbone import BackboneConfig, has_encoder_field
from hf_domain.training.arguments import ModelArguments, check_method
from hf_domain.training.settings import has_type


def load_config(args: ModelArguments, **options: Any) -> tuple[Any, dict[str, Any]]:
    """Load the configuration of the checkpoint that training starts from.

    Args:
        args: The checkpoint, the method and its options.
        options: Fields that the task sets, such as its labels.

    Returns:
        The configuration, and the options of the method. A checkpoint of the method itself takes them into its
        configuration; otherwise they are for the model that is built around it, with those of its recommended start.

    Raises:
        ValueError: An option is unknown or of a wrong type; see also `check_method`.
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
    elif method is not None and method.model_type is not None:  # an adapter has no config of its own
        check_types(overrides, CONFIG_MAPPING[method.model_type])
    if is_built and method is not None and args.start == "recommended":
        overrides = method.start | overrides
    return config, overrides


def parse_overrides(overrides: str | None) -> dict[str, Any]:
    """Parse `name=value,name=value`; a value is read as JSON where it is JSON, lists included, else as a string.

    Raises:
        ValueError: A part is not of the form name=value, or a name stands there twice.
    """
    options: dict[str, Any] = {}
    for part in re.split(r",(?![^\[]*\])", overrides) if overrides else []:  # a comma inside brackets is the list's
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
    """Raise unless the options are fields of a configuration; transformers would set any other name, too."""
    known = {item.name for item in fields(config)}
    if isinstance(config, BackboneConfig):  # it has the fields of its encoder too
        known |= {name for name in overrides if has_encoder_field(config, name)}
    if unknown := sorted(overrides.keys() - known):
        own = ", ".join(sorted(set(type(config).__annotations__)))
        raise ValueError(f"{type(config).__name__} has no option {', '.join(unknown)}; its own are {own}")


def check_types(overrides: dict[str, Any], config_class: Any) -> None:
    """Raise unless the values have the types that a config declares: a wrong one fails much later, or never.

    Raises:
        ValueError: A value is of another type.
    """
    types = {item.name: item.type for item in fields(config_class) if not isinstance(item.type, str)}
    for name, value in overrides.items():
        if name in types and not has_type(value, types[name]):
            kind = getattr(types[name], "__name__", types[name])
            raise ValueError(f"--config_overrides: {name} must be of the type {kind}, but is {value!r}")
