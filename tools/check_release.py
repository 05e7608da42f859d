"""List what a release still lacks, and make its README work on a package index.

    python tools/check_release.py                 # lists what is missing; fails until nothing is
    python tools/check_release.py --readme FILE   # also writes README.md with absolute links

The repository's address and the authors' names belong into pyproject.toml, not into this script.
"""

import argparse
import re
import sys
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
RELATIVE_LINK = re.compile(r"(\]\()(?!https?:|#|mailto:)([^)\s]+)(\))")


# CITATION.cff has this until the owner names the authors; the format requires an author.
NOBODY = "The developers of hf-domain"


def find_problems(project: dict, changelog: str, citation: dict, security: str) -> list[str]:
    """Return a sentence for each missing item.

    Args:
        project: The table of that name in pyproject.toml.
        citation: The content of CITATION.cff.
        security: The content of SECURITY.md.
    """
    problems = []
    if "Repository" not in project.get("urls", {}):
        problems.append("pyproject.toml must name the repository: add [project.urls] with Repository = ...")
    if not project.get("authors"):
        problems.append("pyproject.toml must name the authors: add authors = [{name = ...}]")
    if f"## {project['version']}" not in changelog:
        problems.append(f"CHANGELOG.md must have a section for this version: add ## {project['version']}")
    if citation["authors"] == [{"name": NOBODY}]:
        problems.append(
            "CITATION.cff must name the authors: replace the entry of authors by family-names and given-names"
        )
    if missing := [name for name in ("repository-code", "date-released") if name not in citation]:
        problems.append(f"CITATION.cff must have repository-code and date-released: add {' and '.join(missing)}")
    if citation["version"] != project["version"]:
        problems.append(f"CITATION.cff must have the version {project['version']}, but has {citation['version']}")
    if not re.search(r"[\w.+-]+@[\w-]+\.\w|https?://", security):
        problems.append("SECURITY.md must say where to report a vulnerability: add an e-mail address or a link")
    return problems


def make_links_absolute(text: str, repository: str) -> str:
    """Return a README whose links lead to the repository, because an index page has no other files."""
    return RELATIVE_LINK.sub(lambda match: f"{match[1]}{repository.rstrip('/')}/blob/main/{match[2]}{match[3]}", text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--readme", type=Path, default=None, help="where to write the README of the index page")
    args = parser.parse_args()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = ("CHANGELOG.md", "CITATION.cff", "SECURITY.md")
    changelog, citation, security = ((ROOT / name).read_text(encoding="utf-8") for name in names)
    problems = find_problems(project, changelog, yaml.safe_load(citation), security)
    if problems:
        sys.exit("not ready for a release:\n" + "\n".join(f"- {problem}" for problem in problems))
    if args.readme is not None:
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        args.readme.write_text(make_links_absolute(text, project["urls"]["Repository"]), encoding="utf-8")


if __name__ == "__main__":
    main()
