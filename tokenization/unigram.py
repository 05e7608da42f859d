"""Entries of a Unigram model, which splits a word into the pieces whose scores have the highest sum."""

import itertools
import unicodedata
import zlib
from collections import Counter
from collections.abc import Mapping

import numpy as np

from .prefix_tree import PrefixTree, select_entries
from .segmentation import Model, Segmentation, read_unknown, read_vocabulary, segment_words

BONUS = 1e-6
"""Bonus of a piece for each token that it saves. It is far above the rounding error of a sum of scores, and far below
the usual difference between two splits of a word: it decides only between splits that were equally likely before."""
TIE_BREAK = 1e-7
"""Largest additional bonus of a piece, drawn by a hash of its text. Without it, splits that save equally many tokens
(`blasto|cyst` and `blast|ocyst`) would have the same score, and rounding would decide. JSON parsers round differently,
so `AutoTokenizer`, `tokenizers` and transformers.js could split a text differently. The bonus is far above that
rounding error, and too small to outweigh the bonus of a token."""


def propose_entries(
    model: Model,
    words: list[str],
    counts: np.ndarray,
    segmentation: Segmentation,
    room: int,
    min_frequency: int,
    max_word_length: int,
) -> list[str]:
    """Rank runs of pieces, because only strings that start and end where pieces do can replace them; see `wordpiece`.

    A word of these models is all text between two spaces, including punctuation, or a whole sentence of a language
    without spaces. A run therefore ends at an unknown piece, and at a piece with a character other than a letter, mark
    or digit: `▁lymphoma` and `▁lymphoma,` count for one entry. `max_word_length` limits the runs.
    """
    vocabulary = read_vocabulary(model)
    spelling = [piece for piece, _ in model["vocab"]]
    joins = np.array([_is_wordy(piece) for piece in spelling])
    if read_unknown(model) is not None:
        joins[read_unknown(model)] = False

    runs: Counter[str] = Counter()
    for number in np.flatnonzero(segmentation.lengths > 1).tolist():
        for joined, pieces in itertools.groupby(segmentation.pieces(number), joins.__getitem__):
            if joined:
                # One character per piece turns a run into a string; numpy would drop a 0 at the end of a string.
                runs["".join(chr(id_ + 1) for id_ in pieces)] += int(counts[number])

    def spell(run: str) -> str:
        return "".join(spelling[ord(symbol) - 1] for symbol in run)

    short = [run for run in runs if len(spell(run)) <= max_word_length]
    places = [(run, start) for run in short for start in range(len(run) - 1)]
    counts_of_tails = np.array([runs[run] for run, _ in places], np.int64)
    inner = np.array([start > 0 for _, start in places], bool)
    tails = [run[start:] for run, start in places]
    tree = PrefixTree(tails, counts_of_tails, inner, spell, vocabulary, min_frequency)
    return select_entries([tree], room, min_frequency)


def add_entries(model: Model, entries: list[str], first_id: int) -> Model:
    """Append pieces that replace their old spelling, and change nothing else.

    A piece gets the score of its old spelling plus a little for each token that it saves. Among equally good splits,
    the one with the fewest tokens then wins. Scores of a newly trained model would change unrelated texts, and a piece
    with the lowest score would never win.
    """
    if len(model["vocab"]) != first_id:
        raise ValueError(
            f"new pieces of a Unigram model must follow the last one, at {len(model['vocab'])}, because ids are "
            f"positions, but the tokenizer's ids go up to {first_id - 1}. Fill the gap with added tokens."
        )
    scores = [score for _, score in model["vocab"]]
    pieces = []
    for entry, spelled in spell_entries(model, entries).items():
        bonus = BONUS * (len(spelled) - 1) + TIE_BREAK * _hash_entry(entry)
        pieces.append([entry, sum(scores[id_] for id_ in spelled) + bonus])
    return {**model, "vocab": model["vocab"] + pieces}


def spell_entries(model: Model, entries: list[str]) -> Mapping[str, list[int]]:
    """Return the ids of the pieces with which a model without these entries spells them."""
    segmentation = segment_words(model, entries)
    return {entry: segmentation.pieces(number) for number, entry in enumerate(entries)}


def _hash_entry(entry: str) -> float:
    """Return a number from 0 to 1 that depends only on the text; a rank would change splits when entries change."""
    return zlib.crc32(entry.encode()) / 2**32


def _is_wordy(piece: str) -> bool:
    return all(unicodedata.category(character)[0] in "LMN" for character in piece.replace("▁", ""))
