"""What a release must have before it is built."""

import re
from pathlib import Path

import check_release

ROOT = Path(__file__).parents[2]


def test_what_only_the_owner_knows_is_asked_for():
    problems = check_release.find_problems({"version": "0.1.0"}, "## 0.1.0\n")
    assert len(problems) == 2 and "Repository" in problems[0] and "authors" in problems[1]
    ready = {"version": "0.1.0", "authors": [{"name": "a"}], "urls": {"Repository": "https://host/a/b"}}
    assert check_release.find_problems(ready, "## 0.1.0\n") == []
    assert "CHANGELOG" in check_release.find_problems(ready, "")[0]


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
