"""A folder that is ready to be a Space: the page, or a comparison's report, with what it needs."""

import os
import shutil
from importlib.metadata import files, requires
from pathlib import Path

from packaging.requirements import Requirement

from hf_domain.environment import find_sources
from hf_domain.exploration.folders import DELTA, MANIFEST, Exploration
from hf_domain.hub import MODEL_FILES
from hf_domain.modeling.configuration_gmap import check_memory_reference
from hf_domain.safe_io import FINISHED, LIST, UNFINISHED, read_json, write_folder, write_text

# Tested, as constraints.txt has it; a Space installs it.
GRADIO = "6.31.0"
EXTRAS = ("explore", "datastore")
# Of the package, everything but the demo's data.
PARTS, DEMO = ("*.py", "*.md", "*.txt", "*.html", "py.typed"), "quickstart_data"
CARD = """---
title: {title}
emoji: 🔎
colorFrom: blue
colorTo: gray
sdk: {sdk}
{more}
pinned: false
---

{text}
"""
APP = '''"""What {title} does with a text. `hf-domain explore` shows the same page on your machine."""

from hf_domain.exploration.folders import open_folder
from hf_domain.exploration.page import launch_page, make_page

page = make_page(open_folder({arguments}))
launch_page(page)
page.block_thread()
'''


def write_space(folder: str | os.PathLike, found: Exploration) -> Path:
    """Write a folder that `hf upload --repo-type space` makes a Space.

    A comparison becomes its report, without its models. Anything else becomes the page: this package, models and a
    datastore are copied, those on the Hub are named.

    Args:
        folder: A new folder.
        found: See `open_folder`.

    Raises:
        FileExistsError: The folder holds something.
        FileNotFoundError: The comparison has no report.html.
        ValueError: A model needs a folder of this machine.
    """
    folder = Path(folder)
    if folder.is_dir():
        remove_left(folder)
    if folder.exists() and any(folder.iterdir()):
        raise FileExistsError(f"--space_dir must be a new or empty folder, but {folder} holds something: name another")
    with write_folder(folder) as unfinished:
        if found.report is not None and found.report.suffix != ".html":
            raise FileNotFoundError(
                f"the Space of a comparison is its report.html, but there is only {found.report}. Make it with "
                "hf-domain compare PLAN --report_only."
            )
        if found.report is not None:
            shutil.copy(found.report, unfinished / "index.html")
            card = {"sdk": "static", "more": "app_file: index.html", "text": "The report of a comparison by hf-domain."}
        else:
            write_text(unfinished / "app.py", write_app(unfinished, found))
            copy_package(unfinished)
            write_text(unfinished / "requirements.txt", "\n".join([*list_requirements(), ""]))
            more = f'sdk_version: {GRADIO}\npython_version: "3.11"\napp_file: app.py'
            card = {"sdk": "gradio", "more": more, "text": f"What {found.title} does with a text, shown by hf-domain."}
        write_text(unfinished / "README.md", CARD.format(title=found.title, **card))
    return folder


def remove_left(folder: Path) -> None:
    """Delete what a killed `write_space` left in a folder, unless the folder has other files."""
    names, finished = {UNFINISHED}, folder / FINISHED / LIST
    if finished.is_file():
        written = {Path(name).parts[0] for name in read_json(finished)["new"]}
        names |= {FINISHED, *written} if written & {"app.py", "index.html"} else set()
    paths = [*folder.iterdir()]
    if {path.name for path in paths} <= names:
        for path in paths:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def write_app(space: Path, found: Exploration) -> str:
    """Copy what the page reads into a Space, and return the script that shows it."""
    *before, own = [*found.tokenizers.values()] or [str(found.datastore)]
    arguments = [repr(copy(own, space, "after"))]
    arguments += [f"encoder={copy(start, space, 'before')!r}" for start in before]
    if found.datastore not in (None, own):
        arguments.append(f"datastore={copy(str(found.datastore), space, 'passages')!r}")
    return APP.format(title=found.title, arguments=", ".join(arguments))


def copy_package(space: Path) -> None:
    """Copy this package and its license: no package index has it, and a stranger could register its name."""
    sources = {name: file for name, file in find_sources(*PARTS).items() if DEMO not in Path(name).parts}
    sources.update(
        ("hf_domain/LICENSE", Path(str(file.locate()))) for file in files("hf-domain") or () if file.name == "LICENSE"
    )
    for name, source in sources.items():
        (space / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, space / name)


def list_requirements() -> list[str]:
    """List the packages that the page needs besides this one."""
    needed = [Requirement(each) for each in requires("hf-domain") or ()]
    return [
        str(each).partition(";")[0]
        for each in needed
        if each.name != "hf-domain"
        and (each.marker is None or any(each.marker.evaluate({"extra": extra}) for extra in EXTRAS))
    ]


def copy(name: str, space: Path, room: str) -> str:
    """Copy what is loaded of a local folder into a Space, and return its path there; a name on the Hub stays."""
    source = Path(name)
    if not source.is_dir():
        return name
    place = space / room / source.resolve().name
    if (source / "config.json").is_file():
        check_memory_reference(read_json(source / "config.json"))
    patterns = ("**/*",) if (source / MANIFEST).is_file() else (*MODEL_FILES, DELTA)
    files = {file for pattern in patterns for file in source.glob(pattern) if file.is_file()}
    for file in files - {*source.glob(".*")}:  # no lock
        target = place / file.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)
    return place.relative_to(space).as_posix()
