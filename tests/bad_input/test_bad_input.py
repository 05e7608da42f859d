"""No bad input ends in a traceback, in exit 0 with a wrong result, or in a changed file of the user."""

import json
import re
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from cases import CASES
from packaging.version import Version
from workspace import COMMANDS, Case, make_workspace, run_case, run_guarded

from hf_domain import cli
from hf_domain.export import EXPORTING
from hf_domain.training.arguments import RANGES, find_wrong_values

# `make test` takes every fifteenth case; `make test-faults` takes all.
STRIDE = 15


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    make_workspace(tmp_path_factory.mktemp("good"))
    return tmp_path_factory.getbasetemp() / "good0"


@pytest.fixture
def workspace(good, tmp_path, monkeypatch):
    shutil.copytree(good, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")


# ------------------------------------------------------------------------------------------- flags, from their facts


def refuse(command, *arguments, says):
    with pytest.raises(ValueError) as caught:
        cli.check_flags(command, [*arguments])
    assert all(part in str(caught.value) for part in says), f"{arguments}: {caught.value}"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_wrong_flag_is_named_with_its_value_before_torch_is_imported(command):
    flags = {flag["names"][0]: flag for flag in cli.list_flags(command)}
    needed = [[name, "x"] if name.startswith("--") else ["x"] for name in flags if flags[name]["required"]]
    given = [part for parts in needed for part in parts]
    for parts in needed:
        if parts != ["x"]:
            refuse(command, *(part for others in needed if others != parts for part in others), says=[parts[0]])
    for name, flag in flags.items():
        wrong = {"int": ("many", "1.5"), "float": ("many",)}.get(flag["type"], ())
        for value in (*wrong, *["magic"] * bool(flag.get("choices"))):
            refuse(command, *given, name, value, says=[name, value])
        if name.startswith("--") and name[:-1] not in flags:
            refuse(command, *given, name[:-1], says=[f"no option {name[:-1]}"])
    refuse(command, *given, "--color", "red", says=["no option --color"])


# What is just out of each range.
OUTSIDE = {
    "at least 1": (0, -1),
    "at least 0": (-1,),
    "above 0": (0, -0.1),
    "above 0 and at most 1": (0, 1.1, -0.5),
    "at least 0 and below 1": (-0.1, 1),
    "at least 0 and below 100": (-1, 100),
    "at least 1, or -1 for no limit": (0, -2),
    "a whole number from 0 to 4294967295": (-1, 2**32, 2**70),
    "at least 3": (2, -5),
}


@pytest.mark.parametrize("name", RANGES)
def test_a_number_out_of_range_is_named_with_its_flag(name):
    for value in (*OUTSIDE[RANGES[name]], float("nan"), float("inf"), -float("inf")):
        (told,) = find_wrong_values({name: value})
        assert told == f"--{name} must be {RANGES[name]}, but is {value}"


def list_ranged(command):
    """List the flags of a command whose numbers have a range."""
    return [flag for flag in cli.list_flags(command) if flag["names"][0].strip("-") in RANGES]


@pytest.mark.parametrize("command", [command for command in COMMANDS if list_ranged(command)])
def test_every_number_out_of_range_is_refused_before_work(command, workspace):
    wrong = {flag["names"][0].strip("-"): flag["type"] for flag in list_ranged(command)}
    wrong = {name: OUTSIDE[RANGES[name]][0] if kind == "int" else "nan" for name, kind in wrong.items()}
    while wrong:  # some commands name all at once
        case = Case(command, " ".join(f"--{name} {value}" for name, value in wrong.items()), "")
        ends, message, has_trained = run_guarded(case)
        told = [name for name in wrong if re.search(rf"{name} must be {RANGES[name]}.*, but is {wrong[name]}", message)]
        assert ends == "error" and told and not has_trained, message
        wrong = {name: value for name, value in wrong.items() if name not in told}
    assert not Path("out").exists()


# ------------------------------------------------------------------------------------------------------- other cases


def list_cases():
    for number, case in enumerate(CASES):
        marks = [pytest.mark.faults] * (number % STRIDE != 0)
        if case.command == "export" and Version(version("transformers")) < EXPORTING:
            marks = [pytest.mark.skip(f"exports need transformers {EXPORTING}")]
        yield pytest.param(case, id=case.id, marks=marks)


@pytest.mark.parametrize("case", [*list_cases()])
def test_bad_input_is_refused(case, workspace):
    outcome, message = run_case(case)
    assert outcome == ("harmless" if case.right else "clean"), message


# A whole comparison is what they need, or what they run.
NEEDING_RUNS = ("publish", "quickstart")


@pytest.mark.faults
@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in NEEDING_RUNS])
def test_good_input_is_taken(command, workspace):
    """Otherwise a case could be refused for another reason than its own."""
    outcome, message = run_case(Case(command, "", "", right=lambda: True))
    assert outcome == "harmless", message


# All commands that load a model; `publish` loads what a comparison made, and plans trust no code.
LOADING = [name for name in COMMANDS if name != "publish"]
SAMPLED = ("build_datastore", "compare", "export")


def poison(folder, *files):
    """Let a model, and its tokenizer if `files` has its configuration, need code of their folder."""
    heads = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering")
    classes = ("AutoConfig", "AutoModel", *(f"AutoModelFor{head}" for head in heads))
    own = {
        "config.json": {"model_type": "evil", "auto_map": dict.fromkeys(classes, "evil.Evil")},
        "tokenizer_config.json": {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}},
    }
    for file in files:
        content = json.loads((folder / file).read_text(encoding="utf-8")) | own[file]
        (folder / file).write_text(json.dumps(content), encoding="utf-8")
    (folder / "evil.py").write_text(f"open({str(Path('owned').absolute())!r}, 'w')\nclass Evil: pass\n")


@pytest.mark.parametrize("files", [("config.json",), ("config.json", "tokenizer_config.json")], ids=["model", "all"])
@pytest.mark.parametrize(
    "command", [pytest.param(name, marks=[pytest.mark.faults] * (name not in SAMPLED)) for name in LOADING]
)
def test_no_command_runs_code_of_a_model(command, files, workspace, monkeypatch):
    if command == "build_datastore" and len(files) == 1:
        pytest.skip("it loads no model, only the tokenizer")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    for folder in ("encoder", "adapted", "classifier"):
        poison(Path(folder), *files)
    outcome, message = run_case(Case(command, "", "code"))
    assert not Path("owned").exists()
    assert outcome == "clean", message


def test_every_command_has_cases():
    assert {case.command for case in CASES} == {*COMMANDS}
