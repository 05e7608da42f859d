"""Retrieval as data preparation: passage ids become columns of a dataset.

Training then never waits for the index, runs are repeatable, and `datasets` caches the result.
"""

import logging
import re
import unicodedata
from collections.abc import Sequence
from functools import partial
from typing import Any

from datasets import Dataset, DatasetDict, Features, List, Value

from hf_domain.data.files import load_table, open_saved
from hf_domain.data.tables import Rows, Splits, has_splits
from hf_domain.datastore.splitting import split_texts
from hf_domain.datastore.store import Datastore

logger = logging.getLogger(__name__)

FOUND_COLUMNS = {"passage_ids": List(Value("int64")), "passage_scores": List(Value("float32"))}
IS_HELD = "text_is_in_datastore"  # a temporary column
MIN_CONTAINED_TERMS = 10  # shorter texts occur in others by chance
FIRST_CJK = "\u2e80"
APART = re.compile(r"[\W_]+")
APART_ASCII = {number: None for number in range(128) if not chr(number).isalnum()}


def add_passages(
    dataset: Rows | Splits,
    datastore: Datastore,
    text_columns: str | Sequence[str],
    k: int = 10,
    *,
    num_proc: int | None = None,
) -> Any:
    """Add the passages that each row's text finds.

    A row never finds itself. Three kinds of passages are left out: those equal to the row's text, the pieces that the
    datastore cuts it into, and those of ten terms or more that occur in it word for word. The log says how many texts
    the datastore holds, as a warning for any split but `train`: evaluation texts must not be in it.

    Args:
        dataset: Rows with texts, see `load_rows`, or several splits of them. A stream is read into memory.
        text_columns: Columns that make up the query, joined by a blank; lists of words count as texts.
        k: Largest number of passages of a row. Default: RADA, section 4.1.

    Returns:
        The dataset, or its splits, with the columns `passage_ids` (list of int64, best first, at most k, possibly
        empty) and `passage_scores` (list of float32).

    Raises:
        ValueError: A column is missing, the datastore is empty, or k is not positive.
    """
    dataset = open_saved(dataset)
    columns = [text_columns] if isinstance(text_columns, str) else list(text_columns)
    options = (datastore, columns, k, num_proc)
    if has_splits(dataset):
        return DatasetDict({split: _add_passages(load_table(rows), split, *options) for split, rows in dataset.items()})
    rows = load_table(dataset, "dataset")
    return _add_passages(rows, str(rows.split or "dataset"), *options)


def find_passages(datastore: Datastore, texts: Sequence[str], k: int = 10) -> dict[int, float]:
    """Find the passages of one text, or of the texts of a pair together, as `add_passages` does.

    Returns:
        The scores by passage id, best first; without the passages that are part of the text.
    """
    found = _retrieve(*([text] for text in texts), datastore=datastore, k=k)
    return dict(zip(found["passage_ids"][0], found["passage_scores"][0], strict=True))


def join_words(words: str | Sequence[str]) -> str:
    """Join words to a text, without blanks between Chinese, Japanese or Korean characters."""
    if isinstance(words, str):
        return words
    text = ""
    for word in words:
        is_apart = text and word and not (text[-1] >= FIRST_CJK and word[0] >= FIRST_CJK)
        text += f" {word}" if is_apart else word
    return text


def _add_passages(
    dataset: Dataset,
    split: str,
    datastore: Datastore,
    columns: list[str],
    k: int,
    num_proc: int | None,
) -> Dataset:
    missing = [column for column in columns if column not in dataset.column_names]
    if missing or not columns:
        raise ValueError(
            f"text columns must be columns of the dataset, {', '.join(dataset.column_names)}, but "
            f"{', '.join(missing)} is not"
        )
    if k < 1:
        raise ValueError(f"k, the number of passages to find, must be at least 1, but is {k}")
    if not len(datastore):
        raise ValueError(f"the datastore must hold passages, but {datastore.folder} is empty. Add documents.")
    if k > len(datastore):
        logger.warning(f"{datastore.folder} holds {len(datastore)} passages: no row gets k={k}.")
    found = dataset.map(
        partial(_retrieve, datastore=datastore, k=k),
        batched=True,
        input_columns=columns,
        features=Features({**dataset.features, **FOUND_COLUMNS, IS_HELD: Value("bool")}),
        num_proc=num_proc,
        desc=f"Retrieving passages ({split})",
    )
    num_held, num_without = sum(found[IS_HELD][:]), sum(not ids for ids in found["passage_ids"][:])
    if num_held:
        level = logging.INFO if split == "train" else logging.WARNING
        logger.log(level, f"{split}: {num_held} of {len(found)} texts are in the datastore {datastore.folder}.")
    if num_without:
        logger.info(f"No passage was found for {num_without} of {len(found)} texts of {split}.")
    return found.remove_columns(IS_HELD)


def _retrieve(*columns: list[Any], datastore: Datastore, k: int) -> dict[str, list[Any]]:
    rows = [[join_words(value or "") for value in row] for row in zip(*columns, strict=True)]
    texts = [" ".join(row) for row in rows]
    own = _find_own(rows, texts, datastore)
    is_held = [bool(mine) for mine in own]
    results: dict[str, list[Any]] = {name: [[] for _ in texts] for name in FOUND_COLUMNS}
    waiting, limit = list(range(len(texts))), k + max(map(len, own), default=0)
    while waiting:
        hits = datastore.search([texts[row] for row in waiting], limit)
        found = sorted({number for ids, _ in hits for number in ids})
        # All rows' passages at once: reading takes most of the time.
        words = map(_squeeze, datastore.passages.select_columns("text")[found]["text"] if found else [])
        passages = dict(zip(found, words, strict=True))
        short = []
        for row, (ids, scores) in zip(waiting, hits, strict=True):
            contained, contains = _compare(texts[row], ids, passages, datastore)
            own[row] |= contained
            is_held[row] |= bool(contained) or contains
            kept = [(number, score) for number, score in zip(ids, scores, strict=True) if number not in own[row]][:k]
            results["passage_ids"][row] = [number for number, _ in kept]
            results["passage_scores"][row] = [score for _, score in kept]
            if len(kept) < k and len(ids) == limit:
                short.append(row)
        # A block of several documents finds its own passages first; search deep enough to find others after them.
        waiting, limit = short, 2 * limit
    return results | {IS_HELD: is_held}


def _find_own(rows: list[list[str]], texts: list[str], datastore: Datastore) -> list[set[int]]:
    """Return the ids of the passages equal to each row, whether its columns were stored joined or one by one."""
    variants = [{text, *row} for text, row in zip(texts, rows, strict=True)]
    flat = [(number, variant) for number, group in enumerate(variants) for variant in sorted(group)]
    documents = split_texts([text for _, text in flat], datastore.tokenizer, datastore.manifest.max_length)
    pieces = [
        (number, passage.text) for (number, _), document in zip(flat, documents, strict=True) for passage in document
    ]
    own: list[set[int]] = [set() for _ in rows]
    for (number, _), passage_id in zip(pieces, datastore.find_texts(text for _, text in pieces), strict=True):
        if passage_id is not None:
            own[number].add(passage_id)
    return own


def _compare(text: str, ids: list[int], passages: dict[int, str], datastore: Datastore) -> tuple[set[int], bool]:
    """Return which passages found are part of the text, and whether the text is part of one of them."""
    words = _squeeze(text)
    contained = {number for number in ids if passages[number] in words}
    contained = {number for number in contained if _is_long(datastore.passages[number]["text"], datastore)}
    return contained, any(words in passages[number] for number in ids) and _is_long(text, datastore)


def _is_long(text: str, datastore: Datastore) -> bool:
    return len(datastore.analyzer(text)) >= MIN_CONTAINED_TERMS


def _squeeze(text: str) -> str:
    """Keep only letters and digits, without accents; they survive a tokenizer's encoding and decoding."""
    if text.isascii():
        return text.lower().translate(APART_ASCII)  # a tenth of the time; each row has ten passages to squeeze
    return APART.sub("", unicodedata.normalize("NFKD", text).lower())
