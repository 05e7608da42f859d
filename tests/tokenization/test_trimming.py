"""A trimmed tokenizer has fewer entries, and splits the texts of the corpus as before."""

import re

import pytest
from tiny_tokenizers import MAKERS, make_tokenizer
from tokenizers import processors
from transformers import AutoTokenizer
from vocabulary_invariants import DOMAIN_TEXTS, MIXED_TEXTS

from hf_domain.tokenization import WordCounts, count_shard, expand_vocabulary, trim_vocabulary

CORPUS = DOMAIN_TEXTS[:30]


@pytest.mark.parametrize("kind", MAKERS)
def test_texts_of_the_corpus_are_split_as_before(kind, tmp_path):
    tokenizer = make_tokenizer(kind)
    trimmed, kept = trim_vocabulary(tokenizer, CORPUS, progress=False)
    trimmed.save_pretrained(tmp_path)
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert len(kept) == len(loaded) < len(tokenizer) and kept == sorted(set(kept))
    for text in CORPUS:
        old, new = tokenizer(text, CORPUS[0]), loaded(text, CORPUS[0])
        assert [kept[id_] for id_ in new["input_ids"]] == old["input_ids"]
        assert {name: old[name] for name in new if name != "input_ids"} == {
            name: new[name] for name in new if name != "input_ids"
        }
    assert tokenizer.convert_ids_to_tokens(kept) == loaded.convert_ids_to_tokens(range(len(kept)))
    assert loaded.special_tokens_map == tokenizer.special_tokens_map
    padded = loaded([CORPUS[0], "the"], padding=True)
    assert padded["input_ids"][1][-1] == loaded.pad_token_id and padded["attention_mask"][1][-1] == 0


@pytest.mark.parametrize("kind", MAKERS)
def test_other_texts_keep_their_characters(kind):
    """They may take more tokens, but no more of them are unknown."""
    tokenizer = make_tokenizer(kind)
    trimmed, _ = trim_vocabulary(tokenizer, CORPUS[:2], progress=False)
    longer = 0
    for text in [*MIXED_TEXTS, *DOMAIN_TEXTS]:
        old, new = (each(text, add_special_tokens=False)["input_ids"] for each in (tokenizer, trimmed))
        assert old.count(tokenizer.unk_token_id) == new.count(trimmed.unk_token_id)
        assert tokenizer.decode(old) == trimmed.decode(new)
        longer += len(new) > len(old)
    assert longer


def test_rarer_entries_go_too():
    tokenizer = make_tokenizer("bert")
    often, once, never = [entry for entry in tokenizer.get_vocab() if entry.isalpha() and len(entry) > 3][:3]
    texts = [f"{often} {often} {once}"]
    entries = set(trim_vocabulary(tokenizer, texts, progress=False)[0].get_vocab())
    assert {often, once} <= entries and never not in entries
    rarer = set(trim_vocabulary(tokenizer, texts, min_frequency=2, progress=False)[0].get_vocab())
    assert entries - rarer == {once}
    assert {entry for entry in tokenizer.get_vocab() if len(entry.removeprefix("##")) == 1} <= rarer


def test_an_expanded_vocabulary_can_be_trimmed():
    """A byte-level BPE then looks words up whole; their merges do not spell them."""
    for kind in ("bert", "roberta", "xlm-roberta"):
        tokenizer = expand_vocabulary(make_tokenizer(kind), DOMAIN_TEXTS, min_frequency=2, progress=False)[0]
        trimmed, kept = trim_vocabulary(tokenizer, CORPUS, progress=False)
        assert len(trimmed) < len(tokenizer) and kept[-1] >= len(make_tokenizer(kind))
        for text in CORPUS:
            assert [kept[id_] for id_ in trimmed(text)["input_ids"]] == tokenizer(text)["input_ids"]


def test_added_tokens_and_settings_keep_their_meaning():
    """A token that was added, a pair of special tokens in a sequence of processors, and padding on the right."""
    tokenizer = make_tokenizer("bert")
    tokenizer.add_tokens(["<gene>"])
    backend = tokenizer.backend_tokenizer
    pair = processors.BertProcessing(("[SEP]", tokenizer.sep_token_id), ("[CLS]", tokenizer.cls_token_id))
    backend.post_processor = processors.Sequence([pair])
    backend.enable_padding(pad_id=tokenizer.pad_token_id, pad_token="[PAD]")
    trimmed, kept = trim_vocabulary(tokenizer, CORPUS, progress=False)
    text = f"{CORPUS[0]} <gene>"
    assert trimmed.tokenize(text)[-1] == "<gene>"
    assert [kept[id_] for id_ in trimmed(text)["input_ids"]] == tokenizer(text)["input_ids"]


def test_counts_are_a_corpus():
    tokenizer = make_tokenizer("bert")
    counts = count_shard(CORPUS, tokenizer.backend_tokenizer)
    assert trim_vocabulary(tokenizer, counts)[1] == trim_vocabulary(tokenizer, CORPUS, progress=False)[1]
    with pytest.raises(ValueError, match="must be counted with the tokenizer's normalizer"):
        trim_vocabulary(make_tokenizer("roberta"), counts)
    with pytest.raises(ValueError, match=re.escape("the corpus must contain words, but is empty")):
        trim_vocabulary(tokenizer, WordCounts(counts.splitter))
    with pytest.raises(ValueError, match="`min_frequency` must be at least 1, but is 0"):
        trim_vocabulary(tokenizer, counts, min_frequency=0)
