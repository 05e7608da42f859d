"""Training stops when the score that counts does not improve any more, and keeps the best weights."""

import json
import shutil
from types import SimpleNamespace

import pytest
from script_runs import run_script, save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES
from transformers import TrainingArguments

from hf_domain.examples import run_classification
from hf_domain.training.run import stop_early

ROWS = [{"text": SENTENCES[number % 5], "label": "ab"[number % 3 == 0]} for number in range(24)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Fine-tune a tiny encoder; returns the metrics and the log."""
    encoder = save_tiny_bert(tmp_path / "encoder", SENTENCES)
    files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", ROWS) for split in ("train", "validation")}

    def call(**flags):
        options = {"model_name_or_path": encoder, "do_train": True, "do_eval": True, "max_seq_length": 16, **files}
        metrics = run_script(run_classification.main, monkeypatch, tmp_path / "output", **options | flags)
        return metrics, json.loads((tmp_path / "output" / "trainer_state.json").read_text())

    return call


def test_stops_after_so_many_epochs_without_a_better_score(run, tmp_path):
    """At this rate nothing changes: the first epoch is the best, and the second and the third are no better."""
    metrics, state = run(early_stopping_patience=2, num_train_epochs=20, learning_rate="1e-12")
    assert (state["epoch"], state["global_step"]) == (3, 9)
    assert state["best_global_step"] == 3
    assert metrics["eval_macro_f1"] == state["best_metric"]


def test_a_resumed_run_goes_on_counting(run, tmp_path):
    flags = {"early_stopping_patience": 3, "num_train_epochs": 20, "learning_rate": "1e-12", "save_total_limit": 9}
    assert run(**flags)[1]["epoch"] == 4
    for number in (9, 12):
        shutil.rmtree(tmp_path / "output" / f"checkpoint-{number}")
    for file in (tmp_path / "output").glob("*_results.json"):
        file.unlink()
    _, state = run(resume_from_checkpoint=tmp_path / "output" / "checkpoint-6", **flags)
    assert state["epoch"] == 4


def test_evaluates_as_often_as_the_run_asks(run):
    flags = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "accuracy", "learning_rate": "1e-12"}
    _, state = run(early_stopping_patience=1, num_train_epochs=20, **flags)
    assert state["global_step"] == 4
    assert state["best_metric"] == next(
        line["eval_accuracy"] for line in state["log_history"] if "eval_accuracy" in line
    )


def test_an_error_is_better_if_it_is_lower(run, tmp_path):
    """transformers takes every name but a loss for a gain, and would keep the worst weights."""
    rows = [row | {"label": float(len(row["text"]))} for row in ROWS]
    files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", rows) for split in ("train", "validation")}
    _, state = run(
        **files, early_stopping_patience=2, metric_for_best_model="mse", num_train_epochs=4, learning_rate="1e-2"
    )
    errors = [line["eval_mse"] for line in state["log_history"] if "eval_mse" in line]
    assert len(errors) > 2 and state["best_metric"] == min(errors) < errors[0]


def test_a_metric_of_unknown_direction_is_refused(run, tmp_path):
    trainer = SimpleNamespace(args=TrainingArguments(str(tmp_path), do_train=True, do_eval=True, use_cpu=True))
    with pytest.raises(ValueError, match=r"but mae may be an error\. Add --metric_for_best_model mae and --greater_is"):
        stop_early(trainer, "mae", 2)


def test_needs_an_evaluation(run):
    with pytest.raises(
        ValueError, match="needs --do_train, --do_eval and validation data, but do_train is True and do_eval is False"
    ):
        run(early_stopping_patience=1, do_eval=False)
