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


def test_every_form_makes_the_same_datastore(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
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
