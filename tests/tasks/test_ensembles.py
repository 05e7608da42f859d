"""What several models say together, against sums by hand."""

import json

import pytest
import torch
from datasets import Dataset, DatasetDict
from script_runs import call_main, save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES
from transformers import AutoModelForSequenceClassification, AutoModelForTokenClassification, AutoTokenizer

import hf_domain
from hf_domain.examples.predict import main
from hf_domain.prediction import predict
from hf_domain.tasks.ensembles import join_predictions

NAMES = {"id2label": {0: "law", 1: "gene", 2: "stock"}, "label2id": {"law": 0, "gene": 1, "stock": 2}}


@pytest.fixture
def save(tmp_path):
    """Save an encoder three times, with the heads of three seeds."""
    encoder = save_tiny_bert(tmp_path / "encoder", SENTENCES)

    def save(auto_class, **options):
        for seed in range(3):
            torch.manual_seed(seed)
            model = auto_class.from_pretrained(encoder, **options)
            torch.nn.init.normal_(model.classifier.weight)
            model.save_pretrained(tmp_path / f"seed-{seed}")
            AutoTokenizer.from_pretrained(encoder).save_pretrained(tmp_path / f"seed-{seed}")
        return [tmp_path / f"seed-{seed}" for seed in range(3)]

    return save


def test_probabilities_are_averaged():
    members = [
        {"prediction": "a", "probabilities": {"a": 0.6, "b": 0.4}},
        {"prediction": "a", "probabilities": {"a": 0.55, "b": 0.45}},
        {"prediction": "b", "probabilities": {"a": 0.05, "b": 0.95}},
    ]
    assert join_predictions(members) == {"prediction": "b", "probabilities": pytest.approx({"a": 0.4, "b": 0.6})}
    assert join_predictions([{"prediction": 1.0}, {"prediction": 2.5}]) == {"prediction": 1.75}
    with pytest.raises(ValueError, match=r"must have the same labels, but they have a, b and a, c\. Leave"):
        join_predictions([members[0], {"prediction": "a", "probabilities": {"a": 0.5, "c": 0.5}}])


def test_of_several_labels_those_of_most_models_are_predicted():
    sets = [["a", "b"], ["a"], ["c", "b"]]
    members = [{"prediction": own, "probabilities": dict.fromkeys("abc", 0.5)} for own in sets]
    assert join_predictions(members)["prediction"] == ["a", "b"]
    assert join_predictions(members[:2])["prediction"] == ["a"]  # half is not most


def test_words_and_answers_go_where_the_probability_is():
    members = [
        {"prediction": ["O", "B-x", "O"], "probabilities": [0.9, 0.4, None]},
        {"prediction": ["O", "B-x", "O"], "probabilities": [0.5, 0.4, None]},
        {"prediction": ["B-x", "O", "O"], "probabilities": [0.8, 0.9, None]},
    ]
    joined = join_predictions(members)
    assert joined == {
        "prediction": ["O", "O", "O"],
        "probabilities": [pytest.approx(1.4 / 3), pytest.approx(0.3), None],
    }
    answers = [("Paris", 0.4), ("Rome", 0.5), ("Paris", 0.3)]
    joined = join_predictions([dict(zip(("prediction", "probabilities"), each, strict=True)) for each in answers])
    assert joined == {"prediction": "Paris", "probabilities": pytest.approx(0.7 / 3)}
    assert join_predictions([{"prediction": [], "probabilities": []}] * 2)["prediction"] == []


def test_models_label_together(save, tmp_path, monkeypatch, capsys):
    models = save(AutoModelForSequenceClassification, **NAMES)
    rows = Dataset.from_dict({"text": SENTENCES[:4], "id": [1, 2, 3, 4]})
    single = [predict(model, rows) for model in models]
    together = hf_domain.predict(models, rows)
    assert together["id"][:] == [1, 2, 3, 4]
    for number, row in enumerate(together):
        means = {name: sum(each[number]["probabilities"][name] for each in single) / 3 for name in NAMES["label2id"]}
        assert row["probabilities"] == pytest.approx(means) and row["prediction"] == max(means, key=means.get)
    assert predict(models[:1], rows)[:] == single[0][:]
    splits = predict(models, DatasetDict(new=rows))
    assert splits["new"][:] == together[:]
    write_jsonl(tmp_path / "rows.jsonl", [*rows])
    capsys.readouterr()
    call_main(main, monkeypatch, models[0], tmp_path / "rows.jsonl", ensemble=models[1:])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("{")]
    assert [json.loads(line)["prediction"] for line in lines] == together["prediction"][:]
    with pytest.raises(ValueError, match="one model or more, but has none"):
        predict([], rows)
    with pytest.raises(ValueError, match=r"must be a folder or a name on the Hub, but \./nowhere is neither"):
        predict([*models, "./nowhere"], tmp_path / "no rows.jsonl")  # before anything is read


def test_taggers_label_together(save):
    models = save(AutoModelForTokenClassification, **NAMES)
    rows = Dataset.from_dict({"tokens": [SENTENCES[0].split(), SENTENCES[1].split()[:3]]})
    single, together = [predict(model, rows) for model in models], predict(models, rows)
    for number, row in enumerate(together):
        assert len(row["prediction"]) == len(row["tokens"])
        for place, tag in enumerate(row["prediction"]):
            votes = [(each[number]["prediction"][place], each[number]["probabilities"][place]) for each in single]
            assert tag in {name for name, _ in votes}
            assert row["probabilities"][place] == pytest.approx(sum(p for name, p in votes if name == tag) / 3)
