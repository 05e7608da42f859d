"""Gates that keep the house in order: the order of its rooms, one place for what depends on a method, plain language,
and a start in little time.
"""

import ast
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from measure_house import (
    PACKAGES,
    connect_rooms,
    count_fields,
    count_names,
    find_modules,
    find_ring,
    list_climbs,
    read_imports,
    read_rooms,
)

from hf_domain.methods import METHODS, OWN_TYPES

ROOT = Path(__file__).parent.parent
MODULES, IMPORTS, ROOMS = find_modules(ROOT), read_imports(ROOT), read_rooms(ROOT)
# The edges that a text of imports does not show. A model may hold a model of another method: backbone.py builds its
# encoder, finds the encoder's class by the name of its file, and that file imports backbone.py. Only there a name is
# computed, so that a checkpoint carries the code of its own methods alone; and only this cycle is forced.
NESTED = "hf_domain.modeling.nested_models"
FORCED = {f"hf_domain.modeling.{kind}_{name}" for name in OWN_TYPES for kind in ("configuration", "modeling")}


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 900


def test_imports_have_no_cycle_but_the_forced_one():
    assert find_ring(IMPORTS) == []
    ring = find_ring({**IMPORTS, NESTED: IMPORTS[NESTED] | FORCED})
    assert NESTED in ring and FORCED & {*ring}


def test_a_module_imports_from_its_room_or_an_earlier_one():
    assert MODULES.keys() - ROOMS.keys() == set()  # the layout page names the room of each
    assert list_climbs(IMPORTS, ROOMS) == [] and find_ring(connect_rooms(IMPORTS, ROOMS)) == []


# A class or a module that knows everything is where the next change goes, too.
MOST_FIELDS = 22
MOST_INHERITED = 32  # with those of the classes below
MOST_IMPORTS = 22  # modules
MOST_NAMES = 39


def test_no_class_or_module_knows_everything():
    assert {name: number for name, number in count_fields(ROOT).items() if number > MOST_FIELDS} == {}
    inherited = count_fields(ROOT, inherits=True)
    assert {name: number for name, number in inherited.items() if number > MOST_INHERITED} == {}
    assert {name: len(others) for name, others in IMPORTS.items() if len(others) > MOST_IMPORTS} == {}
    names = {name: number for name, number in count_names(ROOT).items() if number > MOST_NAMES}
    assert names.keys() <= {"hf_domain"}  # which only passes names on


def test_each_group_of_tests_that_make_test_leaves_out_has_a_target():
    options = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]
    marked = {line.partition(":")[0]: line for line in options["markers"]}
    left_out = {*re.findall(r"not (\w+)", options["addopts"])}
    assert {name for name in marked if "run by make" in marked[name]} == left_out
    makefile, page = ((ROOT / name).read_text(encoding="utf-8") for name in ("Makefile", "CONTRIBUTING.md"))
    assert not [path for path in re.findall(r"(?<=[ \t])tests/[\w/.]+", makefile) if not (ROOT / path).exists()]
    for name in left_out:
        (target,) = re.findall(r"run by make (test-\w+)", marked[name])
        recipe = re.search(rf"^{target}: .*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
        assert f"-m {name}" in recipe[1] or "run_suite.py" in recipe[1]
        assert f"`make {target}`" in page


# Names that once stood for several things. A class has one place; modeling/ may describe a class of ours by a protocol.
ONCE = {
    *("describe_plan", "format_cell", "load_model", "find_encoder", "run_step", "adapt", "compare", "check_flags"),
    *("join_words", "check_replaceable", "lock_folder", "choose_learning_rate", "describe_unlearned", "find_task"),
    *("RECORD", "COMMANDS", "CACHES", "SPLITS", "START", "COLUMNS"),
}
DESCRIBED = {"VocabularyDelta"}


def list_names(module):
    """List the names that a module defines, and whether each is a class."""
    for node in ast.parse(MODULES[module].read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield node.name, isinstance(node, ast.ClassDef)
        elif isinstance(node, ast.Assign):
            yield from ((ast.unparse(target), False) for target in node.targets)


def test_one_name_has_one_meaning():
    places = {}
    for module in MODULES:
        if not module.startswith("hf_domain.examples"):
            for name, is_class in list_names(module):
                if name in ONCE or (is_class and name not in DESCRIBED):
                    places.setdefault(name, set()).add(module)
    assert not {name: modules for name, modules in places.items() if len(modules) > 1}


# Words and phrases that readers stumble over, and British spellings.
STUMBLES = (
    r"\b(goes|go|going) on\b|\bstands? in\b",
    r"\banew\b|\blikewise\b|\b(is|are) told\b|what is wrong with|nobody's business|costs elsewhere",
    r'"""Of |^ +\w+: Of ',  # a description without the thing that it describes
    r"licence|colour|neighbour|behaviour|labelled|modelled",
    r"\b(normal|initial|serial|token|quant|optim|organ|recogn|general|summar)is(e|es|ed|ing|ation)\b",
)
TEXTS = ("", ".ipynb", ".md", ".py", ".yaml", ".yml")
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PROSE = (*PACKAGES, "benchmarks", "docs", "tests", "tools", *PAGES)


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


# An error says what must hold, what was found ("but is ...") and what to do. "..., got ..." stops at the second.
BARE = re.compile(r"[,;] (but )?got\b")


def test_errors_say_what_to_do():
    assert not [
        f"{module}:{node.lineno} {node.value}"
        for module in sorted(MODULES)
        for node in ast.walk(ast.parse(MODULES[module].read_text()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and BARE.search(node.value)
    ]


def test_nothing_installs_the_package_from_an_index():
    """The name is not registered: whoever registers it would run code on our readers' machines."""
    install = re.compile(r"pip install [^\n`]*hf-domain|[\"'`]hf-domain\[|dependencies = \[.*hf-domain")
    places = [ROOT / "Makefile", *(ROOT / page for page in PAGES), *(ROOT / ".github").rglob("*.yml")]
    places += [file for name in ("docs", "benchmarks", "tools", "results") for file in (ROOT / name).rglob("*.*")]
    places += [*MODULES.values(), *(ROOT / "examples").rglob("*.ipynb")]
    texts = {file: file.read_text(encoding="utf-8") for file in places if file.suffix in TEXTS}
    found = [str(file.relative_to(ROOT)) for file, text in texts.items() if install.search(text)]
    assert found == ["docs/contributing/releasing.md"]  # which says why


# Outside of the two tables and its own modules, the name of a method stands only where a sixth method needs no name:
# where a public function states its choices or its default, and in the rule that recommends the method. Everything else
# asks the tables.
TABLES = {"hf_domain.methods", "hf_domain.comparison.rows"}
PLACES = {
    # Algorithms of expansion, which the papers' methods gave their names.
    "hf_domain.tokenization.expansion": {"adalm", "exbert"},
    "hf_domain.training.expansion": {"adalm", "exbert"},
    "hf_domain.fine_tuning": {"gmap", "rada"},
    "hf_domain.comparison.api": {"varmae"},
    "hf_domain.advice": {"dapt", "tapt", "varmae", "adalm", "exbert", "gmap", "rada"},
    # A card of DAPT over an expanded vocabulary is AdaLM's.
    "hf_domain.training.cards": {"adalm"},
}


def is_own(module, method):
    """Whether a module is of one method: modeling/configuration_NAME.py, methods/NAME.py or a file of methods/NAME/."""
    return re.fullmatch(rf"hf_domain\.(modeling\.\w+_{method}|methods\.{method}(\.\w+)?)", module) is not None


def list_strays(modules, methods):
    """List the names of methods in modules that are no place of theirs, and the comparisons with one in any module."""
    for module in modules.keys() - TABLES:
        foreign = {name for name in methods - PLACES.get(module, set()) if not is_own(module, name)}
        for node in ast.walk(ast.parse(modules[module].read_text())):
            if isinstance(node, ast.Constant) and node.value in foreign:
                yield f"{module}:{node.lineno} {node.value}"
            if isinstance(node, ast.Compare | ast.MatchValue):
                texts = {each.value for each in ast.walk(node) if isinstance(each, ast.Constant)}
                yield from [f"{module}:{node.lineno} {ast.unparse(node)}"] if texts & methods else []


def test_names_of_methods_stand_in_their_table():
    assert not [*list_strays(MODULES, {*METHODS, *OWN_TYPES})]


def test_a_sixth_method_needs_no_line_here():
    """The method of tests/test_new_method.py; in a module of another method its name is a stray."""
    toy = {f"hf_domain.modeling.{kind}_toy": f"{kind}_toy" for kind in ("configuration", "modeling")}
    toy = {
        name: ROOT / "tests" / "new_method" / f"{file}.py"
        for name, file in (toy | {"hf_domain.methods.toy": "toy"}).items()
    }
    methods = {*METHODS, *OWN_TYPES, "toy"}
    assert not [*list_strays(MODULES | toy, methods)]
    assert [*list_strays({"hf_domain.methods.lora": toy["hf_domain.methods.toy"]}, methods)]


def test_importing_the_package_costs_at_most_half_a_second_of_cpu():
    code = (
        "import time, torch, transformers; start = time.process_time(); import hf_domain; "
        "print(time.process_time() - start)"
    )
    # A busy machine only adds to a time: one fast run in nine is enough.
    runs = (subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True) for _ in range(9))
    assert any(float(run.stdout) <= 0.5 for run in runs)
