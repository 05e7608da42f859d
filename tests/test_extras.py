"""What runs on torch and the seven packages of the field alone, and how a missing extra is named."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from hf_domain import extras
from hf_domain.comparison.prepare import load_plan
from hf_domain.methods import METHODS
from hf_domain.methods.hidden_state_cache import pack_encoder
from hf_domain.tokenization.report import plot_curve

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def list_names(requirements):
    return {Requirement(line).name for line in requirements}


def test_the_core_is_torch_and_the_packages_of_the_field():
    field = {
        "accelerate",
        "datasets",
        "huggingface-hub",
        "peft",
        "safetensors",
        "tokenizers",
        "transformers",
    }
    assert list_names(PROJECT["dependencies"]) == field | {"torch", "filelock", "jinja2"}


@pytest.mark.parametrize("package", extras.EXTRAS)
def test_a_missing_extra_is_named_with_its_command(package, monkeypatch):
    name, extra = extras.EXTRAS[package]
    groups = PROJECT["optional-dependencies"]
    assert name in list_names(groups[extra]) and f"{extra}" in Requirement(groups["all"][0]).extras
    assert extras.explain_missing("it", package) is None  # the tests have all of them
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(ModuleNotFoundError, match=re.escape(f"it needs {name}, which is not installed: pip install")):
        extras.require("it", package)


@pytest.mark.parametrize("package", ["matplotlib", "pydantic", "scipy", "sklearn"])
def test_a_comparison_names_a_missing_extra_before_it_reads_the_plan(package, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, package, None)
    name = extras.EXTRAS[package][0]
    with pytest.raises(ModuleNotFoundError, match=rf"a comparison needs {name}, .* pip install \"\.\[compare\]\""):
        load_plan(tmp_path / "plan.yaml")


@pytest.mark.parametrize(
    ("package", "extra", "work"),
    [
        ("matplotlib", "compare", lambda folder: plot_curve(None, folder / "curve.png")),
        ("cloudpickle", "cluster", lambda folder: pack_encoder(folder, None, executor=object()).__enter__()),
    ],
)
def test_work_that_needs_an_extra_names_it(package, extra, work, monkeypatch, tmp_path):
    for name in (package, f"{package}.figure"):  # another test may have imported the second
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ModuleNotFoundError, match=rf"needs {package}, .* pip install \"\.\[{extra}\]\""):
        work(tmp_path)
    assert not [*tmp_path.iterdir()]


CORE = Path(__file__).parent / "support" / "core_run.py"


@pytest.mark.parametrize(
    "methods",
    [
        pytest.param(["dapt", "exbert", "rada", "ner"], id="sample"),
        pytest.param([*METHODS, "qa", "ner", "several", "regression"], id="all", marks=pytest.mark.commands),
    ],
)
def test_every_method_runs_without_any_extra(tmp_path, methods):
    blocked = [*extras.EXTRAS, "seqeval"]
    command = [sys.executable, str(CORE), json.dumps(methods), str(tmp_path), json.dumps(blocked)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    ended = json.loads(done.stdout.splitlines()[-1])
    # Passages are searched by an extra.
    assert 'needs tantivy, which is not installed: pip install ".[datastore]"' in ended.pop("rada")
    assert ended == dict.fromkeys([method for method in methods if method != "rada"], "predicted")
