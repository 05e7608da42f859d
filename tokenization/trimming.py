"""Trim a vocabulary: keep the entries that a corpus uses, and split its texts as before."""

import re
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from .counting import WordCounts, batch_texts, check_counts, count_words
from .segmentation import Model, read_unknown, read_vocabulary, segment_words
from .tokenizer_file import read_tokenizer, replace_model

BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # how a Unigram model with byte fallback spells an unknown character


def trim_vocabulary(
    tokenizer: PreTrainedTokenizerBase,
    corpus: Iterable[str] | WordCounts,
    *,
    min_frequency: int = 1,
    executor: Executor | None = None,
    progress: bool = True,
) -> tuple[PreTrainedTokenizerBase, list[int]]:
    """Keep the entries of a tokenizer that a corpus uses, with all special tokens and single characters.

    With `min_frequency=1` the texts of the corpus are split as before. Some words of other texts are split into more
    pieces than before.

    Args:
        tokenizer: A fast tokenizer with a WordPiece, byte-level BPE or Unigram model.
        corpus: Documents, or their words as counted by `count_words`.
        min_frequency: Minimum occurrences of an entry in the corpus. Above 1, the words of rarer entries are split into
            smaller pieces too.
        executor: Where the corpus is counted, see `count_words`.

    Returns:
        The new tokenizer, and the old ids of its entries: entry i had the id `kept[i]`. Entries keep their order.

    Raises:
        TypeError: The tokenizer has no fast backend, or the corpus is not an iterable of strings.
        ValueError: `min_frequency` is below 1, the corpus is empty or was counted for another tokenizer, or the
            tokenizer's model is of another kind.
    """
    if min_frequency < 1:
        raise ValueError(f"`min_frequency` must be at least 1, but is {min_frequency}. 1 keeps all entries in use.")
    state = read_tokenizer(tokenizer)
    if not isinstance(corpus, WordCounts):
        corpus = count_words(batch_texts(corpus), tokenizer.backend_tokenizer, executor, progress)
    check_counts(corpus, tokenizer.backend_tokenizer)
    kept = sorted({*_find_used(state["model"], corpus, min_frequency), *_find_needed(state)})
    new_ids = {old: new for new, old in enumerate(kept)}
    return replace_model(tokenizer, _renumber(state, new_ids), _keep_entries(state["model"], new_ids)), kept


def _find_used(model: Model, corpus: WordCounts, min_frequency: int) -> set[int]:
    """Find the entries that the corpus uses, and for a BPE what their merges pass through."""
    vocabulary = read_vocabulary(model)
    counts = np.fromiter(corpus.words.values(), np.int64)
    use = segment_words(model, list(corpus.words)).count_pieces(counts, max(vocabulary.values()) + 1)
    used = set(np.flatnonzero(use >= min_frequency).tolist())
    parts: dict[str, set[str]] = {}
    for left, right in model.get("merges", ()):
        parts.setdefault(left + right, set()).update((left, right))
    names = {id_: entry for entry, id_ in vocabulary.items()}
    waiting = [names[id_] for id_ in used]
    while waiting:
        new = {vocabulary[part] for part in parts.get(waiting.pop(), ())} - used
        used |= new
        waiting += (names[id_] for id_ in new)
    return used


def _find_needed(state: dict[str, Any]) -> Iterator[int]:
    """Find the entries without which texts would lose characters, or a model its special tokens."""
    model = state["model"]
    yield from (token["id"] for token in state["added_tokens"])
    if (unknown := read_unknown(model)) is not None:
        yield unknown
    prefix = model.get("continuing_subword_prefix") or ""
    for entry, id_ in read_vocabulary(model).items():
        if len(entry.removeprefix(prefix)) == 1 or BYTE.fullmatch(entry):
            yield id_
    if model["type"] == "Unigram":
        # The score of an unknown character is the lowest score less a constant, and decides between splits.
        scores = [score for _, score in model["vocab"]]
        yield scores.index(min(scores))


def _keep_entries(model: Model, new_ids: dict[int, int]) -> Model:
    """Return the model with fewer entries."""
    if model["type"] == "Unigram":
        unknown = None if model["unk_id"] is None else new_ids[model["unk_id"]]
        return {**model, "vocab": [model["vocab"][old] for old in new_ids], "unk_id": unknown}
    vocab = {entry: new_ids[id_] for entry, id_ in model["vocab"].items() if id_ in new_ids}
    if model["type"] == "WordPiece":
        return {**model, "vocab": vocab}
    merges = [(left, right) for left, right in model["merges"] if {left, right, left + right} <= vocab.keys()]
    return {**model, "vocab": vocab, "merges": merges}


def _renumber(state: dict[str, Any], new_ids: dict[int, int]) -> dict[str, Any]:
    """Return the state of a tokenizer with the new ids wherever it names special tokens."""
    added = [{**token, "id": new_ids[token["id"]]} for token in state["added_tokens"]]
    padding = state["padding"] and {**state["padding"], "pad_id": new_ids[state["padding"]["pad_id"]]}
    return {
        **state,
        "added_tokens": added,
        "padding": padding,
        "post_processor": _renumber_processor(state["post_processor"], new_ids),
    }


def _renumber_processor(processor: Any, new_ids: dict[int, int]) -> Any:
    """Return a post-processor with the new ids: a template, a pair such as ["[SEP]", 102], or a sequence of them."""
    if not isinstance(processor, dict):
        return processor
    renumbered = {**processor}
    for name, value in processor.items():
        if name in ("sep", "cls"):
            renumbered[name] = [value[0], new_ids[value[1]]]
        elif name == "processors":
            renumbered[name] = [_renumber_processor(each, new_ids) for each in value]
        elif name == "special_tokens":
            renumbered[name] = {
                token: {**facts, "ids": [new_ids[id_] for id_ in facts["ids"]]} for token, facts in value.items()
            }
    return renumbered
