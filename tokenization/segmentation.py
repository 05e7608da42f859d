"""Split words into pieces with a tokenizer model, and compute the log-probability of a vocabulary."""

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Tokenizer, models

Model = dict[str, Any]
"""The `model` node of a tokenizer.json."""


@dataclass
class Segmentation:
    """The pieces of many words, one word after the other."""

    ids: np.ndarray
    """Ids of all pieces, shape [pieces]."""
    starts: np.ndarray
    """Where each word's pieces start in `ids`, and their number at the end, shape [words + 1]."""

    @property
    def lengths(self) -> np.ndarray:
        """Number of pieces of each word, shape [words]."""
        return np.diff(self.starts)

    def pieces(self, word: int) -> list[int]:
        """Ids of the pieces of one word."""
        return self.ids[self.starts[word] : self.starts[word + 1]].tolist()

    def replace(self, words: np.ndarray, new: "Segmentation") -> "Segmentation":
        """Replace the pieces of some words.

        Args:
            words: Numbers of the words, ascending.
        """
        lengths = self.lengths
        lengths[words] = new.lengths
        replaced = np.zeros(len(lengths), bool)
        replaced[words] = True
        ids = np.empty(lengths.sum(), np.int64)
        ids[np.repeat(replaced, lengths)] = new.ids
        ids[np.repeat(~replaced, lengths)] = self.ids[np.repeat(~replaced, self.lengths)]
        return Segmentation(ids, np.concatenate([[0], np.cumsum(lengths)]))

    def count_pieces(self, counts: np.ndarray, size: int) -> np.ndarray:
        """Return how often each id occurs in the corpus, shape [size], from the counts of the words."""
        return np.bincount(self.ids, weights=np.repeat(counts, self.lengths), minlength=size).astype(np.int64)


def segment_words(model: Model, words: list[str]) -> Segmentation:
    """Split words with only the model: no normalizer, no pre-tokenizer, no special tokens."""
    encodings = make_bare_tokenizer(model).encode_batch_fast(words, add_special_tokens=False)
    pieces = [encoding.ids for encoding in encodings]
    starts = np.cumsum([0, *map(len, pieces)], dtype=np.int64)
    return Segmentation(np.fromiter(itertools.chain.from_iterable(pieces), np.int64, starts[-1]), starts)


def make_bare_tokenizer(model: Model) -> Tokenizer:
    """Build a tokenizer that reads each text as one word."""
    # Built from arguments, because parsing JSON takes longer than splitting the words of a small corpus.
    arguments = {name: value for name, value in model.items() if name != "type" and value is not None}
    for name in ("vocab", "merges"):
        if isinstance(arguments.get(name), list):
            arguments[name] = [tuple(item) for item in arguments[name]]
    return Tokenizer(getattr(models, model["type"])(**arguments))


def read_vocabulary(model: Model) -> dict[str, int]:
    """Map each entry of a model to its id; a Unigram model's ids are the positions of its pieces."""
    if isinstance(model["vocab"], dict):
        return model["vocab"]
    return {piece: position for position, (piece, _) in enumerate(model["vocab"])}


def read_unknown(model: Model) -> int | None:
    """Find the id of the unknown piece, if the model has one."""
    return model["unk_id"] if model["type"] == "Unigram" else model["vocab"].get(model["unk_token"])


def measure_log_probability(piece_counts: np.ndarray, documents: int) -> float:
    """Return P(D) of a vocabulary: the mean over documents of the log-probability of their pieces.

    Let x be the pieces of a document, n the occurrences of a piece in the corpus D, and N the sum of all n. The paper
    has p(x_i) = n / N (Eq. 1) and P(x) = sum of ln p(x_i) (Eq. 2). The mean of P(x) over documents therefore needs only
    the n: (sum of n ln(n / N)) / |D|. Eq. 3 as printed takes a second logarithm, of a negative number; the released
    code and Tables 8 and 9 use the mean.

    Args:
        piece_counts: Occurrences of each id in the corpus, shape [size].
        documents: Number of documents |D|.
    """
    used = piece_counts[piece_counts > 0]
    return float((used * np.log(used / used.sum())).sum() / documents)
