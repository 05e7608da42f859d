"""Settings that a user writes into a file: YAML or JSON, read with one-line errors."""

import json
import re
from collections.abc import Hashable
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import yaml


class _Loader(yaml.SafeLoader):
    """Reads YAML 1.2's numbers and truth values, and refuses duplicate keys.

    PyYAML follows YAML 1.1, where `1e-4` is a text and `save_strategy: no` is false, and keeps the last of two keys.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping whose keys differ."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} occurs twice", problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _TextLoader(_Loader):
    """Leaves every value but an empty one as it is written: the flag that it is for knows its type."""


def _list_resolvers(*tags: str) -> dict[str, list]:
    """List the patterns by which PyYAML recognizes these tags."""
    prefix = "tag:yaml.org,2002:"
    return {
        first: kept
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
        if (kept := [(tag, pattern) for tag, pattern in resolvers if tag.removeprefix(prefix) in tags])
    }


_Loader.yaml_implicit_resolvers = _list_resolvers("int", "float", "merge", "null")
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile("^(true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)
_TextLoader.yaml_implicit_resolvers = _list_resolvers("merge", "null")


def read_settings(file: str | Path, *, as_text: bool = False) -> dict[Any, Any]:
    """Read a mapping from a YAML or JSON file.

    Args:
        file: Ends in .json, or is YAML.
        as_text: Leave numbers and truth values as they are written.

    Returns:
        The mapping.

    Raises:
        OSError: The file cannot be read.
        ValueError: It is not UTF-8, not YAML or JSON, or not a mapping; or a key occurs twice.
    """
    read = _read_json if Path(file).suffix == ".json" else _read_yaml
    try:
        settings = read(Path(file).read_text(encoding="utf-8-sig"), as_text)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be text in UTF-8, but its byte {error.start} is not. Convert it.") from None
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{file}, line {error.lineno} must be JSON, but is not: {error.msg} at column {error.colno}."
        ) from None
    except yaml.MarkedYAMLError as error:
        mark, problem = error.problem_mark, " ".join(str(error.problem).split())
        where = file if mark is None else f"{file}, line {mark.line + 1}"
        raise ValueError(f"{where}: {problem}. Correct the YAML, which is indented by spaces.") from None
    except yaml.YAMLError as error:
        raise ValueError(
            f"{file} must be YAML in UTF-8, but is not: {' '.join(str(error).split())}. Convert it."
        ) from None
    except RecursionError:
        raise ValueError(f"{file} must be a mapping of names to values, but is nested too deep to read.") from None
    if not isinstance(settings, dict):
        found = "empty" if settings is None else f"a {type(settings).__name__}"
        raise ValueError(f"{file} must be a mapping of names to values, but is {found}. Write `name: value` lines.")
    return settings


def has_type(value: Any, hint: Any) -> bool:
    """Return whether a value of a settings file has a type; unlike in Python, True is no number and 1 is a float."""
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return True
    if origin is Literal:
        return value in arguments
    if origin in (Union, UnionType):
        return any(has_type(value, argument) for argument in arguments)
    if origin is list and arguments:
        return isinstance(value, list) and all(has_type(item, arguments[0]) for item in value)
    if isinstance(value, bool):
        return hint is bool
    return isinstance(value, (int, float) if hint is float else origin or hint)


def _read_yaml(text: str, as_text: bool) -> Any:
    return yaml.load(text, _TextLoader if as_text else _Loader)


def _read_json(text: str, as_text: bool) -> Any:
    numbers: dict[str, Any] = {"parse_int": str, "parse_float": str, "parse_constant": str} if as_text else {}
    return json.loads(text, object_pairs_hook=_make_mapping, **numbers)


def _make_mapping(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise json.JSONDecodeError(f"{twice} occurs twice", "", 0)
    return mapping
