"""What `hf-domain` answers before a script is imported, and what it makes of errors: one line, or a traceback."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import make_flags
import pytest
from transformers import AutoConfig

import hf_domain
from hf_domain import cli
from hf_domain.comparison.rows import RECIPES
from hf_domain.safe_io import read_json, write_json


def run(monkeypatch, function, command="predict"):
    """Run a command whose work is this function."""
    monkeypatch.setattr(cli, "import_command", lambda name: SimpleNamespace(main=function))
    monkeypatch.setattr(cli, "check_flags", lambda *_: None)
    monkeypatch.setattr(sys, "argv", ["hf-domain", command, "model", "texts.txt"])
    cli.main()


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


def test_a_package_of_an_extra_is_named_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(SystemExit, match=r'this command needs scikit-learn, .* pip install "\.\[compare\]"'):
        run(monkeypatch, lambda: __import__("sklearn.metrics"))


def test_an_interruption_ends_as_a_shell_expects(monkeypatch, capsys):
    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, interrupt)
    assert ended.value.code == 130 and capsys.readouterr().err == "error: interrupted\n"


def test_a_model_that_is_not_there_is_named(monkeypatch):
    with pytest.raises(SystemExit, match="there is no folder nowhere, and the Hub cannot be reached"):
        run(monkeypatch, lambda: AutoConfig.from_pretrained("nowhere"))


def test_each_method_is_one_of_its_command():
    needed = ["--model_name_or_path", "m", "--output_dir", "o", "--strategy", "from_scratch"]
    own = {"mlm": "exbert", "ner": "gmap", "distill": "minilmv2"}
    for command, method in own.items():
        cli.check_flags(command, [*needed[: 6 if command == "distill" else 4], "--method", method])
    with pytest.raises(ValueError, match=r"--method: invalid choice: 'gmap'.*'minilm', 'minilmv2'"):
        cli.check_flags("distill", [*needed, "--method", "gmap"])


@pytest.mark.parametrize(
    ("command", "advice"), [("predict", "Add --trust_remote_code"), ("expand_vocab", "needs none")]
)
def test_code_of_a_model_is_refused_with_what_the_command_can_do(monkeypatch, tmp_path, command, advice):
    write_json(tmp_path / "config.json", {"model_type": "own", "auto_map": {"AutoConfig": "own.Config"}})
    (tmp_path / "own.py").write_text("raise SystemExit('it ran')", encoding="utf-8")
    with pytest.raises(SystemExit, match=f"but {tmp_path} has code of its own.*{advice}"):
        run(monkeypatch, lambda: AutoConfig.from_pretrained(tmp_path, trust_remote_code=False), command)


# --------------------------------------------------------------------------------------------------------------- help


# Each answer, and the seconds of a process that gives this answer alone.
PROGRAM = """
import io, json, sys, time
from contextlib import redirect_stderr, redirect_stdout
from hf_domain import cli
started, answers = time.process_time(), []
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["hf-domain", *arguments]
    start, said = time.process_time(), io.StringIO()
    try:
        with redirect_stdout(said), redirect_stderr(said):
            cli.main()
    except SystemExit as end:
        said.write(str(end.code))
    answers.append([said.getvalue(), started + time.process_time() - start])
print(json.dumps([answers, [*{"torch", "transformers", "datasets", "numpy"} & sys.modules.keys()]]))
"""
WHAT = {
    "--help": "usage: hf-domain",
    "--version": f"hf-domain {hf_domain.__version__}",
    "dance": "hf-domain has no command dance",
    "mlm": "required: --model_name_or_path",
    "mlm --model_name_or_path m --learning_rat 1": "--learning_rat: did you mean --learning_rate or ",
    "mlm --learning_rate fast --seed 1": "--learning_rate: invalid float value: 'fast'",
    "ner --max_steps=1e3": "--max_steps: invalid int value: '1e3'",
    "expand_vocab --size -1.5": "--size: invalid int value: '-1.5'",
    "mlm --method foo": "--method: invalid choice: 'foo' (choose from 'dapt', 'lora', 'varmae'",
    "mlm --objective=foo": "--objective: invalid choice: 'foo' (choose from 'mlm', 'clm')",
    "compare --dry_run": "required: plan",
    "compare plan.yaml --dry": "there is no option --dry: did you mean --dry_run?",
}


def test_what_needs_no_work_is_answered_in_less_than_a_second_without_torch():
    asked = {**WHAT, **{f"{name} --help": f"usage: hf-domain {name}" for name in cli.COMMANDS}}
    command = [sys.executable, "-c", PROGRAM, json.dumps([line.split() for line in asked])]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    answers, slow = json.loads(said)
    for (line, expected), (text, seconds) in zip(asked.items(), answers, strict=True):
        assert expected in text and seconds < 1, line
    assert not slow


def ask_for_help(name, monkeypatch, capsys, flag="--help"):
    monkeypatch.setattr(sys, "argv", ["hf-domain", name, flag])
    cli.main()
    return capsys.readouterr().out


def test_help_of_a_comparison_lists_its_rows(monkeypatch, capsys):
    said = ask_for_help("compare", monkeypatch, capsys)
    assert all(f"\n  {name:16} {row.title}" in said for name, row in RECIPES.items())


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_fits_on_a_screen_and_help_all_has_every_flag(name, monkeypatch, capsys):
    short, whole = (ask_for_help(name, monkeypatch, capsys, flag) for flag in ("--help", "--help_all"))
    for said in (short, whole):  # the commands that an installed package has, and no script
        assert f"\n    hf-domain {name}" in said and ".py" not in said and "examples/" not in said
        assert str(Path(cli.__file__).parents[1]) not in said
    for flag in cli.list_flags(name):
        assert f"\n  {flag['names'][0]}" in whole
        assert flag["group"] == cli.TRAINER or flag["names"][0] in short
        assert flag["group"] in (*cli.GROUPS, cli.RARE, cli.TRAINER)
    if cli.takes_training_arguments(name):
        assert len(short.splitlines()) <= (60 if name == "mlm" else 66)
        assert max(map(len, short.splitlines())) <= 120 and f"are taken, too: hf-domain {name} --help_all\n" in short
        assert "--lr_scheduler_type" not in short and "--lr_scheduler_type" in whole
        titles = [line for line in short.splitlines() if line.rstrip(":") in cli.GROUPS]
        assert titles[:3] == ["Model:", "Method:", "Data:"] or titles[:2] == ["Model:", "Data:"]


def test_flags_json_is_current():
    """Repair: python tools/make_flags.py. transformers' own flags are those of the pinned version."""
    written, found = json.loads(make_flags.FILE.read_text(encoding="utf-8")), make_flags.collect_flags()
    if written["transformers"] != found["transformers"]:
        for content in (written, found):
            for about in content["commands"].values():
                about["flags"] = [
                    flag for flag in about["flags"] if flag["names"][0].lstrip("-") not in make_flags.TRAINERS
                ]
    assert written["commands"].keys() == found["commands"].keys()
    for command, about in found["commands"].items():
        assert written["commands"][command] == about, f"{command}: run python tools/make_flags.py"


def test_a_flag_of_another_transformers_is_left_to_the_script(monkeypatch):
    with pytest.raises(ValueError, match="no option --brand_new_flag"):
        cli.check_flags("mlm", ["--model_name_or_path", "m", "--brand_new_flag", "1"])
    monkeypatch.setattr(cli, "version", lambda package: "99.0")
    cli.check_flags("mlm", ["--model_name_or_path", "m", "--brand_new_flag", "1"])
    with pytest.raises(ValueError, match="no option --brand_new_flag"):
        cli.check_flags("compare", ["plan.yaml", "--brand_new_flag", "1"])


def test_there_are_few_commands():
    assert len(cli.COMMANDS) <= 14
