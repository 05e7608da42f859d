from collections import Counter

import pytest
from transformers import AutoTokenizer, RobertaTokenizer
from vocabulary_invariants import DOMAIN_TEXTS, make_byte_level_bpe

from hf_domain.tokenization import expand_vocabulary


def expand(tokenizer, **options):
    return expand_vocabulary(tokenizer, DOMAIN_TEXTS, min_frequency=2, step=15, progress=False, **options)


def test_words_with_and_without_a_blank_are_words_of_their_own():
    tokenizer = make_byte_level_bpe()
    new_tokenizer, delta, _ = expand(tokenizer, size=400)
    assert {"Ġlymphoma", "Lymphoma"} <= delta.pieces.keys() and "lymphoma" not in delta.pieces
    assert delta.pieces["Ġlymphoma"] == tokenizer(" lymphoma", add_special_tokens=False)["input_ids"]
    assert new_tokenizer.tokenize("Lymphoma lymphoma") == ["Lymphoma", "Ġlymphoma"]


@pytest.mark.parametrize(
    ("room", "min_frequency", "max_word_length"), [(5, 1, 50), (100, 2, 50), (100, 3, 9), (100, 1, 9)]
)
def test_the_most_frequent_words_of_several_pieces_are_added(room, min_frequency, max_word_length):
    tokenizer = make_byte_level_bpe()
    backend = tokenizer.backend_tokenizer
    texts = ["x lymphoma blastoma cytomere, gliomas", "x lymphoma blastoma cytopenia gliomas", "y lymphoma cytopenia"]
    words = Counter(word for text in texts for word, _ in backend.pre_tokenizer.pre_tokenize_str(text))
    assert (words["Ġblastoma"], words["Ġgliomas"], words["Ġlymphoma"]) == (2, 2, 3)
    chosen = [
        word
        for word, count in words.items()
        if count >= min_frequency and len(word) <= max_word_length and len(backend.model.tokenize(word)) > 1
    ]
    expected = sorted(chosen, key=lambda word: (-words[word], word))[:room]
    options = {"min_frequency": min_frequency, "max_word_length": max_word_length, "progress": False}
    _, delta, _ = expand_vocabulary(tokenizer, texts, size=len(tokenizer) + room, **options)
    assert list(delta.pieces) == expected and expected


def test_other_words_are_cut_as_before():
    tokenizer = make_byte_level_bpe()
    new_tokenizer, _, _ = expand(tokenizer)
    texts = ["lymphomax of the prelymphoma", "blast cyst 10 mg", "Xlymphoma", "淋巴瘤"]
    assert new_tokenizer(texts)["input_ids"] == tokenizer(texts)["input_ids"]


def test_the_inputs_of_the_model_stay_the_same():
    tokenizer = make_byte_level_bpe()
    tokenizer.name_or_path = "somewhere"
    new_tokenizer, _, _ = expand(tokenizer)
    old, new = tokenizer("lymphoma", "lesion"), new_tokenizer("lymphoma", "lesion")
    assert old.keys() == new.keys() == {"input_ids", "attention_mask"}
    assert new_tokenizer.mask_token_id == tokenizer.mask_token_id and new_tokenizer.pad_token == tokenizer.pad_token
    assert new_tokenizer.name_or_path == tokenizer.name_or_path == "somewhere"


def test_the_class_that_loses_the_words_is_reported(tmp_path, caplog):
    new_tokenizer, _, report = expand(make_byte_level_bpe())
    new_tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).tokenize(" lymphoma") == ["Ġlymphoma"]
    # What the warning says; where transformers keeps the words, the warning can go.
    assert RobertaTokenizer.from_pretrained(tmp_path).tokenize(" lymphoma") != ["Ġlymphoma"]
    assert "RobertaTokenizer.from_pretrained" in "".join(report.warnings) and report.warnings[0] in caplog.text
