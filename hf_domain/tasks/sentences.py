"""Sentence embeddings: similarities and searches, scored by the evaluators of sentence-transformers.

sentence-transformers is an extra, and takes seconds to import. Functions import it when they are called.
"""

import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from datasets import Dataset

from hf_domain.checks import check_metrics
from hf_domain.data.json_lines import read_rows

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

Metrics = dict[str, float]
Rows = Sequence[Mapping[str, Any]]
# Passages of a query that are kept as its prediction, and that its scores count.
DEPTH = 10


@dataclass(frozen=True)
class SimilarityTask:
    """Pairs of texts, and how similar they are; a prediction is the cosine of a pair."""

    columns: list[str]
    """The two columns of text."""
    scores: str
    """The column of scores, on any scale."""
    deciding: str = "spearman_cosine"
    """The metric that decides, as sentence-transformers calls it."""

    def make_evaluator(self, rows: Rows, batch_size: int) -> Any:
        """Return sentence-transformers' evaluator for examples."""
        from sentence_transformers.sentence_transformer.evaluation import EmbeddingSimilarityEvaluator

        first, second = ([str(row[column] or "") for row in rows] for column in self.columns)
        scores = [float(row[self.scores]) for row in rows]
        return EmbeddingSimilarityEvaluator(first, second, scores, batch_size=batch_size, main_similarity="cosine")

    def score(self, model: "SentenceTransformer", rows: Rows, batch_size: int) -> tuple[Metrics, list[Any]]:
        """Return the metrics of examples, and a prediction for each."""
        from sentence_transformers.util import pairwise_cos_sim

        evaluator, embeddings = self.make_evaluator(rows, batch_size), []
        embed = evaluator.embed_inputs

        def embed_and_keep(*args: Any, **kwargs: Any) -> Any:
            embeddings.append(embed(*args, **kwargs))
            return embeddings[-1]

        evaluator.embed_inputs = embed_and_keep
        metrics = rename_metrics(evaluator(model))
        check_metrics(metrics)
        return metrics, pairwise_cos_sim(*embeddings).tolist()

    def find_gain(self, rows: Rows, own: Sequence[Any], other: Sequence[Any]) -> tuple[float, float]:
        """Return the 95 % interval of the gain of some predictions over others, over resampled examples."""
        from scipy.stats import spearmanr

        def measure(gold: Any, own: Any, other: Any) -> float:
            return float(spearmanr(gold, own).statistic - spearmanr(gold, other).statistic)

        return resample(measure, [float(row[self.scores]) for row in rows], own, other)

    def make_pairs(self, rows: Rows) -> Dataset:
        """Return the examples as pairs of texts to train on, with a `score`: 0 for the smallest, 1 for the largest."""
        scores = [float(row[self.scores]) for row in rows]
        low, high = min(scores), max(scores)
        if low == high:
            raise ValueError(f"training needs two different scores, but {self.scores} is {low} everywhere in train")
        texts = {f"text{n}": [str(row[name] or "") for row in rows] for n, name in enumerate(self.columns, start=1)}
        return Dataset.from_dict(texts | {"score": [(score - low) / (high - low) for score in scores]})


@dataclass(frozen=True)
class RetrievalTask:
    """Queries with the passages that answer them; a prediction is the first passages of a query, with its scores."""

    passages: dict[str, Any]
    """Texts of the corpus by id."""
    deciding: str = f"cosine_ndcg@{DEPTH}"

    def make_evaluator(self, rows: Rows, batch_size: int) -> Any:
        """See `SimilarityTask`."""
        from sentence_transformers.sentence_transformer.evaluation import InformationRetrievalEvaluator
        from sentence_transformers.util import cos_sim

        return InformationRetrievalEvaluator(
            {row["id"]: row["query"] for row in rows},
            self.passages,
            {row["id"]: set(row["relevant"]) for row in rows},
            batch_size=batch_size,
            score_functions={"cosine": cos_sim},
            mrr_at_k=[DEPTH],
            ndcg_at_k=[DEPTH],
            accuracy_at_k=[DEPTH],
            precision_recall_at_k=[DEPTH],
            map_at_k=[DEPTH],
            write_predictions=True,
        )

    def score(self, model: "SentenceTransformer", rows: Rows, batch_size: int) -> tuple[Metrics, list[Any]]:
        """See `SimilarityTask`."""
        with tempfile.TemporaryDirectory() as folder:
            metrics = self.make_evaluator(rows, batch_size)(model, output_path=folder)
            (file,) = Path(folder).glob("*predictions*.jsonl")
            found = {row["query_id"]: row["results"] for _, row in read_rows(file.name, file.parent)}
        ranked = []
        for row in rows:
            hits = found[row["id"]]
            scores = RetrievalTask({}).make_evaluator([row], batch_size=1).compute_metrics([hits])
            own = {name.replace("@k", f"_at_{DEPTH}"): float(by_depth[DEPTH]) for name, by_depth in scores.items()}
            ranked.append({"passages": [hit["corpus_id"] for hit in hits], **own})
        return rename_metrics(metrics), ranked

    def find_gain(self, rows: Rows, own: Sequence[Any], other: Sequence[Any]) -> tuple[float, float]:
        """See `SimilarityTask`."""
        (name,) = rename_metrics({self.deciding: 0})
        scores = [[query[name] for query in queries] for queries in (own, other)]
        return resample(lambda own, other: float(own.mean() - other.mean()), *scores)

    def make_pairs(self, rows: Rows) -> Dataset:
        """Return pairs of texts to train on: a query with each of its passages."""
        pairs = [(row["query"], passage) for row in rows for passage in row["passages"]]
        return Dataset.from_dict({"query": [query for query, _ in pairs], "passage": [text for _, text in pairs]})


def resample(measure: Callable[..., float], *columns: Sequence[float]) -> tuple[float, float]:
    """Return the 95 % interval of what is measured of paired columns, over 1,000 resamplings."""
    values, count = [np.asarray(column) for column in columns], len(columns[0])
    # A draw of few pairs may have one value, and so no correlation. scipy's own bootstrap fails then.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        numbers = np.random.default_rng(0).integers(0, count, (1000, count))
        low, high = np.nanquantile([measure(*(column[rows] for column in values)) for rows in numbers], [0.025, 0.975])
    return float(low), float(high)


SentenceTask: TypeAlias = SimilarityTask | RetrievalTask
"""A task of sentence embeddings."""


def rename_metrics(metrics: Mapping[str, Any]) -> Metrics:
    """Return sentence-transformers' metrics under names as in the other scripts: spearman, ndcg_at_10."""
    names = {name: name.replace("cosine_", "").replace("_cosine", "").replace("@", "_at_") for name in metrics}
    return {new: float(metrics[old]) for old, new in names.items()}
