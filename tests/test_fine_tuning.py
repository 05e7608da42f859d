"""A task is learned in Python from data of any form, and the model is what the command makes."""

import itertools
import random

import pandas as pd
import pytest
from script_runs import run_script, save_tiny_bert, write_jsonl
from tiny_tokenizers import make_bert_tokenizer
from transformers import BertConfig, BertForMaskedLM

import hf_domain
from hf_domain.examples import run_classification
from hf_domain.tasks.labels import draw_validation
from hf_domain.tasks.question_answering import draw_contexts
from hf_domain.training.arguments import FineTunerArguments

WORDS = {"biology": ["cell", "gene"], "law": ["court", "judge"], "finance": ["stock", "price"]}
VOCABULARY = " ".join(itertools.chain(*WORDS.values()))
SPLITS = ("train", "validation", "test")
LABELS = ["biology"] * 6 + ["law"] * 3 + ["finance"]
QUICK = {"use_cpu": True, "disable_tqdm": True, "max_seq_length": 24, "max_steps": 1}


@pytest.fixture
def encoder(tmp_path):
    return save_tiny_bert(tmp_path / "encoder", [VOCABULARY])


def make_rows(count=4, seed=0):
    draw = random.Random(seed).choices
    return [{"text": " ".join(draw(WORDS[label], k=5)), "label": label} for label in LABELS * count]


def test_a_table_goes_from_adaptation_to_predictions(encoder, tmp_path):
    rows, options = make_rows(), {"use_cpu": True, "disable_tqdm": True}
    table, texts = pd.DataFrame(rows), [row["text"] for row in rows]
    options |= {"max_seq_length": 16, "output_dir": tmp_path / "adapted"}
    model, tokenizer = hf_domain.adapt(encoder, texts * 4, num_tokens=16 * 8, batch_size=8, **options)
    options |= {"output_dir": tmp_path / "task", "num_train_epochs": 16, "data_license": "cc-by-4.0"}
    found = hf_domain.fine_tune(model, table, tokenizer, **options)
    assert found.metrics["eval_beats_baseline"] and found.metrics["eval_macro_f1"] > 0.5
    assert (found.metrics["train_samples"], found.metrics["eval_samples"]) == (32, 8)  # a fifth is held out
    assert found.metrics["learning_rate"] == 5e-4  # by the width
    labels = hf_domain.predict(found.model, table[["text"]], progress=False)  # with the tokenizer of the folder
    right = sum(one == other for one, other in zip(labels["prediction"], table["label"], strict=True))
    assert right > 30
    saved = hf_domain.predict(tmp_path / "task", texts, progress=False)
    assert saved["prediction"][:] == labels["prediction"][:] and not found.model.training
    card = (tmp_path / "task" / "README.md").read_text()
    assert (
        "```python\nhf_domain.fine_tune('adapted', task, tokenizer=tokenizer, output_dir='task', max_seq_length=16, "
        "num_train_epochs=16, data_license='cc-by-4.0', use_cpu=True, disable_tqdm=True)\n```"
    ) in card
    assert "The training data have the license cc-by-4.0." in card
    assert str(tmp_path) not in card and "This model is adapted, trained for text classification." in card


def test_it_is_the_command(encoder, tmp_path, monkeypatch):
    """The same head, rate, seed and scores, also with the files of a folder."""
    task = tmp_path / "topics"
    task.mkdir()
    files = {split: write_jsonl(task / f"{split}.jsonl", make_rows(2, seed)) for seed, split in enumerate(SPLITS)}
    flags = {f"{split}_file": file for split, file in files.items()} | {"num_train_epochs": 2}
    flags |= {"do_train": True, "do_eval": True, "do_predict": True, "model_name_or_path": encoder}
    expected = run_script(run_classification.main, monkeypatch, tmp_path / "command", **flags)
    options = {"num_train_epochs": 2, "seed": 1, "use_cpu": True, "disable_tqdm": True}
    for name, data in (("folder", task), ("rows", {split: make_rows(2, n) for n, split in enumerate(SPLITS)})):
        metrics = hf_domain.fine_tune(encoder, data, output_dir=tmp_path / name, **options).metrics
        for score in ("eval_loss", "predict_loss", "predict_macro_f1", "predict_baseline_macro_f1", "learning_rate"):
            assert metrics[score] == expected[score], score
        for file in ("predict_results.txt", "eval_predictions.txt"):
            assert (tmp_path / name / file).read_text() == (tmp_path / "command" / file).read_text()


def test_columns_decide_on_the_kind(encoder, tmp_path):
    tagged = [{"tokens": row["text"].split(), "tags": ["B-x", "O", "O", "B-x", "O"]} for row in make_rows()]
    found = hf_domain.fine_tune(encoder, pd.DataFrame(tagged), output_dir=tmp_path / "words", **QUICK)
    assert type(found.model).__name__ == "BertForTokenClassification" and "eval_f1" in found.metrics
    answers = {"text": ["gene"], "answer_start": [5]}
    asked = [{"question": "which", "context": "cell gene court", "answers": answers}] * 10
    found = hf_domain.fine_tune(encoder, {"train": asked, "test": asked[1:]}, output_dir=tmp_path / "answers", **QUICK)
    assert type(found.model).__name__ == "BertForQuestionAnswering" and "predict_exact_match" in found.metrics
    assert not found.model.config.version_2_with_negative
    asked[3] = asked[3] | {"answers": {"text": [], "answer_start": []}}
    found = hf_domain.fine_tune(encoder, {"train": asked, "test": asked[1:]}, output_dir=tmp_path / "none", **QUICK)
    assert found.model.config.version_2_with_negative
    assert (tmp_path / "none" / "predict_null_odds.json").is_file()
    several = [{"text": row["text"], "topics": [row["label"]]} for row in make_rows()]
    found = hf_domain.fine_tune(encoder, several, output_dir=tmp_path / "several", label_column="topics", **QUICK)
    assert found.model.config.problem_type == "multi_label_classification"


@pytest.mark.parametrize("kind", ["one", "several", "words"])
def test_a_rare_label_is_no_obstacle(encoder, tmp_path, kind):
    """The rows of a table for validation are drawn by label; the only row of a label trains."""
    rows = [*make_rows(2), {"text": "gene gene gene", "label": "biology"}]
    rows = [*rows[:5], {"text": "price price cell", "label": "rare"}, *rows[5:]]
    if kind == "several":
        rows = [
            row | {"label": ["biology", row["label"]] if row["label"] != "biology" else ["biology"]} for row in rows
        ]
    if kind == "words":
        tags = {"biology": "O", "law": "B-law", "finance": "B-finance", "rare": "B-rare"}
        rows = [
            {"tokens": row["text"].split(), "tags": [tags[row["label"]]] * len(row["text"].split())} for row in rows
        ]
    found = hf_domain.fine_tune(encoder, pd.DataFrame(rows), output_dir=tmp_path / "task", **QUICK)
    assert (found.metrics["train_samples"], found.metrics["eval_samples"]) == (18, 4)
    assert {name.rpartition("-")[2] for name in found.model.config.label2id} >= {"rare"}


def test_a_fifth_is_drawn_in_proportion_to_the_labels():
    labels = [{"a"}] * 50 + [{"b"}] * 30 + [{"c"}] * 15 + [{"d"}] * 5 + [{"e"}, {"f"}]
    drawn = [label for row in draw_validation(labels) for label in labels[row]]
    assert {label: drawn.count(label) for label in "abcdef"} == {"a": 10, "b": 6, "c": 3, "d": 1, "e": 0, "f": 0}
    assert draw_validation(labels) == draw_validation(labels)
    several = [{"a", f"only {row}"} if row % 2 else {"a"} for row in range(10)]
    assert all(several[row] == {"a"} for row in draw_validation(several))
    assert len(draw_validation([set()] * 20)) == 4  # fractions have no labels
    with pytest.raises(ValueError, match=r"must have two rows of some label, .* but each of its 2 rows has a label"):
        draw_validation([{"a"}, {"b"}])


def test_questions_on_one_context_stay_together():
    """Random questions would be held out from contexts that are trained on."""
    contexts = [f"context {number // 5}" for number in range(50)]
    drawn = draw_contexts(contexts)
    held_out = {contexts[row] for row in drawn}
    assert len(held_out) == 2 and len(drawn) == 10
    with pytest.raises(ValueError, match="must have three contexts"):
        draw_contexts(["a"] * 9 + ["b"])


def test_errors_name_arguments_of_python(encoder, tmp_path):
    """Not flags, and no command line."""
    rows, options = make_rows(), QUICK | {"output_dir": tmp_path / "task"}
    for given, message in (
        ({"text_columns": "body"}, r"text_columns must name columns of the data \(text, label\), but names body"),
        ({"label_column": "topic"}, "must have the column topic, .* or name another with label_column"),
        ({"nearest_vote": True}, "nearest_vote needs validation texts, .* Add the split validation"),
    ):
        with pytest.raises(ValueError, match=message) as caught:
            hf_domain.fine_tune(encoder, {"train": rows}, **given, **options)
        assert "--" not in str(caught.value) and "command" not in str(caught.value)


def test_it_runs_in_one_process(encoder, tmp_path, monkeypatch):
    monkeypatch.setattr(FineTunerArguments, "world_size", 2)
    with pytest.raises(ValueError, match="must run in one process, but this is one of 2"):
        hf_domain.fine_tune(encoder, make_rows(), output_dir=tmp_path / "task", **QUICK)
    assert not (tmp_path / "task").exists()


def test_the_default_length_is_at_most_that_of_the_encoder(tmp_path, monkeypatch):
    model = BertForMaskedLM(BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=1, num_attention_heads=2,
                                       intermediate_size=32, max_position_embeddings=64))  # fmt: skip
    options = QUICK | {"max_seq_length": None}
    asked = {"question": "which", "context": "cell gene " * 100, "answers": {"text": ["gene"], "answer_start": [5]}}
    for name, rows in (("classes", [{"text": "gene " * 100, "label": n % 2} for n in range(4)]), ("answers", [asked])):
        found = hf_domain.fine_tune(
            model, {"train": rows}, make_bert_tokenizer([VOCABULARY]), output_dir=tmp_path / name, **options
        )
        assert found.model.config.trained_length == 64
        assert hf_domain.predict(found.model, rows, progress=False).num_rows == len(rows)


@pytest.mark.parametrize("function", ["adapt", "fine_tune", "predict"])
def test_a_folder_that_is_not_there_is_named(tmp_path, function):
    folder, options = str(tmp_path / "nothing"), {} if function == "predict" else {"output_dir": tmp_path / "made"}
    with pytest.raises(ValueError, match=r"a model must be a folder or a name on the Hub, but .*nothing is neither"):
        getattr(hf_domain, function)(folder, make_rows(1), **options)
    assert not (tmp_path / "made").exists()


def test_a_memory_is_read(encoder, tmp_path):
    general = save_tiny_bert(tmp_path / "general", [VOCABULARY])
    options = QUICK | {"method": "gmap", "memory": general, "output_dir": tmp_path / "task"}
    found = hf_domain.fine_tune(encoder, make_rows(), **options)
    assert type(found.model).__name__ == "GMapForSequenceClassification"


def test_a_call_that_was_refused_can_be_corrected(encoder, tmp_path):
    def call(task, **options):
        return hf_domain.fine_tune(encoder, task, output_dir=tmp_path / "task", **QUICK | options)

    rows = make_rows()
    with pytest.raises(ValueError, match="must have the split train, and may have validation and test, but has test"):
        call({"test": rows})
    with pytest.raises(ValueError, match="but has train, dev"):
        call({"train": rows, "dev": rows})
    with pytest.raises(ValueError, match=r"line 3 of train\b(?!\.jsonl)"):
        call({"train": [*rows[:2], {"text": "", "label": "law"}]})
    assert not (tmp_path / "task").exists()  # nobody publishes the rows of a refused call by mistake
    with pytest.raises(TypeError, match="item 0 is 7"):
        call([7])
    tagged = [{"tokens": ["cell"], "tags": ["B-x"]}, {"tokens": ["gene"], "tags": ["O"]}] * 10
    with pytest.raises(ValueError, match="class_weights must be left out"):
        call(tagged, class_weights="balanced")
    assert call(rows).metrics["train_samples"] == 32
    with pytest.raises(FileExistsError, match=r"must be a folder without a model, but .* has README.md"):
        call(rows)
    assert not [*(tmp_path / "task").rglob("*.jsonl")]  # nobody publishes the rows by mistake
