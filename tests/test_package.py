"""What holds the house together: the mapping of folders, the direction of imports, the rules of the Hub's loader."""

import ast
import importlib
import itertools
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import forked_python
import pytest
from packaging.requirements import Requirement
from transformers.dynamic_module_utils import get_relative_import_files

import hf_domain
from hf_domain.cli import COMMANDS
from hf_domain.environment import digest_code

ROOT = Path(__file__).parent.parent
ROOMS = {"hf_domain": "hf_domain", "modeling": "hf_domain/modeling", "tokenization": "hf_domain/tokenization"}
ROOMS["examples"] = "hf_domain/examples"


def test_packages_are_the_folders_of_the_tree():
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = [(room, file.parent) for room in ROOMS for file in (ROOT / room).rglob("__init__.py")]
    tree = {f"{ROOMS[room]}/{folder.relative_to(ROOT / room)}".removesuffix("/.") for room, folder in folders}
    assert sorted(packages) == sorted(name.replace("/", ".") for name in tree)


@pytest.mark.commands
def test_wheel_holds_the_tree(tmp_path):
    # Built from a copy: setuptools would put into the wheel what an earlier build left in build/.
    for room in ROOMS:
        shutil.copytree(ROOT / room, tmp_path / "source" / room, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / "source")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*command, "--wheel-dir", tmp_path, tmp_path / "source"], check=True)
    (wheel,) = tmp_path.glob("*.whl")
    built = {name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(".py")}
    built_of = [
        (room, file) for room in ROOMS for file in (ROOT / room).rglob("*.py") if "explore_app" not in file.parts
    ]
    tree = {f"{ROOMS[room]}/{file.relative_to(ROOT / room)}" for room, file in built_of}
    assert built == tree
    names = set(zipfile.ZipFile(wheel).namelist())
    assert "hf_domain/py.typed" in names
    data = ROOT / "examples/quickstart_data"  # that of `hf-domain quickstart`
    shipped = {f"hf_domain/examples/{file.relative_to(data.parent)}" for file in data.rglob("*") if file.is_file()}
    assert len(shipped) > 5 and shipped <= names
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    command = [sys.executable, "-c", "import hf_domain.environment as r; print(r.__file__, r.digest_code())"]
    environment = os.environ | {"PYTHONPATH": str(tmp_path / "site")}
    output = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True).stdout
    assert output.split() == [str(tmp_path / "site" / "hf_domain" / "environment.py"), digest_code()]


@pytest.mark.commands
def test_sdist_holds_what_its_tests_need(tmp_path):
    tree = ["tests", "tests_peers", "tools", "benchmarks", "docs", ".github/workflows", *ROOMS]
    for folder in tree:
        ignored = shutil.ignore_patterns("__pycache__", "node_modules")
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    for file in ROOT.iterdir():
        if file.is_file() and not file.name.startswith("."):
            shutil.copy(file, tmp_path)
    expected = {file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file()}
    command = "from setuptools.build_meta import build_sdist; build_sdist('dist')"
    subprocess.run([sys.executable, "-c", command], cwd=tmp_path, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("dist/*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"tests/conftest.py", "tests/support/tiny_models.py", "CHANGELOG.md", "Makefile"} <= expected
    assert sorted(expected - names) == []


def list_requirements(project, extras):
    """Yield what a project needs with some extras of its own, which may name others."""
    for line in itertools.chain(project["dependencies"], *(project["optional-dependencies"][each] for each in extras)):
        requirement = Requirement(line)
        if requirement.name == project["name"]:
            yield from list_requirements(project | {"dependencies": []}, requirement.extras)
        else:
            yield requirement


def test_the_lock_is_the_tested_set_with_hashes():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text())
    locked = {match[1]: (match[2], block) for block in blocks if (match := re.match(r"([\w.-]+)==([^\s;]+)", block))}
    needed = list(list_requirements(project, ["dev"]))
    assert len(needed) > 25 and [each.name for each in needed if each.name not in locked] == []
    for requirement in needed:
        version, block = locked[requirement.name]
        assert requirement.specifier.contains(version) and "--hash=sha256:" in block
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        name, _, version = line.partition("==")
        assert name not in locked or locked[name][0] == version


def test_actions_are_pinned_by_commit():
    workflows = "".join(file.read_text() for file in (ROOT / ".github/workflows").glob("*.yml"))
    actions = re.findall(r"uses: (\S+)", workflows)
    assert actions and [action for action in actions if not re.search(r"@[0-9a-f]{40}$", action)] == []


# What the documentation of the first version imported by names that were changed since.
OLD_NAMES = {
    "comparison.in_python": "Comparison",
    "distillation.model": "DistillationModel",
    "distillation.students": "make_student",
    "ensembles": "predict_together",
    "exbert.adapter": "list_head_modules",
    "exbert.convert": "load_under_head",
    "lora": "add_lora",
    "new_rows": "apply_delta",
    "publishing": "publish",
    "state_store": "StateStore",
    "task_training": "FineTuned",
    "trimming": "keep_rows",
    "vocabulary": "expand_vocabulary",
}


@pytest.mark.parametrize("old", OLD_NAMES)
def test_an_old_module_is_the_new_one(old):
    sys.modules.pop(f"hf_domain.{old}", None)
    new = importlib.import_module(hf_domain.RENAMED[f"hf_domain.{old}"])
    with pytest.warns(DeprecationWarning, match=rf"hf_domain\.{old} is {new.__name__} now") as warned:
        exec(f"from hf_domain.{old} import {OLD_NAMES[old]}", found := {})
    assert warned[0].filename == "<string>"  # the line of the user
    assert found[OLD_NAMES[old]] is getattr(new, OLD_NAMES[old])
    if "." not in old:
        delattr(hf_domain, old)
        with pytest.warns(DeprecationWarning):
            assert getattr(hf_domain, old) is new


def test_every_old_name_is_there_or_says_what_to_do():
    with pytest.warns(DeprecationWarning, match=r"predict_together is hf_domain\.predict now") as warned:
        assert hf_domain.predict_together is hf_domain.predict
    assert warned[0].filename == __file__
    left = {"distillation.new_rows": "hf-domain mlm --expanded_vocabulary", "exploration.views": "examples/explore_app"}
    assert {*hf_domain.RENAMED} == {f"hf_domain.{old}" for old in (*OLD_NAMES, *left, "predict_together")}
    for old, advice in left.items():
        with pytest.raises(ImportError, match=f"{old} is not part of this version.*{advice}"):
            importlib.import_module(f"hf_domain.{old}")
    for name in ("hf_domain.nothing", "hf_domain.exploration.nothing"):
        with pytest.raises(ModuleNotFoundError, match=name):
            importlib.import_module(name)


def list_imports(file):
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield "." * node.level + (node.module or "")


@pytest.mark.parametrize("room", ["modeling", "tokenization"])
def test_lower_rooms_import_only_their_own(room):
    for file in (ROOT / room).rglob("*.py"):
        for name in list_imports(file):
            assert not name.startswith(("hf_domain", "..")), f"{file.name} imports {name}"
            if room == "modeling":
                assert name != ".", (
                    f"{file.name}: `from . import x` is not copied to the Hub; write `from .x import name`"
                )


@pytest.mark.parametrize("file", sorted((ROOT / "modeling").glob("*_*.py")), ids=lambda file: file.stem)
def test_hub_copy_is_complete(file):
    # transformers finds what to copy by a regex over the text; future annotations turn config_class into a string.
    assert "from __future__ import annotations" not in file.read_text()
    copied = {Path(name).stem for name in get_relative_import_files(file)}
    siblings = {name.lstrip(".") for name in list_imports(file) if name.startswith(".")}
    assert siblings <= copied
    assert all((file.parent / f"{name}.py").is_file() for name in copied)


def test_heavy_parts_are_imported_where_they_are_used():
    # transformers.modeling_utils takes two seconds; `import torch, transformers` does not import it either.
    heavy = ("datasets", "matplotlib", "evaluate", "seqeval", "sklearn", "peft", "accelerate", "pyarrow", "pandas")
    heavy += ("transformers.modeling_utils", "hf_domain.modeling.backbone", "hf_domain.tokenization")
    code = f"import torch, transformers, sys, hf_domain; print([name for name in {heavy} if name in sys.modules])"
    output = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert output.strip() == "[]"


def test_version():
    assert hf_domain.__version__ == re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.M)[1]


def test_commands_are_the_scripts():
    scripts = {file.stem for file in (ROOT / "examples").glob("*.py")} - {"__init__"}
    assert {script for script, _ in COMMANDS.values()} == scripts


IMPORTS = {
    "first": "import hf_domain",
    "last": "import transformers, peft, torch; from transformers import AutoModel; import hf_domain",
    "peft looked for": "import hf_domain, importlib.util; assert importlib.util.find_spec('peft')",
    "adapter": "import hf_domain; from hf_domain import ExBertAdapterConfig",
    "lora": "import hf_domain; from hf_domain.methods.lora import add_lora",
    "configuration": "import hf_domain.modeling.configuration_varmae",
    "twice": "import hf_domain; from hf_domain.methods.registration import register_on_import; register_on_import()",
    "under the name of the command": "import sys; sys.argv[0] = 'hf-domain.py'; import hf_domain",
}


SAMPLED = ("first", "under the name of the command")


@pytest.mark.parametrize(
    "statement",
    [
        pytest.param(text, id=name, marks=[pytest.mark.commands] * (name not in SAMPLED))
        for name, text in IMPORTS.items()
    ],
)
def test_import_registers_every_class(statement):
    code = f"""{statement}
from torch import device
from transformers import AutoConfig, AutoModel, AutoModelForQuestionAnswering
for model_type in ("varmae", "exbert", "gmap", "rada"):
    for auto_class in (AutoModel, AutoModelForQuestionAnswering):
        with device("meta"):  # of the size of BERT, without its numbers
            print(type(auto_class.from_config(AutoConfig.for_model(model_type))).__name__)
import peft
from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING as targets
print("EXBERT" in peft.PeftType.__members__ and {{"varmae", "exbert", "gmap", "rada"}} <= targets.keys())
print([name for name in hf_domain.__all__ if not hasattr(hf_domain, name)])
"""
    output = forked_python.run([sys.executable, "-c", code]).stdout
    heads = ("Model", "ForQuestionAnswering")
    names = [f"{name}{head}" for name in ("VarMAE", "ExBert", "GMap", "Rada") for head in heads]
    assert output.splitlines() == [*names, "True", "[]"]
