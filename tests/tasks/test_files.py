"""Problems of the files of a task, and the text that TAPT reads."""

import json

import pytest
from script_runs import write_jsonl

from hf_domain.tasks.files import Task, check_task_files, find_plan_kind, read_predictions, write_task_text
from hf_domain.tasks.outputs import ANSWERS, LABELS, TAGS, format_labels

RIGHT = {
    "classification": {"text": "a cat", "label": "cat"},
    "multi_label": {"text": "a cat", "label": ["cat", "dog"]},
    "regression": {"text": "a cat", "label": "cat", "score": 0.5},
    "ner": {"tokens": ["a", "cat"], "tags": ["O", "B-cat"]},
    "qa": {"id": "1", "context": "a cat", "question": "who?", "answers": {"text": ["cat"], "answer_start": [2]}},
}
OTHER = RIGHT | {
    "qa": RIGHT["qa"] | {"id": "2"},
    "classification": {"text": "a dog", "label": "dog"},
    "multi_label": {"text": "a dog", "label": []},
    "regression": {"text": "a dog", "label": "dog", "score": 1},
}


def check(folder, kind, test, train=None):
    write_jsonl(folder / "train.jsonl", train or [RIGHT[kind], OTHER[kind]])
    (folder / "test.jsonl").write_text(test if isinstance(test, str) else "\n\n".join(map(json.dumps, test)))
    return check_task_files(kind, {"train": "train.jsonl", "test": "test.jsonl"}, folder)


@pytest.mark.parametrize(
    ("kind", "row", "found"),
    [
        ("classification", {"text": "a", "label": 0.5}, "label is 0.5 in line 3 of test.jsonl"),
        ("classification", {"text": "a"}, "label is empty in line 3 of test.jsonl"),
        ("classification", {"text": "a", "label": "x"}, "x does not, first in line 3 of test.jsonl"),
        ("classification", RIGHT["classification"] | {"text_pair": "x"}, "test has text, text_pair"),
        ("multi_label", {"text": "a", "label": "cat"}, "label is 'cat' in line 3 of test.jsonl"),
        ("multi_label", {"text": "a", "label": ["cow"]}, "cow does not, first in line 3 of test.jsonl"),
        ("regression", {"text": "a", "score": "high"}, "score is 'high' in line 3 of test.jsonl"),
        ("regression", {"text": "a", "score": True}, "score is True in line 3 of test.jsonl"),
        ("regression", {"text": "a", "score": float("nan")}, "score is nan in line 3 of test.jsonl"),
        ("regression", {"text": "a", "score": 0.5}, "at least two different values, but score is 0.5"),
        ("ner", {"tokens": ["a"], "tags": ["B-x"]}, "B-x does not, first in line 3 of test.jsonl"),
        ("ner", {"tokens": ["a"], "tags": ["O", "O"]}, "2 tags for 1 words in line 3 of test.jsonl"),
        ("qa", RIGHT["qa"] | {"answers": ["cat"]}, "answers is ['cat'] in line 3 of test.jsonl"),
    ],
)
def test_a_wrong_row_after_a_right_one(tmp_path, kind, row, found):
    (told,) = check(tmp_path, kind, [RIGHT[kind], row])
    assert found in told


@pytest.mark.parametrize(
    ("kind", "labels", "found"),
    [
        ("classification", [0.5, 1.5], "train.jsonl is a regression"),
        ("multi_label", ["a", "b"], "train.jsonl is a single_label_classification"),
        ("regression", ["a", "b"], "label is 'a' in line 1 of train.jsonl"),
    ],
)
def test_labels_of_another_kind(tmp_path, kind, labels, found):
    rows = [{"text": f"a {number}", "label": label} for number, label in enumerate(labels)]
    (told,) = check(tmp_path, kind, [row | {"text": "b"} for row in rows], rows)
    assert found in told


def test_hidden_labels_cannot_be_scored(tmp_path):
    """`fine_tune` predicts such a test set, and leaves it without scores."""
    rows = [{"text": f"a {number}", "label": number} for number in range(2)]
    (told,) = check(tmp_path, "classification", [{"text": "b", "label": -1}], rows)
    assert "-1 in all rows of test.jsonl" in told


@pytest.mark.parametrize("kind", RIGHT)
def test_columns_that_nobody_reads_may_hold_anything(tmp_path, kind):
    rows = [RIGHT[kind] | {"year": 2001, "notes": [1]}, OTHER[kind] | {"year": "n/a", "notes": ["a"]}]
    assert check(tmp_path, kind, rows) == []


@pytest.mark.parametrize(
    ("text", "problem"), [("", "test.jsonl is empty"), ('{"text": "a", "label": "cat"}\n{"te', "test.jsonl, line 2")]
)
def test_empty_and_broken_files(tmp_path, text, problem):
    (told,) = check(tmp_path, "classification", text)
    assert problem in told


def test_text_of_a_task_has_each_text_once(tmp_path):
    rows = [RIGHT["qa"], RIGHT["qa"] | {"question": "what\nis it?"}]
    write_jsonl(tmp_path / "train.jsonl", rows)
    write_task_text("qa", tmp_path / "train.jsonl", tmp_path / "texts" / "task.txt")
    assert (tmp_path / "texts" / "task.txt").read_text() == "a cat\nwho?\nwhat is it?\n"


PAIRS = [
    {"id": "1", "sentence1": "a cat", "sentence2": "a dog", "label": "x"},
    {"id": "2", "sentence1": "a cat", "sentence2": None, "label": "y"},
]


def test_a_pair_is_read_whole(tmp_path):
    assert check(tmp_path, "classification", PAIRS, PAIRS) == []
    rows = [{"sentence1": "a cat", "sentence2": "a dog", "label": "x"}, {"label": "x"}]
    (told,) = check(tmp_path, "classification", rows, PAIRS)
    assert "sentence1 and sentence2 of line 3 of test.jsonl is empty" in told
    for names, expected in ((None, "a cat\na dog\n"), ("sentence2,label", "a dog\nx\ny\n")):
        write_task_text("classification", tmp_path / "train.jsonl", tmp_path / "task.txt", *[names] if names else [])
        assert (tmp_path / "task.txt").read_text() == expected


@pytest.mark.parametrize(
    ("kind", "row", "found"),
    [
        ("classification", RIGHT["classification"], "label is cat everywhere in train"),
        ("ner", {"tokens": ["a"], "tags": ["O"]}, "tags is O everywhere in train"),
        ("ner", {"tokens": ["a", "cat"], "tags": ["Animal", "Place"]}, "none is O: Animal, Place"),
        ("qa", RIGHT["qa"] | {"answers": {"text": [], "answer_start": []}}, "answers, but train has none"),
        ("multi_label", {"text": "a", "label": []}, "label is [] everywhere in train"),
    ],
)
def test_nothing_to_learn(tmp_path, kind, row, found):
    told = check(tmp_path, kind, [row], [row])
    assert any(found in problem for problem in told)


def test_lists_of_zeros_and_ones_are_labels_by_their_position(tmp_path):
    rows = [{"text": "a", "label": label} for label in ([0, 1, 1], [1.0, 0.0, 0.0])]
    assert check(tmp_path, "multi_label", rows[:1], rows) == []
    for label in ([0, 1], [0, 2, 0]):
        (told,) = check(tmp_path, "multi_label", [*rows, {"text": "a", "label": label}], rows)
        assert "must have 3 values of 0 and 1" in told and "in line 5 of test.jsonl" in told
    names = [{"text": "a", "label": label} for label in ([0, 1], [2])]
    assert check(tmp_path, "multi_label", names[:1], names) == []


@pytest.mark.parametrize("kind", RIGHT)
def test_kind_is_found_from_the_columns(tmp_path, kind):
    rows = [RIGHT[kind], OTHER[kind]]
    if kind == "regression":
        rows = [{"text": "a cat", "label": 1}, {"text": "a dog", "label": 1.5}]
        write_jsonl(tmp_path / "scores.jsonl", [{"text": "a cat", "score": 1}])
        assert find_plan_kind("scores.jsonl", tmp_path) == kind
        write_jsonl(tmp_path / "both.jsonl", [{"text": "a cat", "label": "x", "score": 1}])
        assert find_plan_kind("both.jsonl", tmp_path) == "classification"
    write_jsonl(tmp_path / "train.jsonl", rows)
    assert find_plan_kind("train.jsonl", tmp_path) == kind


def test_fractions_beside_scores_may_be_either(tmp_path):
    """A regression reads `score` where there is one, so the fractions were found and the scores predicted."""
    write_jsonl(tmp_path / "both.jsonl", [{"text": "a cat", "label": 0.37, "score": 2}])
    with pytest.raises(ValueError, match="has fractions in label and numbers in score"):
        find_plan_kind("both.jsonl", tmp_path)
    write_jsonl(tmp_path / "named.jsonl", [{"text": "a cat", "label": 0.37, "score": "high"}])
    assert find_plan_kind("named.jsonl", tmp_path) == "regression"


@pytest.mark.parametrize(
    ("kind", "metric", "gold", "file", "text", "score"),
    [
        ("classification", "micro_f1", [0, 1], LABELS, format_labels([0, 0]), 50),
        ("multi_label", "micro_f1", [["x", "y z"], [], [1]], LABELS, format_labels([["x", "y z"], ["x"], []]), 200 / 3),
        ("regression", "pearson", [1, 2.5, 4], LABELS, format_labels([10, 25.0, 40]), 100),
        ("ner", "entity_f1", [["B-x", "O"], ["B-x"]], TAGS, "B-x O\nO\n", 200 / 3),
        ("qa", "exact_match", [{"text": ["b"]}, {"text": ["b"]}], f"predict_{ANSWERS}", '{"0": "b", "1": "a"}', 50),
    ],
)
def test_scores_are_read_from_what_the_commands_leave(tmp_path, kind, metric, gold, file, text, score):
    """A command may predict fewer rows than the file has."""
    column = {"regression": "score", "ner": "tags", "qa": "answers"}.get(kind, "label")
    rows = [{"id": number, "label": "x", column: each} for number, each in enumerate([*gold, gold[0]])]
    write_jsonl(tmp_path / "test.jsonl", rows)
    (tmp_path / file).write_text(text)
    task = Task(str(tmp_path), kind, "pets", metric)
    predictions = read_predictions(task, {"max_predict_samples": str(len(gold))}, tmp_path, tmp_path)
    assert predictions.score().compute() == pytest.approx(score)
