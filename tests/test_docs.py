"""Links of the documentation lead somewhere, and its tables say what the code does."""

import re
from pathlib import Path

import pytest

from hf_domain import ExBertConfig, GMapConfig, RadaConfig, VarMAEConfig
from hf_domain.methods import METHODS
from hf_domain.methods.adalm.losses import DistillationConfig

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


def show(value):
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_fields_defaults_and_starts_of_the_page_from_papers_to_flags():
    rows = re.findall(r"^\| (.*) \|$", (ROOT / "docs" / "paper_to_flag.md").read_text(encoding="utf-8"), re.MULTILINE)
    known = {kind.__name__: kind for kind in (VarMAEConfig, ExBertConfig, GMapConfig, RadaConfig, DistillationConfig)}
    checked = 0
    for _, here, default, *more in (re.split(r" \| ?", row) for row in rows if "Config." in row):
        fields = [(known[config], name) for config, name in re.findall(r"`(\w+Config)\.(\w+)`", here)]
        values = [getattr(config, name) for config, name in fields]  # raises if there is no such field
        if None not in values and default:
            assert default == ", ".join(map(show, values)), here
        if more:
            starts = [METHODS[config.model_type].start for config, _ in fields]
            chosen = [start[name] for start, (_, name) in zip(starts, fields, strict=True) if name in start]
            assert more == [", ".join(map(show, chosen))], here
        checked += len(fields)
    assert checked > 30
