"""Cut documents into passages that fit the encoder."""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from datasets import Dataset, Features, IterableDataset, List, Value
from tokenizers import Encoding
from transformers import PreTrainedTokenizerBase

FEATURES = Features(
    {"id": Value("int64"), "document_id": Value("string"), "text": Value("string"), "input_ids": List(Value("int32"))}
)
# A full stop ends a sentence only before white space; Chinese and Japanese full stops need none.
TERMINATORS = (".", "!", "?")
FULLWIDTH_TERMINATORS = ("。", "\N{FULLWIDTH EXCLAMATION MARK}", "\N{FULLWIDTH QUESTION MARK}")
MIN_LENGTH = 32  # one Arabic character can be 18 tokens, and cannot be cut


@dataclass
class Passage:
    """A piece of a document."""

    text: str
    input_ids: list[int]
    """The token ids of `text`, with special tokens."""


def check_tokenizer(tokenizer: PreTrainedTokenizerBase, max_length: int) -> None:
    """Raise unless passages of this length can be cut for the model.

    Args:
        max_length: Largest number of tokens in a passage.

    Raises:
        ValueError: The tokenizer gives no offsets, or the model takes fewer tokens.
    """
    if not tokenizer.is_fast:
        raise ValueError(
            f"the tokenizer must give the offsets of tokens to cut passages, but {type(tokenizer).__name__} gives "
            "none. Use a fast tokenizer."
        )
    if not MIN_LENGTH <= max_length <= tokenizer.model_max_length:
        raise ValueError(
            f"max_length must be from {MIN_LENGTH} to {tokenizer.model_max_length}, the encoder's limit, but is "
            f"{max_length}. Change it or use another encoder."
        )


def fingerprint_tokenizer(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a digest of a tokenizer's encoding of text.

    Padding and truncation do not count, because calls change them. Nor does the blank that a byte-level tokenizer of
    words puts before the first word, because passages keep the tokens they were cut into.
    """
    state = json.loads(tokenizer.backend_tokenizer.to_str())
    for name in ("padding", "truncation", "version"):
        state.pop(name, None)
    for part in (state["pre_tokenizer"], state["post_processor"]):
        if part and "add_prefix_space" in part:
            part["add_prefix_space"] = False
    return hashlib.sha256(json.dumps(state, sort_keys=True).encode()).hexdigest()[:16]


def read_documents(
    documents: Dataset | IterableDataset, text_column: str, id_column: str | None, first: int
) -> Iterator[tuple[str, str]]:
    """Yield ids and texts."""
    for number, row in enumerate(documents, first):
        if not isinstance(row, Mapping):
            raise ValueError(f"a document must be a row with the column {text_column}, but row {number} is {row!r}.")
        for column in (text_column, id_column):
            if column is not None and column not in row:
                raise ValueError(
                    f"documents must have the column {column}, but have {', '.join(row)}. Name the right one."
                )
        text = row[text_column]
        if text is not None and not isinstance(text, str):
            raise ValueError(f"the text of a document must be a string, but {text_column} of row {number} is {text!r}.")
        yield str(number) if id_column is None else _write_id(row[id_column], id_column, number), text or ""


def _write_id(value: object, column: str, number: int) -> str:
    """Return an id as the file writes it: tables read whole numbers as fractions if one of them is missing."""
    if value is None or value != value:
        raise ValueError(f"a document must have an id, but {column} of row {number} is empty. Fill it in.")
    return str(int(value) if isinstance(value, float) and value.is_integer() else value)


def split_texts(texts: Sequence[str], tokenizer: PreTrainedTokenizerBase, max_length: int = 256) -> list[list[Passage]]:
    """Cut documents into passages.

    A long document is cut into pieces of about equal length, so that no scrap is left at its end. Cuts are made at the
    end of a sentence if one is near, else between words.

    Args:
        tokenizer: The encoder's, see `check_tokenizer`.
        max_length: Largest number of tokens in a passage, with special tokens. Default: RADA, section 4.1.

    Returns:
        The passages of each document, in order; none for a document without tokens.
    """
    texts = [text.strip() for text in texts]
    if not texts:
        return []
    options = {"return_attention_mask": False, "return_token_type_ids": False, "verbose": False}
    encodings = tokenizer(texts, **options).encodings
    documents: list[list[Passage]] = []
    cut: list[tuple[int, str]] = []  # pieces with the numbers of their documents
    for text, encoding in zip(texts, encodings, strict=True):
        if len(encoding.ids) > max_length:
            pieces = _cut(text, encoding, max_length - sum(encoding.special_tokens_mask))
            cut += [(len(documents), piece) for piece in pieces]
            documents.append([])
        else:
            has_tokens = not all(encoding.special_tokens_mask)
            documents.append([Passage(text, encoding.ids)] if has_tokens else [])
    # Tokenize the pieces again: byte-level and Unigram tokenizers encode a word differently at the start of a text. A
    # piece that became too long is cut again.
    passages = split_texts([piece for _, piece in cut], tokenizer, max_length)
    for (number, _), parts in zip(cut, passages, strict=True):
        documents[number] += parts
    return documents


def split_documents(
    documents: Sequence[tuple[str, str]],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    analyzer: Callable[[str], list[str]] | None = None,
) -> list[list[tuple[Passage, int, str | list[str]]]]:
    """Cut documents into passages; a function for workers, which need no datastore.

    Args:
        documents: Ids and texts.
        analyzer: Also turns the passages into terms, which then need no further work.

    Returns:
        For each document its passages, with the hashes of their texts, and with their terms or texts for the index.
    """
    return [
        [(each, hash_text(each.text), analyzer(each.text) if analyzer else each.text) for each in passages]
        for passages in split_texts([text for _, text in documents], tokenizer, max_length)
    ]


def hash_text(text: str) -> int:
    """Hash a text to a signed 64-bit number.

    Two of 5 million passages collide with a probability of 1 in a million, two of 100 million with 1 in 4,000. A
    collision loses one passage.
    """
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), signed=True)


def _cut(text: str, encoding: Encoding, budget: int) -> list[str]:
    """Cut a text of more than `budget` tokens, not counting special tokens."""
    kept = [number for number, special in enumerate(encoding.special_tokens_mask) if not special]
    offsets, word_ids = encoding.offsets, encoding.word_ids  # each access computes them again
    starts = [offsets[number][0] for number in kept]
    words = [word_ids[number] for number in kept]
    pieces, first = [], 0
    while len(kept) - first > budget:
        remaining = len(kept) - first
        target = -(-remaining // -(-remaining // budget))
        end = first + _find_cut(text, starts[first : first + budget + 1], words[first : first + budget + 1], target)
        pieces.append(text[starts[first] : starts[end]])
        first = end
    return [*pieces, text[starts[first] :]]


def _find_cut(text: str, starts: list[int], words: list[int | None], target: int) -> int:
    """Return the number of tokens before the best cut: near the target, with at least one token after it."""
    nearest = sorted(range(max(1, target // 2), len(starts)), key=lambda cut: (abs(cut - target), cut))
    for cut in nearest:
        before = text[starts[cut - 1] : starts[cut]]
        ended = before.rstrip()
        if ended.endswith(FULLWIDTH_TERMINATORS) or (ended != before and ended.endswith(TERMINATORS)):
            return cut
        # Byte-level tokens start with the blank before them.
        if ended.endswith(TERMINATORS) and text[starts[cut]].isspace():
            return cut
    return next((cut for cut in nearest if words[cut - 1] != words[cut]), target)
