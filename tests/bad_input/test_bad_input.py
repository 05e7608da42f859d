"""No bad input ends in a traceback, in exit 0 with a wrong result, or in a changed file of the user."""

import json
import shutil
from importlib.metadata import version
from pathlib import Path

import pytest
from cases import CASES
from packaging.version import Version
from workspace import COMMANDS, Case, make_datastore, make_workspace, run_case

from hf_domain.export import EXPORTING

# `make test` takes every fifteenth case; `make test-faults` takes all.
STRIDE = 15


@pytest.fixture(scope="session")
def good(tmp_path_factory):
    folder = tmp_path_factory.mktemp("good")
    make_workspace(folder)
    make_datastore(folder)
    return folder


@pytest.fixture
def workspace(good, tmp_path, monkeypatch):
    shutil.copytree(good, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


def list_cases():
    for number, case in enumerate(CASES):
        marks = [pytest.mark.faults] * (number % STRIDE != 0)
        if case.command == "export" and Version(version("transformers")) < EXPORTING:
            marks = [pytest.mark.skip(f"exports need transformers {EXPORTING}")]
        yield pytest.param(case, id=case.id, marks=marks)


@pytest.mark.parametrize("case", [*list_cases()])
def test_bad_input_is_refused(case, workspace, record_property):
    outcome = run_case(case)
    record_property("outcome", outcome.kind)
    assert outcome.kind == ("harmless" if case.harmless else "clean"), outcome.message


# A whole comparison is what they need, or what they run.
NEEDING_RUNS = ("publish", "quickstart")


@pytest.mark.faults
@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in NEEDING_RUNS])
def test_good_input_is_taken(command, workspace):
    """Otherwise a case could be refused for another reason than its own."""
    outcome = run_case(Case(command, "good", (), harmless="nothing is wrong with it"))
    assert outcome.kind == "harmless", outcome.message


# All commands that load a model; `publish` loads what a comparison made, and plans trust no code. The tokenizer of a
# datastore, which is all that select_text loads, has tests of its own.
LOADING = [name for name in COMMANDS if name not in ("publish", "select_text")]
SAMPLED = ("build_datastore", "compare", "probe")


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
    outcome = run_case(Case(command, "code", ("code",), {}))
    assert not Path("owned").exists()
    assert outcome.kind == "clean", outcome.message


def test_cases_have_names_of_their_own():
    assert len({case.id for case in CASES}) == len(CASES)
    assert {case.command for case in CASES} == {*COMMANDS, "python"}
