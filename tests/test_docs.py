"""Links of the documentation lead somewhere, and pages of the site link to pages of the site alone."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
FENCE, CODE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE), re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def read(page):
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def list_anchors(page):
    headings = re.findall(r"^#+ (.*)", read(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for name, anchor in LINK.findall(CODE.sub("", read(page))):
        target = (page.parent / name).resolve() if name else page
        assert target.exists(), f"{name} is missing"
        assert not anchor or anchor in list_anchors(target), f"{name} has no heading #{anchor}"
        if page.is_relative_to(ROOT / "docs"):
            assert target.is_relative_to(ROOT / "docs"), f"{name} is not part of the site"


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    assert {*re.findall(r"[\w/]+\.md", navigation)} == {
        page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")
    }
