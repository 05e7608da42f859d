"""run_classification.py from the command line to its files."""

import json
import random

import pytest
from datasets import ClassLabel, Dataset, Features, Value
from script_runs import run_script, save_tiny_bert, write_jsonl
from transformers import pipeline

from hf_domain.examples.run_classification import main
from hf_domain.prediction import predict
from hf_domain.tasks.outputs import VALIDATED, read_label_lines

WORDS = ["cell", "gene", "court", "law", "stock", "price"]
TOPICS = {"biology": WORDS[:2], "law": WORDS[2:4], "finance": WORDS[4:]}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_bert(tmp_path_factory.mktemp("model"), [" ".join(WORDS)])


def make_rows(count, make_label):
    """Texts of one topic each, with the label that `make_label(topic, rng)` gives."""
    rng = random.Random(count)
    topics = [rng.choice(list(TOPICS)) for _ in range(count)]
    return [{"text": " ".join(rng.choices(TOPICS[topic], k=5)), "label": make_label(topic, rng)} for topic in topics]


@pytest.fixture
def files(tmp_path):
    """Write train, validation and test files; returns the flags that name them."""

    def write(make_label, **change):
        splits = {"train": make_rows(96, make_label), "validation": make_rows(24, make_label)}
        splits = {**splits, "test": make_rows(9, make_label), **change}
        return {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", rows) for split, rows in splits.items()}

    return write


@pytest.fixture
def run(tmp_path, monkeypatch, model):
    def call(name="output", **flags):
        defaults = {
            "model_name_or_path": model,
            "do_train": True,
            "do_eval": True,
            "max_seq_length": 16,
            "num_train_epochs": 6,
            "per_device_train_batch_size": 8,
            "learning_rate": 3e-3,
        }
        return run_script(main, monkeypatch, tmp_path / name, **(defaults | flags))

    return call


def test_single_label_learns_saves_and_predicts(tmp_path, files, run):
    flags = files(lambda topic, rng: topic)
    results = run(**flags, do_predict=True, negative_labels="law", train_sampling_strategy="group_by_length")
    assert results["eval_accuracy"] == results["eval_macro_f1"] == results["eval_positive_micro_f1"] == 1
    assert results["predict_accuracy"] == 1
    assert (results["train_samples"], results["eval_samples"], results["predict_samples"]) == (96, 24, 9)

    output = tmp_path / "output"
    lines = (tmp_path / "validation.jsonl").read_text().splitlines()
    assert read_label_lines(output, VALIDATED) == [json.loads(line)["label"] for line in lines]
    names = {path.name for path in output.iterdir()}
    assert names >= {"train_results.json", "eval_results.json", "predict_results.json", "trainer_state.json"}
    assert names >= {"README.md", "model.safetensors", "config.json", "tokenizer.json"}
    saved = [json.loads(file.read_text()) for file in output.rglob("tokenizer.json")]
    # Other runtimes than transformers would cut and pad every text as the last call of this run did.
    assert {(file["truncation"], file["padding"]) for file in saved} == {(None, None)}
    config = json.loads((output / "config.json").read_text())
    assert config["id2label"] == {"0": "biology", "1": "finance", "2": "law"}
    lines = (output / "predict_results.txt").read_text().splitlines()
    gold = [row["label"] for row in make_rows(9, lambda topic, rng: topic)]
    assert lines == ["index\tprediction", *(f"{row}\t{label}" for row, label in enumerate(gold))]
    assert pipeline("text-classification", str(output))("court law law")[0]["label"] == "law"


def test_killed_run_resumes_to_the_same_end(tmp_path, files, run):
    flags = files(lambda topic, rng: topic) | {"save_strategy": "steps", "save_steps": 6, "logging_steps": 1}
    flags |= {"num_train_epochs": 1}
    whole = run("whole", **flags)
    # The process died after step 6 of 12: what is left is that checkpoint.
    (tmp_path / "killed").mkdir()
    (tmp_path / "whole" / "checkpoint-6").rename(tmp_path / "killed" / "checkpoint-6")
    resumed = run("killed", **flags, resume_from_checkpoint=tmp_path / "killed" / "checkpoint-6")
    assert resumed["eval_loss"] == whole["eval_loss"]
    traces = [
        [
            entry["loss"]
            for entry in json.loads((tmp_path / name / "trainer_state.json").read_text())["log_history"][:12]
        ]
        for name in ("whole", "killed")
    ]
    assert traces[0] == traces[1] and len(traces[0]) == 12


def test_lists_of_labels_make_a_multi_label_task(tmp_path, files, run):
    flags = files(lambda topic, rng: [] if topic == "law" else ["all", topic])
    results = run(**flags, do_predict=True)
    assert results["eval_micro_f1"] == results["eval_macro_f1"] == results["eval_accuracy"] == 1
    assert json.loads((tmp_path / "output" / "config.json").read_text())["problem_type"] == "multi_label_classification"
    lines = (tmp_path / "output" / "predict_results.txt").read_text().splitlines()[1:]
    gold = [sorted(row["label"]) for row in make_rows(9, lambda topic, rng: [] if topic == "law" else ["all", topic])]
    assert lines == [f"{row}\t{json.dumps(labels)}" for row, labels in enumerate(gold)]


def test_thresholds_of_several_labels_are_chosen_on_validation_and_kept(tmp_path, files, run):
    flags = files(lambda topic, rng: ["rare"] if topic == "law" and rng.random() < 0.5 else [])
    results = run(**flags, do_predict=True, num_train_epochs=2)
    config = json.loads((tmp_path / "output" / "config.json").read_text())
    assert 0 < config["label_thresholds"][0] < 0.5 and results["eval_macro_f1"] > 0
    rows = [json.loads(line) for line in (tmp_path / "test.jsonl").read_text().splitlines()]
    predicted = predict(tmp_path / "output", [row["text"] for row in rows])["prediction"]
    lines = (tmp_path / "output" / "predict_results.txt").read_text().splitlines()[1:]
    assert predicted == [json.loads(line.split("\t")[1]) for line in lines] and ["rare"] in predicted
    del flags["validation_file"]
    run("further", **flags, model_name_or_path=tmp_path / "output", do_eval=False, num_train_epochs=1)
    assert json.loads((tmp_path / "further" / "config.json").read_text())["label_thresholds"] is None


def test_the_nearest_texts_vote_where_the_model_has_learned_nothing(tmp_path, files, run, caplog):
    pytest.importorskip("tantivy")
    flags = files(lambda topic, rng: topic) | {"do_predict": True, "max_steps": 1, "learning_rate": 1e-6}
    alone, mixed = run("alone", **flags), run("mixed", **flags, nearest_vote=True)
    assert alone["predict_accuracy"] < 0.9 and mixed["eval_accuracy"] == mixed["predict_accuracy"] == 1
    assert mixed["eval_loss"] == alone["eval_loss"]  # the loss is the model's
    lines = (tmp_path / "mixed" / "predict_results.txt").read_text().splitlines()[1:]
    assert [line.split("\t")[1] for line in lines] == [row["label"] for row in make_rows(9, lambda topic, rng: topic)]
    vote = json.loads((tmp_path / "mixed" / "config.json").read_text())["nearest_vote"]
    assert vote == {"count": vote["count"], "weight": 0.95, "label_column": "label"}
    card = (tmp_path / "mixed" / "README.md").read_text()
    assert f"nearest training texts, {vote['count']} for each text, with the weight 0.95" in card
    assert 'labeled_texts="train.jsonl"' in card
    texts = [row["text"] for row in make_rows(9, lambda topic, rng: topic)]
    labels = predict(tmp_path / "mixed", texts, labeled_texts=flags["train_file"])["prediction"]
    assert labels[:] == [row["label"] for row in make_rows(9, lambda topic, rng: topic)]

    again = flags | {"model_name_or_path": tmp_path / "mixed", "do_train": False}
    assert run("again", **again, nearest_vote=True)["predict_accuracy"] == 1
    assert run("without", **again)["predict_accuracy"] == alone["predict_accuracy"]
    assert "Add --nearest_vote true to evaluate it as it was trained" in caplog.text
    with pytest.raises(ValueError, match="--nearest_vote needs --do_train, or a model that was trained with it"):
        run("never", **again | {"model_name_or_path": tmp_path / "alone"}, nearest_vote=True)
    del flags["validation_file"]
    with pytest.raises(ValueError, match="--nearest_vote needs validation texts"):
        run("unseen", **flags, nearest_vote=True, do_eval=False)


def test_thresholds_are_those_of_the_probabilities_with_the_vote(tmp_path, files, run):
    pytest.importorskip("tantivy")
    flags = files(lambda topic, rng: [] if topic == "law" else ["all", topic])
    flags |= {"do_predict": True, "max_steps": 1, "learning_rate": 1e-6}
    results = run(**flags, nearest_vote=True)
    assert results["eval_micro_f1"] == results["predict_macro_f1"] == 1
    thresholds = json.loads((tmp_path / "output" / "config.json").read_text())["label_thresholds"]
    assert all(0.05 < threshold < 0.95 for threshold in thresholds)


@pytest.mark.parametrize("kind", ["names", "values", "sets"])
def test_a_trained_model_is_evaluated_without_training_data(tmp_path, files, run, kind, model):
    """Its labels count; the scores are the same, but for those of the majority baseline."""
    make = {"names": str, "values": lambda topic: float(len(topic)), "sets": lambda topic: [topic, "all"]}[kind]
    flags = files(lambda topic, _: make(topic)) | {"do_predict": True, "num_train_epochs": 2}
    if kind == "values":
        flags["do_regression"] = True
    trained = run("trained", **flags)
    del flags["train_file"], flags["num_train_epochs"]
    flags |= {"model_name_or_path": tmp_path / "trained", "do_train": False, "do_regression": None}
    flags = {name: value for name, value in flags.items() if value is not None}
    scored = run("scored", **flags)
    names = {name for name in trained if name.startswith(("eval_", "predict_")) and "baseline" not in name}
    names -= {name for name in names if "per_second" in name or "runtime" in name or "time" in name}
    assert {"eval_loss", "predict_loss"} <= names and not any("baseline" in name for name in scored)
    assert {name: scored[name] for name in names} == pytest.approx({name: trained[name] for name in names}, rel=1e-5)
    # A test set without labels needs nothing else.
    texts = [{"text": row["text"]} for row in make_rows(9, lambda *_: "")]
    flags = {name: value for name, value in flags.items() if name != "validation_file"}
    run("predicted", **flags | {"test_file": write_jsonl(tmp_path / "texts.jsonl", texts)}, do_eval=False)
    assert read_label_lines(tmp_path / "predicted") == read_label_lines(tmp_path / "scored")
    with pytest.raises(ValueError, match=r"must be fine-tuned for the task .* is .*MaskedLM"):
        run("other", **flags | {"model_name_or_path": model}, do_eval=False)


def test_labels_keep_the_ids_of_the_model(tmp_path, files, run):
    """Data that list the same labels in another order must not rename what the head predicts."""
    flags = files(lambda topic, rng: topic)
    run("task", **flags)
    names = ["law", "finance", "biology"]  # the model has them sorted
    features = Features(text=Value("string"), label=ClassLabel(names=names))
    for split, count in (("train", 96), ("validation", 24), ("test", 9)):
        rows = make_rows(count, lambda topic, rng: names.index(topic))
        Dataset.from_list(rows, features=features).to_parquet(tmp_path / f"{split}.parquet")
    other = {f"{split}_file": tmp_path / f"{split}.parquet" for split in ("train", "validation", "test")}
    task = {"model_name_or_path": tmp_path / "task"}
    assert run(**task, **other, do_train=False, do_predict=True)["eval_accuracy"] == 1
    gold = [row["label"] for row in make_rows(9, lambda topic, rng: topic)]
    assert read_label_lines(tmp_path / "output") == gold
    assert run(**task, **other, max_steps=1, learning_rate=1e-9)["eval_accuracy"] == 1
    assert json.loads((tmp_path / "output" / "config.json").read_text())["id2label"] == {
        "0": "biology",
        "1": "finance",
        "2": "law",
    }
    ids = {name: str(number) for number, name in enumerate(sorted(names))}
    assert run(**task, **files(lambda topic, rng: ids[topic]), do_train=False)["eval_accuracy"] == 1

    renamed = files(lambda topic, rng: topic.replace("law", "rights"))
    with pytest.raises(ValueError, match=r"must be those of the model \(biology, finance, law\), but rights is none"):
        run(**task, **renamed, do_train=False)
    run(**task, **renamed, num_train_epochs=1)
    assert "rights" in (tmp_path / "output" / "config.json").read_text()


def test_more_epochs_train_further(tmp_path, files, run):
    """A finished run, resumed with more epochs, has steps left."""
    flags = files(lambda topic, rng: topic) | {"save_strategy": "epoch"}
    run("whole", **flags, num_train_epochs=2)
    again = {"resume_from_checkpoint": tmp_path / "whole" / "checkpoint-24"}
    state = tmp_path / "whole" / "trainer_state.json"
    run("whole", **flags, **again, num_train_epochs=2)
    assert json.loads(state.read_text())["global_step"] == 24
    run("whole", **flags, **again, num_train_epochs=3)
    assert json.loads(state.read_text())["global_step"] == 36


def test_fractions_make_a_regression(tmp_path, files, run):
    values = {"biology": 0.0, "law": 0.5, "finance": 1.5}
    results = run(**files(lambda topic, rng: values[topic]), do_predict=True)
    assert results["eval_pearson"] > 0.9 and results["eval_mse"] < 0.1
    lines = (tmp_path / "output" / "predict_results.txt").read_text().splitlines()[1:]
    gold = [row["label"] for row in make_rows(9, lambda topic, rng: values[topic])]
    assert [float(line.split("\t")[1]) for line in lines] == pytest.approx(gold, abs=0.5)


def test_pairs_of_texts_and_whole_numbers_as_labels(tmp_path, files, run):
    def pair(rows, rng):
        """The label says whether the second text is empty: the first alone cannot tell."""
        return [
            {"one": row["text"], "two": row["text"] if (same := rng.random() < 0.5) else None, "same": 10 * same}
            for row in rows
        ]

    rows = {
        split: pair(make_rows(count, lambda topic, rng: 0), random.Random(count))
        for split, count in (("train", 96), ("validation", 24))
    }
    flags = files(lambda topic, rng: 0, **rows)
    results = run(**flags, text_column_names="one,two", label_column_name="same")
    assert results["eval_macro_f1"] == 1
    assert json.loads((tmp_path / "output" / "config.json").read_text())["id2label"] == {"0": "0", "1": "10"}


def make_pairs(count):
    """The label is the topic of the second text: the first alone cannot tell."""
    firsts = [row["text"] for row in make_rows(count, lambda topic, rng: 0)]
    seconds = make_rows(count + 1, lambda topic, rng: topic)
    return [
        {"id": str(number), "text": first, "text_pair": row["text"], "label": row["label"]}
        for number, (first, row) in enumerate(zip(firsts, seconds, strict=False))
    ]


def test_a_pair_is_found_read_and_named_in_the_log(tmp_path, files, run, caplog):
    test = make_pairs(9)
    flags = files(lambda topic, rng: topic, train=make_pairs(96), validation=make_pairs(24), test=test)
    assert run(**flags, do_predict=True)["eval_accuracy"] == 1
    lines = (tmp_path / "output" / "predict_results.txt").read_text().splitlines()
    assert lines[1:] == [f"{row}\t{pair['label']}" for row, pair in enumerate(test)]
    assert [line for line in caplog.messages if line.startswith("Columns")] == ["Columns of text: text + text_pair"]


def test_words_that_the_tokenizer_does_not_know_are_counted(files, run, caplog):
    """Names of compounds are longer than WordPiece reads; the line says what to change."""
    rows = make_rows(24, lambda topic, rng: topic)
    rows = [{"text": f"{row['text']} \u0416 {'methylethyl' * 10}", "label": row["label"]} for row in rows]
    run(**files(lambda topic, rng: topic, train=rows), num_train_epochs=1)
    (line,) = (line for line in caplog.messages if "of the tokens of train are [UNK]" in line)
    assert "Words of more than 100 characters are always unknown" in line and "max_input_chars_per_word" in line


def test_values_far_from_zero_are_named(files, run, caplog):
    """A head learns them in thousands of steps: the score would be that of a constant."""
    run(**files(lambda topic, rng: 1000.5 + 10 * len(topic)), max_steps=1)
    (line,) = (line for line in caplog.messages if line.startswith("The values of label have the mean 1,0"))
    assert "Write (label - 10" in line
    caplog.clear()
    run("small", **files(lambda topic, rng: 0.5 * len(topic)), max_steps=1)
    assert "The values of" not in caplog.text


def test_a_passage_is_not_appended_to_a_pair(tmp_path, files, run, monkeypatch):
    monkeypatch.setattr("hf_domain.training.fine_tuning.load_task_model", lambda *_: pytest.fail("a model is loaded"))
    flags = files(lambda topic, rng: topic, train=make_pairs(8), validation=make_pairs(8))
    with pytest.raises(ValueError, match=r"--append_passage .* but there are text, text_pair. Name one column"):
        run(**flags, append_passage=True, datastore="none")


def test_a_csv_may_have_labels_that_mean_nothing_elsewhere(tmp_path, run):
    names = {"biology": "NA", "law": "None", "finance": "null"}
    files = {}
    for split, count in (("train", 96), ("validation", 24), ("test", 9)):
        rows = make_rows(count, lambda topic, rng: names[topic])
        files[f"{split}_file"] = str(tmp_path / f"{split}.csv")
        lines = [f'"{row["text"]}",{row["label"]}\n' for row in rows]
        (tmp_path / f"{split}.csv").write_text("text,label\n" + "".join(lines))
    assert run(**files, do_predict=True)["eval_accuracy"] == 1
    config = json.loads((tmp_path / "output" / "config.json").read_text())
    assert list(config["label2id"]) == ["NA", "None", "null"]
    with (tmp_path / "validation.csv").open("a") as lines:
        lines.write('"a text of\ntwo lines",NA\n\nlaw,\n')
    with pytest.raises(ValueError, match=r"label is empty in line 29 of .*validation.csv. Label the example or drop"):
        run("again", **files)


def test_test_file_needs_no_labels(tmp_path, files, run):
    unlabeled = [{"text": "court law"}, {"text": "cell gene"}]
    results = run(**files(lambda topic, rng: topic, test=unlabeled), do_predict=True)
    assert not any(name in results for name in ("predict_accuracy", "predict_loss"))
    lines = (tmp_path / "output" / "predict_results.txt").read_text().splitlines()
    assert lines[1:] == ["0\tlaw", "1\tbiology"]


def test_the_examples_that_are_used_have_different_labels(tmp_path, files, run):
    """The first examples of a sorted file have one label; a correlation needs two values."""
    flags = files(
        lambda topic, rng: topic, train=sorted(make_rows(96, lambda topic, rng: topic), key=lambda r: r["label"])
    )
    with pytest.raises(
        ValueError, match=r"label is biology everywhere in train\. .* --max_train_samples takes the fir"
    ):
        run(**flags, max_train_samples=10)
    flags = files(lambda topic, rng: rng.random())
    with pytest.raises(ValueError, match=r"two different values, but label is 0\.\d+ everywhere in validation"):
        run(**flags, max_eval_samples=1)
    assert not (tmp_path / "output" / "config.json").exists()


@pytest.fixture
def general(tmp_path):
    """A general encoder with a tokenizer of its own."""
    return save_tiny_bert(tmp_path / "general", [" ".join(WORDS[::-1]), "and other words"])


def test_memory_with_its_own_tokenizer(tmp_path, files, run, general):
    flags = files(lambda topic, rng: topic) | {"method": "gmap", "memory_name_or_path": general}
    results = run(**flags, do_predict=True, config_overrides="strategy=gated,fusion=gate,hidden_dropout_prob=0.2")
    assert results["eval_accuracy"] == results["predict_accuracy"] == 1
    config = json.loads((tmp_path / "output" / "config.json").read_text())
    assert (config["model_type"], config["strategy"], config["fusion"]) == ("gmap", "gated", "gate")
    assert config["backbone_config"]["hidden_dropout_prob"] == 0.2
    assert (config["memory_tokenizer"], config["memory_name_or_path"]) == ("own", general)
    assert config["id2label"] == {"0": "biology", "1": "finance", "2": "law"}
    again = run("again", **files(lambda topic, rng: topic), model_name_or_path=tmp_path / "output", do_train=False)
    assert again["eval_loss"] == results["eval_loss"]


def test_memory_is_compared_with_the_tokenizer_that_reads(tmp_path, files, run, model):
    other = save_tiny_bert(tmp_path / "other", [" ".join(WORDS[:3])])
    flags = files(lambda topic, rng: topic) | {"method": "gmap", "memory_name_or_path": model, "num_train_epochs": 1}
    run(**flags, tokenizer_name=other)
    assert json.loads((tmp_path / "output" / "config.json").read_text())["memory_tokenizer"] == "own"


@pytest.mark.parametrize("strategy", ["chunk_gated", "logits_fusion"])
def test_memory_states_are_kept(tmp_path, files, run, model, strategy, monkeypatch):
    flags = files(lambda topic, rng: topic) | {"method": "gmap", "memory_name_or_path": model, "num_train_epochs": 2}
    flags |= {"config_overrides": f"strategy={strategy}"}
    plain = run("plain", **flags)
    kept = run("kept", **flags, memory_cache=tmp_path / "states")
    assert kept["eval_loss"] == pytest.approx(plain["eval_loss"], abs=0.05)
    assert {path.name for path in (tmp_path / "states").iterdir()} == {"train", "validation"}
    monkeypatch.setattr("hf_domain.methods.hidden_state_cache.write_shard", lambda *_: pytest.fail("computed again"))
    assert run("again", **flags, memory_cache=tmp_path / "states")["eval_loss"] == kept["eval_loss"]
