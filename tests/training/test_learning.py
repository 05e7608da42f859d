"""A run that did not learn says so, and the default learning rate learns."""

import itertools
import random

import numpy as np
import pytest
from datasets import Dataset, DatasetDict
from script_runs import run_script, save_tiny_bert, write_jsonl
from transformers import EvalPrediction

from hf_domain.examples import run_classification, run_ner, run_qa
from hf_domain.tasks.classification import Classification, ClassificationArguments

WORDS = {"biology": ["cell", "gene"], "law": ["court", "judge"], "finance": ["stock", "price"]}
# The share of each label in the rows: biology is the majority.
LABELS = ["biology"] * 6 + ["law"] * 3 + ["finance"]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a script on the same rows as train and test; returns all_results.json and the card."""
    model = save_tiny_bert(tmp_path / "model", [" ".join(itertools.chain(*WORDS.values()))])

    def call(script, rows, test_rows=None, **flags):
        train, test = (
            write_jsonl(tmp_path / f"{n}.jsonl", r) for n, r in (("train", rows), ("test", test_rows or rows))
        )
        options = {"model_name_or_path": model, "train_file": train, "test_file": test, "max_seq_length": 24}
        options |= {"do_train": True, "do_predict": True, "num_train_epochs": 1, "learning_rate": 1e-4}
        options = {name: value for name, value in (options | flags).items() if value is not None}
        results = run_script(script.main, monkeypatch, tmp_path / "output", **options)
        return results, (tmp_path / "output" / "README.md").read_text(encoding="utf-8")

    return call


def make_rows(make_text):
    return [{"text": make_text(label), "label": label} for label in LABELS * 4]


def test_a_classifier_that_did_not_learn_says_so(run, caplog):
    """Equal texts teach nothing but the majority."""
    results, card = run(run_classification, make_rows(lambda label: "cell court stock"))
    assert results.get("predict_beats_baseline") is False
    assert results["predict_baseline_macro_f1"] == pytest.approx(2 * 0.6 / 1.6 / 3)
    assert results["predict_baseline_accuracy"] == pytest.approx(0.6)
    sentence = "This model did not learn its task: on the test set it is not better than the majority baseline"
    assert sentence in caplog.text
    assert sentence in card.partition("## ")[0]


def test_a_classifier_that_learned_does_not(run, caplog):
    """At the default rate, which fits the size of the encoder."""
    rng = random.Random(0)
    rows = make_rows(lambda label: " ".join(rng.choices(WORDS[label], k=5)))
    results, card = run(run_classification, rows, num_train_epochs=16, learning_rate=None)
    assert results["predict_macro_f1"] > 0.5
    assert results["predict_beats_baseline"] is True
    assert results["learning_rate"] == 5e-4
    assert "did not learn" not in caplog.text + card
    results, _ = run(run_classification, rows, max_steps=1, learning_rate=1e-5)
    assert results["learning_rate"] == 1e-5


def test_regression_is_compared_with_the_mean(run):
    rows = [{"text": "cell", "label": value} for value in (0.5, 1.5, 4.5, 1.5)]
    results, card = run(run_classification, rows, [{"text": "cell", "label": value} for value in (1.0, 3.0)])
    assert results.get("predict_baseline_mse") == pytest.approx(1.0)
    assert results["predict_beats_baseline"] is False and "did not learn" in card


def test_entities_are_compared_with_none(run):
    rows = [{"tokens": ["court", "judge"], "tags": ["O", "B-X"]}, {"tokens": ["court", "judge"], "tags": ["O", "O"]}]
    results, card = run(run_ner, rows * 4, rows, learning_rate=1e-9)
    assert results.get("predict_baseline_f1") == 0.0
    assert results["predict_baseline_accuracy"] == 0.75
    assert results["predict_beats_baseline"] is (results["predict_f1"] > 0) is ("did not learn" not in card)


def test_answers_are_compared_with_none(run):
    answer = {"text": ["judge"], "answer_start": [6]}
    rows = [
        {"id": str(number), "context": "court judge", "question": "stock", "answers": answers}
        for number, answers in enumerate([answer, {"text": [], "answer_start": []}] * 4)
    ]
    flags = {"doc_stride": 4, "version_2_with_negative": True, "null_score_diff_threshold": -1e9, "learning_rate": 1e-9}
    results, card = run(run_qa, rows, **flags)
    assert results.get("predict_baseline_f1") == results["predict_baseline_exact_match"] == 50.0
    assert results["predict_f1"] == 50.0 and results["predict_beats_baseline"] is False and "did not learn" in card


def test_several_labels_are_compared_with_the_best_constant():
    """For each metric the constant of all label sets that is best on the training labels."""
    rng = np.random.default_rng(0)
    labels = (rng.random((60, 5)) < [0.7, 0.35, 0.3, 0.1, 0.05]).astype(float)
    kind = "multi_label_classification"
    task = Classification(ClassificationArguments())
    task.problem_type, task.negative_labels, task.label_names = kind, [], [*"abcde"]
    every = [np.array(chosen) for chosen in itertools.product([-1.0, 1.0], repeat=5)]
    scores = [task.score_logits(np.tile(constant, (60, 1)), labels, None) for constant in every]
    task.deciding = "macro_f1"
    task.learn(DatasetDict(train=Dataset.from_dict({"labels": labels.tolist()})), None)
    metrics = task.score(EvalPrediction(np.where(labels > 0, 1.0, -1.0), labels), None, None, None)
    assert metrics["macro_f1"] == 1.0 and metrics["beats_baseline"] is True
    for name in ("micro_f1", "macro_f1", "accuracy"):
        assert metrics[f"baseline_{name}"] == pytest.approx(max(score[name] for score in scores))


def test_the_rate_falls_with_the_width_of_the_encoder():
    from hf_domain.training.task_trainer import choose_learning_rate

    rates = [choose_learning_rate(width) for width in (64, 256, 384, 768, 1024)]
    assert rates == pytest.approx([5e-4, 4.5e-4, 2e-4, 5e-5, 2.8125e-5])


@pytest.mark.parametrize(("schedule", "warns"), [("linear", True), ("constant", False)])
def test_a_rate_that_is_never_reached_is_said(run, caplog, schedule, warns):
    rows = make_rows(lambda label: WORDS[label][0])
    run(run_classification, rows, max_steps=2, warmup_steps=5000, lr_scheduler_type=schedule)
    assert ("the learning rate warms up for 5,000 steps, but training has only 2" in caplog.text) is warns
    caplog.clear()
    run(run_classification, rows, max_steps=1, warmup_steps=0.1)  # a fraction may round up to all steps
    assert "warms up" not in caplog.text
