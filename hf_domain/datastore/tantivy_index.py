"""A BM25 index in a folder, by tantivy: no server, one file system, memory-mapped.

The index holds the numbers of passages and no text: terms are made by `hf_domain.datastore.analysis` and cut at white
space here. BM25 has k1 = 1.2 and b = 0.75, as Lucene and Elasticsearch have by default.
"""

import os
import shutil
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from hf_domain.datastore.analysis import Analyzer

K1, B = 1.2, 0.75  # tantivy has no others
MEMORY = 128_000_000  # bytes of the writer before it begins a new segment
MAX_TERM_BYTES = 60_000  # tantivy ends with an error above 65,530


def import_tantivy() -> Any:
    """Import the optional dependency.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    try:
        import tantivy
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "searching a datastore needs tantivy, which is not installed. Run pip install hf-domain[datastore], "
            "or build the datastore with another engine."
        ) from error
    return tantivy


def write_index(
    folder: Path,
    analyzer: Analyzer,
    passages: Iterable[tuple[int, str]] = (),
    deleted: Iterable[int] = (),
    base: Path | None = None,
) -> None:
    """Write an index into a new folder.

    The files of an index are never changed, only replaced: those of `base` are taken over as hard links, so that adding
    to a large index costs what is added, and `base` stays as it is.

    Args:
        folder: Must not exist.
        passages: Ids and texts to add, in rising order.
        deleted: Ids to delete.
        base: The index to start from. Default: an empty one.
    """
    tantivy = import_tantivy()
    folder.mkdir()
    if base is not None:
        for file in base.iterdir():
            if not file.name.endswith(".lock"):
                _link(file, folder / file.name)
    index = tantivy.Index.open(str(folder)) if base else tantivy.Index(_make_schema(), path=str(folder))
    # One thread: passages stay in order, and so do the segments that hold them.
    writer = index.writer(MEMORY, 1)
    try:
        for number in deleted:
            writer.delete_documents_by_term("id", number)
        for number, text in passages:
            document = tantivy.Document()
            document.add_integer("id", number)
            document.add_text("text", " ".join(_check_terms(analyzer(text))))
            writer.add_document(document)
        writer.commit()
    finally:
        # Otherwise its threads keep writing into a folder that may be gone.
        writer.wait_merging_threads()
    for file in folder.glob("*.lock"):
        file.unlink()


class TantivyIndex:
    """An index opened for searching.

    Args:
        folder: What `write_index` wrote.
        analyzer: The one it was written with.

    Raises:
        ValueError: The files are not an index, or that of another version of tantivy.
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
        self.index.config_reader("manual")  # no thread that looks for changes: there are none
        self.searcher = self.index.searcher()

    def search(
        self, texts: Sequence[str], k: int, max_query_terms: int | None = None
    ) -> list[tuple[list[int], list[float]]]:
        """Find passages.

        Args:
            texts: Queries; every term counts as often as it occurs.
            k: Passages for each query at most.
            max_query_terms: Search with the so many rarest terms only; faster, and finds others.

        Returns:
            For each query ids and scores, best first; of equal scores the lowest id first. Fewer than k, or none, if
            no more passages have a term in common with the query.
        """
        return [self._search(Counter(_check_terms(self.analyzer(text))), k, max_query_terms) for text in texts]

    def _search(self, terms: Counter[str], k: int, max_query_terms: int | None) -> tuple[list[int], list[float]]:
        if max_query_terms is not None and len(terms) > max_query_terms:
            terms = self._keep_rarest(terms, max_query_terms)
        k = min(k, self.searcher.num_docs)
        if not terms or not k:
            return [], []
        query = self.tantivy.Query.boolean_query(
            [(self.tantivy.Occur.Should, self._make_query(term, count)) for term, count in terms.items()]
        )
        # The engine breaks ties by segment; keeping the lowest ids takes all passages of equal score.
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

    def _keep_rarest(self, terms: Counter[str], number: int) -> Counter[str]:
        frequencies = {term: self.searcher.doc_freq("text", term) for term in terms}
        found = sorted((term for term in terms if frequencies[term]), key=lambda term: (frequencies[term], term))
        return Counter({term: terms[term] for term in found[:number]})


def _make_schema() -> Any:
    builder = import_tantivy().SchemaBuilder()
    builder.add_integer_field("id", indexed=True, fast=True)
    builder.add_text_field("text", tokenizer_name="whitespace", index_option="freq")
    return builder.build()


def _check_terms(terms: list[str]) -> list[str]:
    return [term for term in terms if len(term) * 4 <= MAX_TERM_BYTES]


def _link(source: Path, target: Path) -> None:
    # tantivy replaces every file by renaming, so links are safe; where links are refused, copy.
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
