"""Labels of raw data are those that the model gives, whatever holds the data."""

import csv
import json
import logging

import datasets
import pandas as pd
import pytest
import torch
import transformers
from datasets import ClassLabel, Dataset
from script_runs import call_main, save_tiny_bert
from tiny_models import make_config
from tiny_tokenizers import SENTENCES, make_tokenizer
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

import hf_domain
from hf_domain.examples.predict import main
from hf_domain.modeling.configuration_rada import RadaConfig
from hf_domain.prediction import format_csv, predict
from hf_domain.tasks import question_answering
from hf_domain.tasks.token_classification import split_words

LABELS = ["biology", "finance", "law"]


@pytest.fixture
def save(tmp_path):
    """Save a tiny encoder with a head whose weights are large enough to prefer a label."""
    encoder = save_tiny_bert(tmp_path / "encoder", SENTENCES)

    def save(auto_class, **options):
        torch.manual_seed(0)
        model = auto_class.from_pretrained(encoder, **options)
        head = model.qa_outputs if hasattr(model, "qa_outputs") else model.classifier
        torch.nn.init.normal_(head.weight)
        model.save_pretrained(tmp_path / "model")
        AutoTokenizer.from_pretrained(encoder).save_pretrained(tmp_path / "model")
        return model.eval(), AutoTokenizer.from_pretrained(tmp_path / "model"), tmp_path / "model"

    return save


@torch.no_grad()
def compute_logits(model, tokenizer, *texts, **options):
    return model(**tokenizer(*texts, return_tensors="pt", **options)).logits[0]


def name_labels(**options):
    return {"id2label": dict(enumerate(LABELS)), "num_labels": len(LABELS), **options}


@pytest.mark.parametrize("problem_type", ["single_label_classification", "multi_label_classification", "regression"])
def test_texts(save, problem_type):
    options = {"num_labels": 1} if problem_type == "regression" else name_labels()
    model, tokenizer, folder = save(AutoModelForSequenceClassification, problem_type=problem_type, **options)
    logits = [compute_logits(model, tokenizer, text) for text in SENTENCES]
    for row, text, scores in zip(predict(folder, SENTENCES, batch_size=3), SENTENCES, logits, strict=True):
        assert row.pop("text") == text
        if problem_type == "regression":
            assert row == {"prediction": pytest.approx(scores.item(), abs=1e-5)}
            continue
        is_single = problem_type == "single_label_classification"
        expected = scores.softmax(-1) if is_single else scores.sigmoid()
        assert row["probabilities"] == pytest.approx(dict(zip(LABELS, expected.tolist(), strict=True)), abs=1e-5)
        several = [name for name, score in zip(LABELS, scores, strict=True) if score > 0]
        assert row["prediction"] == (LABELS[int(scores.argmax())] if is_single else several)


def test_every_form_of_data_and_model(save):
    _, tokenizer, folder = save(AutoModelForSequenceClassification, **name_labels())
    expected = hf_domain.predict(str(folder), SENTENCES).to_list()
    loaded = AutoModelForSequenceClassification.from_pretrained(folder)
    for data in (pd.DataFrame({"text": SENTENCES}), Dataset.from_dict({"text": SENTENCES}), iter(SENTENCES)):
        rows = predict(loaded, data, tokenizer).to_list()
        found = [list(row["probabilities"].values()) for row in rows]
        assert found == [pytest.approx(list(row["probabilities"].values()), abs=1e-6) for row in expected]


def test_both_texts_of_a_pair_are_read(save):
    model, tokenizer, folder = save(AutoModelForSequenceClassification, **name_labels())
    pairs = [{"text": SENTENCES[0], "text_pair": text, "id": "x"} for text in SENTENCES[:3]]
    rows = predict(folder, pairs)
    for row, pair in zip(rows, pairs, strict=True):
        scores = compute_logits(model, tokenizer, pair["text"], pair["text_pair"]).softmax(-1)
        assert list(row["probabilities"].values()) == pytest.approx(scores.tolist(), abs=1e-5)
        assert row["id"] == "x"


def test_the_model_reads_what_it_was_trained_on(save):
    """Columns in the order of the training, if the data have them, and as many tokens."""
    model, tokenizer, folder = save(AutoModelForSequenceClassification, **name_labels())
    row = {"premise": SENTENCES[0], "hypothesis": SENTENCES[1]}
    plain = compute_logits(model, tokenizer, row["premise"], row["hypothesis"]).softmax(-1)[0].item()
    turned = compute_logits(
        model, tokenizer, row["hypothesis"], row["premise"], truncation="longest_first", max_length=9
    )
    config = AutoConfig.from_pretrained(folder)
    config.trained_columns, config.trained_length = ["hypothesis", "premise"], 9
    config.save_pretrained(folder)

    def read(row, **options):
        return predict(folder, [row], **options)[0]["probabilities"][LABELS[0]]

    assert read(row) == pytest.approx(turned.softmax(-1)[0].item(), abs=1e-5)
    assert read(row, text_columns="premise,hypothesis", max_seq_length=128) == pytest.approx(plain, abs=1e-5)
    renamed = {"text": row["premise"], "text_pair": row["hypothesis"]}
    assert read(renamed, max_seq_length=128) == pytest.approx(plain, abs=1e-5)


def test_words_and_texts_are_tagged(save, caplog):
    model, tokenizer, folder = save(AutoModelForTokenClassification, **name_labels())
    text = SENTENCES[0]
    words = split_words(text)
    encoding = tokenizer(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        scores = model(**encoding).logits[0].softmax(-1)
    firsts = [encoding.word_ids().index(number) for number in range(len(words))]
    expected = {
        "prediction": [LABELS[int(scores[first].argmax())] for first in firsts],
        "probabilities": pytest.approx([scores[first].max().item() for first in firsts], abs=1e-5),
    }
    for data in ([text], [{"tokens": words}]):
        (row,) = predict(folder, data)
        assert {name: row[name] for name in expected} == expected and row["tokens"] == words
    long = predict(folder, [{"tokens": ["\u200b", *words * 200, ""]}])[0]  # in windows
    assert long["prediction"][0] == long["prediction"][-1] == "O" and {*long["prediction"][1:-1]} <= {*LABELS}
    assert long["prediction"][1:9] == expected["prediction"][:8]  # far from a cut
    assert "turns 2 words into nothing. Their tag is O" in caplog.text


def test_the_tokenizer_stays_as_it_was():
    """Words of a list are read with a blank before each."""
    tokenizer = make_tokenizer("modernbert")
    config = make_config("modernbert", num_labels=3)
    config.vocab_size = len(tokenizer)
    model = AutoModelForTokenClassification.from_config(config)
    before = tokenizer("domain text")["input_ids"]
    predict(model, [{"tokens": ["domain", "text"]}], tokenizer)
    assert tokenizer("domain text")["input_ids"] == before


def test_a_model_without_a_position_table_has_the_length_that_is_asked_for():
    tokenizer, config = make_tokenizer("modernbert"), make_config("modernbert", num_labels=3)
    config.vocab_size, tokenizer.model_max_length = len(tokenizer), 1024
    model, lengths = AutoModelForTokenClassification.from_config(config), []
    model.register_forward_pre_hook(lambda _, __, inputs: lengths.append(inputs["input_ids"].shape), with_kwargs=True)
    for options in ({}, {"max_seq_length": 1024}):
        predict(model, [{"tokens": ["text"] * 600}], tokenizer, **options)
    assert lengths[0][0] > 1 == lengths[1][0] and lengths[0][1] <= 512 < lengths[1][1]


def test_words_of_texts():
    words = ["Herr", "Müller", "'", "s", "B", "-", "cells", ",", "2024", "."]
    assert split_words("Herr Müller's B-cells, 2024.") == words
    assert split_words("患者 has") == ["患", "者", "has"]
    assert split_words("") == []


def test_questions_are_answered_in_long_contexts(save):
    _, _, folder = save(AutoModelForQuestionAnswering)
    context = " ".join(SENTENCES * 3)
    (row,) = predict(folder, [{"question": "what", "context": context}], max_seq_length=32)
    assert row["prediction"] and row["prediction"] in context
    assert 0 < row["probabilities"] <= 1
    with pytest.raises(ValueError, match="lack context"):
        predict(folder, [{"question": "what"}])


def test_windows_of_a_context_share_as_many_tokens_as_in_training(save, monkeypatch):
    _, _, folder = save(AutoModelForQuestionAnswering)
    config = AutoConfig.from_pretrained(folder)
    config.trained_length, config.trained_stride = 24, 9
    config.save_pretrained(folder)
    seen, tokenize_questions = [], question_answering.tokenize_questions

    def record(*args, **options):
        seen.append((options["max_seq_length"], options["doc_stride"]))
        return tokenize_questions(*args, **options)

    monkeypatch.setattr(question_answering, "tokenize_questions", record)
    rows = [{"question": "where ?", "context": " ".join(SENTENCES)}]
    predict(folder, rows)
    predict(folder, rows, max_seq_length=32)
    assert {*seen} == {(24, 9), (32, 8)}


def test_a_question_has_no_answer_by_the_threshold_of_the_model(save):
    _, _, folder = save(AutoModelForQuestionAnswering)
    rows, config = [{"question": "what", "context": SENTENCES[0]}], AutoConfig.from_pretrained(folder)
    (answered,) = predict(folder, rows)
    found = {}
    for threshold in (-1e9, 1e9):
        config.update({"version_2_with_negative": True, "null_score_diff_threshold": threshold})
        config.save_pretrained(folder)
        (found[threshold],) = predict(folder, rows)
    assert found[-1e9]["prediction"] == "" and found[1e9]["prediction"] == answered["prediction"] != ""
    chances = [row["probabilities"] for row in found.values()]
    assert chances[0] != chances[1] and 0 < sum(chances) < 1  # of two of the twenty candidates


def test_a_memory_with_its_own_tokenizer_reads_too(tmp_path):
    domain, general = (save_tiny_bert(tmp_path / str(number), SENTENCES[number:]) for number in (0, 1))
    torch.manual_seed(0)
    model = hf_domain.GMapForSequenceClassification.from_backbones(domain, general, strategy="gated", **name_labels())
    torch.nn.init.normal_(model.eval().classifier.out_proj.weight)
    own, others = (AutoTokenizer.from_pretrained(name) for name in (domain, general))
    rows = predict(model, SENTENCES[:2], own)
    for row, text in zip(rows, SENTENCES[:2], strict=True):
        read = {f"memory_{name}": values for name, values in others(text, return_tensors="pt").items()}
        read.pop("memory_token_type_ids")
        with torch.no_grad():
            scores = model(**own(text, return_tensors="pt"), **read).logits[0].softmax(-1)
        assert list(row["probabilities"].values()) == pytest.approx(scores.tolist(), abs=1e-5)


def test_a_rada_retrieves_by_itself(tmp_path):
    pytest.importorskip("tantivy")
    from hf_domain.datastore import build_datastore

    encoder = save_tiny_bert(tmp_path / "encoder", SENTENCES)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    build_datastore(SENTENCES, tmp_path / "datastore", tokenizer, max_length=32)
    torch.manual_seed(0)
    model = hf_domain.RadaForSequenceClassification.from_backbone(encoder, **name_labels()).eval()
    torch.nn.init.normal_(model.model.interface.output.weight)  # zeros: a fresh interface reads nothing
    torch.nn.init.normal_(model.classifier.out_proj.weight)
    texts = [" ".join(text.split()[:4]) for text in SENTENCES]
    alone = predict(model, texts, tokenizer)["probabilities"]
    reading = predict(model, texts, tokenizer, datastore=str(tmp_path / "datastore"), num_passages=2)["probabilities"]
    assert max(abs(one["law"] - other["law"]) for one, other in zip(alone, reading, strict=True)) > 1e-3


def test_a_rada_reads_as_many_passages_as_in_fine_tuning(tmp_path, monkeypatch):
    pytest.importorskip("tantivy")
    from hf_domain.datastore import build_datastore, retrieval

    encoder = save_tiny_bert(tmp_path / "encoder", SENTENCES)
    build_datastore(SENTENCES, tmp_path / "datastore", AutoTokenizer.from_pretrained(encoder), max_length=32)
    rows = [{"text": " ".join(text.split()[:4]), "label": number % 2} for number, text in enumerate(SENTENCES)]
    options = {"datastore": str(tmp_path / "datastore"), "output_dir": tmp_path / "task", "method": "rada"}
    options |= {"max_steps": 1, "use_cpu": True, "disable_tqdm": True}
    tuned = hf_domain.fine_tune(encoder, {"train": rows}, num_passages=2, **options)
    assert AutoConfig.from_pretrained(tmp_path / "task").num_passages == 2
    asked, retrieve = [], retrieval._retrieve
    monkeypatch.setattr(
        retrieval, "_retrieve", lambda *args, k, **more: asked.append(k) or retrieve(*args, k=k, **more)
    )
    for model in (tuned.model, tmp_path / "task"):
        for number in (None, 3):
            predict(model, SENTENCES[:2], datastore=options["datastore"], num_passages=number)
    assert asked == [2, 3, 2, 3]  # a number that is given for once is not kept
    call_main(main, monkeypatch, tmp_path / "task", write_rows(tmp_path, rows), datastore=options["datastore"])
    assert asked[4:] == [2]
    # Another fine-tuning keeps the number; a model of an earlier version has 10.
    again = hf_domain.fine_tune(tmp_path / "task", {"train": rows}, **options | {"output_dir": tmp_path / "again"})
    assert "| passages | 2 |" in (tmp_path / "again" / "README.md").read_text(encoding="utf-8")
    assert again.model.config.num_passages == 2 and RadaConfig().num_passages == 10


LABELED = {"text": ["a cat and a dog", "an oak", "the dog and the cat", "some oaks"], "topic": ["animal", "plant"] * 2}


def test_labeled_texts_vote(save, tmp_path, monkeypatch, capsys, caplog):
    pytest.importorskip("tantivy")
    vote = {"count": 2, "weight": 0.25, "label_column": "topic"}
    labels = {"id2label": {0: "plant", 1: "animal"}, "label2id": {"plant": 0, "animal": 1}}
    model, tokenizer, folder = save(AutoModelForSequenceClassification, **labels)
    model.config.problem_type, model.config.trained_columns = "single_label_classification", ["text"]
    own = compute_logits(model, tokenizer, "cats or a dog").softmax(-1)
    model.config.nearest_vote = vote
    model.save_pretrained(folder)
    labeled = Dataset.from_dict(LABELED)
    (row,) = predict(folder, ["cats or a dog"], labeled_texts=labeled)
    assert row["probabilities"]["animal"] == pytest.approx(0.75 * own[1].item() + 0.25, abs=1e-4)
    # The new texts' column has another name than that of the training, which the labeled texts have.
    (other,) = predict(folder, [{"body": "cats or a dog", "note": "none"}], text_columns="body", labeled_texts=labeled)
    assert other["probabilities"] == row["probabilities"]
    of_classes = labeled.cast_column("topic", ClassLabel(names=["animal", "plant"]))  # other ids than the model's
    assert predict(folder, ["cats or a dog"], labeled_texts=of_classes)[0] == row
    file = write_rows(tmp_path, [*labeled])
    call_main(main, monkeypatch, folder, file, labeled_file=file)
    assert sum(line.startswith("{") for line in capsys.readouterr().out.splitlines()) == 4

    with pytest.raises(ValueError, match=r"must have labeled texts, but none are given. .* as labeled_texts"):
        predict(folder, ["a cat"])
    with pytest.raises(ValueError, match="must have the column topic, as in the training, but have text, label"):
        predict(folder, ["a cat"], labeled_texts=labeled.rename_column("topic", "label"))
    with pytest.raises(ValueError, match=r"those of the model \(animal, plant\), but the labeled texts have stone"):
        predict(folder, ["a cat"], labeled_texts=Dataset.from_dict(LABELED | {"topic": ["stone", "plant"] * 2}))
    unused = labeled.cast_column("topic", ClassLabel(names=["animal", "plant", "stone"]))
    assert predict(folder, ["cats or a dog"], labeled_texts=unused)[0] == row
    caplog.clear()
    predict(folder, [*LABELED["text"][:2], "a cat"], labeled_texts=labeled)
    assert "2 of 3 texts are also labeled texts" in caplog.text
    model.config.nearest_vote = vote | {"weight": 0.0}  # validation preferred the model alone
    model.save_pretrained(folder)
    alone = predict(folder, ["cats or a dog"], labeled_texts=labeled)
    assert alone[:] == predict(folder, ["cats or a dog"])[:] and "The labeled texts do not vote" in caplog.text
    model.config.nearest_vote = None
    model.save_pretrained(folder)
    with pytest.raises(ValueError, match="labeled texts need a model that was trained with nearest_vote"):
        predict(folder, ["a cat"], labeled_texts=labeled)


def test_values_and_sets_of_labels_vote_too(save):
    pytest.importorskip("tantivy")
    vote = {"count": 2, "weight": 0.5, "label_column": "label"}
    model, tokenizer, folder = save(AutoModelForSequenceClassification, num_labels=1, problem_type="regression")
    model.config.nearest_vote = vote
    model.save_pretrained(folder)
    labeled = Dataset.from_dict({"text": LABELED["text"], "label": [2.0, -1.0, 2.0, -1.0]})
    own = compute_logits(model, tokenizer, "cats or a dog").item()
    assert predict(folder, ["cats or a dog"], labeled_texts=labeled)["prediction"][0] == pytest.approx(own / 2 + 1)
    model, tokenizer, folder = save(
        AutoModelForSequenceClassification, **name_labels(problem_type="multi_label_classification")
    )
    model.config.nearest_vote = vote
    model.save_pretrained(folder)
    names = [model.config.id2label[number] for number in range(3)]
    sets = [names[:2], [], names[:2], names[1:2]]  # none has the third label
    probabilities = predict(folder, ["cat"], labeled_texts=Dataset.from_dict({"text": LABELED["text"], "label": sets}))
    own = compute_logits(model, tokenizer, "cat").sigmoid()
    expected = 0.5 * own + 0.5 * torch.tensor([1.0, 1.0, 0.0])
    assert [*probabilities["probabilities"][0].values()] == pytest.approx(expected.tolist(), abs=1e-4)


def test_lists_in_csv_are_json(save, tmp_path, monkeypatch):
    words = {"tokens": (" ".join(SENTENCES).split() * 100)[:1200]}
    _, tokenizer, folder = save(AutoModelForTokenClassification, **name_labels())
    tokenizer.model_max_length = 40
    tokenizer.save_pretrained(folder)
    check_csv(tmp_path, folder, [words, {"tokens": ["été"]}], monkeypatch, ["tokens", "prediction", "probabilities"])
    model, _, _ = save(AutoModelForSequenceClassification, **name_labels(problem_type="multi_label_classification"))
    model.config.label_thresholds = [0.05] * 3
    model.save_pretrained(folder)
    check_csv(tmp_path, folder, [{"text": text} for text in SENTENCES], monkeypatch, ["prediction"])


def test_whole_numbers_stay_whole_in_csv():
    """pandas makes a column with an empty cell one of fractions: 7.0, and long ids lose digits."""
    rows = Dataset.from_list([{"id": 9007199254740993, "count": 7}, {"id": None, "count": 8}])
    assert format_csv(rows).splitlines() == ["id,count", "9007199254740993,7", ",8"]


def test_carriage_returns_end_no_row(tmp_path):
    rows = Dataset.from_list([{"text": "the encoder\rreads it", "id": "007"}, {"text": 'a "b"', "id": "008"}])
    (tmp_path / "rows.csv").write_text(format_csv(rows), encoding="utf-8", newline="")
    found = pd.read_csv(tmp_path / "rows.csv", dtype=str)
    assert found["id"].tolist() == ["007", "008"] and found["text"].tolist() == rows["text"][:]


def test_other_columns_are_passed_on(save, tmp_path, monkeypatch):
    """Their types too; what an earlier model said is replaced, and dates have a form in JSON."""
    _, _, folder = save(AutoModelForSequenceClassification, num_labels=1, problem_type="regression")
    columns = {"text": SENTENCES[:2], "label": [0, 1], "probabilities": [{"x": 0.3}] * 2, "prediction": [0.1, 0.2]}
    rows = predict(folder, Dataset.from_dict(columns).cast_column("label", ClassLabel(names=["a", "b"])))
    assert rows.features["label"] == ClassLabel(names=["a", "b"]) and rows["label"][:] == [0, 1]
    assert rows.column_names == ["text", "label", "prediction"] and isinstance(rows["prediction"][0], float)
    file = write_rows(tmp_path, [{"text": text, "date": "2024-05-01"} for text in SENTENCES[:2]])
    call_main(main, monkeypatch, folder, file, output_file=tmp_path / "out.jsonl")
    lines = (tmp_path / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert [json.loads(line)["date"][:10] for line in lines] == ["2024-05-01"] * 2


@pytest.mark.parametrize("tokens", ["['a', 'b']", None])
def test_words_that_are_none_are_refused(save, tokens):
    _, _, folder = save(AutoModelForTokenClassification, **name_labels())
    with pytest.raises(ValueError, match="tokens must be a list of words, but row 0 has"):
        predict(folder, [{"tokens": tokens}])


def check_csv(tmp_path, folder, rows, monkeypatch, lists):
    """Compare the lists of a CSV with those of JSON lines."""
    for name in ("labels.csv", "labels.jsonl"):
        (tmp_path / name).unlink(missing_ok=True)
        call_main(main, monkeypatch, folder, write_rows(tmp_path, rows), output_file=tmp_path / name)
    expected = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text(encoding="utf-8").splitlines()]
    with (tmp_path / "labels.csv").open(encoding="utf-8", newline="") as file:
        found = [{name: json.loads(row[name]) for name in lists} for row in csv.DictReader(file)]
    assert found == [{name: row[name] for name in lists} for row in expected]
    assert any(len(row["prediction"]) > 1 for row in found)


def write_rows(folder, rows):
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return folder / "rows.jsonl"


def test_a_file_gets_no_bars(save, tmp_path, capsys):
    """In a file, each state of a bar is a line. A terminal shows bars."""
    _, _, folder = save(AutoModelForSequenceClassification, **name_labels())
    datasets.enable_progress_bars()
    transformers.utils.logging.enable_progress_bar()

    def call(name, **options):
        (tmp_path / name).write_text("\n".join([name, *SENTENCES]), encoding="utf-8")
        capsys.readouterr()
        predict(folder, tmp_path / name, **options)
        return capsys.readouterr().err

    assert "it/s" not in call("a.txt") and "examples/s" not in call("b.txt")
    assert datasets.is_progress_bar_enabled() and transformers.utils.logging.is_progress_bar_enabled()
    assert "Generating train split" in call("c.txt", progress=True)


def test_command(save, tmp_path, monkeypatch, capsys):
    _, _, folder = save(AutoModelForSequenceClassification, **name_labels())
    (tmp_path / "new.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    expected = predict(folder, SENTENCES).to_list()
    monkeypatch.setattr(logging.getLogger("hf_domain"), "handlers", [])  # of a run of another test in this process
    capsys.readouterr()
    call_main(main, monkeypatch, folder, tmp_path / "new.txt")
    shown = capsys.readouterr()
    assert [json.loads(line)["prediction"] for line in shown.out.splitlines()] == [
        row["prediction"] for row in expected
    ]
    assert not shown.err  # neither bars nor warnings
    call_main(main, monkeypatch, folder, tmp_path / "new.txt", "--verbose")
    assert "100%" in capsys.readouterr().err
    for name in ("labels.csv", "labels.jsonl"):
        call_main(main, monkeypatch, folder, tmp_path / "new.txt", output_file=tmp_path / name)
    table = pd.read_csv(tmp_path / "labels.csv")
    assert list(table.columns) == ["text", "prediction", *(f"probabilities.{label}" for label in LABELS)]
    assert table["probabilities.law"].tolist() == pytest.approx([row["probabilities"]["law"] for row in expected])
    rows = [json.loads(line) for line in (tmp_path / "labels.jsonl").read_text().splitlines()]
    assert [row["prediction"] for row in rows] == [row["prediction"] for row in expected]
    with pytest.raises(FileExistsError, match="Name another"):
        main()
