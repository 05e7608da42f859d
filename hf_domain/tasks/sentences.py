"""Tasks of sentence embeddings: pairs of texts with a score, and searches in the layout of BEIR.

sentence-transformers is an extra, and takes seconds to import. Functions import it when they are called.
"""

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import Dataset

from hf_domain.data.columns import check_columns
from hf_domain.data.files import load_files, locate_row


@dataclass(frozen=True)
class Similarity:
    """Pairs of texts, and how similar they are, on any scale."""

    columns: list[str]
    """The two columns of text."""
    scores: str
    """The column of scores."""
    deciding = "spearman_cosine"

    def make_evaluator(self, rows: Dataset, name: str, batch_size: int) -> Any:
        """Return sentence-transformers' evaluator, which puts a name before its metrics."""
        from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

        first, second, scores = self.read(rows).values()
        options: dict[str, Any] = {"main_similarity": "cosine", "batch_size": batch_size, "name": name}
        return EmbeddingSimilarityEvaluator(first, second, scores, **options)

    def make_pairs(self, rows: Dataset) -> Dataset:
        """Return the pairs to train on, with a `score`."""
        pairs = self.read(rows)
        if len(found := {*pairs["score"]}) == 1:
            raise ValueError(f"training needs two different scores, but {self.scores} is {found.pop()} all over train.")
        return Dataset.from_dict(pairs)

    def read(self, rows: Dataset) -> dict[str, list[Any]]:
        """Return both texts of each pair, and its score."""
        texts = {f"text{n}": [text or "" for text in rows[name]] for n, name in enumerate(self.columns, start=1)}
        return texts | {"score": [float(score) for score in rows[self.scores]]}


@dataclass(frozen=True)
class Search:
    """Queries, and the passages of a corpus that answer them; a row judges a passage for a query."""

    passages: dict[str, Any]
    """Texts by id."""
    queries: dict[str, Any]
    """The same."""
    deciding = "cosine_ndcg@10"

    def make_evaluator(self, rows: Dataset, name: str, batch_size: int) -> Any:
        """Return sentence-transformers' evaluator, which puts a name before its metrics."""
        from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
        from sentence_transformers.util import cos_sim

        options: dict[str, Any] = {"score_functions": {"cosine": cos_sim}, "batch_size": batch_size, "name": name}
        return InformationRetrievalEvaluator(self.queries, self.passages, find_relevant(rows), **options)

    def make_pairs(self, rows: Dataset) -> Dataset:
        """Return the pairs to train on: each query with each of its passages."""
        pairs = [(query, passage) for query, passages in find_relevant(rows).items() for passage in sorted(passages)]
        queries = [self.queries[query] for query, _ in pairs]
        return Dataset.from_dict({"query": queries, "passage": [self.passages[passage] for _, passage in pairs]})

    def check(self, file: str, rows: Dataset) -> None:
        """Raise a ValueError unless a file judges known passages for known queries, and one is relevant."""
        relevant = find_relevant(rows)
        if not relevant:
            raise ValueError(f"a table must have a relevant passage for some query, but {file} has none.")
        if unknown := {*relevant} - {*self.queries} | set().union(*relevant.values()) - {*self.passages}:
            raise ValueError(
                f"the ids of {file} must be in --queries_file and --corpus_file, but {min(unknown)} is not. Add its "
                "text, or drop its judgments."
            )


def find_relevant(rows: Dataset) -> dict[str, set[str]]:
    """Return for each query the passages with a score above 0; a query without any is left out."""
    relevant: dict[str, set[str]] = defaultdict(set)
    for query, passage, score in zip(rows["query-id"], rows["corpus-id"], rows["score"], strict=True):
        if score > 0:
            relevant[str(query)].add(str(passage))
    return dict(relevant)


def load_texts(file: str) -> dict[str, str]:
    """Return the texts of a corpus or of queries by id; a title stands before its text.

    Raises:
        ValueError: A row has no id, or one that occurs before.
    """
    rows = load_files(file)
    check_columns({Path(file).name: rows}, ["_id", "text"])
    titles = rows["title"] if "title" in rows.column_names else [None] * len(rows)
    texts: dict[str, str] = {}
    for row, (name, title, text) in enumerate(zip(rows["_id"], titles, rows["text"], strict=True)):
        if name is None or str(name) in texts:
            raise ValueError(
                f"every row must have an _id of its own, but that of {locate_row(file, row)} is {name}. Correct it, or "
                "drop the row."
            )
        texts[str(name)] = f"{title or ''} {text or ''}".strip()
    return texts
