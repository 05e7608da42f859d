"""What `hf-domain` makes of errors: one line for a user's mistake, a traceback for a bug of ours."""

import sys
from types import SimpleNamespace

import pytest
from transformers import AutoConfig

from hf_domain import command_line
from hf_domain.safe_io import read_json, write_json


def run(monkeypatch, function, command="predict"):
    """Run a command whose work is this function."""
    monkeypatch.setattr(command_line, "import_command", lambda name: SimpleNamespace(main=function))
    monkeypatch.setattr(sys, "argv", ["hf-domain", command, "model", "texts.txt"])
    command_line.main(is_checked=True)


@pytest.mark.parametrize(
    "bug",
    [
        lambda: {}["missing"],
        lambda: None.missing,
        lambda: [][0],
        lambda: int("x"),  # a ValueError of Python itself: nothing of ours explained it
        lambda: 1 / 0,
    ],
)
def test_a_bug_keeps_its_traceback(monkeypatch, bug):
    with pytest.raises((KeyError, AttributeError, IndexError, ValueError, ZeroDivisionError)) as caught:
        run(monkeypatch, bug)
    assert caught.traceback[-1].frame.code.raw is bug.__code__


def test_a_mistake_ends_in_one_line(monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, lambda: read_json(tmp_path / "config.json"))
    assert ended.value.code.startswith("error: ") and "\n" not in ended.value.code and "config.json" in ended.value.code


def test_an_interruption_ends_as_a_shell_expects(monkeypatch, capsys):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, interrupt)
    assert ended.value.code == 130 and capsys.readouterr().err == "error: interrupted\n"


def test_a_model_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(SystemExit, match="there is no folder nowhere, and the Hub cannot be reached"):
        run(monkeypatch, lambda: AutoConfig.from_pretrained("nowhere"))


@pytest.mark.parametrize(("command", "advice"), [("predict", "Add --trust_remote_code"), ("probe", "needs none")])
def test_code_of_a_model_is_refused_with_what_the_command_can_do(monkeypatch, tmp_path, command, advice):
    write_json(tmp_path / "config.json", {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}})
    (tmp_path / "own.py").write_text("raise SystemExit('it ran')", encoding="utf-8")
    with pytest.raises(SystemExit, match=f"but {tmp_path} has code of its own.*{advice}"):
        run(monkeypatch, lambda: AutoConfig.from_pretrained(tmp_path, trust_remote_code=False), command)
