"""What a release must have before it is built."""

import re
import tomllib
from pathlib import Path

import check_release
import yaml

ROOT = Path(__file__).parents[2]


PROJECT = {"version": "0.1.0", "authors": [{"name": "a"}], "urls": {"Repository": "https://host/a/b"}}
CONTACT = "Report a vulnerability to security@host.org."
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))


def test_what_only_the_owner_knows_is_asked_for():
    security = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    problems = check_release.find_problems({"version": "0.1.0"}, "## 0.1.0\n", CITATION, security)
    expected = [
        "Repository",
        "pyproject.toml must name the authors",
        "CITATION.cff must name the authors",
        "repository",
        "SECURITY.md must say where to report a vulnerability",
    ]
    assert all(text in problem for text, problem in zip(expected, problems, strict=True))
    ready = CITATION | {
        "authors": [{"family-names": "A"}],
        "repository-code": "https://h/a/b",
        "date-released": "today",
    }
    assert check_release.find_problems(PROJECT, "## 0.1.0\n", ready, CONTACT) == []
    assert "CHANGELOG" in check_release.find_problems(PROJECT, "", ready, CONTACT)[0]
    newer = PROJECT | {"version": "0.2.0"}
    assert "0.2.0, but has 0.1.0" in check_release.find_problems(newer, "## 0.2.0", ready, CONTACT)[0]


def test_citation_is_of_this_version():
    """Fields that the schema of CFF 1.2.0 requires, and those that pyproject.toml has as well."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert CITATION["cff-version"] == "1.2.0" and CITATION["message"] and CITATION["type"] == "software"
    assert CITATION["authors"] and all(isinstance(author, dict) for author in CITATION["authors"])
    assert {
        name: CITATION[key] for name, key in (("name", "title"), ("version", "version"), ("license", "license"))
    } == {name: project[name] for name in ("name", "version", "license")}


def test_links_of_the_readme_lead_to_the_repository():
    text = "[a](docs/a.md#b) [b](https://b) [c](#c) ![d](results/d.png)"
    expected = "[a](https://h/r/blob/main/docs/a.md#b) [b](https://b) [c](#c) ![d](https://h/r/blob/main/results/d.png)"
    assert check_release.make_links_absolute(text, "https://h/r/") == expected


def test_links_of_the_readme_exist():
    links = [match[2] for match in check_release.RELATIVE_LINK.finditer((ROOT / "README.md").read_text())]
    assert links and all((ROOT / link.partition("#")[0]).exists() for link in links)


def test_tests_that_hold_the_promises_exist():
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", (ROOT / "SECURITY.md").read_text())
    assert len(named) > 5
    for file, name in named:
        assert f"def {name}" in (ROOT / file).read_text(), f"{file}::{name}"
