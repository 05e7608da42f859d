"""Which passages texts choose, against a count by hand."""

import pytest
from datasets import Dataset
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

from hf_domain.datastore import build_datastore, nearest
from hf_domain.datastore.nearest import choose_nearest

pytest.importorskip("tantivy")

ANIMALS = [f"cat dog mouse{'x' * (number % 3)} horse{number}" for number in range(20)]
PLANTS = [f"oak elm birch{'x' * (number % 3)} rose{number}" for number in range(20)]


@pytest.fixture
def datastore(tmp_path):
    texts = [*ANIMALS, *PLANTS]
    tokenizer = make_bert_tokenizer([*SENTENCES, *texts])
    return build_datastore(Dataset.from_dict({"text": texts}), tmp_path / "store", tokenizer, max_length=32)


def test_texts_choose_their_own_kind(datastore):
    assert choose_nearest(datastore, ["a cat and a dog"]) == [*range(20)]
    assert choose_nearest(datastore, ["a cat", "an elm"], num_passages=100) == [*range(40)]
    assert choose_nearest(datastore, ["nothing of these"]) == []
    assert 0 not in choose_nearest(datastore, [ANIMALS[0]])  # its own passage teaches nothing new


def test_the_best_of_each_text_comes_first(datastore, monkeypatch):
    """A text with many good passages does not keep another text's best one out."""
    texts = ["horse7 horse8", "cat dog horse7", "elm rose3"]
    ranked = [ids for ids, _ in datastore.search(texts, 50)]
    best = {}
    for ids in ranked:
        for rank, number in enumerate(ids):
            best[number] = min(rank, best.get(number, rank))
    counts = [sum(rank == each for rank in best.values()) for each in range(3)]
    assert counts[0] == 2  # two texts have the same best passage
    length = len(datastore.passages[7]["input_ids"]) - 2
    assert choose_nearest(datastore, texts, length + 1) == [7, 23]
    for rank in range(3):
        chosen = [number for number in best if best[number] <= rank]
        tokens = sum(len(ids) - 2 for ids in datastore.passages.select(chosen)["input_ids"])
        assert choose_nearest(datastore, texts, tokens) == sorted(chosen)
    assert choose_nearest(datastore, texts, 0) == []
    whole = choose_nearest(datastore, texts)
    monkeypatch.setattr(nearest, "READ", 3)  # however many are read at once
    assert choose_nearest(datastore, texts, 10_000) == whole
    assert choose_nearest(datastore, texts, length + 1) == [7, 23]


def test_passages_of_one_rank_come_from_the_whole_corpus(datastore):
    texts = [f"horse{number}" for number in range(20)]
    length = len(datastore.passages[0]["input_ids"]) - 2
    chosen = choose_nearest(datastore, texts, 8 * length)
    assert len(chosen) in (7, 8, 9) and max(chosen) >= 10
    assert chosen == choose_nearest(datastore, texts, 8 * length) == sorted(chosen)
    assert choose_nearest(datastore, texts, num_passages=1) == [*range(20)]
