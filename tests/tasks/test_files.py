"""Problems of the files of a task, and the text that TAPT reads."""

import json
import re

import pytest
from script_runs import write_jsonl

from hf_domain.tasks.files import check_task_files, find_kind, find_label_column, write_task_text

RIGHT = {
    "classification": {"text": "a cat", "label": "cat"},
    "multi_label": {"text": "a cat", "label": ["cat", "dog"]},
    "regression": {"text": "a cat", "label": "cat", "score": 0.5},
    "ner": {"tokens": ["a", "cat"], "tags": ["O", "B-cat"]},
    "qa": {"id": "1", "context": "a cat", "question": "who?", "answers": {"text": ["cat"], "answer_start": [2]}},
}

OTHER = RIGHT | {
    "classification": {"text": "a dog", "label": "dog"},
    "multi_label": {"text": "a dog", "label": []},
    "regression": {"text": "a dog", "label": "dog", "score": 1},
}


def check(folder, kind, test, train=None):
    write_jsonl(folder / "train.jsonl", train or [RIGHT[kind], OTHER[kind]])
    (folder / "test.jsonl").write_text(test if isinstance(test, str) else "\n\n".join(map(json.dumps, test)))
    return check_task_files(kind, {"train": "train.jsonl", "test": "test.jsonl"}, folder)


@pytest.mark.parametrize("kind", RIGHT)
def test_right_files(tmp_path, kind):
    assert check(tmp_path, kind, [RIGHT[kind], OTHER[kind]]) == []


@pytest.mark.parametrize(
    ("kind", "row", "problem"),
    [
        (
            "classification",
            {"text": "a", "label": 0.5},
            "a label must be text or a whole number, but is 0.5 in line 3 of test.jsonl",
        ),
        (
            "multi_label",
            {"text": "a", "label": "cat"},
            "a list of texts or of whole numbers, but is cat in line 3 of test.jsonl",
        ),
        ("multi_label", {"text": "a", "label": [["cat"]]}, "a list of texts or of whole numbers, but is .* in line 3"),
        (
            "multi_label",
            {"text": "a", "label": ["cow"]},
            "every label of test.jsonl must occur in train.jsonl, but cow does not",
        ),
        ("multi_label", {"text": "a", "label": [1]}, "must be all texts or all whole numbers, but test.jsonl has both"),
        (
            "regression",
            {"text": "a", "score": "high"},
            "a value must be a finite number, but is high in line 3 of test.jsonl",
        ),
        (
            "regression",
            {"text": "a", "score": True},
            "a value must be a finite number, but is True in line 3 of test.jsonl",
        ),
        ("regression", {"text": "a", "score": None}, "line 3 of test.jsonl lacks score"),
        (
            "regression",
            {"text": "a", "score": float("nan")},
            "a finite number, but is nan in line 3 of test.jsonl",
        ),
        ("regression", {"text": "a", "score": 0.5}, "needs at least two different values, but test.jsonl has only one"),
        ("classification", {"text": "a", "label": None}, "line 3 of test.jsonl lacks label"),
        ("classification", {"text": "a"}, "line 3 of test.jsonl lacks label"),
        (
            "classification",
            {"text": "a", "label": 1},
            "must be all texts or all whole numbers, but test.jsonl has both",
        ),
        (
            "classification",
            {"text": "a", "label": "x"},
            "label of test.jsonl must occur in train.jsonl, but x does not",
        ),
        (
            "ner",
            {"tokens": ["a"], "tags": ["B-x"]},
            "every label of test.jsonl must occur in train.jsonl, but B-x does",
        ),
        ("ner", {"tokens": ["a"], "tags": [1]}, "tags must be a list of texts such as B-gene, but are .* in line 3"),
        ("ner", {"tokens": ["a"], "tags": ["O", "O"]}, "line 3 of test.jsonl has 2 tags for 1 tokens"),
        (
            "classification",
            RIGHT["classification"] | {"text_pair": "x"},
            "must have the same columns of text, but test.jsonl has text, text_pair",
        ),
        (
            "qa",
            RIGHT["qa"] | {"answers": ["cat"]},
            "answers must contain a list of texts as in SQuAD, but are .* in line 3",
        ),
    ],
)
def test_a_wrong_row_after_a_right_one(tmp_path, kind, row, problem):
    (told,) = check(tmp_path, kind, [RIGHT[kind], row])
    assert re.search(problem, told)


@pytest.mark.parametrize(
    ("text", "problem"), [("", "test.jsonl is empty"), ('{"text": "a", "label": "cat"}\n{"te', "line 2 of test.jsonl")]
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
    (told,) = check(tmp_path, "classification", [{"sentence1": "a cat", "label": "x"}, {"label": "x"}], PAIRS)
    assert "line 3 of test.jsonl lacks sentence1, sentence2" in told
    for names, expected in ((None, "a cat\na dog\n"), ("sentence2,label", "a dog\nx\ny\n")):
        write_task_text("classification", tmp_path / "train.jsonl", tmp_path / "task.txt", *[names] if names else [])
        assert (tmp_path / "task.txt").read_text() == expected


@pytest.mark.parametrize(
    ("kind", "row", "problem"),
    [
        ("classification", RIGHT["classification"], "two different labels, but train.jsonl has only cat"),
        ("ner", {"tokens": ["a"], "tags": ["O"]}, "two different labels, but train.jsonl has only O"),
        ("qa", RIGHT["qa"] | {"answers": {"text": [], "answer_start": []}}, "with an answer, but train.jsonl has none"),
        ("multi_label", {"text": "a", "label": []}, "training needs a label, but train.jsonl has none"),
    ],
)
def test_nothing_to_learn(tmp_path, kind, row, problem):
    (told,) = check(tmp_path, kind, [row], [row])
    assert problem in told


def test_lists_of_zeros_and_ones_are_labels_by_their_position(tmp_path):
    rows = [{"text": "a", "label": label} for label in ([0, 1, 1], [1.0, 0.0, 0.0])]
    assert check(tmp_path, "multi_label", rows[:1], rows) == []
    for label, problem in (([0, 1], "must have 3 values of 0 and 1"), ([0, 2, 0], "3 values of 0 and 1")):
        (told,) = check(tmp_path, "multi_label", [*rows, {"text": "a", "label": label}], rows)
        assert problem in told and f"but is {label} in line 5 of test.jsonl" in told
    (told,) = check(tmp_path, "multi_label", rows, rows[:1])
    assert "every label of test.jsonl must occur in train.jsonl, but 0 does not" in told
    names = [{"text": "a", "label": label} for label in ([0, 1], [2])]
    assert check(tmp_path, "multi_label", names[:1], names) == []


@pytest.mark.parametrize("kind", RIGHT)
def test_kind_is_found_from_the_columns(tmp_path, kind):
    rows = [RIGHT[kind], OTHER[kind]]
    if kind == "regression":
        rows = [{"text": "a cat", "label": 1}, {"text": "a dog", "label": 1.5}]
        write_jsonl(tmp_path / "scores.jsonl", [{"text": "a cat", "score": 1}])
        assert find_kind("scores.jsonl", tmp_path) == kind
        assert find_label_column(kind, "scores.jsonl", tmp_path) == "score"
        write_jsonl(tmp_path / "both.jsonl", [{"text": "a cat", "label": "x", "score": 1}])
        assert find_kind("both.jsonl", tmp_path) == "classification"
    write_jsonl(tmp_path / "train.jsonl", rows)
    assert find_kind("train.jsonl", tmp_path) == kind
    assert find_label_column(kind, "train.jsonl", tmp_path) == "label"


def test_fractions_beside_scores_may_be_either(tmp_path):
    """A regression reads `score` where there is one, so the fractions were found and the scores predicted."""
    write_jsonl(tmp_path / "both.jsonl", [{"text": "a cat", "label": 0.37, "score": 2}])
    with pytest.raises(ValueError, match="has fractions in label and numbers in score"):
        find_kind("both.jsonl", tmp_path)
    write_jsonl(tmp_path / "named.jsonl", [{"text": "a cat", "label": 0.37, "score": "high"}])
    assert find_kind("named.jsonl", tmp_path) == "regression"


def test_tags_of_entities_alone_are_a_problem(tmp_path):
    """The command would refuse them after the pre-training."""
    row = {"tokens": ["a", "cat"], "tags": ["Animal", "Place"]}
    (told,) = check(tmp_path, "ner", [row | {"tokens": ["the", "cat"]}], train=[row])
    assert told.startswith("train.jsonl: tags must be B-X and I-X, or X alone")
