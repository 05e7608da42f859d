"""Gates that keep the house in order: sizes of files, cycles of imports, and one place for what depends on a method."""

import ast
import re
from pathlib import Path

import pytest

from hf_domain.methods import METHODS, OWN_TYPES

ROOT = Path(__file__).parent.parent
PACKAGES = {"hf_domain": "hf_domain"} | {
    folder: f"hf_domain.{folder}" for folder in ("modeling", "tokenization", "examples")
}
FILES = {folder: sorted((ROOT / folder).rglob("*.py")) for folder in PACKAGES}
LONGEST = {"hf_domain": 500, "modeling": 500, "tokenization": 500, "examples": 140}
# The edges that a text of imports does not show. A model may hold a model of another method: backbone.py builds its
# encoder, finds the encoder's class by the name of its file, and that file imports backbone.py. Only there a name is
# computed, so that a checkpoint carries the code of its own methods alone; and only this cycle is forced.
NESTED = "hf_domain.modeling.nested_models"
FORCED = {f"hf_domain.modeling.{kind}_{name}" for name in OWN_TYPES for kind in ("configuration", "modeling")}


@pytest.mark.parametrize("folder", FILES)
def test_files_are_short(folder):
    lengths = {str(file.relative_to(ROOT)): len(file.read_text().splitlines()) for file in FILES[folder]}
    assert not {file: length for file, length in lengths.items() if length > LONGEST[folder]}


def name_module(folder, file):
    parts = file.relative_to(ROOT / folder).with_suffix("").parts
    return ".".join([PACKAGES[folder], *parts]).removesuffix(".__init__")


MODULES = {name_module(folder, file): file for folder, files in FILES.items() for file in files}


def list_modules(name):
    """List the modules of ours that a module imports, also inside a function or for type checkers."""
    package = name if MODULES[name].stem == "__init__" else name.rpartition(".")[0]
    for node in ast.walk(ast.parse(MODULES[name].read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in MODULES)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *filter(None, [node.module])])
            for alias in node.names:
                full = f"{source}.{alias.name}"
                yield from (each for each in ([full] if full in MODULES else [source]) if each in MODULES)


def find_cycle(imports):
    done = set()

    def walk(name, path):
        if name in path:
            return [*path[path.index(name) :], name]
        if name not in done:
            for other in sorted(imports[name]):
                if cycle := walk(other, [*path, name]):
                    return cycle
        done.add(name)
        return None

    return next(filter(None, (walk(name, []) for name in imports)), None)


def test_imports_have_no_cycle_but_the_forced_one():
    imports = {name: {*list_modules(name)} - {name} for name in MODULES}
    assert find_cycle(imports) is None
    cycle = find_cycle({**imports, NESTED: imports[NESTED] | FORCED})
    assert NESTED in cycle and FORCED & {*cycle}


# Words and phrases that readers stumble over, and British spellings.
STUMBLES = (
    r"\banew\b|\blikewise\b|\b(is|are) told\b|what is wrong with|nobody's business|costs elsewhere",
    r"licence|colour|neighbour|behaviour|labelled|modelled",
    r"\b(normal|initial|serial|token|quant|optim|organ|recogn|general|summar)is(e|es|ed|ing|ation)\b",
)
PROSE = (*FILES, "benchmarks", "docs", "tests", "tools", "README.md", "CONTRIBUTING.md", "SECURITY.md")


@pytest.mark.parametrize("phrase", STUMBLES)
def test_the_language_is_plain(phrase):
    found = re.compile(phrase, re.IGNORECASE)
    files = [file for name in PROSE for file in (ROOT / name, *sorted((ROOT / name).rglob("*")))]
    files = [file for file in files if file.suffix in (".md", ".py") and "node_modules" not in file.parts]
    files.remove(Path(__file__))
    assert not [
        f"{file.relative_to(ROOT)}:{number} {line.strip()}"
        for file in files
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if found.search(line)
    ]


def test_no_branch_on_the_name_of_a_method_outside_the_table():
    names, branches = {*METHODS, *OWN_TYPES}, []
    for name, file in MODULES.items():
        for node in ast.walk(ast.parse(file.read_text())) if name != "hf_domain.methods" else ():
            if isinstance(node, ast.Compare | ast.MatchValue):
                texts = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                branches += [f"{file.name}:{node.lineno} {ast.unparse(node)}"] if texts & names else []
    assert not branches
