import random

import pytest
from datasets import Dataset
from tiny_tokenizers import MAKERS, SENTENCES, make_bert_tokenizer, make_tokenizer
from transformers import AutoTokenizer

from hf_domain.datastore.splitting import FEATURES, check_tokenizer, fingerprint_tokenizer, hash_text, split_texts
from hf_domain.tasks.token_classification import prepare_for_words

DOCUMENTS = [
    SENTENCES[0],
    " ".join(SENTENCES[:4] * 20),
    SENTENCES[4] * 50,
    "  " + "word " * 300 + "\n",
    "x" * 500,
    "naïve\u200bmodel 😀😀 ﷺ﷽ " * 30,
]


def squeeze(text):
    return "".join(text.split())


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("max_length", [32, 50, 256])
def test_pieces_are_the_document(kind, max_length):
    tokenizer = make_tokenizer(kind)
    for document, passages in zip(DOCUMENTS, split_texts(DOCUMENTS, tokenizer, max_length), strict=True):
        assert squeeze("".join(passage.text for passage in passages)) == squeeze(document)
        for passage in passages:
            assert passage.input_ids == tokenizer(passage.text)["input_ids"]
            assert len(passage.input_ids) <= max_length and passage.text == passage.text.strip()
        if len(tokenizer(document.strip())["input_ids"]) <= max_length:
            assert [passage.text for passage in passages] == [document.strip()]


def test_pieces_end_with_sentences_and_have_about_one_length():
    passages = split_texts([" ".join(SENTENCES[:4] * 20)], make_bert_tokenizer(), 128)[0]
    assert all(passage.text.endswith(".") for passage in passages)
    lengths = [len(passage.input_ids) for passage in passages]
    assert max(lengths) - min(lengths) < 40
    chinese = split_texts([SENTENCES[4] * 30], make_bert_tokenizer(), 64)[0]
    assert all(passage.text.endswith("。") for passage in chinese)


def test_a_number_is_no_end_and_a_word_is_not_cut():
    text = "values of 3.14159 were found in the models " * 40
    for passage in split_texts([text], make_bert_tokenizer(), 64)[0]:
        words = passage.text.split()
        assert set(words) <= set(text.split())


def test_no_token_no_passage():
    assert split_texts(["", "  \n", "\u200b"], make_bert_tokenizer()) == [[], [], []]
    assert split_texts([], make_bert_tokenizer()) == []


def test_random_texts_are_cut_within_the_limit():
    generator = random.Random(0)
    alphabet = "ab é漢字。.! \n\t\u3000😀'-"
    tokenizer = make_bert_tokenizer()
    texts = ["".join(generator.choices(alphabet, k=generator.randint(0, 900))) for _ in range(200)]
    for text, passages in zip(texts, split_texts(texts, tokenizer, 32), strict=True):
        assert squeeze("".join(passage.text for passage in passages)) == squeeze(text)
        assert all(len(passage.input_ids) <= 32 for passage in passages)


@pytest.mark.parametrize("kind", MAKERS)
def test_fingerprint_outlives_saving_and_use(kind, tmp_path):
    tokenizer = make_tokenizer(kind)
    fingerprint = fingerprint_tokenizer(tokenizer)
    tokenizer(SENTENCES, truncation=True, padding=True, max_length=8)
    assert fingerprint_tokenizer(tokenizer) == fingerprint
    tokenizer.save_pretrained(tmp_path)
    assert fingerprint_tokenizer(AutoTokenizer.from_pretrained(tmp_path)) == fingerprint
    assert len({fingerprint_tokenizer(make_tokenizer(other)) for other in MAKERS}) == len(MAKERS)
    tokenizer.add_tokens(["lymphoma"])
    assert fingerprint_tokenizer(tokenizer) != fingerprint


@pytest.mark.parametrize("kind", ["roberta", "modernbert"])
def test_fingerprint_of_a_tokenizer_for_words_is_that_for_texts(kind, tmp_path):
    tokenizer, other = make_tokenizer(kind), MAKERS[kind](["words of its own"])
    fingerprint = fingerprint_tokenizer(tokenizer)
    for changed in (tokenizer, other):
        prepare_for_words(changed)
        assert changed.backend_tokenizer.pre_tokenizer.add_prefix_space
        changed.save_pretrained(tmp_path)
        for words in (changed, AutoTokenizer.from_pretrained(tmp_path)):
            assert (fingerprint_tokenizer(words) == fingerprint) == (changed is tokenizer)


def test_hashes_fit_the_column():
    hashes = [hash_text(f"{number}") for number in range(1000)]
    assert len(set(hashes)) == 1000 and min(hashes) < 0 < max(hashes)
    assert hash_text("漢字") == hash_text("漢字")
    Dataset.from_dict({"id": hashes}).cast_column("id", FEATURES["id"])


def test_length_that_does_not_fit_is_reported():
    tokenizer = make_bert_tokenizer()
    check_tokenizer(tokenizer, 512)
    for length in (31, 513):
        with pytest.raises(ValueError, match=f"must be from 32 to 512, the encoder's limit, but is {length}"):
            check_tokenizer(tokenizer, length)
