"""Labels: their kind, and which there are."""

import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value

from hf_domain.tasks.labels import find_ids, find_labels, find_problem_type, name_multi_hot


def make_splits(**columns):
    return DatasetDict({split: Dataset.from_dict({"label": labels}) for split, labels in columns.items()})


def test_labels_are_those_of_train_sorted():
    assert find_labels(make_splits(train=["b", "a", "b"], validation=["a"]), "label") == (["a", "b"], {"a": 0, "b": 1})
    assert find_labels(make_splits(train=[10, 9]), "label") == (["9", "10"], {9: 0, 10: 1})
    names, ids = find_labels(make_splits(train=[["b"], [], ["c", "a"]]), "label")
    assert names == ["a", "b", "c"] and ids == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize("nested", [False, True])
def test_declared_labels_keep_their_order(nested):
    label = ClassLabel(names=["z", "y", "x"])
    features = Features({"label": List(label) if nested else label})
    dataset = Dataset.from_dict({"label": [[0, 2]] if nested else [0, 2]}, features=features)
    assert find_labels(DatasetDict(train=dataset), "label") == (["z", "y", "x"], {0: 0, 1: 1, 2: 2})


def test_labels_that_train_lacks_are_reported():
    with pytest.raises(ValueError, match="every label of test must occur in train, which has a, b, but c, d does not"):
        find_labels(make_splits(train=["a", "b"], validation=["a"], test=["d", "b", "c"]), "label")
    with pytest.raises(ValueError, match="label is empty in example 1 of validation"):
        find_labels(make_splits(train=["a", "b"], validation=["a", None]), "label")
    unlabeled = DatasetDict(train=Dataset.from_dict({"label": ["a"]}), test=Dataset.from_dict({"text": ["x"]}))
    assert find_labels(unlabeled, "label") == (["a"], {"a": 0})


def test_ids_are_found_by_name():
    assert find_ids(None, ["a", "b"]) == []
    assert find_ids("b,a", ["a", "b"]) == [1, 0]
    with pytest.raises(ValueError, match=r"labels of the data .a, b., but names c"):
        find_ids("c", ["a", "b"])


def test_values_of_other_types_stay_apart():
    dataset = Dataset.from_dict({"label": ["1", "2"]}, features=Features({"label": Value("string")}))
    assert find_labels(DatasetDict(train=dataset), "label")[1] == {"1": 0, "2": 1}


@pytest.mark.parametrize(
    ("label", "do_regression", "multi_label", "problem_type"),
    [
        ("a", None, None, "single_label_classification"),
        (1, None, None, "single_label_classification"),
        (0.5, None, None, "regression"),
        (0.5, False, None, "single_label_classification"),
        (1, True, None, "regression"),
        (["a"], None, None, "multi_label_classification"),
        (["a"], False, True, "multi_label_classification"),
    ],
)
def test_problem_type_follows_labels_and_settings(label, do_regression, multi_label, problem_type):
    dataset = Dataset.from_dict({"label": [label]})
    assert find_problem_type(dataset, "label", do_regression, multi_label) == problem_type


def test_lists_written_as_text_are_no_names():
    """A .csv file cannot hold lists: each combination of labels would be a class."""
    dataset = Dataset.from_dict({"label": ['["a", "b"]', None, '["a"] ']})
    with pytest.raises(ValueError, match=r'such as \["a", "b"\]\. Write JSON lines, .* or set --multi_label false'):
        find_problem_type(dataset, "label", None, None)
    assert find_problem_type(dataset, "label", None, False) == "single_label_classification"
    dataset = Dataset.from_dict({"label": ["[a]", "b"]})
    assert find_problem_type(dataset, "label", None, None) == "single_label_classification"


@pytest.mark.parametrize("kind", [int, float, bool])
def test_rows_of_zeros_and_ones_are_several_labels(kind):
    def read(*lists, names=None, feature=None):
        labels = [None if row is None else [kind(value) for value in row] for row in lists]
        features = feature and Features(text=Value("string"), label=feature)
        rows = Dataset.from_dict({"text": ["a"] * len(labels), "label": labels}, features=features)
        return name_multi_hot(DatasetDict(train=rows), "label", names)["train"]["label"][:]

    assert read(None, [1, 0, 0], [0, 1, 1]) == [None, ["0"], ["1", "2"]]
    assert read([1, 0, 0], [0, 1, 1], names=["a", "b", "c"]) == [["a"], ["b", "c"]]
    if kind is int:
        feature = List(ClassLabel(names=["x", "y", "z"]))
        assert read([1, 0, 0], [0, 1, 1], feature=feature) == [["x"], ["y", "z"]]
    assert read([1, 0], [0, 1], [0, 0]) == [["0"], ["1"], []]
    for lists in ([[1], [0], [1]], [[1, 0], [0], []], [[0, 1], []]):  # names of labels
        assert read(*lists) == lists
    with pytest.raises(ValueError, match="a name for each of the 2 values of label, but has 1: a"):
        read([0, 1], [1, 0], names=["a"])


def test_twins_among_labels_are_named_once(caplog):
    rows = Dataset.from_dict({"label": ["yes", "yes ", "Yes", "no", "caf\u00e9", "cafe\u0301"]})
    names, _ = find_labels(DatasetDict(train=rows), "label")
    (line,) = caplog.messages
    assert len(names) == 6 and "'Yes', 'yes', 'yes '; 'cafe\\u0301', 'caf\\xe9'. Give them one spelling" in line
