"""The page of a report in a real browser, on a desktop and on a phone. `make test-browser`."""

import shutil
from importlib.util import find_spec

import pytest
from pretended_runs import pretend, run_comparison, write_plan

from hf_domain.comparison.prepare import load_plan
from hf_domain.comparison.report import write_report

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
missing = ["playwright"] * (find_spec("playwright") is None) + ["chromium"] * (BROWSER is None)
pytestmark = [
    pytest.mark.browser,
    pytest.mark.figures,
    pytest.mark.skipif(bool(missing), reason=f"the page needs {', '.join(missing)}, which this machine lacks"),
]
SMALLEST_TEXT = "Math.min(...[...document.querySelectorAll('svg text')].map(t => t.getBoundingClientRect().height))"


@pytest.fixture
def page(content, tmp_path):
    """A comparison of which one row has no result on a task."""
    content["methods"] = {
        "no_adaptation": None,
        "dapt": None,
        "masked": {"recipe": "dapt", "pretraining": {"mlm_probability": 0.3}},
        "slow": {"recipe": "dapt"},
        "tapt": None,
    }
    run_comparison(load_plan(write_plan(content, tmp_path)), tmp_path / "plan", execute=pretend)
    for file in tmp_path.glob("plan/results/tapt-animals-seed*.json"):
        file.unlink()
    write_report(tmp_path / "plan")
    return (tmp_path / "plan" / "report.html").as_uri()


@pytest.mark.parametrize("width", [1280, 390])
def test_page_is_read_and_sorted_and_asks_for_nothing(page, width):
    from playwright.sync_api import sync_playwright

    requests, errors = [], []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": width, "height": 844})
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("console", lambda message: errors.append(message.text))
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.goto(page)
        tab.locator("#figure-gains svg").wait_for()
        assert tab.evaluate("document.documentElement.scrollWidth") <= width  # wide things scroll in their own boxes
        assert tab.evaluate(SMALLEST_TEXT) >= 10
        assert tab.locator(".answer").first.inner_text().startswith("This comparison is not finished: ")
        assert tab.locator("pre").first.inner_text().startswith("hf-domain ")
        if width < 800:  # a row is a card, whose values have the names of the columns
            assert tab.locator("thead").first.is_hidden()
            assert "expected gain" in tab.evaluate("getComputedStyle(document.querySelector('td'), '::before').content")
            browser.close()
            return

        table = tab.locator("table", has=tab.locator("th", has_text="animals")).first  # the scores
        head = table.locator("thead th", has_text="animals")

        def read(column):
            return [row.locator("th, td").nth(column).inner_text() for row in table.locator("tbody tr").all()]

        head.click()
        falling = read(1)
        assert head.get_attribute("aria-sort") == "descending" and falling[-1] == "no result"
        numbers = [float(cell.split()[0]) for cell in falling[:-1]]
        assert numbers == sorted(numbers, reverse=True) and len({*numbers}) > 3
        head.click()
        rising = read(1)
        assert [float(cell.split()[0]) for cell in rising[:-1]] == sorted(numbers) and rising[-1] == "no result"
        table.locator("thead th").first.click()
        assert read(0) == sorted(read(0), key=str.lower)
        browser.close()
    assert requests == [page] and not errors
