"""Tables from data in every form that a person holds it in."""

import json
from pathlib import Path

import pandas as pd
import pytest
from datasets import Dataset, DatasetDict, IterableDataset
from tiny_tokenizers import SENTENCES

from hf_domain.data.files import load_rows, load_table


def yield_sentences():
    yield from SENTENCES


def yield_rows():
    yield from ({"text": sentence} for sentence in SENTENCES)


def write_file(folder):
    (folder / "c.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    return folder / "c.txt"


FORMS = {
    "path": write_file,
    "glob": lambda folder: f"{write_file(folder).parent}/*.txt",
    "tuple of texts": lambda _: tuple(SENTENCES),
    "rows": lambda _: list(yield_rows()),
    "generator of rows": lambda _: yield_rows(),
    "generator": lambda _: yield_sentences(),
    "DataFrame with an index": lambda _: pd.DataFrame({"text": SENTENCES}, index=range(5, 5 + len(SENTENCES))),
    "Series": lambda _: pd.Series(SENTENCES),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_the_same_table(form, tmp_path):
    """test_entry_points.py has the forms that the documentation lists."""
    assert [row["text"] for row in load_rows(FORMS[form](tmp_path))] == SENTENCES


def test_rows_may_lack_columns_of_later_rows(tmp_path):
    """They have None there, as rows of a file; datasets alone would drop the column of all rows."""
    rows = [{"text": "a", "label": 0}, {"text": "b", "text_pair": "c", "label": 1}]
    expected = [{"text": "a", "label": 0, "text_pair": None}, {"text": "b", "label": 1, "text_pair": "c"}]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert list(load_rows(rows)) == list(load_rows(iter(rows))) == list(load_rows(tmp_path / "rows.jsonl")) == expected
    stream = IterableDataset.from_generator(lambda: iter(rows))
    assert list(load_table(stream)) == expected


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        ([], ValueError, "data must contain at least one example, but is empty"),
        (pd.DataFrame({"text": []}), ValueError, "at least one example"),
        (["a.txt", "b.jsonl.gz"], FileNotFoundError, "must be texts or existing files, but data lists a.txt"),
        (["a", Path("b.txt")], TypeError, "item 1 is the path b.txt"),
        (["a", None], TypeError, "item 1 is None"),
        ([["a", 1]], TypeError, r"item 0 is \['a', 1\]"),
        (["fine", "half \ud83d of one"], ValueError, r"data must be text .* has half of a character"),
        ([{"text": "a", "label": "\udc00"}], ValueError, "has half of a character"),
        ({"text": ["a"]}, TypeError, "but has the type dict"),
        (5, TypeError, "but has the type int"),
        (None, TypeError, "but has the type NoneType"),
        (pd.DataFrame({"text": ["a", 1]}), ValueError, "values of one type"),
        ([{"text": "a", "label": 10**30}], ValueError, "int too large"),
        (DatasetDict(train=Dataset.from_dict({"text": ["a"]})), TypeError, "one split, but is a DatasetDict of train"),
    ],
    ids=str,
)
def test_objects_without_data_are_refused(data, error, message):
    with pytest.raises(error, match=message):
        load_rows(data)
