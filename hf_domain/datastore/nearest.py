"""Find the texts that are nearest to others, by BM25."""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from datasets import Dataset

from hf_domain.datastore.analysis import Analyzer, choose_analyzer
from hf_domain.datastore.retrieval import add_passages
from hf_domain.datastore.store import Datastore

SEED = 0  # of the order of passages with the same rank
READ = 1000  # passages that are read at once


def choose_nearest(
    datastore: Datastore,
    texts: Sequence[str],
    num_tokens: int | None = None,
    *,
    num_passages: int = 50,
    num_proc: int | None = None,
) -> list[int]:
    """Choose passages that texts retrieve, the best of each text before the second best of any, to train on both.

    After kNN-TAPT (Gururangan et al. 2020, section 5.2), with BM25 instead of an embedding.

    Args:
        datastore: Passages of the corpus.
        texts: Texts of a task. One that is in the datastore does not choose itself, see `add_passages`.
        num_tokens: Stop when the passages have this many tokens. Of passages with the same rank, random ones are
            chosen, always the same: the first ones would be of the sources that the corpus begins with. Default: no
            limit.
        num_passages: Largest number of passages that a text chooses. Default: the smallest of the paper's, which are
            50, 150 and 500.
        num_proc: Number of processes.

    Returns:
        The ids of the passages, ascending, so that those of one document follow each other.
    """
    rows = Dataset.from_dict({"text": list(texts)})
    found = add_passages(rows, datastore, "text", num_passages, num_proc=num_proc)
    ranks: dict[int, int] = {}
    for passage_ids in found["passage_ids"]:
        for rank, number in enumerate(passage_ids):
            ranks[number] = min(rank, ranks.get(number, rank))
    numbers = np.random.default_rng(SEED).permutation(sorted(ranks))
    order = numbers[np.argsort([ranks[number] for number in numbers.tolist()], kind="stable")]
    return sorted(order.tolist() if num_tokens is None else _take(datastore, order.tolist(), num_tokens))


def _take(datastore: Datastore, order: list[int], num_tokens: int) -> list[int]:
    """Return the first passages that have this many tokens; those behind them, perhaps a whole corpus, stay unread."""
    special, taken, count = datastore.tokenizer.num_special_tokens_to_add(), list[int](), 0
    for start in range(0, len(order), READ):
        part = order[start : start + READ]
        for number, input_ids in zip(part, datastore.passages.select(part)["input_ids"], strict=True):
            if count >= num_tokens:
                return taken
            taken.append(number)
            count += len(input_ids) - special
    return taken


def search_texts(
    texts: Sequence[str], queries: Sequence[Sequence[str]], count: int
) -> list[list[tuple[list[int], list[float]]]]:
    """Return for each query of each list the numbers of the nearest texts, the nearest first, and their scores.

    A text without any word of the query is not found.

    Raises:
        ModuleNotFoundError: tantivy is not installed.
    """
    from hf_domain.datastore.tantivy_index import TantivyIndex, write_index

    analyzer = Analyzer(choose_analyzer(texts))
    with tempfile.TemporaryDirectory() as folder:
        write_index(Path(folder, "index"), analyzer, enumerate(texts))
        index = TantivyIndex(Path(folder, "index"), analyzer)
        return [index.search(each, count) if each else [] for each in queries]
