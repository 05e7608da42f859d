"""What is scored without any training."""

import json
import sys

import pytest
from script_runs import write_jsonl
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics import f1_score
from sklearn.pipeline import make_pipeline
from sklearn.svm import LinearSVC

from hf_domain.tasks.files import Task
from hf_domain.tasks.trivial_baselines import LINEAR, MAJORITY, NEAREST, score_floors

TOPICS = {"pets": ["cat", "dog", "hamster"], "cars": ["engine", "wheel", "brake"], "food": ["bread", "soup", "rice"]}


@pytest.fixture
def task(tmp_path):
    """Texts whose label depends on a rare word; most of the training texts are of pets."""
    rows = [
        {"text": f"we saw some {word} here {number}", "label": label}
        for label, words in TOPICS.items()
        for word in words
        for number in range(6 if label == "pets" else 3)
    ]
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    return Task(str(tmp_path), "classification", "", "macro_f1")


def test_majority_and_nearest_texts(task, tmp_path):
    gold = [label for label in TOPICS for _ in range(18 if label == "pets" else 9)]
    floors = score_floors(task, {}, tmp_path)
    assert floors[MAJORITY] == pytest.approx(100 * f1_score(gold, ["pets"] * len(gold), average="macro"))
    assert floors[NEAREST] == 100


def test_number_of_voters_is_chosen_on_validation(task, tmp_path):
    """Training labels are wrong for one text in three: the nearest text alone would be wrong as often."""
    words = [word for words in TOPICS.values() for word in words]
    gold = {word: label for label, words in TOPICS.items() for word in words}
    other = {"pets": "cars", "cars": "food", "food": "pets"}

    def make(count, noisy):
        return [
            {"text": f"{word} {word} {number}", "label": other[gold[word]] if noisy and not number % 3 else gold[word]}
            for word in words
            for number in range(count)
        ]

    for split, rows in (("train", make(9, True)), ("validation", make(9, False)), ("test", make(9, False))):
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    assert score_floors(task, {}, tmp_path)[NEAREST] == 100


def test_a_vote_that_cannot_be_scored_is_named(task, tmp_path, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tantivy", None)
    assert score_floors(task, {}, tmp_path).keys() == {MAJORITY, LINEAR}
    (record,) = caplog.records
    assert "a vote of the nearest texts needs tantivy" in record.message and "[datastore]" in record.message


def test_neighbors_without_labels_vote_for_none(tmp_path):
    """They got the majority label instead, and the floor was as low as that."""
    rows = [{"text": f"stone rock {number}", "label": ["geo"]} for number in range(6)]
    rows += [{"text": f"bread soup {number}", "label": []} for number in range(18)]
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    assert score_floors(Task(str(tmp_path), "multi_label", "", "micro_f1"), {}, tmp_path)[NEAREST] == 100


def test_floors_of_other_kinds(tmp_path):
    rows = {
        "ner": {"tokens": ["a", "cat"], "tags": ["O", "B-cat"]},
        "qa": {"id": "1", "context": "a cat", "question": "who?", "answers": {"text": [], "answer_start": []}},
    }
    for kind, expected in (("ner", 0.0), ("qa", 100.0)):
        for split in ("train", "validation", "test"):
            write_jsonl(tmp_path / f"{split}.jsonl", [rows[kind]])
        metric = {"ner": "entity_f1", "qa": "f1"}[kind]
        assert score_floors(Task(str(tmp_path), kind, "", metric), {}, tmp_path) == {MAJORITY: expected}


def test_floors_of_several_labels_and_of_values(task, tmp_path):
    """With several labels the best constant set; with values the mean, which correlates with nothing."""
    rows = [json.loads(line) for line in (tmp_path / "train.jsonl").read_text().splitlines()]
    gold = [[row["label"]] + ["all"] * (row["label"] != "food") for row in rows]
    values = [float(list(TOPICS).index(row["label"])) for row in rows]
    for name, labels, key in (("several", gold, "label"), ("values", values, "score")):
        (tmp_path / name).mkdir()
        for split in ("train", "validation", "test"):
            write_jsonl(tmp_path / name / f"{split}.jsonl", [r | {key: x} for r, x in zip(rows, labels, strict=True)])
    names = ["all", *TOPICS]
    matrix = [[int(name in labels) for name in names] for labels in gold]
    for metric, constant in (("macro_f1", [1, 1, 1, 1]), ("micro_f1", [1, 1, 0, 0])):
        floors = score_floors(Task(str(tmp_path / "several"), "multi_label", "", metric), {}, tmp_path)
        expected = f1_score(matrix, [constant] * len(rows), average=metric.removesuffix("_f1"), zero_division=0)
        assert floors == {MAJORITY: pytest.approx(100 * expected), NEAREST: 100, LINEAR: 100}
    floors = score_floors(Task(str(tmp_path / "values"), "regression", "", "pearson"), {}, tmp_path)
    assert floors == {MAJORITY: 0, NEAREST: pytest.approx(100), LINEAR: pytest.approx(100, abs=0.1)}


def test_words_are_weighed_by_a_linear_model(tmp_path):
    """Scores are those of scikit-learn's own pipeline; a text without words has the most frequent label."""
    rows = [
        {"text": f"{word} is {'not ' * (n % 2)}here {n}", "label": f"{topic}{n % 2}"}
        for topic, words in TOPICS.items()
        for word in words
        for n in range(8)
    ]
    parts = {"train": rows[::2] + rows[1::4], "validation": rows[1::4], "test": rows[3::4]}
    for split, own in parts.items():
        write_jsonl(tmp_path / f"{split}.jsonl", own)
    floors = score_floors(Task(str(tmp_path), "classification", "", "macro_f1"), {}, tmp_path)
    texts = {split: [row["text"] for row in own] for split, own in parts.items()}
    labels = {split: [row["label"] for row in own] for split, own in parts.items()}
    scores = {}
    for strength in (0.1, 1.0, 10.0):
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"\w+")
        model = make_pipeline(words, LinearSVC(C=strength, class_weight="balanced")).fit(
            texts["train"], labels["train"]
        )
        scores[strength] = [f1_score(labels[s], model.predict(texts[s]), average="macro") for s in parts]
    assert floors[LINEAR] == pytest.approx(100 * max(scores.values(), key=lambda own: own[1])[2])
    for split, own in parts.items():
        write_jsonl(tmp_path / f"{split}.jsonl", [row | {"text": "!"} for row in own])
    floors = score_floors(Task(str(tmp_path), "classification", "", "macro_f1"), {}, tmp_path)
    assert floors[LINEAR] == floors[MAJORITY]


@pytest.mark.parametrize(("labels", "score"), [("ab", 100), ("a", 100)])
def test_two_labels_are_enough_to_weigh_words_and_one_is_the_majority(tmp_path, labels, score):
    rows = [{"text": f"word{label} {number}", "label": label} for label in labels for number in range(6)]
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    assert score_floors(Task(str(tmp_path), "classification", "", "macro_f1"), {}, tmp_path)[LINEAR] == score


def test_characters_are_words_of_chinese(tmp_path):
    rows = [{"text": "我们看到一只" + word, "label": word} for word in "猫狗鸟" for _ in range(6)]
    for split in ("train", "validation", "test"):
        write_jsonl(tmp_path / f"{split}.jsonl", rows)
    assert score_floors(Task(str(tmp_path), "classification", "", "macro_f1"), {}, tmp_path)[LINEAR] == 100
