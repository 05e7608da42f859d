"""Every script of benchmarks/ runs at its smallest size: one that nothing runs goes stale, and its figures with it."""

import ast
import gzip
import importlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from properties import TITLES, draw_accuracies
from script_runs import save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES

ROOT = Path(__file__).parent.parent
# What each takes beside its output; `{name}` is made below.
ARGUMENTS = {
    "convergence": "--model_name_or_path {encoder} --tasks {task} --max_train_samples 12 --max_seq_length 16",
    "datastore": "--model_name_or_path {encoder} --corpus {corpus} --heldout {heldout} --documents 40 --queries 8",
    "decisions": "--trials 3",
    "growth": "--model_name_or_path {encoder} --megabytes 0.05 0.1 --passages 8 16 --runs 2 4",
    "lengths": "--model_name_or_path {encoder} --lengths 24 --kinds ner qa --batch_size 2 --steps 1",
    "p_values": "--trials 2 --sizes 30 40",
    "static_rival": "--teacher {encoder} --students {encoder} --task {task} --corpus {corpus} --timed_samples 2",
    "steps": "--tiny",
}


def test_every_benchmark_is_run():
    assert {file.stem for file in (ROOT / "benchmarks").glob("*.py")} == ARGUMENTS.keys() | {"converged", "properties"}


@pytest.mark.parametrize("file", sorted((ROOT / "benchmarks").glob("*.py")), ids=lambda file: file.stem)
def test_what_a_benchmark_imports_exists(file):
    """`make test` does not run them, so a name that moved would be missed until somebody measures."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module.partition(".")[0] == "hf_domain":
            module = importlib.import_module(node.module)
            for name in (each.name for each in node.names):  # of an object or a module
                assert hasattr(module, name) or importlib.import_module(f"{node.module}.{name}")


@pytest.fixture
def paths(tmp_path):
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    tokenizer = json.loads((tmp_path / "encoder/tokenizer_config.json").read_text()) | {"model_max_length": 512}
    (tmp_path / "encoder/tokenizer_config.json").write_text(json.dumps(tokenizer))
    paths = {"encoder": tmp_path / "encoder"} | {name: tmp_path / f"{name}.txt.gz" for name in ("corpus", "heldout")}
    for name in ("corpus", "heldout"):
        with gzip.open(paths[name], "wt") as file:
            file.write("\n".join(f"{name} {number} {text}" for number, text in enumerate(SENTENCES * 20)) + "\n")
    paths["task"] = tmp_path / "task"
    paths["task"].mkdir()
    for split in ("train", "validation", "test"):
        rows = [{"text": f"{text} {split}", "label": "ab"[number % 2]} for number, text in enumerate(SENTENCES * 3)]
        write_jsonl(paths["task"] / f"{split}.jsonl", rows)
    return paths


def run(name, folder, *arguments):
    command = [sys.executable, str(ROOT / "benchmarks" / f"{name}.py"), *arguments]
    done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.benchmarks
@pytest.mark.parametrize("name", ARGUMENTS)
def test_benchmark_runs(name, paths, tmp_path):
    if name == "static_rival":
        pytest.importorskip("model2vec")
    run(name, tmp_path, *ARGUMENTS[name].format(**paths).split(), "--output", "result.json")
    assert json.loads((tmp_path / "result.json").read_text())


@pytest.mark.benchmarks
def test_properties_are_measured_once(paths, tmp_path):
    """The other properties are those of tests/controls."""
    flags = ["--encoder", str(paths["encoder"]), "--corpus", str(paths["corpus"]), "--steps", "1", "--seeds", "1"]
    for _ in range(2):
        run("properties", tmp_path, "--properties", "domain_text", *flags, "--output", "result.jsonl")
        lines = [json.loads(line) for line in (tmp_path / "result.jsonl").read_text().splitlines()]
        assert [line["row"] for line in lines] == ["DAPT", "LoRA", "VarMAE"]
        assert all({"loss", "seconds", "megabytes"} == line["measures"].keys() for line in lines)


def test_accuracies_are_drawn_with_the_names_of_their_rows(tmp_path):
    published = [json.loads(line) for line in (ROOT / "results/properties.jsonl").read_text().splitlines()]
    draw_accuracies([line for line in published if line["property"] != "found"], tmp_path / "figure.svg")
    figure = (tmp_path / "figure.svg").read_text()
    rows = {line["row"] for line in published if line["property"] in ("new_words", "forgotten", "alike")}
    assert all(f">{text}</text>" in figure for text in (*rows, TITLES["alike"]))
    assert TITLES["found"] not in figure


@pytest.mark.benchmarks
def test_a_step_is_measured_beside_the_plain_one(tmp_path):
    run("steps", tmp_path, "--tiny", "--rows", "infer student", "train varmae_15", "--output", "result.json")
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert rows.keys() == {"infer student bert 16", "train varmae_15 bert 16"}
    for row in rows.values():
        assert row["ratio"] == pytest.approx(row["ms"] / row["reference_ms"])


@pytest.mark.benchmarks
def test_compiled_steps_are_measured_until_time_is_up_and_then_go_on(tmp_path):
    """Rows that a file has stay; where the output is not named, it is that of the card."""
    arguments = ["--tiny", "--compiled", "--compilers", "1", "--rows", "train varmae_15"]
    run("steps", tmp_path, *arguments, "--minutes", "0")
    output = tmp_path / "results/gpu/cpu.json"
    assert not output.exists()
    run("steps", tmp_path, *arguments)
    before = output.read_text()
    assert json.loads(before)["rows"].keys() == {"train varmae_15 bert 16"}
    run("steps", tmp_path, *arguments)
    assert output.read_text() == before


@pytest.fixture
def plan(paths, tmp_path):
    """The committed plan at its smallest: the same rows and flags."""
    content = yaml.safe_load((ROOT / "results/converged.yaml").read_text())
    files = {"train_file": str(paths["corpus"]), "validation_file": str(paths["heldout"])}
    task = {
        "kind": "classification",
        "folder": str(paths["task"]),
        "corpus": "terms",
        "options": {"max_seq_length": 16},
    }
    content |= {
        "encoder": str(paths["encoder"]),
        "corpora": {"terms": files},
        "tasks": {"task": task},
    }
    content |= {"seeds": [1], "pretraining_seeds": [1, 2], "budget": {"tokens": 2560}, "general": None}
    content["datastore"] = {"max_length": 32}
    content["methods"]["no_adaptation"]["seeds"] = [1, 2]
    for row in ("general_text", "adalm", "varmae", "exbert", "lora", "gmap"):  # each alike another one here
        del content["methods"][row]
    content["pretraining"] |= {"per_device_train_batch_size": 4, "max_seq_length": 16}
    content["fine_tuning"] |= {"num_train_epochs": 2, "early_stopping_patience": 1}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(content))
    return tmp_path / "plan.yaml"


def read_lines(file):
    """The whole lines of a file of results, by the names of their steps."""
    lines = file.read_text().split("\n")[:-1] if file.is_file() else []
    contents = [json.loads(line) for line in lines if line.endswith("}")]
    return {content["step"]["name"]: content for content in contents}


@pytest.mark.benchmarks
def test_converged_runs_stop_at_any_moment_and_add_up(plan, tmp_path, monkeypatch):
    """Under a pretended MPS: the processes are killed once, then run out of time, then resume."""
    control, said, output = tmp_path / "bin/nvidia-cuda-mps-control", tmp_path / "said", tmp_path / "runs.jsonl"
    rows = yaml.safe_load(plan.read_text())["methods"]
    control.parent.mkdir()
    control.write_text(f'#!/bin/sh\necho "$@" >> {said}\n[ "$1" = -d ] || cat >> {said}\n')
    control.chmod(0o755)
    monkeypatch.setenv("PATH", f"{control.parent}:{os.environ['PATH']}")
    command = [sys.executable, str(ROOT / "benchmarks/converged.py"), "--plan", str(plan), "--cpu"]
    command += ["--rows", *rows, "--seed", "1", "--output", str(output)]
    first = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    while len(read_lines(output)) < 4:
        assert first.poll() is None
        time.sleep(0.1)
    first.kill()
    first.wait()
    before = read_lines(output)
    with output.open("a") as file:
        file.write('{"name": "half a li')
    run("converged", tmp_path, *command[2:], "--minutes", "0.02")
    run("converged", tmp_path, *command[2:])
    lines = read_lines(output)
    fine_tunings = {name for name, line in lines.items() if line["step"]["kind"] == "fine_tuning"}
    assert fine_tunings == {f"{row}-task-seed1" for row in rows}
    assert all(line["status"] == "done" for line in lines.values()) and before.items() <= lines.items()
    assert said.read_text().split() == ["-d", "-d", "quit", "-d", "quit"]
