"""What the page of examples/explore_app shows, without a browser and in one."""

import importlib.util
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest
from script_runs import save_tiny_bert
from tiny_models import make_masked_lm
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification

from hf_domain import predict
from hf_domain.tokenization import expand_vocabulary

FILE = Path(__file__).parents[2] / "examples" / "explore_app" / "app.py"
SPEC = importlib.util.spec_from_file_location("explore_app", FILE)
app = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(app)
BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
missing = [name for name in ("gradio", "playwright") if find_spec(name) is None] + ["chromium"] * (BROWSER is None)
MARKUP = "<script>alert(1)</script>"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    old = make_bert_tokenizer()
    new, delta, _ = expand_vocabulary(old, SENTENCES * 9, min_frequency=2, step=15, size=140, progress=False)
    encoder = save_tiny_bert(root / "encoder", SENTENCES)
    new.save_pretrained(root / "vocabulary")
    delta.save(root / "vocabulary")
    labels = {"id2label": {0: "biology", 1: MARKUP}, "num_labels": 2}
    make_masked_lm("bert").save_pretrained(root / "adapted")
    for name, head, options in (
        ("classifier", AutoModelForSequenceClassification, labels),
        ("answerer", AutoModelForQuestionAnswering, {}),
    ):
        head.from_pretrained(encoder, **options).save_pretrained(root / name)
    for name in ("adapted", "classifier", "answerer"):
        old.save_pretrained(root / name)
    return root


@pytest.fixture(scope="module")
def datastore(made):
    pytest.importorskip("tantivy")
    from hf_domain.datastore import build_datastore

    build_datastore([*SENTENCES, f"{MARKUP} domain"], made / "datastore", make_bert_tokenizer(), max_length=32)
    return str(made / "datastore")


def test_tabs_are_those_that_fit(made, datastore):
    for model, titles in {
        "adapted": ["Fill in words", "Vocabulary"],
        "classifier": ["Prediction", "Vocabulary"],
        "vocabulary": ["Vocabulary"],
    }.items():
        assert [*app.list_forms(str(made / model), str(made / "encoder"), None)] == titles
    assert [*app.list_forms(None, None, datastore)] == ["Passages"]
    with pytest.raises(ValueError, match="Give --model or --datastore"):
        app.list_forms(None, None, None)


def test_markup_is_escaped(made, datastore):
    forms = app.list_forms(str(made / "classifier"), str(made / "vocabulary"), datastore)
    for title, escaped in {
        "Prediction": "&lt;script&gt;",
        "Vocabulary": "[UNK]",
        "Passages": "&lt;script&gt;",
    }.items():
        texts = [f"{MARKUP} domain", ""][: len(forms[title].labels)]
        shown = app.answer(forms[title].show, *texts)
        assert escaped in shown and "<script" not in shown
    assert "<script" not in app.answer(app.check_text, MARKUP * 200, make_bert_tokenizer())


def test_predictions_are_those_of_predict(made):
    show = app.list_forms(str(made / "classifier"), None, None)["Prediction"].show
    (row,) = predict(made / "classifier", [{"text": SENTENCES[0], "text_pair": SENTENCES[1]}])
    assert all(f"{share:.1%}" in show(SENTENCES[0], SENTENCES[1]) for share in row["probabilities"].values())
    form = app.list_forms(str(made / "answerer"), None, None)["Prediction"]
    (row,) = predict(made / "answerer", [{"question": "what is it", "context": SENTENCES[0]}])
    assert form.labels == ("Question", "Text") and f"{row['probabilities']:.1%}" in form.show(
        "what is it", SENTENCES[0]
    )


def test_rows_of_every_kind_are_shown():
    several = {"prediction": ["b"], "probabilities": {"a": 0.1, "b": 0.9}}
    assert "b (predicted) 90.0%" in app.show_prediction(several) and "a 10.0%" in app.show_prediction(several)
    tags = {"tokens": ["a", "lung"], "prediction": ["O", "B-ORGAN"], "probabilities": [0.9, 0.8]}
    assert app.show_prediction(tags) == 'a <b>lung <span class="tag">B-ORGAN</span></b>'
    with pytest.raises(ValueError, match="not all of this text fit in"):
        app.show_prediction(tags | {"prediction": ["O", None]})
    assert "no answer 60.0%" in app.show_prediction({"prediction": "", "probabilities": 0.6})
    assert app.show_prediction({"prediction": 0.25, "probabilities": None}) == "<b>0.250</b>"


def test_new_pieces_of_a_vocabulary_are_marked(made):
    new, old = app.AutoTokenizer.from_pretrained(made / "vocabulary"), make_bert_tokenizer()
    pieces = [piece for word in app.cut_words(SENTENCES[0], new, old) for piece in word]
    added = {*new.get_vocab()} - {*old.get_vocab()}
    assert [piece.is_new for piece in pieces] == [token in added for token in new.tokenize(SENTENCES[0])]
    assert any(piece.is_new for piece in pieces)
    shown = app.show_words(SENTENCES[0], {"before": old, "after": new})
    assert f"after: {len(pieces)} pieces" in shown and shown.count('"piece new"') == sum(p.is_new for p in pieces)


def test_masks_are_filled(made):
    show = app.list_forms(str(made / "adapted"), str(made / "encoder"), None)["Fill in words"].show
    shown = show("the [MASK] text")
    assert "<h4>before</h4>" in shown and "<h4>after</h4>" in shown and shown.count('class="bar"') == 10
    with pytest.raises(ValueError, match=r"written as \[MASK\]"):
        show("the text")


def test_what_cannot_be_read_gives_a_message(made, datastore):
    for title, form in app.list_forms(str(made / "classifier"), None, datastore).items():
        for text, message in {" \n": "it is empty", "word " * 600: "at most 512 tokens"}.items():
            shown = app.answer(form.show, *[text] * len(form.labels))
            assert message in shown and 'role="alert"' in shown, title


class Page:
    def launch(self, **options):
        self.options = options
        return "app", "http://127.0.0.1:7999/", None


def test_nothing_leaves_the_machine(monkeypatch):
    monkeypatch.setenv("GRADIO_SERVER_NAME", "0.0.0.0")
    page, theme = Page(), SimpleNamespace(Soft=lambda **options: options)
    monkeypatch.setitem(sys.modules, "gradio", SimpleNamespace(themes=theme))
    assert app.launch_page(page, 7999) == "http://127.0.0.1:7999/"
    assert page.options["server_name"] == "127.0.0.1" and page.options["share"] is False
    assert page.options["server_port"] == 7999
    assert page.options["theme"]["font"] == ["system-ui", "sans-serif"]  # none of Google's


@pytest.mark.browser
@pytest.mark.skipif(bool(missing), reason=f"the page needs {', '.join(missing)}, which this machine lacks")
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("model", ["classifier", "adapted"])
def test_every_tab_answers_in_a_browser(made, datastore, model, width):
    from playwright.sync_api import sync_playwright

    page = app.make_page(app.list_forms(str(made / model), str(made / "encoder"), datastore))
    elsewhere = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 844})
        local = (f"http://{app.LOOPBACK}:", "data:", "blob:")
        tab.on("request", lambda request: request.url.startswith(local) or elsewhere.append(request.url))
        tab.goto(app.launch_page(page))
        tab.get_by_role("tab").first.wait_for()
        for title in [each.inner_text() for each in tab.get_by_role("tab").all()]:
            tab.get_by_role("tab", name=title, exact=True).filter(visible=True).first.click()
            panel = tab.get_by_role("tabpanel").filter(visible=True)
            for text, shown in (("", ".mistake"), (f"[MASK] {SENTENCES[0]}", ".bar, .word, li")):
                panel.get_by_role("textbox").first.fill(text)
                panel.get_by_role("button", name="Read").click()
                panel.locator(shown).first.wait_for()
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, "the page must not scroll sideways"
        browser.close()
    page.close()
    assert not elsewhere
