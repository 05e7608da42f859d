"""Write the `--help` of a command from the source of its script: importing it takes seconds, for torch.

A test compares the texts with those that the scripts' own parsers have.
"""

import argparse
import ast
import importlib
import importlib.util
import os
from collections.abc import Iterator
from copy import copy
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# Tables that import no large library; names of other modules are read from their source.
LIGHT = ("hf_domain.methods", "hf_domain.comparison.rows")
NUMBERS: dict[str, type] = {"int": int, "float": float}


class HelpFormatter(argparse.ArgumentDefaultsHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Keeps the line breaks of the description, and leaves out what a reader does not need.

    That is the usage of a hundred flags, which hides the description; defaults that mean nothing is set; and the second
    spelling of every flag, with dashes.
    """

    def _format_usage(self, usage: str | None, actions: Any, groups: Any, prefix: str | None) -> str:
        required = [action for action in actions if action.required]
        rest = " [options]\n       %(prog)s options.yaml [options]"
        line = super()._format_usage(usage, required, groups, prefix).rstrip()
        return f"{line}{rest % {'prog': self._prog}}\n\n"

    def _get_help_string(self, action: argparse.Action) -> str | None:
        says_nothing = action.default is None or action.default is False or action.default == []
        says_nothing |= os.path.isabs(str(action.default))  # a file of this installation; the help says which
        return action.help if says_nothing else super()._get_help_string(action)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        names = [name for name in action.option_strings if "-" not in name.strip("-")]
        shown = copy(action)
        shown.option_strings = names or action.option_strings
        return super()._format_action_invocation(shown)


class Field(NamedTuple):
    """A field of a dataclass, and the module that defines it."""

    module: str
    annotation: str
    value: ast.expr | None


@cache
def parse_source(module: str) -> ast.Module:
    """Parse the source of a module without importing it."""
    package, _, name = module.rpartition(".")
    # Importing our own packages is fast, and finds their folder wherever it is mapped. transformers is only located.
    is_ours = package.partition(".")[0] == "hf_domain"
    spec = None if is_ours else importlib.util.find_spec(package)
    paths = importlib.import_module(package).__path__ if is_ours else spec and spec.submodule_search_locations
    return ast.parse(Path(paths[0], f"{name}.py").read_text(encoding="utf-8") if paths else "")


def find_fields(module: str, class_name: str) -> dict[str, Field]:
    """Return the fields of a dataclass and of its base classes, from the source of a module."""
    fields: dict[str, Field] = {}
    for node in parse_source(module).body:
        if isinstance(node, ast.ClassDef) and node.name == class_name:
            for base in node.bases:
                fields |= find_fields(module, ast.unparse(base))
            items = [item for item in node.body if isinstance(item, ast.AnnAssign)]
            fields |= {
                ast.unparse(item.target): Field(module, ast.unparse(item.annotation), item.value) for item in items
            }
        elif isinstance(node, ast.ImportFrom) and class_name in [alias.name for alias in node.names]:
            source = "transformers.training_args" if node.module == "transformers" else str(node.module)
            fields |= find_fields(source, class_name)
    return fields


def make_parser(script: str, prog: str) -> argparse.ArgumentParser:
    """Make the parser of a script, which fills dataclasses or has a parser of argparse. Its only types are numbers."""
    source = parse_source(script)
    calls = [node for node in ast.walk(source) if isinstance(node, ast.Call)]
    added = [call for call in calls if ast.unparse(call.func).endswith(".add_argument")]
    formatter = argparse.RawDescriptionHelpFormatter if added else HelpFormatter
    description = (ast.get_docstring(source) or "").replace("%", "%%")
    epilogs = [evaluate(each.value, script) for call in calls for each in call.keywords if each.arg == "epilog"]
    epilog = epilogs[0] if epilogs else None
    parser = argparse.ArgumentParser(prog, description=description, epilog=epilog, formatter_class=formatter)
    groups: dict[str, Any] = {}
    for call in added:
        names = [evaluate(argument, script) for argument in call.args]
        options = {str(keyword.arg): evaluate(keyword.value, script) for keyword in call.keywords}
        owner = ast.unparse(call.func).rpartition(".")[0]
        if owner != "parser" and owner not in groups:
            groups[owner] = parser.add_mutually_exclusive_group()
        if "type" in options:
            options["type"] = next(NUMBERS.get(ast.unparse(each.value)) for each in call.keywords if each.arg == "type")
        groups.get(owner, parser).add_argument(*names, **options)
    for name in list_classes(source):
        for flag, field in find_fields(script, name).items():
            add_field(parser, flag, field)
    return parser


def list_classes(source: ast.Module) -> Iterator[str]:
    """Yield the dataclasses that a script fills: its `ARGUMENTS`, or what it gives to `parse_arguments`."""
    found = find_value(source, "ARGUMENTS")
    if isinstance(found, ast.Tuple):
        yield from map(ast.unparse, found.elts)
        return
    for node in ast.walk(source):
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "parse_arguments":
            yield from map(ast.unparse, node.args)


def add_field(parser: argparse.ArgumentParser, flag: str, field: Field) -> None:
    """Add the flag of a field, as transformers' HfArgumentParser does."""
    settings = field.value if isinstance(field.value, ast.Call) else None
    keywords = {str(each.arg): each.value for each in settings.keywords} if settings else {}
    if settings is None and field.value is not None:
        keywords["default"] = field.value
    if "init" in keywords or "ClassVar" in field.annotation:
        return
    metadata = keywords.get("metadata")
    pairs = zip(metadata.keys, metadata.values, strict=True) if isinstance(metadata, ast.Dict) else ()
    facts = {evaluate(key, field.module): evaluate(value, field.module) for key, value in pairs if key is not None}
    is_required = not {"default", "default_factory"} & keywords.keys()
    options: dict[str, Any] = {"help": facts.get("help"), "required": is_required}
    options["default"] = evaluate(keywords["default"], field.module) if "default" in keywords else None
    plain = field.annotation.removesuffix(" | None")
    choices = facts.get("choices")
    if plain.isidentifier() and (alias := find_type(field.module, plain)):
        plain = alias
    if plain.startswith("Literal["):
        choices = ast.literal_eval(f"({plain.removeprefix('Literal[').removesuffix(']')},)")
    if choices is not None:
        options["choices"] = choices
    if plain == "bool" and (field.annotation == plain or options["default"] is not None):
        options["nargs"] = "?"
    elif plain.startswith("list["):
        options["nargs"] = "+"
    options["type"] = NUMBERS.get(plain)
    parser.add_argument(f"--{flag}", *facts.get("aliases", ()), **options)
    if plain == "bool" and options["default"] is True:
        parser.add_argument(f"--no_{flag}", action="store_false", help=options["help"])


def evaluate(node: ast.expr, module: str) -> Any:
    """Return the value of a constant expression; None if it takes more than the source to know it."""
    if isinstance(node, ast.Name):
        return find_constant(module, node.id)
    if isinstance(node, ast.JoinedStr):
        parts = [evaluate(part.value if isinstance(part, ast.FormattedValue) else part, module) for part in node.values]
        return "".join(map(str, parts))
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        left, right = evaluate(node.left, module), evaluate(node.right, module)
        return left + right if isinstance(left, str) and isinstance(right, str) else None
    try:
        return ast.literal_eval(node)
    except ValueError:
        return None


def find_constant(module: str, name: str) -> Any:
    """Return the value of a name at the top of a module."""
    if module in LIGHT:
        return getattr(importlib.import_module(module), name)
    source = parse_source(module)
    if (value := find_value(source, name)) is not None:
        return evaluate(value, module)
    if (origin := find_origin(source, name)) is not None:
        return find_constant(origin, name)
    return ast.get_docstring(source) if name == "__doc__" else None


def find_type(module: str, name: str) -> str | None:
    """Return the type that a name stands for, if it is an alias in one of our modules."""
    source = parse_source(module)
    if (value := find_value(source, name)) is not None:
        return ast.unparse(value)
    origin = find_origin(source, name)
    return None if origin is None else find_type(origin, name)


def find_origin(source: ast.Module, name: str) -> str | None:
    """Return our module that a module imports a name from."""
    for node in source.body:
        if isinstance(node, ast.ImportFrom) and name in [alias.name for alias in node.names]:
            return node.module if str(node.module).startswith("hf_domain") else None
    return None


def find_value(source: ast.Module, name: str) -> ast.expr | None:
    """Return what a module assigns to a name."""
    for node in source.body:
        if isinstance(node, ast.Assign):
            target, value = node.targets[0], node.value
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            target, value = node.target, node.value
        else:
            continue
        pairs = [(target, value)]
        if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
            pairs = [*zip(target.elts, value.elts, strict=True)]
        for each, assigned in pairs:
            if ast.unparse(each) == name:
                return assigned
    return None
