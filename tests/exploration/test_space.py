"""What is written for a Space is whole, and says nothing of this machine."""

import os
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace

import forked_python
import pytest
import yaml
from method_models import make_gmap
from tiny_tokenizers import make_bert_tokenizer

import hf_domain
from hf_domain.exploration import page
from hf_domain.exploration.folders import Exploration, load_model, open_folder
from hf_domain.exploration.space import GRADIO, list_requirements, write_space

# Runs app.py where this package is not installed; Gradio is left out.
RUN = """
import importlib, importlib.metadata, json, pathlib, pkgutil, runpy, sys

def hide(name, find=importlib.metadata.Distribution.from_name):
    if name == "hf-domain":
        raise importlib.metadata.PackageNotFoundError(name)
    return find(name)

sys.meta_path[:] = [each for each in sys.meta_path if "editable" not in getattr(each, "__module__", "")]
importlib.metadata.Distribution.from_name = hide
import hf_domain
from hf_domain.cards import name_package
from hf_domain.comparison.report import PAGE
from hf_domain.environment import describe_environment
from hf_domain.exploration import page
from hf_domain.exploration.folders import load_model
from hf_domain.prediction import predict
shown = []
page.make_page = lambda found: shown.append(found) or type("Page", (), {"block_thread": lambda self: None})()
page.launch_page = lambda page: None
runpy.run_path("app.py")
for name in ("modeling", "tokenization", "examples"):
    importlib.import_module(f"hf_domain.{name}")
    assert [*pkgutil.iter_modules(sys.modules[f"hf_domain.{name}"].__path__)]
assert PAGE.is_file() and name_package() == "hf-domain"
places = {module.__file__ for name, module in [*sys.modules.items()] if name.partition(".")[0] == "hf_domain"}
assert all(pathlib.Path(place).is_relative_to(pathlib.Path.cwd()) for place in places), places
row = predict(shown[0].fine_tuned["classifier"], [{"text": "the cat"}])[0]
print(json.dumps([describe_environment()["versions"]["hf-domain"], row["prediction"]]))
"""


def read_card(folder):
    _, settings, text = (folder / "README.md").read_text().split("---\n")
    return yaml.safe_load(settings), text


def open_as_a_space(folder, monkeypatch):
    """Run its script where it lies; returns what the page would show."""
    shown = []
    monkeypatch.setattr(page, "make_page", lambda found: SimpleNamespace(found=found, block_thread=lambda: None))
    monkeypatch.setattr(page, "launch_page", lambda page: shown.append(page.found))
    monkeypatch.chdir(folder)
    runpy.run_path("app.py")
    return shown[0]


def test_space_of_an_encoder(made, tmp_path, monkeypatch):
    folder = write_space(tmp_path / "space", open_folder(str(made / "adapted")))
    card, _ = read_card(folder)
    assert card["sdk"] == "gradio" and card["sdk_version"] == GRADIO and card["app_file"] == "app.py"
    assert not [*folder.rglob("checkpoint-*"), *folder.rglob("_run.json")]
    assert not [file for file in folder.rglob("*.*") if str(tmp_path).encode() in file.read_bytes()]
    found = open_as_a_space(folder, monkeypatch)
    assert found.encoders == {"before: encoder": "before/encoder", "after: adapted": "after/adapted"}
    assert load_model("after/adapted").num_parameters() == load_model(str(made / "adapted")).num_parameters()


def test_a_space_runs_where_the_package_is_not_installed(made, tmp_path):
    folder = write_space(tmp_path / "space", open_folder(str(made / "classifier")))
    copied = {file.relative_to(folder).as_posix() for file in (folder / "hf_domain").rglob("*") if file.is_file()}
    assert {"hf_domain/LICENSE", "hf_domain/py.typed", "hf_domain/modeling/backbone.py"} <= copied
    assert not [file for file in copied if re.search(r"quickstart_data|tests/|__pycache__|\.(ipynb|yaml)$", file)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": ""}
    result = forked_python.run([sys.executable, "-c", RUN], cwd=folder, env=environment)
    assert result.returncode == 0, result.stderr[-3000:]
    assert re.search(rf'^\["{re.escape(hf_domain.__version__)}", "(biology|law)"\]$', result.stdout, re.MULTILINE)


def test_a_space_installs_what_the_package_needs_but_not_the_package(tmp_path):
    names = {"model": "you/model"}
    folder = write_space(tmp_path / "space", Exploration("you/model", names, tokenizers=names))
    lines = (folder / "requirements.txt").read_text().splitlines()
    assert lines == list_requirements()
    found = {re.match(r"[\w-]+", line)[0] for line in lines}
    assert {"torch", "transformers", "gradio", "tantivy", "regex"} <= found
    assert not found & {"hf-domain", "pytest", "elasticsearch", "onnx"}


def test_space_of_a_rada_and_of_a_datastore(made, tmp_path, monkeypatch):
    options = {"datastore": str(made / "datastore")}
    folder = write_space(tmp_path / "space", open_folder(str(made / "rada"), **options))
    found = open_as_a_space(folder, monkeypatch)
    assert found.fine_tuned == {"rada": "after/rada"} and found.datastore == "passages/datastore"
    folder = write_space(tmp_path / "other", open_folder(str(made / "datastore")))
    assert open_as_a_space(folder, monkeypatch).datastore == "after/datastore"


def test_models_on_the_hub_are_named(tmp_path):
    names = {"before: base": "you/base", "after: model": "you/model"}
    folder = write_space(tmp_path / "space", Exploration("you/model", names, tokenizers=names))
    assert "open_folder('you/model', encoder='you/base')" in (folder / "app.py").read_text()
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "app.py", "hf_domain", "requirements.txt"]


def test_space_of_a_comparison_is_its_report(comparison, tmp_path):
    folder = write_space(tmp_path / "space", open_folder(str(comparison)))
    assert (folder / "index.html").read_text() == "<p>the report</p>"
    assert read_card(folder)[0]["sdk"] == "static"
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "index.html"]


@pytest.mark.parametrize("dying", ["while it writes", "while it moves"])
def test_a_space_that_was_killed_is_written_again(comparison, tmp_path, monkeypatch, dying):
    found, folder, moves, replace = open_folder(str(comparison)), tmp_path / "space", [], os.replace

    def die(*paths):
        moves.append(paths)
        if len(moves) == 5:  # one of the two files is in its place
            raise KeyboardInterrupt
        replace(*paths)

    if dying == "while it writes":
        (folder / "_unfinished").mkdir(parents=True)
        (folder / "_unfinished" / "index.html").touch()
    else:
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(os, "replace", die)
            write_space(folder, found)
        assert {file.name for file in folder.iterdir()} == {"_finished", "README.md"}
    (folder / "mine").touch()
    with pytest.raises(FileExistsError, match="holds something"):
        write_space(folder, found)
    (folder / "mine").unlink()
    write_space(folder, found)
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "index.html"]


def test_space_of_a_comparison_needs_its_page(comparison, tmp_path):
    (comparison / "plan" / "report.html").rename(comparison / "plan" / "report.md")
    with pytest.raises(FileNotFoundError, match=r"there is only .*report\.md. Make it with .* --report_only"):
        write_space(tmp_path / "space", open_folder(str(comparison)))


def test_folders_that_are_taken_and_models_that_need_this_machine(made, tmp_path):
    with pytest.raises(FileExistsError, match="--space_dir must be a new or empty folder"):
        write_space(made / "adapted", open_folder(str(made / "adapted")))
    model = make_gmap()
    model.config.memory_name_or_path = str(made / "encoder")
    model.save_pretrained(tmp_path / "gmap")
    make_bert_tokenizer().save_pretrained(tmp_path / "gmap")
    with pytest.raises(ValueError, match="must not name a local folder"):
        write_space(tmp_path / "space", open_folder(str(tmp_path / "gmap")))
    assert not (tmp_path / "space" / "app.py").exists()


def test_spaces_install_the_tested_gradio():
    constraints = (Path(__file__).parents[2] / "constraints.txt").read_text()
    assert re.search(r"^gradio==(.+)$", constraints, re.MULTILINE)[1] == GRADIO
