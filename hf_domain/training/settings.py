"""Read the settings of a YAML or JSON file, with one-line errors."""

import json
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any

import yaml


class _Loader(yaml.SafeLoader):
    """Reads numbers and booleans as YAML 1.2 does, and refuses duplicate keys.

    PyYAML follows YAML 1.1: it reads `1e-4` as text and `save_strategy: no` as false. Of two equal keys it keeps the
    last.
    """

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Hashable, Any]:
        """Construct a mapping, and refuse a key that occurs twice."""
        seen = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.MarkedYAMLError(problem=f"{key.value} occurs twice", problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                seen.add(key.value)
        return super().construct_mapping(node, deep)


class _TextLoader(_Loader):
    """Keeps all values except empty ones as text: the flag that reads a value knows its type."""


def _list_resolvers(*tags: str) -> dict[str, list]:
    """Return the patterns by which PyYAML recognizes these tags."""
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
    """Return the mapping in a YAML or JSON file.

    Args:
        file: Read as JSON if it ends in .json, else as YAML.
        as_text: Keep numbers and booleans as text.

    Raises:
        ValueError: The file is not UTF-8, YAML, JSON or a mapping, or a key occurs twice.
    """
    read = _read_json if Path(file).suffix == ".json" else _read_yaml
    try:
        settings = read(Path(file).read_text(encoding="utf-8-sig"), as_text)
    except UnicodeDecodeError as error:
        raise ValueError(f"{file} must be UTF-8 text, but byte {error.start} is not. Convert the file.") from None
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
        raise ValueError(f"{file} must be a mapping of names to values, but is nested too deeply.") from None
    if not isinstance(settings, dict):
        found = "empty" if settings is None else f"a {type(settings).__name__}"
        raise ValueError(f"{file} must be a mapping of names to values, but is {found}. Write `name: value` lines.")
    return settings


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
