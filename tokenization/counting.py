"""Count the words of a corpus, as split by a tokenizer's own normalizer and pre-tokenizer.

Vocabulary expansion needs one pass over the text; everything after it works on distinct words. The pass is a map over
shards and a sum, so the same two functions run in this process, on a process pool and on a Dask cluster. Counts of
parts of a corpus can be saved and added up later.
"""

import hashlib
import json
import os
import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from tokenizers import Tokenizer
from tqdm.auto import tqdm

from .texts import read_texts

SAMPLE_SIZE = 100  # documents of a shard on which fast counting is checked against plain counting
SHARDS_IN_FLIGHT = 4  # submitted but not yet added up; bounds the memory for a corpus of any size


@dataclass
class WordCounts:
    """How often each word occurs, and in how many documents.

    A word is a string as the tokenizer's model receives it: `lymphoma` for BERT, `Ġlymphoma` for a byte-level BPE,
    `▁lymphoma` for a Unigram model.
    """

    splitter: str
    """Fingerprint of the normalizer and pre-tokenizer; only counts with the same fingerprint can be added."""
    words: Counter[str] = field(default_factory=Counter)
    documents: int = 0
    """Number of documents that are not blank."""
    source: str = field(default="", compare=False)
    """Digest of the files that were counted, if known."""

    def save(self, path: str | os.PathLike) -> None:
        """Write a parquet file with the columns `word` and `count`, the most frequent first."""
        ranked = sorted(self.words.items(), key=lambda item: (-item[1], item[0]))
        table = pa.table({"word": [word for word, _ in ranked], "count": [count for _, count in ranked]})
        table = table.replace_schema_metadata(
            {"splitter": self.splitter, "documents": str(self.documents), "source": self.source}
        )
        partial = Path(f"{path}.partial")
        pq.write_table(table, partial)
        os.replace(partial, path)

    @classmethod
    def load(cls, path: str | os.PathLike, source: str = "") -> Self:
        """Read a file that `save` wrote.

        Raises:
            ValueError: It is no such file, or has the counts of files with another digest than `source`.
        """
        try:
            table = pq.read_table(path)
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"{path} must be a Parquet file of word counts, but cannot be read: {error}. Count the corpus again."
            ) from None
        metadata = table.schema.metadata or {}
        if b"splitter" not in metadata or b"documents" not in metadata:
            raise ValueError(
                f"{path} must be a file of word counts, but its schema does not name splitter and documents. Name a "
                "file that hf-domain expand_vocab --counts_file wrote."
            )
        words = Counter(dict(zip(table["word"].to_pylist(), table["count"].to_pylist(), strict=True)))
        found = metadata.get(b"source", b"").decode()
        if source and found not in ("", source):
            raise ValueError(
                f"{path} must have the counts of this corpus, but has those of other files. Name another file."
            )
        return cls(metadata[b"splitter"].decode(), words, int(metadata[b"documents"]), found)


def fingerprint_splitter(tokenizer: Tokenizer) -> str:
    """Return a digest of how a tokenizer splits text into words."""
    state = json.loads(tokenizer.to_str())
    added = _list_added(tokenizer)
    splitter = json.dumps([state["normalizer"], state["pre_tokenizer"], *([added] if added else [])], sort_keys=True)
    return hashlib.sha256(splitter.encode()).hexdigest()[:16]


def count_shard(texts: Iterable[str], tokenizer: Tokenizer) -> WordCounts:
    """Count the words of one part of a corpus.

    White-space chunks are counted first, and each distinct chunk is normalized and pre-tokenized once. This is several
    times faster than processing every document. The result is exact if the pre-tokenizer splits at white space in any
    context. A sample of the shard checks this; if it fails, the shard is counted document by document.

    Args:
        texts: Any iterable of documents. For workers of a cluster it may be an object that opens a file when iterated.
        tokenizer: The backend of a fast tokenizer (`backend_tokenizer`).
    """
    documents = [text for text in read_texts(texts) if text and not text.isspace()]
    sample = documents[:: max(1, len(documents) // SAMPLE_SIZE)]
    exact = split_texts(_count_chunks(sample), tokenizer) == split_texts(Counter(sample), tokenizer)
    chunks = _count_chunks(documents) if exact else Counter(documents)
    return WordCounts(fingerprint_splitter(tokenizer), split_texts(chunks, tokenizer), len(documents))


def merge_counts(parts: Iterable[WordCounts]) -> WordCounts:
    """Add up counts of disjoint parts of a corpus.

    Raises:
        ValueError: There is no part, or the parts were counted with different normalizers or pre-tokenizers.
    """
    total: WordCounts | None = None
    for part in parts:
        total = total or WordCounts(part.splitter)
        if part.splitter != total.splitter:
            raise ValueError(
                f"word counts must come from one tokenizer's normalizer and pre-tokenizer, but the fingerprints "
                f"are {total.splitter} and {part.splitter}. Count the parts again with the same tokenizer."
            )
        total.words.update(part.words)
        total.documents += part.documents
    if total is None:
        raise ValueError("a corpus must contain words, but it is empty. Use another corpus.")
    return total


def count_words(
    shards: Iterable[Iterable[str]],
    tokenizer: Tokenizer,
    executor: Executor | None = None,
    progress: bool = True,
    in_flight: int = SHARDS_IN_FLIGHT,
) -> WordCounts:
    """Count the words of a corpus of any size.

    Args:
        shards: Parts of the corpus, each an iterable of documents; `batch_texts` makes them from a stream.
        tokenizer: The backend of a fast tokenizer (`backend_tokenizer`).
        executor: Where shards are counted: a `ProcessPoolExecutor`, or `dask.distributed.Client(...).get_executor()`
            for a cluster. None counts in this process.
        progress: Whether a bar shows the shards counted.
        in_flight: Shards in memory at once; at least as many as the executor has workers keep them busy.
    """
    counted = _map_in_order(executor, shards, tokenizer, in_flight)
    return merge_counts(tqdm(counted, desc="Counting words", unit="shard", disable=not progress))


def batch_texts(texts: Iterable[str], characters: int = 16_000_000) -> Iterator[list[str]]:
    """Cut a stream of documents into shards.

    Args:
        characters: Minimum size of a shard. 16 million is our choice: few distinct chunks are processed twice, and two
            cores stay busy from 32 MB of text on.
    """
    batch: list[str] = []
    size = 0
    for text in read_texts(texts):
        batch.append(text)
        size += len(text)
        if size >= characters:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _count_chunks(documents: list[str]) -> Counter[str]:
    """Count white-space chunks, each with its preceding space: ` word` and a `word` that opens a text may differ."""
    rows = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(pa.array(documents, pa.large_string())))
    chunks = Counter({f" {chunk}": count for chunk, count in _count_values(rows.flatten())})
    for chunk, count in _count_values(pc.list_element(rows, 0)):
        chunks[chunk] += count
        chunks[f" {chunk}"] -= count
    return chunks


def _count_values(values: pa.Array) -> Iterator[tuple[str, int]]:
    counts = pc.value_counts(values)
    return zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)


def split_texts(texts: Counter[str], tokenizer: Tokenizer) -> Counter[str]:
    """Normalize and pre-tokenize each text once; its words occur as often as the text does.

    Tokens that were added to the tokenizer are cut out, as the tokenizer does: the model never receives their words.
    """
    normalizer, pre_tokenizer, added = tokenizer.normalizer, tokenizer.pre_tokenizer, _match_added(tokenizer)
    words: Counter[str] = Counter()
    for text, count in texts.items():
        if count:
            normal = normalizer.normalize_str(text) if normalizer else text
            for part in added.split(normal) if added else [normal]:
                for word, _ in pre_tokenizer.pre_tokenize_str(part):
                    words[word] += count
    return words


def _list_added(tokenizer: Tokenizer) -> list[str]:
    """List the tokens that a user added; no text contains special tokens."""
    return sorted(token.content for token in tokenizer.get_added_tokens_decoder().values() if not token.special)


def _match_added(tokenizer: Tokenizer) -> re.Pattern | None:
    """Return an expression for the added tokens, the longest first, in normalized text; None if there are none."""
    if not (tokens := _list_added(tokenizer)):
        return None
    normalizer = tokenizer.normalizer
    forms = {normalizer.normalize_str(token) if normalizer else token for token in tokens} - {""}
    return re.compile("|".join(map(re.escape, sorted(forms, key=lambda form: (-len(form), form)))))


def _map_in_order(
    executor: Executor | None, shards: Iterable[Iterable[str]], tokenizer: Tokenizer, in_flight: int
) -> Iterator[WordCounts]:
    """Yield `executor.map(count_shard, shards)` with only a few shards in memory at once."""
    if executor is None:
        yield from (count_shard(shard, tokenizer) for shard in shards)
        return
    pending: deque[Future[WordCounts]] = deque()
    for shard in shards:
        pending.append(executor.submit(count_shard, shard, tokenizer))
        if len(pending) >= in_flight:
            yield pending.popleft().result()
    while pending:
        yield pending.popleft().result()
