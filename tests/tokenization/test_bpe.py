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


def test_other_words_are_cut_as_before():
    tokenizer = make_byte_level_bpe()
    new_tokenizer, _, _ = expand(tokenizer)
    texts = ["lymphomax of the prelymphoma", "blast cyst 10 mg", "Xlymphoma", "淋巴瘤"]
    assert new_tokenizer(texts)["input_ids"] == tokenizer(texts)["input_ids"]


def test_the_inputs_of_the_model_stay_the_same():
    tokenizer = make_byte_level_bpe()
    new_tokenizer, _, _ = expand(tokenizer)
    old, new = tokenizer("lymphoma", "lesion"), new_tokenizer("lymphoma", "lesion")
    assert old.keys() == new.keys() == {"input_ids", "attention_mask"}
    assert new_tokenizer.mask_token_id == tokenizer.mask_token_id and new_tokenizer.pad_token == tokenizer.pad_token


def test_the_class_that_loses_the_words_is_reported(tmp_path, caplog):
    new_tokenizer, _, report = expand(make_byte_level_bpe())
    new_tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).tokenize(" lymphoma") == ["Ġlymphoma"]
    # What the warning says; where transformers keeps the words, the warning can go.
    assert RobertaTokenizer.from_pretrained(tmp_path).tokenize(" lymphoma") != ["Ġlymphoma"]
    assert "RobertaTokenizer.from_pretrained" in "".join(report.warnings) and report.warnings[0] in caplog.text
