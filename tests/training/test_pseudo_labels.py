"""Texts that a model labeled, beside those with labels of people."""

import json
from types import SimpleNamespace

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from hf_domain.tasks.labels import name_example, read_labels
from hf_domain.training.arguments import ClassificationArguments, ModelArguments
from hf_domain.training.pseudo_labels import add_pseudo_labels


def write_predictions(file, predictions, **columns):
    """Write what `hf-domain predict` writes: the columns of the texts, predictions and their probabilities."""
    rows = [
        {"text": f"new text {number}", **columns, "prediction": prediction, "probabilities": {"any": 1.0}}
        for number, prediction in enumerate(predictions)
    ]
    file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    return str(file)


def add(file, labels, does_train=True, feature=None, test=("a test text",), **options):
    """Return the training rows with those of a file."""
    texts = [f"old text {number}" for number in range(len(labels))]
    train = Dataset.from_dict({"id": [*range(len(labels))], "text": texts, "label": labels})
    if feature is not None:
        train = train.cast(Features({**train.features, "label": feature}))
    splits = DatasetDict(train=train, test=Dataset.from_dict({"text": [*test]}))
    kinds = (options.get("do_regression"), options.get("multi_label"))
    _, names, ids = read_labels(splits, "label", *kinds, name_example)
    args = (ModelArguments("none"), ClassificationArguments(pseudo_labeled_file=file, **options))
    added, count = add_pseudo_labels(splits, *args, SimpleNamespace(do_train=does_train), ["text"], names, ids)
    assert count == len(labels)
    return added


@pytest.mark.parametrize(
    ("labels", "predictions", "expected", "feature"),
    [
        (["yes", "no"], ["no", "yes", "no"], ["no", "yes", "no"], None),
        ([3, 7], ["7", "3"], [7, 3], None),
        ([True, False], ["False"], [False], None),
        ([1, 0], ["spam", "ham"], [0, 1], ClassLabel(names=["spam", "ham"])),
        ([["a"], ["b", "c"], []], [["c", "a"], []], [["c", "a"], []], None),
        ([[0], [1]], [["x"], ["y", "x"]], [[1], [0, 1]], List(ClassLabel(names=["y", "x"]))),
        ([0.5, 2.0], [1.25, -1.0], [1.25, -1.0], None),
    ],
)
def test_predictions_become_values_of_the_label_column(tmp_path, labels, predictions, expected, feature):
    file = write_predictions(tmp_path / "more.jsonl", predictions, id=5)
    added = add(file, labels, feature=feature)["train"]
    assert added["label"][:] == labels + expected
    assert added["text"][:] == [f"old text {number}" for number in range(len(labels))] + [
        f"new text {number}" for number in range(len(predictions))
    ]
    assert added.column_names == ["text", "label"]


def test_whole_numbers_of_a_regression_do_not_cut_predictions(tmp_path):
    file = write_predictions(tmp_path / "more.jsonl", [1.5])
    train = add(file, [1, 4], do_regression=True)["train"]
    assert train["label"][:] == [1.0, 4.0, 1.5] and train.features["label"] == Value("float64")


def test_other_splits_stay_and_without_a_file_all_do(tmp_path):
    file = write_predictions(tmp_path / "more.jsonl", ["no"])
    assert add(file, ["yes", "no"])["test"]["text"][:] == ["a test text"]
    assert add(None, ["yes", "no"])["train"]["id"][:] == [0, 1]
    assert add(None, ["yes", "no"], does_train=False)["train"]["id"][:] == [0, 1]


def test_numbers_of_a_csv_file_fit_but_its_lists_do_not(tmp_path):
    file = tmp_path / "more.csv"
    file.write_text("text,prediction\nnew text,7\n")
    assert add(str(file), [3, 7])["train"]["label"][:] == [3, 7, 7]
    file.write_text("text,prediction\nnew text,2\n")
    assert add(str(file), [0.5, 1.0])["train"]["label"][:] == [0.5, 1.0, 2.0]
    file.write_text('text,prediction\nnew text,"[""a""]"\n')
    with pytest.raises(ValueError, match=r"must be a list of a, b, .*more.csv.* is '\[\"a\"\]'.*write .jsonl"):
        add(str(file), [["a"], ["b"]])


@pytest.mark.parametrize(
    ("labels", "predictions", "message"),
    [
        (["yes", "no"], ["no", "maybe"], "must be one of no, yes, as in the .* that of .*line 2.*'maybe'"),
        (["yes", "no"], [["no"]], r"must be one of no, yes.* is \['no'\]"),
        ([["a"], ["b"]], ["a"], "must be a list of a, b.* is 'a'"),
        ([0.5, 1.0], ["high"], "must be a number.* is 'high'"),
        ([0.5, 1.0], [True], "must be a number.* is True"),
        ([0.5, 1.0], [0.25, float("inf")], "must be a number.* line 2.* is inf"),
        (["None", "no"], ["no", None], "must be one of None, no.* line 2.* is None"),
        ([["None"], ["b"]], [["b", None]], "must be a list of None, b.* is .*None"),
    ],
)
def test_a_prediction_of_another_task_is_an_error(tmp_path, labels, predictions, message):
    with pytest.raises(ValueError, match=message):
        add(write_predictions(tmp_path / "more.jsonl", predictions), labels)


def test_files_that_cannot_be_trained_on_are_errors(tmp_path):
    file = tmp_path / "more.jsonl"
    file.write_text('{"text": "new", "label": "no"}\n')
    with pytest.raises(ValueError, match=r"must have the column prediction, but .*more.jsonl has text, label"):
        add(str(file), ["yes", "no"])
    file.write_text('{"text": " ", "prediction": "no"}\n')
    with pytest.raises(ValueError, match=r"every example must have a text, but text of .*line 1.* is empty"):
        add(str(file), ["yes", "no"])
    write_predictions(file, ["no"])
    with pytest.raises(ValueError, match="--pseudo_labeled_file needs a training"):
        add(str(file), ["yes", "no"], does_train=False)
    file.write_text('{"text": 7, "prediction": "no"}\n')
    with pytest.raises(ValueError, match=r"--pseudo_labeled_file must name columns of text, but text contains"):
        add(str(file), ["yes", "no"])
    write_predictions(file, ["no"])
    with pytest.raises(ValueError, match=r"test_file must not be trained on, .* is also a pseudo_labeled_file"):
        add(str(file), ["yes", "no"], test_file=str(file))


def test_texts_of_the_test_set_are_told(tmp_path, caplog):
    file = write_predictions(tmp_path / "more.jsonl", ["no", "yes"])
    add(file, ["yes", "no"])
    assert "may be too good" not in caplog.text
    add(file, ["yes", "no"], test=["new text 1", "another"])
    assert f"1 of 2 rows of test are also rows of {file}: the score may be too good" in caplog.text


def test_a_model_that_was_fine_tuned_before_keeps_the_order_of_its_labels(tmp_path):
    splits = DatasetDict(train=Dataset.from_dict({"text": ["one", "two"], "text_pair": ["a", "b"], "label": [4, 9]}))
    file = write_predictions(tmp_path / "more.jsonl", ["4", "9"], text_pair="new")
    args = (ModelArguments("none"), ClassificationArguments(pseudo_labeled_file=file), SimpleNamespace(do_train=True))
    added, _ = add_pseudo_labels(splits, *args, ["text", "text_pair"], ["9", "4"], {9: 0, 4: 1})
    assert added["train"][2:] == {"text": ["new text 0", "new text 1"], "text_pair": ["new"] * 2, "label": [4, 9]}
