"""A BM25 index in a folder, by tantivy: no server, memory-mapped.

The index holds the numbers of passages and no text. `hf_domain.datastore.analysis` makes the terms, which are split at
white space here. BM25 has k1 = 1.2 and b = 0.75, the defaults of Lucene and Elasticsearch.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_domain.datastore.analysis import Analyzer
from hf_domain.extras import require

K1, B = 1.2, 0.75  # fixed in tantivy
MEMORY = 128_000_000  # bytes of the writer before it starts a new segment
MAX_TERM_BYTES = 60_000  # tantivy fails above 65,530


def import_tantivy() -> Any:
    """Import the optional dependency.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    require("the search in a datastore of the engine tantivy", "tantivy")
    import tantivy

    return tantivy


def write_index(
    folder: Path,
    analyzer: Analyzer,
    passages: Iterable[tuple[int, str | list[str]]],
    base: Path | None = None,
) -> None:
    """Write an index into a new folder.

    tantivy replaces index files by renaming, and never changes them. So the new index takes those of `base` as hard
    links: adding to a large index costs only what is added, and `base` stays as it is.

    Args:
        folder: Must not exist.
        passages: Ids and texts to add, in ascending order; a list instead of a text is its terms.
        base: The index to start from. Default: an empty one.
    """
    tantivy = import_tantivy()
    folder.mkdir()
    if base is not None:
        for file in base.iterdir():
            if file.suffix != ".lock":
                try:
                    os.link(file, folder / file.name)
                except OSError:  # no links on this disk
                    shutil.copyfile(file, folder / file.name)
    index = tantivy.Index.open(str(folder)) if base else tantivy.Index(_make_schema(), path=str(folder))
    # One thread, to keep passages in order, and the segments that hold them.
    writer = index.writer(MEMORY, 1)
    try:
        for number, text in passages:
            document = tantivy.Document()
            document.add_integer("id", number)
            terms = analyzer(text) if isinstance(text, str) else text
            document.add_text("text", " ".join(_check_terms(terms)))
            writer.add_document(document)
        writer.commit()
    finally:
        # Its threads would otherwise write into a folder that may no longer exist.
        writer.wait_merging_threads()
    for file in folder.glob("*.lock"):
        file.unlink()


class TantivyIndex:
    """An index opened for searching.

    Args:
        folder: Written by `write_index`.
        analyzer: The analyzer it was written with.

    Raises:
        ValueError: The files are no index, or another version of tantivy wrote them.
    """

    def __init__(self, folder: Path, analyzer: Analyzer):
        self.tantivy = import_tantivy()
        if not self.tantivy.Index.is_compatible(str(folder)):
            raise ValueError(
                f"tantivy {self.tantivy.__version__} cannot read {folder}, which another version wrote. Rebuild "
                "the index with Datastore.load(..., rebuild_index=True)."
            )
        self.analyzer = analyzer
        self.index = self.tantivy.Index.open(str(folder))
        self.index.config_reader("manual")  # no thread that watches for changes: files never change
        self.searcher = self.index.searcher()

    def search(self, texts: Sequence[str], k: int) -> list[tuple[list[int], list[float]]]:
        """Find passages, see `Datastore.search`."""
        return [self._search(Counter(_check_terms(self.analyzer(text))), k) for text in texts]

    def _search(self, terms: Mapping[str, int], k: int) -> tuple[list[int], list[float]]:
        k = min(k, self.searcher.num_docs)
        if not terms or not k:
            return [], []
        query = self.tantivy.Query.boolean_query(
            [(self.tantivy.Occur.Should, self._make_query(term, count)) for term, count in terms.items()]
        )
        # The engine breaks ties by segment; finding the lowest ids requires all passages of equal score.
        limit = k + 1
        while True:
            hits = self.searcher.search(query, limit, count=False).hits
            if len(hits) < limit or hits[-1][0] < hits[k - 1][0]:
                break
            limit *= 2
        ids = self.searcher.fast_field_values("id", [address for _, address in hits])
        ranked = sorted((-score, number) for (score, _), number in zip(hits, ids, strict=True))[:k]
        return [number for _, number in ranked], [-score for score, _ in ranked]

    def _make_query(self, term: str, count: int) -> Any:
        query = self.tantivy.Query.term_query(self.index.schema, "text", term, index_option="freq")
        return self.tantivy.Query.boost_query(query, count) if count > 1 else query


def _make_schema() -> Any:
    builder = import_tantivy().SchemaBuilder()
    builder.add_integer_field("id", indexed=True, fast=True)
    builder.add_text_field("text", tokenizer_name="whitespace", index_option="freq")
    return builder.build()


def _check_terms(terms: list[str]) -> list[str]:
    return [term for term in terms if len(term) * 4 <= MAX_TERM_BYTES]
