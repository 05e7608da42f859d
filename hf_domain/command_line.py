"""The `hf-domain` command: runs the scripts of examples/ by their names."""

import ast
import importlib
import pkgutil
import sys
from pathlib import Path

from hf_domain import examples

USAGE = """usage: hf-domain <command> [options]

{commands}

`hf-domain <command> --help` lists the options; `hf-domain <command> options.yaml` reads them from a file
(that of `compare` is its plan)."""


def find_commands() -> dict[str, str]:
    """Return the module of each command: `run_mlm` is called `mlm`, a script without `run_` keeps its name."""
    names = (module.name for module in pkgutil.iter_modules(examples.__path__))
    return {name.removeprefix("run_"): name for name in sorted(names)}


def describe_commands(commands: dict[str, str]) -> str:
    """Return a line for each command: the first of its script's docstring, read without importing the script."""
    width = max(map(len, commands))
    sources = {name: Path(examples.__path__[0]) / f"{module}.py" for name, module in commands.items()}
    docstrings = {
        name: ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "" for name, path in sources.items()
    }
    return "\n".join(f"  {name:{width}}  {text.partition(chr(10))[0]}" for name, text in docstrings.items())


def main() -> None:
    """Run the named script with the remaining arguments; a user's mistake ends in one line instead of a traceback."""
    commands = find_commands()
    usage = USAGE.format(commands=describe_commands(commands))
    if len(sys.argv) < 2:
        sys.exit(usage)
    if sys.argv[1] in ("-h", "--help"):
        sys.stdout.write(usage + "\n")
        return
    name = sys.argv.pop(1)
    if name not in commands:
        sys.exit(f"hf-domain has no command {name}\n{usage}")
    sys.argv[0] = f"hf-domain {name}"
    try:
        importlib.import_module(f"hf_domain.examples.{commands[name]}").main()
    except (ValueError, OSError, ModuleNotFoundError) as error:
        sys.exit(f"error: {error}")
