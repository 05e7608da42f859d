"""A datastore is built of any form of data, and is the same."""

import pandas as pd
import pytest
from datasets import Dataset
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

from hf_domain.datastore import add_passages, build_datastore

pytest.importorskip("tantivy")

QUERIES = [" ".join(sentence.split()[:3]) for sentence in SENTENCES[:2]]


def yield_sentences():
    yield from SENTENCES


def test_every_form_makes_the_same_datastore(tmp_path):
    (tmp_path / "c.txt").write_text("\n".join(SENTENCES), encoding="utf-8")
    dataset = Dataset.from_dict({"text": SENTENCES})
    forms = [dataset, dataset.to_iterable_dataset(), SENTENCES, pd.DataFrame({"text": SENTENCES}), yield_sentences]
    forms += [yield_sentences(), tmp_path / "c.txt", str(tmp_path / "c.txt")]
    built = [
        build_datastore(form, tmp_path / f"datastore-{number}", make_bert_tokenizer(), max_length=64)
        for number, form in enumerate(forms)
    ]
    assert len({datastore.fingerprint for datastore in built}) == 1
    expected = add_passages(Dataset.from_dict({"text": QUERIES}), built[0], "text", k=3).to_list()
    assert all(row["passage_ids"] for row in expected)
    for queries in (QUERIES, pd.DataFrame({"text": QUERIES}), iter(QUERIES)):
        assert add_passages(queries, built[0], "text", k=3).to_list() == expected


def test_the_call_of_a_finished_build_returns_its_datastore(tmp_path):
    """A build may be killed after its last write, and is then repeated."""
    options = {"folder": tmp_path / "datastore", "tokenizer": make_bert_tokenizer()}
    built = build_datastore(SENTENCES, max_length=64, **options)
    again = build_datastore(SENTENCES, max_length=64, **options)
    assert again.fingerprint == built.fingerprint and again.search(QUERIES, 3) == built.search(QUERIES, 3)
    for texts, length in ((SENTENCES[:-1], 64), ([*SENTENCES, "more"], 64), (SENTENCES, 32)):
        with pytest.raises(FileExistsError, match="a datastore must be built in a new folder"):
            build_datastore(texts, max_length=length, **options)
