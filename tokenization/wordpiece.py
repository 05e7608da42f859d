"""Entries of a WordPiece model, which takes the longest match from the left and marks continuations with `##`."""

from collections.abc import Mapping

import numpy as np
from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.trainers import WordPieceTrainer

from .prefix_tree import PrefixTree, select_entries
from .segmentation import Model, Segmentation, read_unknown, read_vocabulary, segment_words

LEARNED_WORDS = 20_000_000  # maximum words that the learner of `learn_entries` reads, some seconds of work


def propose_entries(
    model: Model,
    words: list[str],
    counts: np.ndarray,
    segmentation: Segmentation,
    room: int,
    min_frequency: int,
    max_word_length: int,
) -> list[str]:
    """Return new entries, most used first: beginnings of words and of the rests after their first pieces.

    WordPiece splits a word from the left, so an entry is useful if it starts where a piece starts. It may end at any
    character.

    Args:
        model: The model with all entries accepted so far.
        words: Distinct words.
        counts: Occurrences of each word, shape [words].
        segmentation: The words as split by the model.
        room: Maximum number of entries.
        min_frequency: Minimum use of an entry.
        max_word_length: Words of more characters contribute nothing.
    """
    vocabulary = read_vocabulary(model)
    prefix = model["continuing_subword_prefix"]
    unknown = read_unknown(model)
    characters = np.zeros(max(vocabulary.values()) + 1, np.int64)
    for entry, id_ in vocabulary.items():
        characters[id_] = len(entry.removeprefix(prefix))

    whole: list[int] = []
    inner: list[int] = []
    inner_tails: list[str] = []
    unfinished = (segmentation.lengths > 1) | (segmentation.ids[segmentation.starts[:-1]] == unknown)
    for number in np.flatnonzero(unfinished).tolist():
        if len(words[number]) > max_word_length:
            continue
        whole.append(number)
        start = 0
        for id_ in segmentation.pieces(number)[:-1]:
            if start:
                inner.append(number)
                inner_tails.append(words[number][start:])
            start += characters[id_]
    trees = [
        PrefixTree([words[number] for number in whole], counts[whole], False, str, vocabulary, min_frequency),
        PrefixTree(inner_tails, counts[inner], True, prefix.__add__, vocabulary, min_frequency),
    ]
    return select_entries(trees, room, min_frequency)


def learn_entries(model: Model, words: list[str], counts: np.ndarray, size: int) -> list[str]:
    """Learn a WordPiece vocabulary on the corpus, without the model's entries (exBERT's extension vocabulary).

    Args:
        words: Distinct words.
        counts: Occurrences of each word, shape [words].
        size: Number of entries to learn.
    """
    learner = Tokenizer(WordPiece(unk_token=model["unk_token"]))
    learner.pre_tokenizer = WhitespaceSplit()
    prefix = model["continuing_subword_prefix"]
    # By default the learner numbers characters in hash order, and these numbers break ties.
    characters = sorted(set().union(*words))
    trainer = WordPieceTrainer(
        vocab_size=size,
        special_tokens=[model["unk_token"], *characters, *map(prefix.__add__, characters)],
        continuing_subword_prefix=prefix,
        show_progress=False,
    )
    # The learner reads only text and counts it again; only the ratios of the counts matter.
    scale = max(1, int(counts.sum()) // LEARNED_WORDS)
    weighted = zip(words, counts.tolist(), strict=True)
    learner.train_from_iterator((f"{word} " * -(-count // scale) for word, count in weighted), trainer)
    learned = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    return [entry for entry, _ in learned if entry not in model["vocab"]]


def add_entries(model: Model, entries: list[str], first_id: int) -> Model:
    """Append entries; the model needs nothing but their ids."""
    return {**model, "vocab": {**model["vocab"], **{entry: first_id + i for i, entry in enumerate(entries)}}}


def spell_entries(model: Model, entries: list[str]) -> Mapping[str, list[int]]:
    """Return the ids of the pieces with which a model without these entries spells them; empty if one is unknown.

    A continuation such as `##otropin` cannot be split as text, which would start with `#`. A model whose only entries
    are the continuations, without their mark, splits it.
    """
    prefix = model["continuing_subword_prefix"]
    unknown = model["unk_token"]
    continuations = {
        entry.removeprefix(prefix): id_ for entry, id_ in model["vocab"].items() if entry.startswith(prefix)
    }
    inside = {**model, "vocab": {**continuations, unknown: model["vocab"][unknown]}, "continuing_subword_prefix": ""}
    spelled: dict[str, list[int]] = {}
    for part, cutter in ((False, model), (True, inside)):
        chosen = [entry for entry in entries if entry.startswith(prefix) == part]
        pieces = segment_words(cutter, [entry.removeprefix(prefix) if part else entry for entry in chosen])
        for number, entry in enumerate(chosen):
            spelled[entry] = [id_ for id_ in pieces.pieces(number) if id_ != read_unknown(model)]
    return {entry: spelled[entry] for entry in entries}
