"""What a run says in the terminal, in a process of its own as a user starts it."""

import logging
import os
import re
import subprocess
import sys

import datasets
import forked_python
import pytest
import transformers
from safetensors.torch import load_file, save_file
from script_runs import run_script, save_tiny_bert, write_jsonl
from sentence_tasks import write_pairs
from tiny_tokenizers import SENTENCES
from transformers import TrainingArguments

from hf_domain.examples import run_classification
from hf_domain.training.terminal import describe_metrics, hide_load_report, start_logging

ROWS = [{"words": SENTENCES[number % 5], "label": "ab"[number % 3 == 0]} for number in range(24)]
START = "import sys; from hf_domain.cli import main; main()"


@pytest.fixture
def call(tmp_path):
    """Run a command of ours on a tiny encoder; returns the process."""
    save_tiny_bert(tmp_path / "encoder", SENTENCES)
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 40), encoding="utf-8")
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / f"{split}.jsonl", ROWS)

    def call(command, *arguments):
        environment = {**os.environ, "HF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
        process = forked_python.run([sys.executable, "-c", START, command, *arguments], cwd=tmp_path, env=environment)
        assert process.returncode == 0, process.stderr
        return process

    return call


TRAINING = ["--do_train", "--do_eval", "--max_steps", "4", "--use_cpu", "--report_to", "none", "--max_seq_length", "16"]
ENCODER = ["--model_name_or_path", "encoder"]
MLM = [*ENCODER, "--train_file", "corpus.txt", "--output_dir", "adapted", *TRAINING]
CLASSIFICATION = [*ENCODER, "--train_file", "train.jsonl", "--validation_file", "validation.jsonl", *TRAINING]
CLASSIFICATION += ["--test_file", "test.jsonl", "--do_predict", "--text_column_names", "words"]
CLASSIFICATION += ["--output_dir", "classifier"]


def list_lines(process):
    """All that a terminal shows; a bar writes each of its states behind a carriage return."""
    return [line for line in re.split("[\r\n]", process.stdout + process.stderr) if line.strip()]


def test_masked_lm_is_quiet(call, tmp_path):
    quiet = call("mlm", *MLM, "--method", "varmae")
    lines = list_lines(quiet)
    assert len(lines) <= 20, lines
    assert "TrainingArguments" not in quiet.stdout + quiet.stderr
    steps = [line for line in lines if line.startswith("step ")]
    assert len(steps) == 4  # though --logging_steps is 500
    for line in steps:
        assert re.match(r"step \d/4 \[\d\d:\d\d<\d\d:\d\d, +[\d.]+(it/s|s/it), loss [\d.]+, ", line), line
        assert re.search(r", masked_kl [\d.e-]+, .*active_latent_share [\d.]+\]$", line), line
    assert re.search(r"^Validation, \d+ examples: loss [\d.]+, .*masked_kl .*perplexity", quiet.stdout, re.M)
    assert lines[-1] == "Model and card: adapted"
    assert (tmp_path / "adapted" / "model.safetensors").is_file()


def test_classification_is_quiet(call):
    process = call("classification", *CLASSIFICATION)
    lines = list_lines(process)
    assert len(lines) <= 20, lines
    assert any(line.startswith("New weights, missing in the checkpoint: ") for line in lines)
    assert any(re.match(r"Test, 24 examples: .*macro_f1 [\d.]+ \(majority baseline 0.4\)", line) for line in lines)
    assert lines[-1] == "Model and card: classifier"


def test_verbose_brings_back_arguments_and_configurations(tmp_path, monkeypatch, caplog, capsys):
    encoder = save_tiny_bert(tmp_path / "encoder", SENTENCES)
    files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", ROWS) for split in ("train", "validation")}
    options = {"model_name_or_path": encoder, "do_eval": True, "max_seq_length": 16, **files}
    try:
        run_script(run_classification.main, monkeypatch, tmp_path / "output", verbose=True, **options)
    finally:
        transformers.utils.logging.set_verbosity_warning()
        datasets.utils.logging.set_verbosity_warning()
    for text in ("Training/evaluation parameters FineTunerArguments(", "Caching processed dataset", "LOAD REPORT"):
        assert text in caplog.text
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"Results: {tmp_path / 'output'}")


@pytest.mark.commands
@pytest.mark.skipif(sys.platform == "win32", reason="a pseudo-terminal is one of Unix")
def test_bar_in_a_terminal_and_warnings(call, tmp_path):
    """A bar shows loss, speed and the time left, and no line is written for it; warnings are."""
    weights = load_file(tmp_path / "encoder" / "model.safetensors")
    lost = "bert.encoder.layer.0.output.dense.weight"
    kept = {name: weight for name, weight in weights.items() if name != lost}
    save_file(kept, tmp_path / "encoder" / "model.safetensors", metadata={"format": "pt"})
    write_jsonl(tmp_path / "test.jsonl", [{**row, "words": "the same"} for row in ROWS])
    code = "import pty, sys; sys.exit(pty.spawn([sys.executable, '-c', *sys.argv[1:]]) >> 8)"
    resize = "import fcntl, struct, termios; fcntl.ioctl(2, termios.TIOCSWINSZ, struct.pack('4H', 40, 100, 0, 0));"
    environment = {**os.environ, "HF_HOME": str(tmp_path / "home")}
    process = subprocess.run(
        [sys.executable, "-c", code, resize + START, "classification", *CLASSIFICATION],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        stdin=subprocess.DEVNULL,
    )
    shown = process.stdout.decode().replace("\r\n", "\n")
    assert process.returncode == 0, shown
    # A line that begins with a carriage return is written over the one before it.
    assert len([line for line in shown.split("\n") if line.rpartition("\r")[2].strip()]) <= 25, shown
    assert re.search(r" 4/4 \[\d\d:\d\d<00:00, .*, loss [\d.]+\]", shown), shown
    assert "step 4/4" not in shown
    assert f"warning: The checkpoint must have all weights except those of a new head, but {lost} are missing" in shown
    assert "warning: This model did not learn its task" in shown


@pytest.mark.parametrize(
    ("log_level", "verbose", "ours", "theirs"),
    [
        ("passive", False, logging.INFO, logging.WARNING),
        ("passive", True, logging.INFO, logging.INFO),
        ("error", False, logging.ERROR, logging.ERROR),
        ("info", False, logging.INFO, logging.INFO),
    ],
)
def test_levels(tmp_path, log_level, verbose, ours, theirs):
    transformers.utils.logging.set_verbosity_warning()
    start_logging(TrainingArguments(str(tmp_path), log_level=log_level, use_cpu=True), verbose)
    assert logging.getLogger("hf_domain").level == ours
    assert transformers.utils.logging.get_verbosity() == datasets.utils.logging.get_verbosity() == theirs
    transformers.utils.logging.set_verbosity_warning()


def test_scores_are_shown_beside_the_baseline():
    metrics = {"eval_macro_f1": 0.5, "eval_baseline_macro_f1": 0.25, "eval_runtime": 3.0, "eval_samples": 1200}
    assert describe_metrics("eval", metrics) == "Validation, 1,200 examples: macro_f1 0.5 (majority baseline 0.25)"


@pytest.mark.commands
def test_commands_that_do_not_train_are_quiet(call, tmp_path):
    """Their last line names the folder; no report of weights, no bar of loading or saving."""
    expansion = [*ENCODER, "--train_file", "corpus.txt", "--min_frequency", "2", "--output_dir", "words"]
    write_pairs(tmp_path / "pairs")
    pairs = ["--test_file", "pairs/test.jsonl", "--use_cpu", "--max_seq_length", "16", "--do_predict"]
    trained = [*TRAINING, *pairs, "--train_file", "pairs/train.jsonl", "--validation_file", "pairs/validation.jsonl"]
    for command, arguments, what in (
        ("sentences", [*ENCODER, *trained, "--output_dir", "texts"], "Model and card"),
        ("expand_vocab", expansion, "Model and tokenizer"),
    ):
        process = call(command, *arguments)
        shown, lines = process.stdout + process.stderr, process.stdout.splitlines()
        assert not re.search("REPORT|MISSING|_per_second|Loading|Writing|Counting|widget", shown), shown
        assert len(lines) <= 12, lines
        assert lines[-1] == f"{what}: {arguments[-1]}", lines


def test_a_report_of_lost_weights_is_shown(tmp_path, caplog):
    """Only the pooler of an encoder may be missing."""
    encoder = save_tiny_bert(tmp_path / "encoder", SENTENCES)
    transformers.utils.logging.enable_propagation()
    try:
        for lost, is_shown in ((None, False), ("bert.encoder.layer.0.output.dense.weight", True)):
            weights = load_file(tmp_path / "encoder" / "model.safetensors")
            weights.pop(lost, None)
            save_file(weights, tmp_path / "encoder" / "model.safetensors", metadata={"format": "pt"})
            with hide_load_report(is_encoder=True):
                transformers.AutoModel.from_pretrained(encoder)
            assert ("LOAD REPORT" in caplog.text) == is_shown
    finally:
        transformers.utils.logging.disable_propagation()
