"""run_ner.py from the command line to its files."""

import json
import random

import pytest
from script_runs import run_script, save_tiny_bert, write_jsonl
from transformers import pipeline

import hf_domain
from hf_domain.examples.run_ner import main
from hf_domain.tasks.outputs import VALIDATED, read_tags

DISEASES, KINDS = ["ataxia", "leukaemia", "cardiomyopathy"], ["acuta", "minor"]
WORDS = ["the", "gene", "causes", "and", "not"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("model"), [" ".join(DISEASES + KINDS + WORDS)])


def make_rows(count):
    """Sentences about one disease of one kind each."""
    rng = random.Random(count)
    rows = []
    for _ in range(count):
        start, end = rng.choices(WORDS, k=rng.randint(0, 3)), rng.choices(WORDS, k=rng.randint(0, 3))
        tokens = [*start, rng.choice(DISEASES), rng.choice(KINDS), *end]
        tags = ["O"] * len(start) + ["B-Disease", "I-Disease"] + ["O"] * len(end)
        rows.append({"tokens": tokens, "tags": tags})
    return rows


@pytest.fixture
def run(tmp_path, monkeypatch, model):
    def call(splits, name="output", **flags):
        files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", rows) for split, rows in splits.items()}
        defaults = {"model_name_or_path": model, "do_train": True, "do_eval": True, "num_train_epochs": 9}
        return run_script(main, monkeypatch, tmp_path / name, **(defaults | {"learning_rate": 3e-3} | files | flags))

    return call


def test_memory_with_its_own_tokenizer(tmp_path, run):
    """It reads the windows that the sentences are cut into."""
    general = save_tiny_bert(tmp_path / "general", [" ".join(WORDS)])
    flags = {"method": "gmap", "memory_name_or_path": general, "memory_cache": tmp_path / "states", "max_seq_length": 8}
    results = run({"train": make_rows(96), "validation": make_rows(24)}, **flags)
    assert results["eval_f1"] == 1
    assert json.loads((tmp_path / "output" / "config.json").read_text())["memory_tokenizer"] == "own"


def test_entities_are_learned_saved_and_predicted(tmp_path, run):
    test = make_rows(5)
    splits = {"train": make_rows(96), "validation": make_rows(24), "test": test}
    results = run(splits, do_predict=True, return_entity_level_metrics=True)
    assert results["eval_f1"] == results["eval_Disease_f1"] == results["eval_token_f1"] == results["predict_f1"] == 1
    output = tmp_path / "output"
    predictions = (output / "predictions.txt").read_text().splitlines()
    assert predictions == [" ".join(row["tags"]) for row in test]
    assert read_tags(output, VALIDATED) == [row["tags"] for row in splits["validation"]]
    assert json.loads((output / "config.json").read_text())["id2label"] == {
        "0": "B-Disease",
        "1": "I-Disease",
        "2": "O",
    }
    found = pipeline("token-classification", str(output), aggregation_strategy="first")(
        "the gene causes ataxia minor and"
    )
    assert [(entity["entity_group"], entity["word"]) for entity in found] == [("Disease", "ataxia minor")]


def test_a_long_sentence_is_learned_scored_and_predicted_in_windows(tmp_path, run, caplog):
    """Four words (five tokens) and their entity fit; every second sentence has another entity behind them."""
    first, second = ["ataxia", "minor", "the", "gene"], ["and", "leukaemia", "acuta"]
    tags = ["B-Disease", "I-Disease", "O", "O"], ["O", "B-Disease", "I-Disease"]
    rows = [{"tokens": first + second * (n % 2), "tags": tags[0] + tags[1] * (n % 2)} for n in range(16)]
    splits = {"train": rows + make_rows(96), "validation": rows[:8], "test": rows}
    results = run(splits, max_seq_length=7, do_predict=True)
    assert results["eval_f1"] == results["predict_f1"] == results["predict_accuracy"] == 1
    output = tmp_path / "output"
    assert read_tags(output) == [row["tags"] for row in rows]
    assert read_tags(output, VALIDATED) == [row["tags"] for row in rows[:8]]
    assert [line[:26] for line in caplog.messages if "rows of train" in line] == [
        "8 of 8 rows of validation ",
        "16 of 16 rows of test are ",
    ]
    words = [row["tokens"] for row in rows]
    found = hf_domain.predict(output, [{"tokens": ["\u200b", *sentence, ""]} for sentence in words], progress=False)
    assert found["prediction"][:] == [["O", *row["tags"], "O"] for row in rows]
    assert any("turns 32 words into nothing. Their tag is O" in line for line in caplog.messages)


def test_a_trained_model_is_evaluated_without_training_data(tmp_path, run):
    """The columns have the names of the Hub's datasets."""
    rows = [{"words": row["tokens"], "ner_tags": row["tags"]} for row in make_rows(48)]
    trained = run({"train": rows, "validation": rows[:8]}, num_train_epochs=2)
    scored = run({"validation": rows[:8]}, model_name_or_path=tmp_path / "output", do_train=False, name="scored")
    assert scored["eval_f1"] == trained["eval_f1"] and "eval_baseline_f1" in scored
    found = hf_domain.predict(tmp_path / "output", [rows[0]["words"]], progress=False)
    assert found["prediction"][:] == [(tmp_path / "scored" / VALIDATED).read_text().splitlines()[0].split()]
