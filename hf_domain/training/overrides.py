"""Options of a method on the command line: `--config_overrides name=value,...`."""

import json
import re
from dataclasses import fields
from typing import Any

from hf_domain.training.settings import has_type


def parse_overrides(overrides: str | None) -> dict[str, Any]:
    """Parse `name=value,name=value`; a value is read as JSON where it is JSON, lists included, else as a string.

    Raises:
        ValueError: A part is not of the form name=value, or a name stands there twice.
    """
    options: dict[str, Any] = {}
    for part in re.split(r",(?![^\[]*\])", overrides) if overrides else []:  # a comma inside brackets is the list's
        name, separator, value = part.partition("=")
        if not (name and separator):
            raise ValueError(f"overrides have the form name=value,name=value, got {part!r}")
        if name.strip() in options:
            raise ValueError(f"overrides must name an option once, but {name.strip()} stands there twice")
        try:
            options[name.strip()] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except json.JSONDecodeError:
            options[name.strip()] = value
    return options


def check_overrides(overrides: dict[str, Any], config_class: Any) -> None:
    """Raise unless the values have the types that a config declares: a wrong one fails much later, or never.

    Raises:
        ValueError: A value is of another type.
    """
    types = {item.name: item.type for item in fields(config_class) if not isinstance(item.type, str)}
    for name, value in overrides.items():
        if name in types and not has_type(value, types[name]):
            kind = getattr(types[name], "__name__", types[name])
            raise ValueError(f"--config_overrides: {name} must be of the type {kind}, but is {value!r}")
