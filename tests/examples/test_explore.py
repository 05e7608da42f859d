"""`hf-domain explore` says what is missing, and keeps the page on this machine."""

import sys
from types import SimpleNamespace

import pytest
from script_runs import save_tiny_bert
from tiny_tokenizers import SENTENCES

from hf_domain import command_line
from hf_domain.examples import explore
from hf_domain.exploration import page


@pytest.fixture
def encoder(tmp_path):
    return save_tiny_bert(tmp_path / "encoder", SENTENCES)


def run(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["hf-domain", "explore", *map(str, arguments)])
    command_line.main()


def test_without_gradio(encoder, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, encoder)
    assert end.value.code == (
        "error: the page needs Gradio, but gradio is missing. Run pip install gradio tantivy regex."
    )


class Page:
    """In the place of a page of Gradio: notes how it is launched."""

    def __init__(self):
        self.options = {}

    def launch(self, **options):
        self.options = options
        return "app", "http://127.0.0.1:7999/", "https://public" if options["share"] else None

    def block_thread(self):
        assert self.options["prevent_thread_lock"]


@pytest.fixture
def made(monkeypatch):
    made = Page()
    monkeypatch.setattr(explore, "make_page", lambda found: made)
    theme = SimpleNamespace(Soft=lambda **options: options)
    monkeypatch.setattr(page, "import_gradio", lambda: SimpleNamespace(themes=theme))
    return made


def test_nothing_leaves_the_machine(encoder, monkeypatch, made, capsys):
    monkeypatch.delenv("GRADIO_SERVER_NAME", raising=False)
    run(monkeypatch, encoder, "--port", 7999)
    assert made.options["server_name"] == "127.0.0.1" and made.options["share"] is False
    assert made.options["server_port"] == 7999 and "Open http://127.0.0.1:7999/ in" in capsys.readouterr().out
    assert made.options["theme"]["font"] == ["system-ui", "sans-serif"]  # none of Google's
    run(monkeypatch, encoder, "--share")
    assert made.options["share"] is True and "Open https://public in" in capsys.readouterr().out
    monkeypatch.setenv("HF_DOMAIN_OFFLINE", "1")
    with pytest.raises(SystemExit, match="--share sends the page over a server of Gradio, but HF_DOMAIN_OFFLINE=1"):
        run(monkeypatch, encoder, "--share")


def test_analytics_are_off(monkeypatch):
    monkeypatch.setenv("GRADIO_ANALYTICS_ENABLED", "True")
    monkeypatch.setitem(sys.modules, "gradio", SimpleNamespace())
    page.import_gradio()
    assert page.os.environ["GRADIO_ANALYTICS_ENABLED"] == "False"


def test_space(encoder, monkeypatch, made, tmp_path, capsys):
    run(monkeypatch, encoder, "--space_dir", tmp_path / "space")
    assert "hf upload you/space" in capsys.readouterr().out
    assert (tmp_path / "space" / "app.py").is_file() and not made.options
