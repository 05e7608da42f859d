"""A saved tokenizer makes the same ids wherever it is loaded."""

import json
import math
import random

import pytest
from tokenizers import Tokenizer
from transformers import AutoTokenizer, DebertaV2Tokenizer, XLMRobertaTokenizer
from vocabulary_invariants import (
    DOMAIN_TEXTS,
    MIXED_TEXTS,
    assert_vocabulary_grew,
    make_byte_level_bpe,
    make_wordpiece,
)

from hf_domain.tokenization import expand_vocabulary

SYLLABLES = ["lym", "pho", "ma", "cy", "te", "blas", "to", "ge", "nic", "otro", "pin", "immu", "no", "gas", "tri"]
CHARACTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,;:()-[]<>"


def make_texts(least, most, number):
    """Texts of words of so many syllables."""
    generator = random.Random(0)
    words = ["".join(generator.sample(SYLLABLES, k=generator.randint(least, most))) for _ in range(400)]
    return [" ".join(generator.choices(words, k=12)) for _ in range(number)]


CORPUS = make_texts(2, 3, 150)


def make_noise(number):
    """Texts of characters at random."""
    generator = random.Random(0)
    return ["".join(generator.choices(CHARACTERS + " äß淋巴🧬\t", k=40)) for _ in range(number)]


# A long word of syllables has many cuts into entries of two and three that save equally many tokens.
TEXTS = [*MIXED_TEXTS, *DOMAIN_TEXTS, *CORPUS, *make_texts(4, 9, 100), *make_noise(50)]


def make_vocab(special):
    """Pieces with scores as a training makes them: logarithms of shares, with all their digits."""
    pieces = ["▁", *CHARACTERS, *SYLLABLES, *(f"▁{syllable}" for syllable in SYLLABLES)]
    return [(piece, 0.0) for piece in special] + [
        (piece, math.log((number + 1) / 3331)) for number, piece in enumerate(pieces)
    ]


def make_xlm_roberta():
    vocab = [*make_vocab(["<s>", "<pad>", "</s>", "<unk>"]), ("<mask>", 0.0)]
    return XLMRobertaTokenizer(vocab=vocab, model_max_length=512)


def make_deberta():
    return DebertaV2Tokenizer(vocab=make_vocab(["[PAD]", "[CLS]", "[SEP]", "[UNK]"]), unk_id=3, model_max_length=512)


def expand(tokenizer, **options):
    return expand_vocabulary(tokenizer, CORPUS, **{"min_frequency": 2, "progress": False, **options})[:2]


CASES = {
    "wordpiece": (make_wordpiece, {}),
    "exbert": (make_wordpiece, {"method": "exbert", "size": 300}),
    "byte-level bpe": (make_byte_level_bpe, {}),
    "xlm-roberta": (make_xlm_roberta, {"size": 200}),
    "deberta": (make_deberta, {"size": 200}),
}


@pytest.mark.parametrize("name", CASES)
def test_every_loader_makes_the_same_ids(name, tmp_path):
    make, options = CASES[name]
    tokenizer = make()
    once, delta = expand(tokenizer, **options)
    twice, second = expand_vocabulary(once, DOMAIN_TEXTS, min_frequency=2, progress=False)[:2]
    assert len(delta.pieces) > 50 and len(second.pieces) > 10
    if make in (make_xlm_roberta, make_deberta):  # a tie-break must not cost a token
        assert_vocabulary_grew(tokenizer, once, delta, TEXTS)
    for new in (once, twice):
        new.save_pretrained(tmp_path / name)
        expected = new(TEXTS)["input_ids"]
        assert AutoTokenizer.from_pretrained(tmp_path / name)(TEXTS)["input_ids"] == expected
        backend = Tokenizer.from_file(str(tmp_path / name / "tokenizer.json"))
        assert [encoding.ids for encoding in backend.encode_batch(TEXTS)] == expected
        if name != "byte-level bpe":
            assert type(tokenizer).from_pretrained(tmp_path / name)(TEXTS)["input_ids"] == expected


@pytest.mark.parametrize("make", [make_xlm_roberta, make_deberta])
def test_no_two_cuts_of_a_word_tie(make):
    # Only then is the cut the same whatever the last bits of the scores, which parsers of JSON do not agree on.
    new_tokenizer, _ = expand(make(), size=200)
    scores = dict(json.loads(new_tokenizer.backend_tokenizer.to_str())["model"]["vocab"])
    words = sorted(set(" ".join(make_texts(4, 9, 100)).split()))
    assert len(words) > 300
    for word in words:
        best, second = find_two_best_scores(f"▁{word}", scores)
        assert best - second > 1e-11, word


def find_two_best_scores(word, scores):
    """The scores of the two best cuts of a word."""
    best = [[0.0]]
    for end in range(1, len(word) + 1):
        starts = [start for start in range(end) if word[start:end] in scores]
        best.append(sorted(score + scores[word[start:end]] for start in starts for score in best[start])[-2:])
    return best[-1][::-1]
