import logging
import random

import pytest
from datasets import Dataset, DatasetDict, Features, List, Value
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

from hf_domain.datastore import Datastore, add_passages, build_datastore
from hf_domain.datastore.retrieval import join_words

pytest.importorskip("tantivy")

generator = random.Random(0)
WORDS = [f"word{number}" for number in range(40)]
TEXTS = [" ".join(generator.choices(WORDS, k=15)) for _ in range(60)]


@pytest.fixture
def datastore(tmp_path):
    tokenizer = make_bert_tokenizer([*SENTENCES, *TEXTS])
    return build_datastore(Dataset.from_dict({"text": TEXTS}), tmp_path / "store", tokenizer, max_length=64)


def test_columns(datastore):
    queries = Dataset.from_dict({"text": ["word1 word2 word3", "nothing", "", None], "label": [1, 2, 3, 4]})
    found = add_passages(queries, datastore, "text", k=4)
    assert found.features == Features(
        {**queries.features, "passage_ids": List(Value("int64")), "passage_scores": List(Value("float32"))}
    )
    ((ids, scores),) = datastore.search(["word1 word2 word3"], 4)
    assert found[0] == queries[0] | {"passage_ids": ids, "passage_scores": pytest.approx(scores)}
    assert found["passage_ids"][1:] == [[], [], []] == found["passage_scores"][1:]
    assert len(ids) == 4 and scores == sorted(scores, reverse=True)
    assert len(add_passages(queries, datastore, "text")[0]["passage_ids"]) == 10


def read_messages(caplog):
    """What this package told; an earlier test may have made others talkative."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("hf_domain")]


def test_a_row_never_finds_itself(datastore, caplog):
    rows = Dataset.from_dict({"text": TEXTS[:20]})
    with caplog.at_level(logging.INFO, "hf_domain"):
        found = add_passages(DatasetDict(train=rows, test=rows.select(range(5))), datastore, "text", k=5)
    for number, row in enumerate(found["train"]):
        ((expected, _),) = datastore.search([row["text"]], 6)
        assert expected[0] == number
        assert row["passage_ids"] == expected[1:]
    told = {r.levelname: r.getMessage() for r in caplog.records if r.name.startswith("hf_domain")}
    assert "train: 20 of 20 texts are in the datastore" in told["INFO"]
    assert "test: 5 of 5 texts are in the datastore" in told["WARNING"]


def test_pieces_of_a_long_row_are_itself(datastore):
    long = " . ".join([TEXTS[0], " ".join(generator.choices(WORDS, k=300))])
    assert datastore.add(Dataset.from_dict({"text": [long]})) > 3
    pieces = set(range(60, len(datastore.passages)))
    ids = add_passages(Dataset.from_dict({"text": [long]}), datastore, "text", k=30)[0]["passage_ids"]
    assert len(ids) == 30 and not pieces & set(ids)
    assert pieces & set(datastore.search([long], 30)[0][0])


def test_pairs_are_itself_joined_and_apart(datastore):
    pairs = Dataset.from_dict({"one": [TEXTS[0], "word1", "alone"], "two": ["word2", TEXTS[3], TEXTS[4]]})
    datastore.add(Dataset.from_dict({"text": [f"{TEXTS[0]} word2", "unrelated text"]}))
    found = add_passages(pairs, datastore, ["one", "two"], k=61)["passage_ids"][:]
    assert not {0, 60} & set(found[0]) and 3 not in found[1] and 4 not in found[2]
    assert found[0] == [number for number in datastore.search([f"{TEXTS[0]} word2"], 62)[0][0] if number not in (0, 60)]


@pytest.mark.parametrize("k", [1, 5, 49])
def test_passages_inside_a_text_are_itself(datastore, caplog, k):
    cased = [f"{TEXTS[0]}.".upper(), TEXTS[1].replace(" ", " - ", 1), *TEXTS[2:12]]
    block = " \u201cwörd\u201d ".join(cased)  # as one that was packed of documents and decoded again
    datastore.add(Dataset.from_dict({"text": ["too short", "Wörd " * 11]}))
    own = {*range(12), 61}
    rows = Dataset.from_dict({"text": [f"{block} too short {'word ' * 11}", "word1 word2"]})
    with caplog.at_level(logging.INFO, "hf_domain"):
        found = add_passages(DatasetDict(train=rows, test=rows), datastore, "text", k=k)
    assert found["train"]["passage_ids"][:] == found["test"]["passage_ids"][:]
    row = found["test"][0]
    ((ids, scores),) = datastore.search([rows[0]["text"]], 62)
    expected = [(number, score) for number, score in zip(ids, scores, strict=True) if number not in own][:k]
    assert row["passage_ids"] == [number for number, _ in expected] and len(expected) == k
    assert row["passage_scores"] == pytest.approx([score for _, score in expected])
    assert 60 in row["passage_ids"] or k < 49  # two words occur in others by chance
    told = {r.levelname: r.getMessage() for r in caplog.records if r.name.startswith("hf_domain")}
    assert "train: 1 of 2 texts are in the datastore" in told["INFO"]
    assert "test: 1 of 2 texts are in the datastore" in told["WARNING"]


def test_text_inside_a_passage_that_is_not_its_best_is_reported(datastore, caplog):
    words = TEXTS[7].split()[3:]
    datastore.add(Dataset.from_dict({"text": [" ".join(generator.sample(words, len(words))) for _ in range(3)]}))
    rows = DatasetDict(test=Dataset.from_dict({"text": [" ".join(words)]}))
    for k, levels in ((3, []), (4, ["WARNING"])):
        caplog.clear()
        assert add_passages(rows, datastore, "text", k=k)["test"][0]["passage_ids"] == [60, 61, 62, 7][:k]
        assert [r.levelname for r in caplog.records if "1 of 1 texts are in" in r.getMessage()] == levels


def test_text_inside_a_longer_passage_is_reported_and_kept(datastore, caplog):
    inside, short = " ".join(TEXTS[7].split()[2:]), " ".join(TEXTS[8].split()[2:5])
    rows = Dataset.from_dict({"text": [inside.upper(), short, " ".join(reversed(WORDS[:12]))]})
    found = add_passages(rows, datastore, "text")
    assert found[0]["passage_ids"][0] == 7
    assert [message.partition(" texts")[0] for message in read_messages(caplog)] == ["dataset: 1 of 3"]


def test_words_are_texts(datastore):
    tokens = Dataset.from_dict({"tokens": [["word1", "word2"], []]})
    text = Dataset.from_dict({"text": ["word1 word2", ""]})
    assert (
        add_passages(tokens, datastore, "tokens")["passage_ids"][:]
        == add_passages(text, datastore, "text")["passage_ids"][:]
    )
    assert join_words(["合", "同", "law", "of", "法"]) == "合同 law of 法"


def test_processes_and_cache(datastore, tmp_path):
    rows = Dataset.from_dict({"text": TEXTS[:30]})
    rows.save_to_disk(tmp_path / "rows")
    rows = Dataset.load_from_disk(tmp_path / "rows")
    one = add_passages(rows, datastore, "text", k=3)
    two = add_passages(rows, datastore, "text", k=3, num_proc=2)
    assert one["passage_ids"][:] == two["passage_ids"][:]
    again = add_passages(rows, Datastore.load(datastore.folder), "text", k=3)
    assert again._fingerprint == one._fingerprint and again.cache_files == one.cache_files
    datastore.delete([one[0]["passage_ids"][0]])
    changed = add_passages(rows, datastore, "text", k=3)
    assert changed._fingerprint != one._fingerprint
    assert changed[0]["passage_ids"][:2] == one[0]["passage_ids"][1:]


def test_unusable_arguments_are_reported(datastore, caplog):
    rows = Dataset.from_dict({"text": ["word1"]})
    with pytest.raises(ValueError, match="columns of the dataset, text, but body is not"):
        add_passages(rows, datastore, ["text", "body"])
    with pytest.raises(ValueError, match="at least 1, but is 0"):
        add_passages(rows, datastore, "text", k=0)
    found = add_passages(rows, datastore, "text", k=100)
    assert 0 < len(found[0]["passage_ids"]) < 60 and "holds 60 passages: no row gets k=100" in caplog.text
    datastore.delete(range(60))
    with pytest.raises(ValueError, match=r"is empty\. Add documents"):
        add_passages(rows, datastore, "text")
