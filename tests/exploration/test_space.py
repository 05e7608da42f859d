"""What is written for a Space is whole, and says nothing of this machine."""

import re
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from method_models import make_gmap
from tiny_tokenizers import make_bert_tokenizer

from hf_domain.exploration import page
from hf_domain.exploration.folders import Exploration, load_model, open_folder
from hf_domain.exploration.space import GRADIO, write_space


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
    assert (folder / "requirements.txt").read_text().startswith("hf-domain[explore]==")
    assert not [*folder.rglob("checkpoint-*"), *folder.rglob("_run.json")]
    assert not [file for file in folder.rglob("*.*") if str(tmp_path).encode() in file.read_bytes()]
    found = open_as_a_space(folder, monkeypatch)
    assert found.encoders == {"before: encoder": "before/encoder", "after: adapted": "after/adapted"}
    assert load_model("after/adapted").num_parameters() == load_model(str(made / "adapted")).num_parameters()


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
    assert sorted(file.name for file in folder.iterdir()) == ["README.md", "app.py", "requirements.txt"]


def test_space_of_a_comparison_is_its_report(comparison, tmp_path):
    folder = write_space(tmp_path / "space", open_folder(str(comparison)))
    assert (folder / "index.html").read_text() == "<p>the report</p>"
    assert read_card(folder)[0]["sdk"] == "static"
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
