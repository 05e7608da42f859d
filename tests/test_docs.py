"""The pages of the documentation: links, examples, names of commands and flags, and the tables of the papers."""

import functools
import gzip
import importlib.util
import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset
from script_runs import save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES

import hf_domain
from hf_domain.cli import COMMANDS, import_command, list_flags
from hf_domain.comparison.rows import RECIPES
from hf_domain.methods import METHODS, OWN_TYPES
from hf_domain.methods.adalm.losses import DistillationConfig
from hf_domain.modeling.nested_models import find_config_class

ROOT = Path(__file__).parent.parent
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / "results" / name for name in ("README.md", "NOTES.md")),
]
FENCE, CODE = re.compile(r"^( *)```.*?^\1```", re.DOTALL | re.MULTILINE), re.compile(r"`[^`\n]*`")
LINK = re.compile(r"\]\((?!https?:|mailto:)([^)#\s]*)(?:#([^)\s]+))?\)")


def name(page):
    return str(page.relative_to(ROOT))


def read(page):
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def list_anchors(page):
    headings = re.findall(r"^#+ (.*)", read(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page):
    for file, anchor in LINK.findall(CODE.sub("", read(page))):
        target = (page.parent / file).resolve() if file else page
        assert target.exists(), f"{file} is missing"
        assert not anchor or anchor in list_anchors(target), f"{file} has no heading #{anchor}"
        if page.is_relative_to(ROOT / "docs"):
            assert target.is_relative_to(ROOT / "docs"), f"{file} is not part of the site"


def test_every_page_begins_with_what_its_reader_can_do():
    starts = {
        page: re.search(r"^# .*\n+(.*)", page.read_text(encoding="utf-8"))[1] for page in (ROOT / "docs").rglob("*.md")
    }
    assert [name(page) for page, start in starts.items() if not start.startswith("After this page you ")] == []


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("nav:")[2]
    assert {*re.findall(r"[\w/]+\.md", navigation)} == {
        page.relative_to(ROOT / "docs").as_posix() for page in (ROOT / "docs").rglob("*.md")
    }


def test_the_documentation_is_short():
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    assert sum(len(page.read_text(encoding="utf-8").split()) for page in pages) <= 24_000


def test_the_reference_names_what_exists():
    for page in (ROOT / "docs" / "reference").glob("*.md"):
        for path in re.findall(r"^::: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            module, _, attribute = path.rpartition(".")
            try:
                found = importlib.util.find_spec(path) is not None
            except ModuleNotFoundError:  # the last part is no module
                found = False
            assert found or hasattr(importlib.import_module(module), attribute), f"{name(page)}: {path}"


# ------------------------------------------------------------------------------------------------------------ examples

# An example that runs has a comment above it; after a colon the comment names the file that the block becomes.
EXAMPLE = re.compile(r"^<!-- runs(?:: (?P<file>\S+))? -->\n```(?P<language>\w+)\n(?P<code>.*?)^```", re.M | re.S)
UNTESTED = ("docs/reference/", "docs/contributing/releasing.md")
RUNNABLE = [
    page
    for page in PAGES
    if (name(page) == "README.md" or name(page).startswith("docs/")) and not name(page).startswith(UNTESTED)
]
SMALL = {"max_seq_length": 32, "per_device_train_batch_size": 2, "max_steps": 2, "use_cpu": True}
SMALL |= {"report_to": "none", "disable_tqdm": True}
# What makes the commands of a page quick. The last spelling of a flag counts, so these stand behind those of the page.
QUICK = {
    **dict.fromkeys(("mlm", "classification", "ner", "qa"), SMALL),
    "distill": {name: SMALL[name] for name in SMALL.keys() - {"max_steps"}} | {"teacher_steps": 2, "student_steps": 3},
    "expand_vocab": {"training_tokens": 200, "min_frequency": 2, "min_exposures": 1, "num_workers": 1},
    "build_datastore": {"max_length": 32},
    "quickstart": {"minutes": 0.1, "max_seq_length": 32},
    "advise": {"max_seq_length": 32},
}
QUICK_OPTIONS = {
    "adapt": {"max_seq_length": 32, "batch_size": 2, "num_tokens": 128, "use_cpu": True, "disable_tqdm": True},
    "fine_tune": {"max_seq_length": 32, "batch_size": 2, "max_steps": 2, "use_cpu": True, "disable_tqdm": True},
    "expand_vocabulary": {"min_frequency": 2, "progress": False},
    "compare": {"num_tokens": 4096, "seeds": [1], "fine_tuning": {"num_train_epochs": 1, "max_seq_length": 32}},
}


def list_examples(page):
    return [match.groupdict() for match in EXAMPLE.finditer(page.read_text(encoding="utf-8"))]


def list_commands(code):
    """Return the words of each `hf-domain` command of a shell block."""
    lines = code.replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines if line.lstrip().startswith("hf-domain ")]
    return [words[1:] for words in commands if words]


@pytest.mark.parametrize("page", RUNNABLE, ids=name)
def test_every_page_begins_with_an_example_that_runs(page):
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^(?:(<!-- runs[^\n]*-->)\n)?```\w+\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    first = next(mark for mark, code in blocks if not code.startswith("pip install"))
    assert first, "the first example of a page must run in a test"


@pytest.fixture(scope="module")
def inputs(tmp_path_factory):
    """The files that the pages name, small."""
    folder = tmp_path_factory.mktemp("inputs")
    texts = [f"{SENTENCES[number % 4]} {SENTENCES[(number // 4) % 4]} {number}" for number in range(64)]
    save_tiny_bert(folder / "bert-base-uncased", texts)
    for file in ("corpus", "general", "heldout"):
        lines = "\n".join(f"{text} {file}" for text in texts)
        (folder / f"{file}.txt.gz").write_bytes(gzip.compress(lines.encode()))
    (folder / "my_task").mkdir()
    for start, split in enumerate(("train", "validation", "test")):
        rows = [{"text": f"{text} {split}", "label": "abc"[n % 3]} for n, text in enumerate(texts[start::2])]
        write_jsonl(folder / "my_task" / f"{split}.jsonl", rows)
    write_jsonl(folder / "new.jsonl", [{"text": text} for text in texts[:3]])
    return folder


def run_command(words, monkeypatch):
    flags = [part for item in QUICK.get(words[0], {}).items() for part in (f"--{item[0]}", str(item[1]))]
    monkeypatch.setattr(sys, "argv", [f"hf-domain {words[0]}", *words[1:], *flags])
    import_command(words[0]).main()


def shorten(monkeypatch):
    """Let the public functions do little."""
    for function, options in QUICK_OPTIONS.items():
        whole = getattr(hf_domain, function)

        @functools.wraps(whole)
        def call(*args, whole=whole, options=options, **given):
            return whole(*args, **given | options)

        monkeypatch.setattr(hf_domain, function, call, raising=False)


# These start a process for each step of a comparison.
SLOW = ("docs/quickstart.md",)


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, id=name(page), marks=pytest.mark.commands if name(page) in SLOW else ()) for page in RUNNABLE],
)
def test_examples_run(page, inputs, tmp_path, monkeypatch):
    home = tmp_path / "home"
    shutil.copytree(inputs, home)
    examples = list_examples(page)
    code = "".join(example["code"] for example in examples)
    if not re.search(r'output_dir[ =]"?adapted\b(?!_)', code):
        shutil.copytree(home / "bert-base-uncased", home / "adapted")
    monkeypatch.chdir(home)
    shorten(monkeypatch)
    texts = gzip.decompress((home / "corpus.txt.gz").read_bytes()).decode().splitlines()
    rows = [json.loads(line) for line in (home / "my_task" / "train.jsonl").read_text().splitlines()]
    known = {"texts": texts, "labeled_table": pd.DataFrame(rows), "dataset": Dataset.from_dict({"text": texts[:4]})}
    for example in examples:
        if example["file"]:
            Path(example["file"]).write_text(example["code"].replace("10000000", "4096"), encoding="utf-8")
        elif example["language"] == "bash":
            for words in list_commands(example["code"]):
                run_command(words, monkeypatch)
        else:
            exec(compile(example["code"], name(page), "exec"), known)


# ---------------------------------------------------------------------------------------------------- names of commands


@functools.cache
def find_flags(command):
    return {name.lstrip("-") for flag in list_flags(command) for name in flag["names"]} | {"help", "help_all"}


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ("NOTES.md", "CHANGELOG.md")], ids=name)
def test_commands_and_flags_exist(page):
    text = page.read_text(encoding="utf-8")
    shown = re.findall(r"^```(?:bash)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    inline = [code.strip("`") for code in CODE.findall(FENCE.sub("", text)) if code.startswith("`hf-domain ")]
    for words in (words for code in (*shown, *inline) for words in list_commands(code.replace("; do hf-", "\nhf-"))):
        if words[0].startswith("-"):  # hf-domain --help
            continue
        assert words[0] in COMMANDS, f"there is no command {words[0]}"
        for flag in (word for word in words[1:] if word.startswith("--")):
            known = flag.removeprefix("--").partition("=")[0] in find_flags(words[0])
            assert known, f"{words[0]} has no {flag}"


def find_object(path):
    """Return whether a dotted name is a module, or something in one."""
    parts = path.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for part in parts[length:]:
            if not hasattr(found, part):
                return False
            found = getattr(found, part)
        return True
    return False


IMPORT = re.compile(r"^from (hf_domain[\w.]*) import ([\w, ]+)$", re.MULTILINE)
FILE = re.compile(r"`((?:hf_domain|modeling|tokenization|examples|tests|benchmarks|tools)/[\w./]+)`")


@pytest.mark.parametrize("page", [page for page in PAGES if page.name not in ("NOTES.md", "CHANGELOG.md")], ids=name)
def test_names_and_files_of_the_code_exist(page):
    text = page.read_text(encoding="utf-8")
    names = {f"{module}.{each.strip()}" for module, names in IMPORT.findall(text) for each in names.split(",")}
    names |= {*re.findall(r"(?<![\w/.])hf_domain(?:\.\w+)+", text)}
    names = {path for path in names if "toy" not in path}
    assert not sorted(path for path in names if not find_object(path))
    assert not sorted(file for file in FILE.findall(text) if not (ROOT / file).exists())


def test_the_page_of_comparisons_has_a_row_for_every_name_it_shows():
    page = (ROOT / "docs" / "guides" / "compare.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| `(\w+)` \|", page.partition("## Rows")[2].partition("## ")[0], re.MULTILINE)
    assert len(shown) > 10 and {*shown} <= RECIPES.keys()


# ----------------------------------------------------------------------------------------------------- papers and flags


def show(value):
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_tables_from_paper_to_flag_say_what_the_classes_do():
    pages = sorted((ROOT / "docs" / "methods").glob("*.md"))
    rows = [
        row for page in pages for row in re.findall(r"^\| (.*) \|$", page.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    known = {kind.__name__: kind for kind in (*map(find_config_class, OWN_TYPES), DistillationConfig)}
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
