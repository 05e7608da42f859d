"""Labels: which there are, and their way from words to tokens and back."""

import numpy as np
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, List, Value
from tiny_tokenizers import MAKERS, make_tokenizer
from transformers import AutoTokenizer, EvalPrediction

from hf_domain.tasks.labels import find_ids, find_labels
from hf_domain.tasks.token_classification import continue_labels, prepare_for_words, read_tags, tokenize_words


def make_splits(**columns):
    return DatasetDict({split: Dataset.from_dict({"label": labels}) for split, labels in columns.items()})


def test_labels_are_those_of_train_sorted():
    assert find_labels(make_splits(train=["b", "a", "b"], validation=["a"]), "label") == (["a", "b"], {"a": 0, "b": 1})
    assert find_labels(make_splits(train=[10, 9]), "label") == (["9", "10"], {9: 0, 10: 1})
    names, ids = find_labels(make_splits(train=[["b"], [], ["c", "a"]]), "label")
    assert names == ["a", "b", "c"] and ids == {"a": 0, "b": 1, "c": 2}


@pytest.mark.parametrize("nested", [False, True])
def test_declared_labels_keep_their_order(nested):
    label = ClassLabel(names=["z", "y", "x"])
    features = Features({"label": List(label) if nested else label})
    dataset = Dataset.from_dict({"label": [[0, 2]] if nested else [0, 2]}, features=features)
    assert find_labels(DatasetDict(train=dataset), "label") == (["z", "y", "x"], {0: 0, 1: 1, 2: 2})


def test_labels_that_train_lacks_are_reported():
    with pytest.raises(ValueError, match="every label of test must occur in train, which has a, b, but c, d does not"):
        find_labels(make_splits(train=["a", "b"], validation=["a"], test=["d", "b", "c"]), "label")
    with pytest.raises(ValueError, match="label is empty in example 1 of validation"):
        find_labels(make_splits(train=["a", "b"], validation=["a", None]), "label")
    unlabeled = DatasetDict(train=Dataset.from_dict({"label": ["a"]}), test=Dataset.from_dict({"text": ["x"]}))
    assert find_labels(unlabeled, "label") == (["a"], {"a": 0})


def test_ids_are_found_by_name():
    assert find_ids(None, ["a", "b"]) == []
    assert find_ids("b,a", ["a", "b"]) == [1, 0]
    with pytest.raises(ValueError, match=r"labels of the data .a, b., but names c"):
        find_ids("c", ["a", "b"])


WORDS = ["Cardiomyopathy", "and", "leukaemia", "."]


@pytest.mark.parametrize("kind", MAKERS)
def test_the_first_token_of_a_word_has_its_label(kind, tmp_path):
    tokenizer = make_tokenizer(kind)
    prepare_for_words(tokenizer)
    encodings = tokenize_words([WORDS, WORDS[:1]], [[1, 0, 2, 0], [1]], tokenizer)
    everywhere = tokenize_words([WORDS], [[1, 0, 2, 0]], tokenizer, continued=[0, 3, 2])["labels"][0]
    pieces = [
        len(tokenizer(f"{' ' * (kind == 'roberta')}{word}", add_special_tokens=False)["input_ids"]) for word in WORDS
    ]
    if kind == "modernbert":
        pieces = [len(tokenizer(word, add_special_tokens=False)["input_ids"]) for word in WORDS]
    assert max(pieces) > 1
    labels = list(zip([1, 0, 2, 0], pieces, strict=True))
    expected = [-100, *(token for label, count in labels for token in [label] + [-100] * (count - 1)), -100]
    assert encodings["labels"] == [expected, [*expected[: pieces[0] + 1], -100]]
    later = {0: 0, 1: 3, 2: 2}
    assert everywhere == [
        -100,
        *(token for label, count in labels for token in [label] + [later[label]] * (count - 1)),
        -100,
    ]
    # Words of a list are tokenized as in running text, also after the tokenizer was saved.
    running = tokenizer(" ".join(WORDS[:3]))["input_ids"]
    assert tokenizer(WORDS[:3], is_split_into_words=True)["input_ids"] == running
    tokenizer.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text(f'{{"model_type": "{kind}"}}')
    assert AutoTokenizer.from_pretrained(tmp_path)(WORDS[:3], is_split_into_words=True)["input_ids"] == running


def test_later_tokens_of_a_word_continue_its_entity():
    names = ["B-Disease", "B-Gene", "I-Disease", "O", "Drug"]
    assert [names[label] for label in continue_labels(names)] == ["I-Disease", "B-Gene", "I-Disease", "O", "Drug"]


@pytest.mark.parametrize("kind", MAKERS)
def test_a_word_without_tokens_does_not_shift_the_tags_after_it(kind):
    tokenizer = make_tokenizer(kind)
    prepare_for_words(tokenizer)
    sentence, tags = ["and", "\u200b", "leukaemia", "."], [1, 2, 3, 4]
    encodings = tokenize_words([sentence, WORDS], [tags, [1, 0, 2, 0]], tokenizer)
    assert [label for label in encodings["labels"][0] if label != -100] == tags
    assert encodings["labels"][1] == tokenize_words([WORDS], [[1, 0, 2, 0]], tokenizer)["labels"][0]


def test_long_sentences_are_cut_and_short_ones_padded():
    tokenizer = make_tokenizer("bert")
    encodings = tokenize_words(
        [WORDS, ["and"]], [[1, 0, 2, 0], [3]], tokenizer, max_seq_length=5, pad_to_max_length=True
    )
    assert [len(ids) for ids in encodings["input_ids"]] == [len(labels) for labels in encodings["labels"]] == [5, 5]
    assert encodings["labels"] == [[-100, 1, -100, -100, -100], [-100, 3, -100, -100, -100]]
    with pytest.raises(ValueError, match="1 labels for 2 words: left out"):
        tokenize_words([["left", "out"]], [[0]], tokenizer)


def test_tags_are_read_where_labels_are():
    logits = np.eye(3)[[[0, 1, 2, 0], [2, 2, 2, 2]]]
    labels = np.array([[-100, 1, -100, 2], [-100, 0, -100, -100]])
    predicted, gold = read_tags(EvalPrediction((logits, logits), labels), ["O", "B", "I"])
    assert predicted == [["B", "O"], ["I"]] and gold == [["B", "I"], ["O"]]


def test_values_of_other_types_stay_apart():
    dataset = Dataset.from_dict({"label": ["1", "2"]}, features=Features({"label": Value("string")}))
    assert find_labels(DatasetDict(train=dataset), "label")[1] == {"1": 0, "2": 1}
