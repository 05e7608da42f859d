"""run_qa.py from the command line to its files."""

import json
import random

import pytest
from script_runs import run_script, save_tiny_bert, write_jsonl

import hf_domain
from hf_domain.examples.run_qa import main

NAMES, PLACES, FILLERS = ["ann", "bob", "eve"], ["rome", "oslo", "bonn"], ["then", "and", "so", "but"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("model"), [" ".join(["where is", *NAMES, *PLACES, *FILLERS])])


def make_rows(count, share_without=0.0):
    """The answer is the one place of a text; some texts have none."""
    rng = random.Random(count)
    rows = []
    for number in range(count):
        words = rng.choices(FILLERS, k=rng.randint(3, 40))
        answers = {"text": [], "answer_start": []}
        if rng.random() >= share_without:
            position = rng.randrange(len(words))
            words[position] = rng.choice(PLACES)
            answers = {
                "text": [words[position]],
                "answer_start": [len("".join(f"{word} " for word in words[:position]))],
            }
        question = f"where is {rng.choice(NAMES)}"
        rows.append({"id": f"{count}-{number}", "question": question, "context": " ".join(words), "answers": answers})
    return rows


@pytest.fixture
def run(tmp_path, monkeypatch, model):
    def call(splits, **flags):
        files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", rows) for split, rows in splits.items()}
        defaults = {
            "model_name_or_path": model,
            "do_train": True,
            "do_eval": True,
            "max_seq_length": 32,
            "doc_stride": 8,
            "num_train_epochs": 6,
            "learning_rate": 3e-3,
        }
        return run_script(main, monkeypatch, tmp_path / "output", **(defaults | files | flags))

    return call


def test_memory_with_its_own_tokenizer(tmp_path, run):
    general = save_tiny_bert(tmp_path / "general", [" ".join(["where", *NAMES, *PLACES, *FILLERS])])
    splits = {"train": make_rows(96), "validation": make_rows(24)}
    results = run(splits, method="gmap", memory_name_or_path=general, memory_cache=tmp_path / "states")
    assert results["eval_exact_match"] > 90
    assert read(tmp_path / "output" / "config.json")["memory_tokenizer"] == "own"


def test_questions_that_are_trained_and_scored_are_counted(run, caplog):
    rows = make_rows(9)
    other = [{**row, "question": f"{row['question']} then"} for row in rows[2:]]
    run({"train": rows, "validation": rows[:2] + other}, max_steps=1)
    (line,) = [line for line in caplog.messages if "rows of train" in line]
    assert line.startswith("2 of 9 rows of validation are also rows of train")


def read(path):
    return json.loads(path.read_text())


def test_answers_are_learned_saved_and_predicted(tmp_path, run):
    test = [{name: row[name] for name in ("id", "question", "context")} for row in make_rows(7)]
    splits = {"train": make_rows(120), "validation": make_rows(24), "test": test}
    results = run(splits, do_predict=True, n_best_size=3, train_sampling_strategy="group_by_length")
    assert results["eval_exact_match"] == results["eval_f1"] == 100
    assert results["eval_samples"] > 24  # windows of long contexts
    assert results["eval_loss"] < 1 and "predict_f1" not in results
    output = tmp_path / "output"
    gold = {row["id"]: row["answers"]["text"][0] for row in make_rows(7)}
    assert read(output / "predict_predictions.json") == gold
    assert {len(answers) for answers in read(output / "predict_nbest_predictions.json").values()} == {3}
    assert len(read(output / "eval_predictions.json")) == 24 and not (output / "eval_null_odds.json").exists()


def test_questions_may_have_no_answer(tmp_path, run):
    splits = {"train": make_rows(160, 0.5), "validation": make_rows(24, 0.5), "test": make_rows(9, 0.5)}
    results = run(splits, do_predict=True, version_2_with_negative=True, num_train_epochs=8)
    assert results["eval_no_answer_f1"] == results["eval_has_answer_f1"] == results["predict_f1"] == 100
    odds, answers = (read(tmp_path / "output" / f"predict_{name}.json") for name in ("null_odds", "predictions"))
    assert {question: "" if odds[question] > 0 else answers[question] for question in odds} == answers


def test_predict_abstains_where_the_run_does(tmp_path, run):
    test = make_rows(31, 0.5)
    flags = {"version_2_with_negative": True, "null_score_diff_threshold": 0.5, "num_train_epochs": 8}
    run({"train": make_rows(160, 0.5), "test": test}, do_eval=False, do_predict=True, **flags)
    unlabeled = [{name: row[name] for name in ("id", "question", "context")} for row in test]
    found = hf_domain.predict(tmp_path / "output", unlabeled, max_seq_length=32)
    answers = read(tmp_path / "output" / "predict_predictions.json")
    assert dict(zip(found["id"], found["prediction"], strict=True)) == answers
    assert {"", *PLACES} == {*answers.values()}
    assert read(tmp_path / "output" / "config.json")["null_score_diff_threshold"] == 0.5


def test_a_trained_model_is_evaluated_without_training_data(tmp_path, run, model):
    results = run({"validation": make_rows(4)}, do_train=False)
    assert set(results) >= {"eval_f1", "eval_exact_match"} and "train_loss" not in results
