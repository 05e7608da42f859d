"""Trim a vocabulary: keep the entries that a corpus uses, and split its texts as before."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from typing import Any

from tokenizers import Tokenizer
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from .counting import batch_texts
from .segmentation import Model, read_unknown, read_vocabulary
from .tokenizer_file import read_tokenizer, replace_model

BATCH = 1_000_000  # characters of texts that are encoded at once
BYTE = re.compile(r"<0x[0-9A-F]{2}>")  # how a Unigram model with byte fallback spells an unknown character


def trim_vocabulary(
    tokenizer: PreTrainedTokenizerBase, texts: Iterable[str], *, min_frequency: int = 1, progress: bool = True
) -> tuple[PreTrainedTokenizerBase, list[int]]:
    """Keep the entries of a tokenizer that a corpus uses, with all special tokens and single characters.

    With `min_frequency=1` the texts of the corpus are split as before, except that an unknown word may become known.
    Some words of other texts are split into more pieces than before, often into letters.

    Args:
        tokenizer: A fast tokenizer with a WordPiece, byte-level BPE or Unigram model.
        texts: Documents, or a table with a column of them.
        min_frequency: Minimum occurrences of an entry in the corpus. Above 1, the words of rarer entries are split into
            smaller pieces too.
        progress: Whether a bar shows the batches of texts read.

    Returns:
        The new tokenizer, and the old ids of its entries: entry i had the id `kept[i]`. Entries keep their order.

    Raises:
        TypeError: The tokenizer has no fast backend, or the corpus is not an iterable of strings.
        ValueError: `min_frequency` is below 1, the corpus is empty, or the tokenizer's model is of another kind.
    """
    if min_frequency < 1:
        raise ValueError(f"`min_frequency` must be at least 1, but is {min_frequency}. 1 keeps all entries in use.")
    state = read_tokenizer(tokenizer)
    _check_prefixes(state["model"])
    counts = _count_entries(tokenizer, state["model"]["type"] == "BPE", texts, progress)
    if not counts:
        raise ValueError("the corpus must contain words, but is empty. Use another corpus.")
    used = {id_ for id_, count in counts.items() if count >= min_frequency}
    used |= {*_find_needed(state["model"]), *_find_special(tokenizer, state)}
    kept = sorted(_add_parts(state["model"], used))
    new_ids = {old: new for new, old in enumerate(kept)}
    return replace_model(tokenizer, _renumber(state, new_ids), _keep_entries(state["model"], new_ids)), kept


def _check_prefixes(model: Model) -> None:
    """Refuse a BPE whose merges do not spell their entries."""
    affixes = [model.get(name) for name in ("continuing_subword_prefix", "end_of_word_suffix")]
    if model["type"] == "BPE" and any(affixes):
        raise ValueError(
            f"a BPE must mark words by their preceding space to be trimmed, but this one has the prefix {affixes[0]!r} "
            f"and the suffix {affixes[1]!r}. Keep its vocabulary."
        )


def _count_entries(
    tokenizer: PreTrainedTokenizerBase, marks_spaces: bool, texts: Iterable[str], progress: bool
) -> Counter[int]:
    """Count the ids that the tokenizer itself makes of the texts.

    Args:
        marks_spaces: Whether a word has other entries at the beginning of a text, as in a byte-level BPE. Tasks with
            words put a space before each of them, so the first word then counts with a space, too.
    """
    backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    backend.no_truncation()  # which a saved tokenizer may have; the rest of a long text would not be counted
    backend.no_padding()
    counts: Counter[int] = Counter()
    for batch in tqdm(batch_texts(texts, BATCH), desc="Counting entries", unit="batch", disable=not progress):
        firsts = [f" {words[0]}" for text in batch if marks_spaces and (words := text.split(maxsplit=1))]
        for encoding in backend.encode_batch_fast([*batch, *firsts], add_special_tokens=False):
            counts.update(encoding.ids)
    return counts


def _find_special(tokenizer: PreTrainedTokenizerBase, state: dict[str, Any]) -> Iterator[int]:
    """Find the tokens that the tokenizer adds to a text, and those that were added to it."""
    yield from (token["id"] for token in state["added_tokens"])
    yield from tokenizer.all_special_ids
    yield from chain(tokenizer("")["input_ids"], tokenizer("", "")["input_ids"])
    if state["padding"]:
        yield state["padding"]["pad_id"]


def _find_needed(model: Model) -> Iterator[int]:
    """Find the entries without which characters would become unknown."""
    vocabulary = read_vocabulary(model)
    if (unknown := read_unknown(model)) is not None:
        yield unknown
    prefix = model["continuing_subword_prefix"] if model["type"] == "WordPiece" else ""
    for entry, id_ in vocabulary.items():
        rest = entry.removeprefix(prefix)
        first = rest[:1] if rest == entry else prefix + rest[:1]
        characters = {first, *(prefix + character for character in rest[1:])}
        # Without all characters of its own, the entry is the only spelling.
        if len(rest) == 1 or BYTE.fullmatch(entry) or (prefix and not vocabulary.keys() >= characters):
            yield id_


def _add_parts(model: Model, used: set[int]) -> set[int]:
    """Add the entries that the merges of a BPE pass through."""
    vocabulary, found = read_vocabulary(model), {*used}
    names = {id_: entry for entry, id_ in vocabulary.items()}
    parts: dict[str, set[str]] = {}
    for left, right in model.get("merges", ()):
        parts.setdefault(left + right, set()).update((left, right))
    waiting = [names[id_] for id_ in used]
    while waiting:
        new = {vocabulary[part] for part in parts.get(waiting.pop(), ())} - found
        found |= new
        waiting += (names[id_] for id_ in new)
    return found


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
