"""Which columns are read."""

import pytest
from datasets import Dataset

from hf_domain.data.columns import (
    PAIRS,
    find_document_columns,
    find_split_columns,
    find_text_columns,
    warn_of_shared_rows,
)


def make_dataset(*columns, **others):
    return Dataset.from_dict({name: ["some text"] for name in columns} | others)


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_pairs_are_found_among_labels_and_ids(pair):
    others = ("label", "gold_label", "label_text", "id", "doc_id", "pairID", "idx")
    dataset = make_dataset(*others, *reversed(pair), year=[1], words=[["a"]])
    assert find_text_columns(dataset, label_column="label") == find_document_columns(dataset) == list(pair)
    assert find_document_columns(dataset.to_iterable_dataset()) == list(pair)


def test_known_names_win_over_all_others(caplog):
    """A file of the web has an author and a date beside its text."""
    caplog.set_level("INFO")
    for known, others in (
        (["text"], ["author", "date"]),
        (["text"], ["url"]),
        (["text"], ["title", "sentence1", "sentence2"]),
        (["premise", "hypothesis"], ["sentence", "genre"]),
        (["sentence"], ["source"]),
    ):
        splits = {"train": make_dataset("id", *others, *known, "label")}
        assert find_split_columns(splits, "label") == known
        assert caplog.messages[-1] == f"Columns of text: {' + '.join(known)}; ignored: {', '.join(others)}"
    with pytest.raises(ValueError, match="test has text, text_pair, and train has text"):
        find_split_columns({"train": make_dataset("text"), "test": make_dataset("text", "text_pair")}, "label")


def test_one_column_is_found():
    assert find_text_columns(make_dataset("abstract", "topic", year=[1]), label_column="topic") == ["abstract"]
    assert find_text_columns(make_dataset("text", "id", empty=[None])) == ["text"]
    assert find_text_columns(make_dataset("key", year=[1])) == ["key"]
    assert find_document_columns(make_dataset("text", "title", "url")) == ["text"]


def test_the_columns_of_a_corpus_are_logged(caplog):
    caplog.set_level("INFO")
    for columns in (("body",), ("text", "id"), ("text", "title"), ("text",)):
        find_document_columns(make_dataset(*columns))
    said = ["body", "text", "text; ignored: title"]  # not the only column of a .txt file
    assert caplog.messages == [f"Columns of text: {columns}" for columns in said]


def test_rows_that_are_trained_and_scored_are_counted(caplog):
    texts = ["a", "b", "c", "a"]
    splits = {
        "train": Dataset.from_dict({"text": texts, "words": [[text] for text in texts]}),
        "validation": Dataset.from_dict({"text": ["d", "e"], "words": [["a"], ["e"]]}),
        "test": Dataset.from_dict({"text": ["b", "d", "c"], "words": [["b"], ["a", "b"], ["c"]]}),
    }
    warn_of_shared_rows(splits, ["text"])
    (line,) = caplog.messages
    assert line.startswith("2 of 3 rows of test are also rows of train")
    warn_of_shared_rows(splits, ["words"])
    warn_of_shared_rows(splits, ["text", "words"])
    counts = [line.partition(" are")[0] for line in caplog.messages]
    assert counts[1:] == ["1 of 2 rows of validation", "2 of 3 rows of test", "2 of 3 rows of test"]


@pytest.mark.parametrize(
    ("columns", "names", "message"),
    [
        (("title", "body"), None, "the choice is unclear: title, body. .* --text_column_names title"),
        ((), None, r"must have a column of text, but none of year \(int64\) is text"),
        (("text",), "text,text", "two different ones, as first,second, but is text,text"),
        (("text",), "a,b,c", "two different ones, as first,second, but is a,b,c"),
        (("text",), "year", "name columns of text, but year contains int64"),
        (("text",), "text, body", ".text, year., but names body"),
    ],
)
def test_what_does_not_decide_is_refused(columns, names, message):
    with pytest.raises(ValueError, match=message):
        find_text_columns(make_dataset(*columns, year=[1]), names)
