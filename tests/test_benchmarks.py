"""Every script of benchmarks/ runs at its smallest size: one that nothing runs goes stale, and its figures with it."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from script_runs import save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES

ROOT = Path(__file__).parent.parent
# What each takes beside its output; `{name}` is made below.
ARGUMENTS = {
    "convergence": "--model_name_or_path {encoder} --tasks {task} --max_train_samples 12 --max_seq_length 16",
    "datastore": "--model_name_or_path {encoder} --corpus {corpus} --heldout {heldout} --documents 40 --passages 40 "
    "--queries 8",
    "decisions": "--trials 3",
    "growth": "--model_name_or_path {encoder} --megabytes 0.05 0.1 --passages 8 16 --runs 2 4",
    "p_values": "--trials 2 --sizes 30 40",
    "servers": "--model_name_or_path {encoder} --corpus {corpus} --heldout {heldout} --documents 40 --queries 8",
    "steps": "--tiny",
    "students": "--teacher {encoder} --students {encoder} --validation_file {heldout} --max_seq_length 8 "
    "--timed_samples 2",
    "vocabulary": "--model_name_or_path {encoder} --corpus {corpus} --heldout {heldout} --max_size 150 --workers 1",
}


def test_every_benchmark_is_run():
    assert {file.stem for file in (ROOT / "benchmarks").glob("*.py")} == ARGUMENTS.keys()


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
    run(name, tmp_path, *ARGUMENTS[name].format(**paths).split(), "--output", "result.json")
    assert json.loads((tmp_path / "result.json").read_text())


@pytest.mark.benchmarks
def test_a_step_is_measured_beside_the_plain_one(tmp_path):
    run("steps", tmp_path, "--tiny", "--rows", "infer student", "train varmae_15", "--output", "result.json")
    rows = json.loads((tmp_path / "result.json").read_text())["rows"]
    assert rows.keys() == {"infer student bert 16", "train varmae_15 bert 16"}
    for row in rows.values():
        assert row["ratio"] == pytest.approx(row["ms"] / row["reference_ms"])
