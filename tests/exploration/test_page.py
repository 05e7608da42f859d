"""The page in a real browser: every tab is opened, a text typed, a result read, and nothing leaves the machine."""

import base64
import re
import shutil
from importlib.util import find_spec

import pytest
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

from hf_domain.datastore import Datastore
from hf_domain.exploration import views
from hf_domain.exploration.folders import load_model, load_tokenizer, open_folder
from hf_domain.exploration.page import LOOPBACK, launch_page, make_page
from hf_domain.prediction import predict

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
missing = [name for name in ("gradio", "playwright") if find_spec(name) is None] + ["chromium"] * (BROWSER is None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(bool(missing), reason=f"the page needs {', '.join(missing)}, which this machine lacks"),
]
TEXT = SENTENCES[0]
PNG = base64.b64decode(  # of one pixel
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


@pytest.fixture(scope="module")
def browser():
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def show(browser):
    """Serve the page of what was found, and open it; a phone is 390 pixels wide."""
    pages, elsewhere = [], []

    def note(request):
        if not request.url.startswith((f"http://{LOOPBACK}:", "data:", "blob:")):
            elsewhere.append(request.url)

    def show(found, width=1280):
        pages.append(make_page(found))
        address = launch_page(pages[-1])
        tab = browser.new_page(viewport={"width": width, "height": 844})
        tab.on("request", note)
        tab.goto(address)
        tab.get_by_role("tab").first.wait_for()
        return tab

    yield show
    for page in pages:
        page.close()
    assert not elsewhere


def read(tab, title, *texts, wait_for="h4, h5, .words, .bar, .mistake, section"):
    """Open a tab, type texts into its inputs, and return what the page answers."""
    choose(tab, title)
    panel = tab.get_by_role("tabpanel").filter(visible=True)
    for box, text in zip(panel.get_by_role("textbox").all(), texts, strict=False):
        box.fill(text)
    panel.get_by_role("button", name="Read").click()
    answer = panel.locator(".prose").last
    answer.locator(wait_for).first.wait_for()
    return answer


def choose(tab, title):
    named = tab.get_by_role("tab", name=title, exact=True).filter(visible=True)
    if not named.count():  # on a phone, those without room are in a menu
        tab.locator(".overflow-menu > button").filter(visible=True).click()
        named = tab.locator(".overflow-dropdown button", has_text=title)
    named.first.click()


def list_titles(tab):
    return [each.inner_text() for each in tab.get_by_role("tab").all()]


@pytest.mark.parametrize("width", [1280, 390])
def test_encoder(made, show, width):
    found = open_folder(str(made / "adapted"))
    tab = show(found, width)
    answer = read(tab, "Fill in words", "the [MASK] text")
    for name in ("before: encoder", "after: adapted"):
        assert name in answer.inner_text()
        path = found.encoders[name]
        (((best, share), *_),) = views.fill_masks("the [MASK] text", load_model(path), load_tokenizer(path))
        assert f"{best}\n{share:.1%}" in answer.inner_text()
    assert "All models have this vocabulary" in read(tab, "Vocabulary", TEXT).inner_text()
    neighbors = read(tab, "Neighbors", "text")
    assert neighbors.locator(".bar").count() == 20 and "lacks this word" not in neighbors.inner_text()
    assert read(tab, "Neighbors", "decoder", wait_for="text=lacks this word").inner_text().count("decod ##er.") == 2
    losses = read(tab, "Forgetting", TEXT)
    assert re.findall("step 3|step 20|before: encoder|after: adapted", losses.inner_text()) == [*found.encoders]
    wide = tab.evaluate("document.documentElement.scrollWidth")
    assert wide <= width, "the page must not scroll sideways"


def test_what_cannot_be_read_gives_a_message(made, show):
    tab = show(open_folder(str(made / "adapted")))
    for title, text, message in [
        ("Fill in words", "", "There must be a text to read"),
        ("Fill in words", "text", "written as [MASK]"),
        ("Vocabulary", "word " * 10_000, "tokens, but this one has"),
        ("Neighbors", " ", "There must be a text to read"),
        ("Forgetting", "word " * 10_000, "tokens, but this one has"),
    ]:
        answer = read(tab, title, text, wait_for=f".mistake:has-text('{message}')")
        assert answer.get_by_role("alert").count() == 1


@pytest.mark.parametrize(
    ("name", "options", "title", "boxes"),
    [
        ("classifier", {}, "Prediction", 1),
        ("tagger", {}, "Prediction", 1),
        ("answerer", {}, "Prediction", 2),
        ("rada", {"datastore": "datastore"}, "Prediction", 1),
        ("datastore", {}, "Passages", 1),
        ("exbert", {"encoder": "encoder"}, "Gates", 1),
    ],
)
def test_an_empty_and_a_long_text_give_a_message(made, show, name, options, title, boxes):
    found = open_folder(str(made / name), **{option: str(made / value) for option, value in options.items()})
    tab = show(found)
    for text, message in [
        ("", "There must be a text to read"),
        ("word " * 10_000, "tokens, but this one has"),
        (" \n", "There must be a text to read"),
    ]:
        answer = read(tab, title, *[text] * boxes, wait_for=f".mistake:has-text('{message}')")
        assert answer.get_by_role("alert").count() == 1
        assert not re.search("Traceback|Error", tab.locator("body").inner_text())


def test_expanded_vocabulary(made, show):
    found = open_folder(str(made / "vocabulary"), encoder=str(made / "encoder"))
    answer = read(show(found), "Vocabulary", TEXT)
    new = views.cut_words(TEXT, load_tokenizer(str(made / "vocabulary")), make_bert_tokenizer())
    assert answer.locator(".piece.new").all_inner_texts() == [p.text for word in new for p in word if p.is_new]
    assert f"{sum(map(len, new))} pieces for {len(new)} words" in answer.inner_text()


def test_gates(made, show):
    tab = show(open_folder(str(made / "exbert"), encoder=str(made / "encoder")))
    answer = read(tab, "Gates", TEXT)
    (gates,) = views.measure_gates([TEXT], load_model(str(made / "exbert")), load_tokenizer(str(made / "exbert")))
    assert answer.locator("td").all_inner_texts() == [f"{share:.2f}" for row in gates.rows.values() for share in row]
    assert answer.locator("thead th").all_inner_texts()[1:] == gates.columns
    losses = read(tab, "Forgetting", TEXT).inner_text()
    assert "Left out, because their tokens differ: before: encoder." in losses


@pytest.mark.parametrize("name", ["classifier", "tagger", "answerer"])
def test_predictions(made, show, name):
    texts = {"classifier": [TEXT, SENTENCES[1]], "tagger": [TEXT], "answerer": ["what is it", TEXT]}[name]
    columns = {"answerer": ("question", "context")}.get(name, ("text", "text_pair"))
    row = predict(str(made / name), [dict(zip(columns, texts, strict=False))])[0]
    answer = read(show(open_folder(str(made / name))), "Prediction", *texts).inner_text()
    if name == "classifier":
        assert all(f"{label}\n{share:.1%}" in answer for label, share in row["probabilities"].items())
    elif name == "tagger":
        assert answer.count("law") == row["prediction"].count("law") and "decoder" in answer
    else:
        assert f"{row['prediction'] or 'no answer'}\n{row['probabilities']:.1%}" in answer


def test_passages_of_a_rada(made, show):
    found = open_folder(str(made / "rada"), datastore=str(made / "datastore"))
    answer = read(show(found), "Prediction", "domain text", "hidden words").inner_text()
    shares = [float(share) for share in re.findall(r"probability (0\.\d+)", answer)]
    assert len(shares) > 1 and sum(shares) == pytest.approx(1, abs=0.01)
    assert "chosen by the model" in answer and "Prediction: " in answer


def test_passages_of_a_datastore(made, show):
    tab = show(open_folder(str(made / "datastore")))
    assert list_titles(tab) == ["Passages"]
    answer = read(tab, "Passages", "domain text")
    ((ids, _),) = Datastore.load(made / "datastore").search(["domain text"], 5)
    assert answer.locator("li").count() == len(ids) > 1
    assert {mark.lower() for mark in answer.locator("mark").all_inner_texts()} >= {"domain", "text"}


def test_comparison(comparison, show):
    tab = show(open_folder(str(comparison / "plan.yaml")))
    titles = ["Report", "Prediction", "Fill in words", "Vocabulary", "Neighbors", "Forgetting"]
    assert list_titles(tab) == titles
    assert tab.frame_locator("iframe").get_by_text("the report").inner_text() == "the report"
    assert "dapt-pets" in read(tab, "Fill in words", "the [MASK] text").inner_text()


def test_comparison_with_a_report_as_text_alone(comparison, show):
    """Published results have report.md and its figures."""
    folder = comparison / "plan"
    (folder / "report.html").unlink()
    (folder / "report.md").write_text(
        "## Means\n\n| row | mean |\n| --- | --- |\n| DAPT | 40.6 |\n\n![Costs](cost.png)\n"
    )
    (folder / "cost.png").write_bytes(PNG)
    tab = show(open_folder(str(folder)))
    tab.get_by_role("cell", name="40.6").wait_for()
    tab.wait_for_function("document.querySelector('img[alt=Costs]')?.naturalWidth === 1")
