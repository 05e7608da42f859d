"""`hf-domain <command> --help` says what the script's own parser says, without importing torch."""

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hf_domain import command_line
from hf_domain.command_help import make_parser
from hf_domain.command_line import COMMANDS, find_module, import_command
from hf_domain.comparison.rows import RECIPES
from hf_domain.training import arguments

PROGRAM = """
import io, json, sys, time
from contextlib import redirect_stdout
sys.argv = ["hf-domain"]
from hf_domain import command_line
seconds = {}
for name in command_line.COMMANDS:
    sys.argv = ["hf-domain", name, "--help"]
    start = time.process_time()
    with redirect_stdout(io.StringIO()) as said:
        command_line.main()
    assert said.getvalue().startswith(f"usage: hf-domain {name}"), name
    seconds[name] = time.process_time() - start
print(json.dumps({"seconds": seconds, "slow": [*{"torch", "transformers", "datasets"} & sys.modules.keys()]}))
"""


def test_help_takes_less_than_a_second():
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout
    found = json.loads(said)
    assert found["seconds"].keys() == COMMANDS.keys() and max(found["seconds"].values()) < 1
    assert not found["slow"]


def ask_for_help(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["hf-domain", name, "--help"])
    command_line.main()
    return capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_commands_that_an_installed_package_has(name, monkeypatch, capsys):
    said = ask_for_help(name, monkeypatch, capsys)
    assert f"\n    hf-domain {name}" in said
    assert ".py" not in said and "examples/" not in said and str(Path(command_line.__file__).parents[1]) not in said


def test_help_of_a_comparison_lists_its_rows(monkeypatch, capsys):
    said = ask_for_help("compare", monkeypatch, capsys)
    assert all(f"\n  {name:16} {row.title}" in said for name, row in RECIPES.items())


class Caught(Exception):
    """A parser, before it parses."""


@pytest.mark.parametrize("name", COMMANDS)
def test_help_is_that_of_the_script(name, monkeypatch):
    def catch(self, *_, **__):
        raise Caught(self)

    monkeypatch.setattr(arguments.OneLineParser, "parse_args", catch, raising=False)
    monkeypatch.setattr(arguments.ScriptParser, "parse_args_into_dataclasses", catch)
    monkeypatch.setattr(sys, "argv", [name])
    with pytest.raises(Caught) as caught:
        import_command(name).main()
    own: argparse.ArgumentParser = caught.value.args[0]
    fast = make_parser(find_module(name), own.prog)
    assert fast.description == (own.description or "").strip().replace("%", "%%")
    found, expected = ({"/".join(plain(action)): action for action in parser._actions} for parser in (fast, own))
    assert [*found] == [*expected]
    for option, action in expected.items():
        assert (found[option].help, found[option].required) == (action.help, action.required), option
        if isinstance(action.choices, tuple):  # those of transformers' types are no tuples
            assert [*found[option].choices] == [*action.choices], option
    assert fast.epilog == own.epilog
    assert fast.format_usage().count("|") == own.format_usage().count("|")


def plain(action):
    return [name for name in action.option_strings if "-" not in name.strip("-")] or [action.dest]
