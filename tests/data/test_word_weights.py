"""Which words masking prefers, and that it does."""

from collections import Counter, defaultdict

import pytest
import torch
from datasets import Dataset
from tiny_tokenizers import SENTENCES, make_bert_tokenizer, make_roberta_tokenizer

from hf_domain.data import word_weights
from hf_domain.data.masking import DataCollatorForWholeWordMask
from hf_domain.data.word_weights import load_counts, weigh_words
from hf_domain.tokenization import WordCounts, count_words

GENERAL = ["the court of the state has a view of the matter and the people"] * 40
DOMAIN = ["the patient has a lymphoma of the liver and the people"] * 40


def count(texts, tokenizer):
    return count_words([texts], tokenizer.backend_tokenizer, progress=False)


@pytest.fixture(params=[make_bert_tokenizer, make_roberta_tokenizer])
def tokenizer(request):
    return request.param([*GENERAL, *DOMAIN, *SENTENCES])


def spell(tokenizer, weights):
    return {tokenizer.decode(list(pieces)).strip() for pieces in weights}


def test_counts_are_read_or_made_of_a_text(tokenizer, tmp_path):
    counts = count(DOMAIN, tokenizer)
    counts.save(tmp_path / "counts.parquet")
    (tmp_path / "text.txt").write_text("\n".join(DOMAIN))
    Dataset.from_dict({"text": DOMAIN}).to_parquet(tmp_path / "text.parquet")
    for name in ("counts.parquet", "text.txt", "text.parquet"):
        assert load_counts(str(tmp_path / name), tokenizer) == counts
    (tmp_path / "broken.parquet").write_text("no")
    with pytest.raises(ValueError, match=r"must name files that can be read, but .*broken.parquet cannot"):
        load_counts(str(tmp_path / "broken.parquet"), tokenizer)


def test_words_of_the_domain_alone_weigh_more(tokenizer):
    weights = weigh_words(tokenizer, count(DOMAIN, tokenizer), count(GENERAL, tokenizer))
    assert {"patient", "lymphoma", "liver"} <= spell(tokenizer, weights)
    assert not {"of", "state", "court"} & spell(tokenizer, weights)
    assert set(weights.values()) == {4.0}


def test_words_rank_by_the_ratio_of_their_shares(monkeypatch):
    monkeypatch.setattr(word_weights, "WORDS", 1)
    tokenizer = make_bert_tokenizer()
    splitter = count(["the"], tokenizer).splitter
    domain = WordCounts(splitter, Counter({"the": 1000, "lesion": 10, "patient": 400, "rest": 1000}))
    general = WordCounts(splitter, Counter({"the": 1000, "lesion": 0, "patient": 40, "rest": 5000}))
    (lesion,) = map(tuple, tokenizer(["lesion"], add_special_tokens=False)["input_ids"])
    assert list(weigh_words(tokenizer, domain, general)) == [lesion]


def test_other_counts_are_refused(tokenizer):
    counts = count(DOMAIN, tokenizer)
    with pytest.raises(ValueError, match="those of the general text were not"):
        weigh_words(tokenizer, counts, WordCounts("another"))
    with pytest.raises(ValueError, match="than in general text, but none is"):
        weigh_words(tokenizer, counts, counts)


def test_preferred_words_are_masked_as_often_as_they_weigh(tokenizer):
    weights = weigh_words(tokenizer, count(DOMAIN, tokenizer), count(GENERAL, tokenizer))
    encodings = tokenizer(DOMAIN)
    examples = [
        {"input_ids": ids, "word_ids": encodings.word_ids(row)} for row, ids in enumerate(encodings["input_ids"])
    ]
    is_preferred, is_masked = [], []
    for seed in range(100):
        batch = DataCollatorForWholeWordMask(tokenizer, seed=seed, weights=weights)(examples)
        for row, example in enumerate(examples):
            places = defaultdict(list)
            for place, word in enumerate(example["word_ids"]):
                places[word].append(place)
            del places[None]
            for word in places.values():
                is_preferred.append(tuple(example["input_ids"][place] for place in word) in weights)
                is_masked.append(batch["labels"][row, word[0]].item() != -100)
    preferred, masked = torch.tensor(is_preferred), torch.tensor(is_masked, dtype=torch.float)
    assert masked[preferred].mean() / masked[~preferred].mean() == pytest.approx(4, rel=0.1)
