"""Select the strings that would be used most if they were in the vocabulary.

The rule is that of tensor2tensor's SubwordTextBuilder, to which AdaLM refers: the count of a string is the number of
positions where it would be the longest match. Accepting a string therefore lowers the counts of all its prefixes.
"""

from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass

import numpy as np


@dataclass
class Level:
    """All beginnings of one length, in alphabetical order."""

    entries: list[str]
    known: np.ndarray
    """Whether the vocabulary already has the entry, shape [beginnings]."""
    start: np.ndarray
    """First of the sorted tails that begins so, shape [beginnings]."""
    end: np.ndarray
    """First tail after those that begin so, shape [beginnings]."""
    parent: np.ndarray
    """Position of the beginning that is shorter by one in the level above, shape [beginnings]."""
    parents: int
    """Beginnings in the level above."""


class PrefixTree:
    """The beginnings of many tails; a tail is the rest of a word from a position where the model starts a piece.

    Args:
        tails: Strings, one character per symbol, shape [tails].
        counts: How often the word of each tail occurs, shape [tails].
        inner: Whether a tail starts inside its word, shape [tails], or one value for all.
        spell: The vocabulary entry that a beginning of a tail stands for.
        vocabulary: Entries that exist.
        min_frequency: Beginnings that occur less often are left out.
    """

    def __init__(
        self,
        tails: list[str],
        counts: np.ndarray,
        inner: np.ndarray | bool,
        spell: Callable[[str], str],
        vocabulary: Container[str],
        min_frequency: int,
    ) -> None:
        order = sorted(range(len(tails)), key=tails.__getitem__)
        tails = [tails[position] for position in order]
        self.counts = counts[order]
        self.inner = np.broadcast_to(inner, len(tails))[order]
        self.levels: list[Level] = []
        if not tails:
            return
        lengths = np.array([len(tail) for tail in tails])
        shared = _measure_shared(tails, lengths)
        total = np.concatenate([[0], np.cumsum(self.counts)])
        above = np.zeros(1, np.int64)
        for length in range(1, lengths.max() + 1):
            edges = np.flatnonzero(shared < length)
            ends = np.append(edges[1:], len(tails))
            # A tail shorter than `length` is an edge without being such a beginning.
            kept = (lengths[edges] >= length) & (total[ends] - total[edges] >= min_frequency)
            start, end = edges[kept], ends[kept]
            if not len(start):
                return
            entries = [spell(tails[position][:length]) for position in start]
            known = np.array([entry in vocabulary for entry in entries])
            parent = np.searchsorted(above, start, side="right") - 1
            self.levels.append(Level(entries, known, start, end, parent, len(above)))
            above = start

    def select(self, threshold: int) -> Counter[str]:
        """Accept strings, longest first, that would be used at least `threshold` times, and return their counts.

        A word that is frequent enough to become an entry contributes nothing to entries inside words. Otherwise
        `##phoma` and `##mphoma` would be counted at every `lymphoma`, but never be used.
        """
        counts = np.where(self.inner & (self.counts >= threshold), 0, self.counts)
        total = np.concatenate([[0], np.cumsum(counts)])
        accepted: Counter[str] = Counter()
        taken_below: np.ndarray = np.zeros(len(self.levels[-1].entries) if self.levels else 0)
        for level in reversed(self.levels):
            occurrences = total[level.end] - total[level.start]
            use = occurrences - taken_below
            stays = level.known | (use >= threshold)
            for position in np.flatnonzero(stays & ~level.known):
                accepted[level.entries[position]] = int(use[position])
            taken = np.where(stays, occurrences, taken_below)
            taken_below = np.bincount(level.parent, taken, minlength=level.parents)
        return accepted


def select_entries(trees: list[PrefixTree], room: int, min_frequency: int) -> list[str]:
    """Return the `room` strings that would be used most, most used first and then the longest.

    Args:
        trees: Tails whose beginnings are different entries.
        room: Maximum number of strings.
        min_frequency: Minimum use of a string.
    """

    def accept(threshold: int) -> Counter[str]:
        return sum((tree.select(threshold) for tree in trees), Counter())

    accepted = accept(min_frequency)
    if len(accepted) > room:
        enough, too_few = min_frequency, sum(int(tree.counts.sum()) for tree in trees) + 1
        while too_few - enough > 1:
            middle = (enough + too_few) // 2
            tried = accept(middle)
            if len(tried) >= room:
                enough, accepted = middle, tried
            else:
                too_few = middle
    return sorted(accepted, key=lambda entry: (-accepted[entry], -len(entry), entry))[:room]


def _measure_shared(tails: list[str], lengths: np.ndarray) -> np.ndarray:
    """Return the length of the beginning that each tail shares with the one before, -1 for the first, [tails]."""
    symbols = np.array(tails).view(np.uint32).reshape(len(tails), -1)
    different = symbols[1:] != symbols[:-1]
    shared = np.where(different.any(axis=1), different.argmax(axis=1), lengths[1:])
    return np.concatenate([[-1], shared])
