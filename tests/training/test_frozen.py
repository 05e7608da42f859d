"""A probe finds a label in the states of an encoder."""

import json

import numpy as np
import pytest
import torch
from script_runs import save_tiny_bert, write_jsonl
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.preprocessing import StandardScaler
from transformers import AutoModel, AutoTokenizer

from hf_domain.examples import run_classification, run_ner
from hf_domain.tasks.classification import decode_logits
from hf_domain.tasks.outputs import VALIDATED, read_labels, read_tags
from hf_domain.tasks.token_classification import prepare_for_words
from hf_domain.training import frozen
from hf_domain.training.frozen import choose_layers, compute_logits, encode_texts, encode_words, fit_probe

ANIMALS = ["cat", "dog", "bird"]
SENTENCES = [f"the {animal} sat on the {place}" for animal in ANIMALS for place in ("mat", "hill", "roof")]


@pytest.fixture
def encoder(tmp_path):
    folder = save_tiny_bert(tmp_path / "encoder", SENTENCES)
    return AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)


def test_states_are_means_of_two_layers(encoder):
    """Padding and the order of batches change nothing."""
    model, tokenizer = encoder
    texts = ["the cat sat on the mat", "the dog", "the bird sat", "a"]
    states = encode_texts(model, tokenizer, [texts], 64, batch_size=2)
    for text, state in zip(texts, states, strict=True):
        with torch.no_grad():
            hidden = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states
        expected = np.concatenate([hidden[layer][0].mean(0).numpy() for layer in choose_layers(2)])
        np.testing.assert_allclose(state, expected, atol=1e-5)
    assert [choose_layers(number) for number in (2, 6, 12, 24)] == [(2, 2), (4, 6), (8, 12), (16, 24)]


def test_states_of_words_are_those_of_their_first_tokens(encoder):
    model, tokenizer = encoder
    prepare_for_words(tokenizer)
    sentences = [["the", "cat"], ["the", "dog", "sat", "on"]]
    states = encode_words(model, tokenizer, sentences, 64)
    assert [len(words) for words in states] == [2, 4]
    with torch.no_grad():
        hidden = model(**tokenizer("the cat", return_tensors="pt"), output_hidden_states=True).hidden_states[-1]
    np.testing.assert_allclose(states[0][:, -32:], hidden[0, 1:3].numpy(), atol=1e-5)
    windows = encode_words(model, tokenizer, [["\u200b", *sentences[1]], ["the"]], 4)  # of two words
    assert [len(words) for words in windows] == [5, 1]
    with torch.no_grad():
        hidden = model(**tokenizer("sat on", return_tensors="pt"), output_hidden_states=True).hidden_states[-1]
    np.testing.assert_allclose(windows[0][3:, -32:], hidden[0, 1:3].numpy(), atol=1e-5)


def test_classes_weigh_the_same():
    """Nine in ten examples are of one class, and the other is found as often; unless the weights are left out."""
    generator = np.random.default_rng(0)
    labels = np.array([1] * 30 + [0] * 270)
    states = generator.normal(size=(300, 20)) + 0.3 * labels[:, None]
    recall = {
        weights: fit_probe(states, labels, "single_label_classification", weights).predict(states)[:30].mean()
        for weights in ("balanced", "none")
    }
    assert recall["balanced"] > 0.7 and recall["none"] < 0.5


def test_logits_are_what_predictions_come_from():
    """With two labels and with one, for which scikit-learn gives a single column."""
    generator = np.random.default_rng(0)
    states = generator.normal(size=(90, 5))
    for count in (2, 3):
        labels = np.arange(90) % count
        probe = fit_probe(states, labels, "single_label_classification")
        predicted = decode_logits(compute_logits(probe, states, count), "single_label_classification")
        assert (predicted == probe.predict(states)).all()
    scaled = StandardScaler().fit_transform(states)
    for count in (1, 3):
        rows = (generator.random((90, count)) < 0.4).astype(int)
        probe = fit_probe(states, rows, "multi_label_classification")
        logits = compute_logits(probe, states, count)
        predicted = decode_logits(logits, "multi_label_classification")
        assert (predicted == probe.predict(states).reshape(90, count)).all() and predicted.shape == (90, count)
        alone = LogisticRegression(C=0.01, class_weight="balanced").fit(scaled, rows[:, 0])
        np.testing.assert_allclose(logits[:, 0], alone.decision_function(scaled), atol=1e-3)


@pytest.mark.parametrize("seen", [(0, 2), (0, 2, 3)])
def test_a_label_without_training_examples_shifts_no_other(seen):
    """scikit-learn has no column for it."""
    labels = np.repeat(seen, 10)
    states = np.eye(4)[labels]
    probe = fit_probe(states, labels, "single_label_classification")
    assert (decode_logits(compute_logits(probe, states, 4), "single_label_classification") == labels).all()


def test_values_are_found_by_a_ridge_regression():
    generator = np.random.default_rng(0)
    states = generator.normal(size=(90, 5))
    values = states @ [1, 2, 0, 0, -1] + 7
    probe = fit_probe(states, values, "regression")
    expected = Ridge(alpha=100).fit(StandardScaler().fit_transform(states), values)
    found = decode_logits(compute_logits(probe, states, 1), "regression")
    np.testing.assert_allclose(found, expected.predict(StandardScaler().fit_transform(states)))
    assert np.corrcoef(found, values)[0, 1] > 0.99


def run(monkeypatch, folder, rows, **options):
    for split in ("train", "test"):
        write_jsonl(folder / f"{split}.jsonl", [row | {"id": f"{split}{n}"} for n, row in enumerate(rows)])
    arguments = {"model_name_or_path": "encoder", "train_file": "train.jsonl", "test_file": "test.jsonl"}
    arguments |= {"output_dir": "output", **options}
    argv = ["run.py", "--frozen", "--use_cpu", *(part for n, value in arguments.items() for part in (f"--{n}", value))]
    monkeypatch.chdir(folder)
    monkeypatch.setattr("sys.argv", argv)
    (run_ner if "tokens" in rows[0] else run_classification).main()
    return json.loads((folder / arguments["output_dir"] / "all_results.json").read_text())


def test_lists_and_values_are_labels_too(monkeypatch, tmp_path, encoder):
    """The thresholds of several labels are chosen on validation."""
    texts = [text for text in SENTENCES for _ in range(6)]
    write_jsonl(tmp_path / "validation.jsonl", [{"text": t, "label": [t.split()[1]]} for t in SENTENCES[:6]])
    rows = [{"text": text, "label": [text.split()[1]] if "bird" not in text else []} for text in texts]
    metrics = run(monkeypatch, tmp_path, rows, validation_file="validation.jsonl")
    assert metrics["predict_macro_f1"] == metrics["predict_accuracy"] == 1
    assert '\t["cat"]\n' in (tmp_path / "output" / "predict_results.txt").read_text()
    validated = read_labels(tmp_path / "output", VALIDATED)
    assert [json.loads(names) for names in validated] == [[t.split()[1]] for t in SENTENCES[:6]]
    assert metrics["eval_macro_f1"] == 1
    values = {"cat": 1, "dog": 2.5, "bird": 4}
    rows = [{"text": text, "label": "x", "score": values[text.split()[1]]} for text in texts]
    metrics = run(monkeypatch, tmp_path, rows, label_column_name="score", do_regression="true", output_dir="2")
    assert metrics["predict_pearson"] > 0.95


@pytest.mark.parametrize("kind", ["texts", "pairs", "words"])
def test_label_encoded_in_the_states_is_found(monkeypatch, tmp_path, encoder, kind):
    """The label is a word of the text, so a frozen encoder of random weights shows it."""
    texts = [text for text in SENTENCES for _ in range(6)]
    if kind == "words":
        rows = [{"tokens": t.split(), "tags": ["B-X" if w in ANIMALS else "O" for w in t.split()]} for t in texts]
    else:
        columns = ("text",) if kind == "texts" else ("sentence1", "sentence2")
        rows = [dict(zip(columns, (text, "the mat"), strict=False)) | {"label": text.split()[1]} for text in texts]
    write_jsonl(tmp_path / "validation.jsonl", [row | {"id": f"validation{n}"} for n, row in enumerate(rows[:9])])
    metrics = run(monkeypatch, tmp_path, rows, validation_file="validation.jsonl")
    assert metrics["eval_f1" if kind == "words" else "eval_macro_f1"] == 1
    if kind == "words":
        assert read_tags(tmp_path / "output", VALIDATED) == [row["tags"] for row in rows[:9]]
    else:
        assert read_labels(tmp_path / "output", VALIDATED) == [row["label"] for row in rows[:9]]
    assert metrics["predict_f1" if kind == "words" else "predict_macro_f1"] == 1
    lines = (tmp_path / "output" / ("predictions.txt" if kind == "words" else "predict_results.txt")).read_text()
    assert "O B-X O" in lines if kind == "words" else "\tbird\n" in lines


def test_labels_are_those_of_the_whole_file(monkeypatch, tmp_path, encoder):
    """The first training examples need not have every label of the test file, as in a share of them."""
    rows = [{"text": text, "label": text.split()[1]} for text in SENTENCES for _ in range(6)]
    metrics = run(monkeypatch, tmp_path, rows, max_train_samples="36")  # without a bird
    assert (metrics["train_samples"], metrics["predict_samples"]) == (36, 54)
    assert 0.5 < metrics["predict_accuracy"] <= 36 / 54
    tags = [{"tokens": text.split(), "tags": ["O", f"B-{text.split()[1]}", *"OOOO"]} for text in SENTENCES]
    assert run(monkeypatch, tmp_path, tags, max_train_samples="6", output_dir="tags")["train_samples"] == 6


def test_thresholds_decide_which_labels_are_predicted(monkeypatch, tmp_path, encoder):
    write_jsonl(tmp_path / "validation.jsonl", [{"text": text, "label": [text.split()[1]]} for text in SENTENCES])
    rows = [{"text": text, "label": [text.split()[1]]} for text in SENTENCES]
    monkeypatch.setattr(frozen, "choose_thresholds", lambda logits, gold: [2.0] * logits.shape[1])  # above any
    run(monkeypatch, tmp_path, rows, validation_file="validation.jsonl")
    assert {*read_labels(tmp_path / "output", VALIDATED)} == {"[]"}


def test_options_that_would_change_nothing_are_refused(monkeypatch, tmp_path, encoder):
    rows = [{"text": text, "label": text.split()[1]} for text in SENTENCES]
    with pytest.raises(ValueError, match="but --nearest_vote is given"):
        run(monkeypatch, tmp_path, rows, nearest_vote="true")


def test_tags_without_an_outside_are_refused(monkeypatch, tmp_path, encoder):
    """Without an O, every word would be part of an entity."""
    rows = [{"tokens": text.split(), "tags": [str(number % 2) for number in range(6)]} for text in SENTENCES]
    with pytest.raises(ValueError, match=r"tags must be B-X and I-X, or X alone, .* but none is O: 0, 1"):
        run(monkeypatch, tmp_path, rows)
