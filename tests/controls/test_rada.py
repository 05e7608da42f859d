"""Positive controls of RADA: the label is in a passage, and the text has no word that tells it.

Every passage holds a number, a word that is a label, and words that mean nothing. Every number belongs to one example,
so those of the test are not in the training, and nothing can be learned by heart.
"""

import random

import pytest
from datasets import Dataset

from hf_domain.datastore import build_datastore

pytestmark = pytest.mark.controls

NUM_LABELS, NUM_TRAIN, NUM_TEST = 6, 2500, 200
FROZEN = "passage_encoder=frozen"


class Language:
    """Draws texts and passages of words."""

    def __init__(self, words):
        self.rng = random.Random(0)
        words = self.rng.sample(words, NUM_LABELS + 550)
        self.labels, self.keys, self.decoys = words[:6], words[6:16], words[16:56]
        # Those of texts are not in passages, which would be found by them.
        self.of_texts, self.of_passages = words[56:256], words[256:]
        self.numbers = iter(self.rng.sample(range(1000, 10_000), NUM_TRAIN + NUM_TEST))

    def write(self, others, length, *words):
        """Mix words with others that mean nothing."""
        text = [*map(str, words), *self.rng.sample(others, length - len(words))]
        self.rng.shuffle(text)
        return " ".join(text)


def make_found(language):
    """A text shares its number with one passage; four others share what means nothing, and hold labels too."""
    number, label = next(language.numbers), language.rng.choice(language.labels)
    text = language.write(language.of_texts, 10, number)
    shared = language.rng.sample([word for word in text.split() if word != str(number)], 2)
    passages = [language.write(language.of_passages, 8, number, label, *shared)]
    return text, label, passages


def make_alike(language):
    """A text shares its number and one more word with each of five passages, which all hold a label.

    The words are equally rare, so BM25 cannot tell the passages apart. The label that counts stands beside one of the
    ten keys.
    """
    number, labels = next(language.numbers), language.rng.choices(language.labels, k=5)
    shared = [language.rng.choice(language.keys), *language.rng.sample(language.decoys, 4)]
    passages = [language.write(language.of_passages, 8, number, *pair) for pair in zip(labels, shared, strict=True)]
    return language.write(language.of_texts, 11, number, *shared), labels[0], passages


@pytest.mark.parametrize(("make", "bar"), [(make_found, 0.8), (make_alike, 0.6)])
def test_a_passage_is_chosen(make, bar, words, tokenizer, classify, tmp_path):
    language = Language(words)
    examples = [make(language) for _ in range(NUM_TRAIN + NUM_TEST)]
    passages = [passage for _, _, passages in examples for passage in passages]
    language.rng.shuffle(passages)  # equal scores rank by id
    build_datastore(Dataset.from_dict({"text": passages}), tmp_path / "datastore", tokenizer)
    rows = [{"text": text, "label": label} for text, label, _ in examples]
    flags = {"datastore": tmp_path / "datastore", "num_passages": 5, "passage_cache": tmp_path / "passages"}
    splits = rows[:NUM_TRAIN], rows[NUM_TRAIN:]
    assert classify(*splits, method="rada", config_overrides=FROZEN, **flags) >= bar


@pytest.mark.parametrize("make", [make_found, make_alike])
def test_the_encoder_alone_guesses(make, words, classify):
    language = Language(words)
    rows = [{"text": text, "label": label} for text, label, _ in (make(language) for _ in range(600))]
    assert classify(rows[:500], rows[500:], num_train_epochs=2) <= 0.35
