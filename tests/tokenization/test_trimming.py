"""A trimmed tokenizer has fewer entries, and splits the texts of the corpus as before."""

import json

import pytest
from tiny_tokenizers import MAKERS, make_tokenizer
from tokenizers import Tokenizer, pre_tokenizers, processors
from tokenizers.models import BPE
from transformers import AutoTokenizer, BertTokenizer, TokenizersBackend
from vocabulary_invariants import DOMAIN_TEXTS, MIXED_TEXTS

from hf_domain.tokenization import expand_vocabulary, trim_vocabulary

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
    entries = sorted(tokenizer.get_vocab())  # which is in another order in every process
    often, once, never = [entry for entry in entries if entry.isascii() and entry.isalpha() and len(entry) > 3][:3]
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


def test_added_tokens_stay():
    tokenizer = make_tokenizer("bert")
    tokenizer.add_tokens(["<gene>"])
    trimmed, kept = trim_vocabulary(tokenizer, CORPUS, progress=False)
    text = f"{CORPUS[0]} <gene>"
    assert trimmed.tokenize(text)[-1] == "<gene>"
    assert [kept[id_] for id_ in trimmed(text)["input_ids"]] == tokenizer(text)["input_ids"]


def make_special_last():
    """As ModernBERT's: the ids of all special tokens change."""
    tokenizer = make_tokenizer("bert")
    special = tokenizer.all_special_tokens
    entries = [entry for entry in sorted(tokenizer.get_vocab()) if entry not in special]
    return BertTokenizer(vocab={entry: id_ for id_, entry in enumerate([*entries, *special])}, model_max_length=512)


def test_special_tokens_get_new_ids():
    """In templates, pairs, sequences of processors and the settings of padding."""
    tokenizer = make_special_last()
    backend, template = tokenizer.backend_tokenizer, tokenizer.backend_tokenizer.post_processor
    pair = processors.BertProcessing(("[SEP]", tokenizer.sep_token_id), ("[CLS]", tokenizer.cls_token_id))
    backend.enable_padding(pad_id=tokenizer.pad_token_id, pad_token="[PAD]")
    for processor in (template, pair, processors.Sequence([pair])):
        backend.post_processor = processor
        # BertTokenizer would make a template of its own.
        tokenizer = TokenizersBackend(tokenizer_object=backend, **tokenizer.special_tokens_map)
        trimmed, kept = trim_vocabulary(tokenizer, CORPUS, progress=False)
        assert trimmed.pad_token_id < tokenizer.pad_token_id and len(trimmed) == len(kept)
        assert json.loads(trimmed.backend_tokenizer.to_str())["padding"]["pad_id"] == trimmed.pad_token_id
        old, new = (each([CORPUS[0], "the"], padding=True)["input_ids"] for each in (tokenizer, trimmed))
        assert [[kept[id_] for id_ in ids] for ids in new] == old and new[1][-1] == trimmed.pad_token_id


def test_entries_that_are_the_only_spelling_stay():
    """`b` and `c` begin no word by themselves, and no `##d` continues one."""
    pieces = ["a", "##a", "##b", "##c", "the", "beta", "##eta", "cab", "##ab", "ad", "aba"]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokenizer = BertTokenizer(vocab={entry: id_ for id_, entry in enumerate([*special, *pieces])})
    trimmed, _ = trim_vocabulary(tokenizer, ["the a"], progress=False)
    assert trimmed.tokenize("beta cab ad aba") == ["beta", "cab", "ad", "a", "##b", "##a"]


def test_what_only_the_tokenizer_knows_counts():
    """A word with a preceding space, as tasks of words have it, and a word with a character that BERT deletes."""
    tokenizer = make_tokenizer("roberta")
    entries = sorted(tokenizer.get_vocab())
    word = next(entry[1:] for entry in entries if entry.startswith("Ġ") and len(entry) > 3 and entry[1:].isascii())
    trimmed, _ = trim_vocabulary(tokenizer, [word], progress=False)
    assert trimmed.tokenize(f" {word}") == [f"Ġ{word}"]
    tokenizer = make_tokenizer("bert")
    text = f"{CORPUS[0][:9]}\x85{CORPUS[0][9:]}"
    trimmed, kept = trim_vocabulary(tokenizer, [text], progress=False)
    assert [kept[id_] for id_ in trimmed(text)["input_ids"]] == tokenizer(text)["input_ids"]


def test_long_texts_are_counted_to_their_end():
    """Also with a tokenizer whose file cuts and pads texts, as those of sentence-transformers do."""
    tokenizer = make_tokenizer("bert")
    tokenizer.backend_tokenizer.enable_truncation(4)
    tokenizer.backend_tokenizer.enable_padding(pad_id=tokenizer.pad_token_id, pad_token="[PAD]", length=64)
    text = " ".join(CORPUS[:3])
    trimmed, kept = trim_vocabulary(tokenizer, [text], progress=False)
    assert [kept[id_] for id_ in trimmed(text)["input_ids"]] == tokenizer(text)["input_ids"]


def test_what_cannot_be_trimmed():
    tokenizer = make_tokenizer("bert")
    with pytest.raises(ValueError, match="the corpus must contain words, but is empty"):
        trim_vocabulary(tokenizer, ["", " "], progress=False)
    with pytest.raises(ValueError, match="`min_frequency` must be at least 1, but is 0"):
        trim_vocabulary(tokenizer, CORPUS, min_frequency=0)
    backend = Tokenizer(BPE({"a": 0, "b</w>": 1}, [], end_of_word_suffix="</w>"))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel()
    with pytest.raises(ValueError, match=r"must mark words by their preceding space .* and the suffix '</w>'"):
        trim_vocabulary(TokenizersBackend(tokenizer_object=backend), ["ab"], progress=False)
