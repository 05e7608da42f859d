"""Entries of a byte-level BPE model: whole words, looked up before any merge."""

from collections.abc import Mapping

import numpy as np

from .segmentation import Model, Segmentation, segment_words


def propose_entries(
    model: Model,
    words: list[str],
    counts: np.ndarray,
    segmentation: Segmentation,
    room: int,
    min_frequency: int,
    max_word_length: int,
) -> list[str]:
    """Rank words that take more than one piece; see `wordpiece`.

    Entries inside words would need merges. Merges add intermediate pieces, and change texts without any new entry. A
    word with and without a preceding space, or with a capital, are different words here.
    """
    several = np.flatnonzero((segmentation.lengths > 1) & (counts >= min_frequency)).tolist()
    short = [number for number in several if len(words[number]) <= max_word_length]
    ranked = sorted(short, key=lambda number: (-counts[number], words[number]))
    return [words[number] for number in ranked[:room]]


def add_entries(model: Model, entries: list[str], first_id: int) -> Model:
    """Append words. `ignore_merges` looks them up whole; the merges still spell every other word."""
    vocab = {**model["vocab"], **{entry: first_id + i for i, entry in enumerate(entries)}}
    return {**model, "vocab": vocab, "ignore_merges": True}


def spell_entries(model: Model, entries: list[str]) -> Mapping[str, list[int]]:
    """Return the ids of the pieces with which a model without these entries spells them."""
    segmentation = segment_words(model, entries)
    return {entry: segmentation.pieces(number) for number, entry in enumerate(entries)}
