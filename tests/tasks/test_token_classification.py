"""Named entities: the way of tags from words to tokens and back."""

import numpy as np
import pytest
from datasets import Dataset
from tiny_tokenizers import MAKERS, make_tokenizer
from transformers import AutoTokenizer, BertweetTokenizer, EvalPrediction

from hf_domain.tasks.token_classification import (
    choose_words,
    cut_sentence,
    list_scored,
    prepare_for_words,
    tokenize_words,
)

WORDS = ["Cardiomyopathy", "and", "leukaemia", "."]


@pytest.mark.parametrize("kind", MAKERS)
def test_the_first_token_of_a_word_has_its_label(kind, tmp_path):
    tokenizer = make_tokenizer(kind)
    prepare_for_words(tokenizer)
    encodings = tokenize_words([WORDS, WORDS[:1]], [[1, 0, 2, 0], [1]], tokenizer)
    pieces = [
        len(tokenizer(f"{' ' * (kind == 'roberta')}{word}", add_special_tokens=False)["input_ids"]) for word in WORDS
    ]
    if kind == "modernbert":
        pieces = [len(tokenizer(word, add_special_tokens=False)["input_ids"]) for word in WORDS]
    assert max(pieces) > 1
    labels = list(zip([1, 0, 2, 0], pieces, strict=True))
    expected = [-100, *(token for label, count in labels for token in [label] + [-100] * (count - 1)), -100]
    assert encodings["labels"] == [expected, [*expected[: pieces[0] + 1], -100]]
    # Words of a list are tokenized as in running text, also after the tokenizer was saved.
    running = tokenizer(" ".join(WORDS[:3]))["input_ids"]
    assert tokenizer(WORDS[:3], is_split_into_words=True)["input_ids"] == running
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    assert AutoTokenizer.from_pretrained(tmp_path)(WORDS[:3], is_split_into_words=True)["input_ids"] == running


@pytest.mark.parametrize("kind", MAKERS)
def test_a_word_without_tokens_does_not_shift_the_tags_after_it(kind):
    tokenizer = make_tokenizer(kind)
    prepare_for_words(tokenizer)
    sentence, tags = ["and", "\u200b", "leukaemia", "."], [1, 2, 3, 4]
    encodings = tokenize_words([sentence, WORDS], [tags, [1, 0, 2, 0]], tokenizer)
    options = {"is_split_into_words": True, "add_special_tokens": False}
    known = [word for word, text in enumerate(sentence) if tokenizer([text], **options)["input_ids"]]
    assert encodings["words"][0] == known and {0, 2, 3} <= {*known}
    assert [label for label in encodings["labels"][0] if label != -100] == [tags[word] for word in known]
    assert encodings["labels"][1] == tokenize_words([WORDS], [[1, 0, 2, 0]], tokenizer)["labels"][0]


def test_long_sentences_become_windows_and_short_ones_are_padded():
    tokenizer = make_tokenizer("bert")
    sentences, labels = [["and", ".", "and", ".", "and"], ["."], []], [[1, 2, 3, 4, 5], [6], []]
    windows = tokenize_words(sentences, labels, tokenizer, max_seq_length=6, pad_to_max_length=True)
    assert {*map(len, windows["input_ids"])} == {*map(len, windows["labels"])} == {6}
    assert [*zip(windows["start"], windows["end"], windows["begins"], strict=True)] == [
        (0, 4, True),
        (3, 5, False),
        (0, 1, True),
        (0, 0, True),
    ]
    assert windows["words"] == [[0, 1, 2], [3, 4], [0], []]
    scored = [label for row in windows["labels"] for label in row if label != -100]
    assert scored == [1, 2, 3, 4, 5, 6]  # each word once
    (long,) = tokenize_words([WORDS[:1]], [[1]], tokenizer, max_seq_length=3)["labels"]
    assert long == [-100, 1, -100]  # a word longer than a window is cut


def test_a_slow_tokenizer_aligns_word_by_word(tmp_path):
    """BERTweet and PhoBERT have no `word_ids`; by hand, abc is a@@ b@@ c."""
    (tmp_path / "vocab.txt").write_text("the 1\ncat 1\na@@ 1\nb@@ 1\nc 1\n")
    (tmp_path / "bpe.codes").write_text("#version: 0.2\nt h 1\nth e</w> 1\nc a 1\nca t</w> 1\n")
    tokenizer = BertweetTokenizer(str(tmp_path / "vocab.txt"), str(tmp_path / "bpe.codes"))
    prepare_for_words(tokenizer)
    sentences, labels = [["the", "abc", "", "cat"], ["cat"]], [[1, 2, 3, 4], [5]]
    encodings = tokenize_words(sentences, labels, tokenizer, max_seq_length=8, pad_to_max_length=True)
    assert encodings["labels"] == [[-100, 1, 2, -100, -100, 4, -100, -100], [-100, 5, *[-100] * 6]]
    assert encodings["words"] == [[0, 1, 3], [0]]
    windows = tokenize_words(sentences, labels, tokenizer, max_seq_length=6)
    assert windows["words"] == [[0, 1], [3], [0]] and windows["labels"][1] == [-100, 4, -100]


def test_windows_cover_every_word_within_their_room():
    draw = np.random.default_rng(0)
    for _ in range(200):
        sizes, room = draw.integers(0, 6, size=draw.integers(0, 40)).tolist(), int(draw.integers(5, 20))
        windows = cut_sentence(sizes, room)
        assert all(sum(sizes[start:end]) <= room for start, end in windows)
        assert [start for start, _ in windows] == sorted({start for start, _ in windows})
        shown = choose_words(windows, len(sizes))
        assert [word for words in shown for word in words] == [*range(len(sizes))]
        assert all(start <= word < end for (start, end), words in zip(windows, shown, strict=True) for word in words)


def test_logits_are_read_where_labels_are():
    logits = np.arange(24.0).reshape(2, 4, 3)
    labels = np.array([[-100, 1, -100, 2], [-100, 0, -100, -100]])
    windows = Dataset.from_dict({"words": [[0, 2], [4]], "begins": [True, False]})
    found = [*list_scored(EvalPrediction((logits, logits), labels), windows)]
    assert [(row, words, own.tolist()) for row, words, own in found] == [
        (0, [0, 2], [[3, 4, 5], [9, 10, 11]]),
        (0, [4], [[15, 16, 17]]),
    ]
