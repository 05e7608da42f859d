"""Retrieval as a step of data preparation: passage ids become columns of a dataset.

Training then never waits for the index, runs are repeatable, and `datasets` caches the result.
"""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from datasets import Dataset, DatasetDict, Features, List, Value

from hf_domain.datastore.passages import split_texts
from hf_domain.datastore.storage import Datastore

logger = logging.getLogger(__name__)

AnyDataset = TypeVar("AnyDataset", Dataset, DatasetDict)
COLUMNS = {"passage_ids": List(Value("int64")), "passage_scores": List(Value("float32"))}
IS_HELD = "text_is_in_datastore"  # a column while passages are added
MIN_CONTAINED_TERMS = 10  # shorter texts stand in passages by chance
FIRST_CJK = "\u2e80"


def add_passages(
    dataset: AnyDataset,
    datastore: Datastore,
    text_columns: str | Sequence[str],
    k: int = 10,
    *,
    max_query_terms: int | None = None,
    num_proc: int | None = None,
) -> AnyDataset:
    """Add to each row the passages that its text finds.

    A row never finds itself: a passage that is the row's own text, or one of the pieces that the datastore cuts it
    into, is left out. How many texts the datastore holds is logged: for another split than `train` as a warning, since
    what is evaluated must not be in the datastore.

    Args:
        dataset: Rows with texts.
        datastore: The passages.
        text_columns: Columns that make up the query, joined by a blank; lists of words are texts as well.
        k: Passages of a row at most. Default: RADA, section 4.1.
        max_query_terms: See `Datastore.search`.
        num_proc: Processes.

    Returns:
        The dataset with the columns `passage_ids` (list of int64, best first, at most k, perhaps none) and
        `passage_scores` (list of float32).

    Raises:
        ValueError: A column is missing, the datastore is empty, or k is not positive.
    """
    if isinstance(dataset, DatasetDict):
        options: dict[str, Any] = {"max_query_terms": max_query_terms, "num_proc": num_proc}
        return DatasetDict(
            {
                split: _add_passages(rows, datastore, text_columns, k, split, **options)
                for split, rows in dataset.items()
            }
        )
    split = str(dataset.split or "dataset")
    return _add_passages(dataset, datastore, text_columns, k, split, max_query_terms, num_proc)


def join_words(words: str | Sequence[str]) -> str:
    """Make a text of words; no blank comes between Chinese, Japanese or Korean characters."""
    if isinstance(words, str):
        return words
    text = ""
    for word in words:
        is_apart = text and word and not (text[-1] >= FIRST_CJK and word[0] >= FIRST_CJK)
        text += f" {word}" if is_apart else word
    return text


def _add_passages(
    dataset: Dataset,
    datastore: Datastore,
    text_columns: str | Sequence[str],
    k: int,
    split: str,
    max_query_terms: int | None = None,
    num_proc: int | None = None,
) -> Dataset:
    columns = [text_columns] if isinstance(text_columns, str) else list(text_columns)
    missing = [column for column in columns if column not in dataset.column_names]
    if missing or not columns:
        raise ValueError(
            f"text columns are columns of the dataset: {', '.join(dataset.column_names)}; got {', '.join(missing)}."
        )
    if k < 1:
        raise ValueError(f"k is the number of passages to find, at least 1; got {k}")
    if not len(datastore):
        raise ValueError(f"passages come from a datastore that holds some; {datastore.folder} is empty. Add documents.")
    if k > len(datastore):
        logger.warning(f"{datastore.folder} holds {len(datastore)} passages: no row gets k={k}.")
    found = dataset.map(
        partial(_retrieve, datastore=datastore, k=k, max_query_terms=max_query_terms),
        batched=True,
        input_columns=columns,
        features=Features({**dataset.features, **COLUMNS, IS_HELD: Value("bool")}),
        num_proc=num_proc,
        desc=f"Retrieving passages ({split})",
    )
    num_held, num_without = sum(found[IS_HELD][:]), sum(not ids for ids in found["passage_ids"][:])
    if num_held:
        level = logging.INFO if split == "train" else logging.WARNING
        logger.log(level, f"{split}: {num_held} of {len(found)} texts are in the datastore {datastore.folder}.")
    if num_without:
        logger.info(f"{split}: {num_without} of {len(found)} texts find no passage.")
    return found.remove_columns(IS_HELD)


def _retrieve(*columns: list[Any], datastore: Datastore, k: int, max_query_terms: int | None) -> dict[str, list[Any]]:
    rows = [[join_words(value or "") for value in row] for row in zip(*columns, strict=True)]
    texts = [" ".join(row) for row in rows]
    own = _find_own(rows, texts, datastore)
    limit = k + max(map(len, own), default=0)
    results: dict[str, list[Any]] = {name: [] for name in (*COLUMNS, IS_HELD)}
    for text, mine, (ids, scores) in zip(texts, own, datastore.search(texts, limit, max_query_terms), strict=True):
        kept = [(number, score) for number, score in zip(ids, scores, strict=True) if number not in mine][:k]
        results["passage_ids"].append([number for number, _ in kept])
        results["passage_scores"].append([score for _, score in kept])
        results[IS_HELD].append(bool(mine) or _is_contained(text, ids[:1], datastore))
    return results


def _find_own(rows: list[list[str]], texts: list[str], datastore: Datastore) -> list[set[int]]:
    """Ids of the passages that each row is, whether the datastore got the columns joined or one by one."""
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


def _is_contained(text: str, best: list[int], datastore: Datastore) -> bool:
    """Whether a text stands in the passage that it finds first, as part of a longer one."""
    if not best or len(datastore.analyzer(text)) < MIN_CONTAINED_TERMS:
        return False
    return _squeeze(text) in _squeeze(datastore.passages[best[0]]["text"])


def _squeeze(text: str) -> str:
    return "".join(text.lower().split())
