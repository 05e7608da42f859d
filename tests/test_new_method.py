"""The steps by which CONTRIBUTING.md adds a method, taken with a toy method in a copy of the package."""

import json
import os
import shutil
import sys
from pathlib import Path

import forked_python
import pytest
import torch
import yaml
from hub_server import HubServer
from safetensors.torch import load_file
from script_runs import save_tiny_bert, write_jsonl
from without_package import BLOCKED

from hf_domain.methods import METHODS, register_method

ROOT = Path(__file__).parent.parent
TOY = Path(__file__).parent / "new_method"
SENTENCES = ["the small cat sat on the mat", "a dog ran over the hill", "the cat ran", "a small dog sat"] * 8

COMMANDS = """
import json, sys
from hf_domain.cli import main
for arguments in json.loads(sys.argv[1]):
    sys.argv = ["hf-domain", *arguments]
    main()
"""
LOAD = """
import json, sys
from transformers import AutoModelForMaskedLM, AutoTokenizer
model = AutoModelForMaskedLM.from_pretrained(sys.argv[1], trust_remote_code=True)
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1], trust_remote_code=True)
logits = model(**tokenizer("the cat", return_tensors="pt")).logits
print(json.dumps([type(model).__name__, model.model.scale.tolist(), logits.double().sum().item()]))
"""


@pytest.fixture
def package(tmp_path):
    """A copy of the package as it is installed, with the toy method added by the steps of CONTRIBUTING.md."""
    package = tmp_path / "site" / "hf_domain"
    shutil.copytree(ROOT / "hf_domain", package)
    for folder in ("modeling", "tokenization", "examples"):
        shutil.copytree(ROOT / folder, package / folder)
    for name, room in (("configuration_toy", "modeling"), ("modeling_toy", "modeling"), ("toy", "methods")):
        shutil.copy(TOY / f"{name}.py", package / room)  # steps 1 to 3
    with (package / "methods" / "__init__.py").open("a") as table:
        table.write("from hf_domain.methods import toy  # noqa: E402\n")  # step 4
    return package.parent


def write_data(folder):
    """Write a tiny encoder, a corpus, a task, and a plan that compares the toy method with DAPT."""
    save_tiny_bert(folder / "encoder", SENTENCES)
    for name in ("corpus", "heldout"):
        (folder / f"{name}.txt").write_text("\n".join(f"{text} {name}" for text in SENTENCES))
    rows = [{"text": text, "label": text.split()[1]} for text in SENTENCES[:12]]
    (folder / "task").mkdir()
    for number, split in enumerate(("train", "validation", "test")):
        write_jsonl(folder / "task" / f"{split}.jsonl", [row | {"text": f"{row['text']} {number}"} for row in rows])
    plan = {
        "encoder": "encoder",
        "corpora": {"cats": {"train_file": "corpus.txt", "validation_file": "heldout.txt"}},
        "tasks": {"animals": {"kind": "classification", "folder": "task", "corpus": "cats"}},
        "methods": {"dapt": None, "toy": None},
        "seeds": [1],
        "budget": {"tokens": 512},
        "pretraining": {"per_device_train_batch_size": 4, "max_seq_length": 16, "use_cpu": True},
        "fine_tuning": {"num_train_epochs": 1, "use_cpu": True},
    }
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan))


@pytest.mark.commands
def test_a_method_is_added_by_the_steps_of_contributing(package, tmp_path):
    write_data(tmp_path)
    training = ["--model_name_or_path", "encoder", "--method", "toy", "--config_overrides", "scale_start=0.5"]
    training += ["--train_file", "corpus.txt", "--max_seq_length", "16", "--do_train", "--max_steps", "3"]
    training += ["--per_device_train_batch_size", "8"]
    training += ["--learning_rate", "0.01", "--use_cpu", "--report_to", "none", "--output_dir", "trained"]
    publishing = ["--comparison", "plan", "--method", "toy", "--corpus", "cats", "--repo_id", "tester/toy"]
    commands = [["mlm", *training], ["compare", "plan.yaml"], ["publish", *publishing]]

    with HubServer() as hub:
        environment = os.environ | hub.get_environment(tmp_path / "hub_home") | {"PYTHONPATH": str(package)}
        environment["HF_MODULES_CACHE"] = str(tmp_path / "modules")

        def run(code, *arguments):
            command = [sys.executable, "-c", code, *arguments]
            result = forked_python.run(command, cwd=tmp_path, env=environment)
            assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
            return result.stdout

        run(COMMANDS, json.dumps(commands))
        environment["PYTHONPATH"] = ""
        loaded = json.loads(run(BLOCKED + LOAD, "tester/toy").splitlines()[-1])
        trained = json.loads(run(BLOCKED + LOAD, "trained").splitlines()[-1])

    files = hub.repositories["tester/toy"].commits[-1][1]
    assert {"configuration_toy.py", "modeling_toy.py", "model.safetensors", "README.md"} <= files.keys()
    assert "with scaled states" in files["README.md"].decode()
    assert "| Toy |" in (tmp_path / "plan" / "report.md").read_text()
    for name, scale, total in (loaded, trained):
        assert name == "ToyForMaskedLM"
        assert len(set(scale)) > 1 and total == total
    assert all(0.4 < value < 0.6 for value in trained[1])  # three steps from 0.5
    assert all(0.9 < value < 1.1 for value in loaded[1])


# A package that another wrote: its method trains the biases of a stock encoder.
OTHER = """
from hf_domain.methods import Method, register_method

def build(model, tokenizer, delta, args, options):
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name.endswith("bias"))
    return model

about = {"title": "Biases", "paper": "Nobody", "summary": "{base_model} with other biases.", "citation": "@x{y}"}
register_method("biases", Method(**about, build=build, trains_stock_model=True))
"""
USE = """
import sys
import hf_domain
from hf_domain.cli import check_flags
from hf_domain.comparison.rows import RECIPES
check_flags("mlm", ["--method=biases", "--model_name_or_path=encoder", "--output_dir=out"])
options = {"num_tokens": 256, "max_seq_length": 16, "batch_size": 4, "use_cpu": True}
hf_domain.adapt("encoder", "corpus.txt", output_dir="adapted", method="biases", **options)
print(RECIPES["biases"].title, "Adapted")
"""


def test_another_package_adds_a_method_by_its_entry_point(tmp_path):
    write_data(tmp_path)
    (tmp_path / "other_package.py").write_text(OTHER)
    (tmp_path / "other_package-1.dist-info").mkdir()
    (tmp_path / "other_package-1.dist-info" / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: other_package\nVersion: 1\n"
    )
    (tmp_path / "other_package-1.dist-info" / "entry_points.txt").write_text(
        "[hf_domain.methods]\nbiases = other_package\n"
    )
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    result = forked_python.run([sys.executable, "-c", USE], cwd=tmp_path, env=environment)
    assert result.returncode == 0, result.stdout[-2000:] + result.stderr[-3000:]
    assert result.stdout.splitlines()[-1] == "Biases Adapted"
    card = (tmp_path / "adapted" / "README.md").read_text()
    assert "with other biases" in card
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("encoder", "adapted"))
    changed = {name for name in after if name in before and not torch.equal(before[name], after[name])}
    assert changed and all(name.endswith("bias") for name in changed)


def test_a_name_is_given_once():
    with pytest.raises(ValueError, match="dapt is taken"):
        register_method("dapt", METHODS["lora"])
