"""Training stops when the score that counts does not improve any more, and keeps the best weights."""

import json
import random
import shutil
from types import SimpleNamespace

import pytest
from method_models import make_rada
from script_runs import run_script, save_tiny_bert, write_jsonl
from tiny_models import make_masked_lm
from tiny_tokenizers import SENTENCES
from transformers import TrainerControl, TrainerState, TrainingArguments

import hf_domain
from hf_domain.examples import run_classification
from hf_domain.training.arguments import FineTunerArguments
from hf_domain.training.early_stopping import LearnedStop, stop_early
from hf_domain.training.task_trainer import choose_epochs

SPLITS = ("train", "validation")

ROWS = [{"text": SENTENCES[number % 5], "label": "ab"[number % 3 == 0]} for number in range(24)]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Fine-tune a tiny encoder; returns the metrics and the log."""
    encoder = save_tiny_bert(tmp_path / "encoder", SENTENCES)
    files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", ROWS) for split in ("train", "validation")}

    def call(**flags):
        options = {"model_name_or_path": encoder, "do_train": True, "do_eval": True, "max_seq_length": 16, **files}
        options["per_device_train_batch_size"] = 8
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
    rows = [row | {"label": len(row["text"]) + 0.5} for row in ROWS]
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
        run(early_stopping_patience=1, do_eval=False, num_train_epochs=1)


TOPICS = {"a": SENTENCES[0].split()[:4], "b": SENTENCES[1].split()[:4]}


def make_topics(count, seed):
    draw = random.Random(seed)
    return [{"text": " ".join(draw.choices(TOPICS[label], k=4)), "label": label} for label in "ab" * (count // 2)]


@pytest.fixture
def fewer_steps(monkeypatch):
    """200 steps instead of 1,000, for a quick test."""
    monkeypatch.setattr("hf_domain.training.task_trainer.LEAST_STEPS", 200)


def test_a_run_that_names_no_length_trains_until_it_has_learned(run, tmp_path, caplog, fewer_steps):
    files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", make_topics(40, split)) for split in SPLITS}
    metrics, state = run(**files, learning_rate=3e-3)
    assert state["max_steps"] == 200  # 40 epochs of five steps
    checks = [line["step"] for line in state["log_history"] if "eval_macro_f1" in line]
    assert checks[:4] == [20, 40, 60, 80] and state["global_step"] < 200
    assert metrics["eval_macro_f1"] == state["best_metric"] == 1
    best = state["best_global_step"]
    assert state["global_step"] == best + 60
    line = (
        f"Stopped after {best + 60} of 200 steps: 3 checks without a better macro_f1. "
        f"The weights of step {best} are kept, with the best macro_f1 on validation, 1"
    )
    assert any(message.startswith(line) for message in caplog.messages)
    assert not [*(tmp_path / "output").glob("checkpoint-*")]


def test_a_run_without_validation_holds_out_a_tenth(run, tmp_path, caplog, fewer_steps):
    options = {"use_cpu": True, "disable_tqdm": True, "max_seq_length": 16, "learning_rate": 3e-3}
    rows = {"train": make_topics(40, 0)}
    hf_domain.fine_tune(tmp_path / "encoder", rows, output_dir=tmp_path / "task", **options)
    results = json.loads((tmp_path / "task" / "all_results.json").read_text())
    assert (results["train_samples"], results["eval_samples"]) == (36, 4)
    assert "There is no validation set: 4 of 40 examples of train are held out" in caplog.text


def test_an_evaluation_without_validation_holds_out_a_tenth(run, tmp_path):
    file = write_jsonl(tmp_path / "alone.jsonl", make_topics(40, 0))
    metrics, _ = run(train_file=file, validation_file=None, max_steps=2)
    assert (metrics["train_samples"], metrics["eval_samples"]) == (36, 4) and "eval_macro_f1" in metrics
    write_jsonl(file, make_topics(2, 0))
    with pytest.raises(ValueError, match=r"Or give --validation_file"):
        run(train_file=file, validation_file=None, max_steps=2, overwrite_output_dir=True)


def test_a_model_that_has_not_learned_is_not_stopped():
    """Nothing is learned yet at its first checks; afterwards it stops as others do."""
    args = TrainingArguments("none", metric_for_best_model="eval_f1", greater_is_better=True)
    stop, control, state = LearnedStop(2), TrainerControl(), TrainerState(best_metric=0.1)
    for beats in (False, False, False, True, True):
        assert not control.should_training_stop
        stop.on_evaluate(args, state, control, metrics={"eval_f1": 0.1, "eval_beats_baseline": beats})
    assert control.should_training_stop


def test_a_model_that_has_not_learned_is_not_trained_beyond_its_last_step():
    args = TrainingArguments("none", metric_for_best_model="eval_f1", greater_is_better=True)
    stop, control, state = LearnedStop(2), TrainerControl(should_training_stop=True), TrainerState(best_metric=0.1)
    stop.on_evaluate(args, state, control, metrics={"eval_f1": 0.1, "eval_beats_baseline": False})
    assert control.should_training_stop


def test_a_model_with_a_schedule_of_its_own_is_trained_to_its_end():
    """RADA explores with noise at first: its scores may rest for half of the training."""
    args = TrainingArguments("none", metric_for_best_model="eval_f1", greater_is_better=True)
    checks = {}
    for name, model in (("rada", make_rada("bert")), ("bert", make_masked_lm("bert"))):
        stop, control, state = LearnedStop(2), TrainerControl(), TrainerState(best_metric=0.1)
        for _ in range(3):
            stop.on_evaluate(args, state, control, metrics={"eval_f1": 0.1}, model=model)
        checks[name] = control.should_training_stop
    assert checks == {"rada": False, "bert": True}


@pytest.mark.parametrize(
    ("examples", "batch", "accumulated", "epochs"), [(40, 8, 1, 200), (10_000, 8, 1, 3), (300, 16, 2, 100)]
)
def test_the_length_is_the_longer_of_three_epochs_and_1000_steps(tmp_path, examples, batch, accumulated, epochs):
    options = {"per_device_train_batch_size": batch, "gradient_accumulation_steps": accumulated, "use_cpu": True}
    args = FineTunerArguments(str(tmp_path), do_train=True, **options)
    assert args.is_open_ended and choose_epochs(args, examples) == epochs
    assert choose_epochs(args, examples, explores=True) == {200: 400, 3: 3, 100: 200}[epochs]
    for given in ({"num_train_epochs": 2.0}, {"max_steps": 5}):
        assert not FineTunerArguments(str(tmp_path), do_train=True, **options, **given).is_open_ended
