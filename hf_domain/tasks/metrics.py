"""Metrics as the papers define them, computed offline; equal to those of scikit-learn, seqeval and scipy.

All scores lie between 0 and 1, except SQuAD's, which are percentages by definition.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from hf_domain.tasks.scores import ExampleCounts, ExampleValues, score_tags
from hf_domain.tasks.tags import find_entities, normalize_tag, strip_prefix


def compute_class_metrics(
    predictions: np.ndarray, references: np.ndarray, problem_type: str, negative_labels: Sequence[int] = ()
) -> dict[str, float]:
    """Score a sequence classifier.

    Args:
        predictions: As `decode_logits` returns them: values, 0 or 1 [examples, labels], or label ids.
        references: In the same form.
        negative_labels: Ids that mean "none of these". They add `positive_micro_f1`, the micro F1 over all other
            labels, with which AdaLM scores ChemProt (Yao et al. 2021, released code).

    Returns:
        `accuracy`, the share of examples whose labels are all correct; `micro_f1`, for single labels the same by
        definition; `macro_f1` over the labels that occur among predictions or references, as in the report of a
        comparison. For a regression see `compute_regression_metrics`.
    """
    if problem_type == "regression":
        return compute_regression_metrics(predictions, references)
    own, gold = np.asarray(predictions), np.asarray(references)
    labels = np.arange(own.shape[-1]) if own.ndim > 1 else np.union1d(own, gold)
    own, gold = (side > 0 if side.ndim > 1 else side[:, None] == labels for side in (own, gold))
    counts = ExampleCounts((own & gold).astype(float), own.astype(float), gold.astype(float), "micro")
    scores = {"micro_f1": counts, "macro_f1": replace(counts, average="macro")}
    if len(negative_labels):
        kept = ~np.isin(labels, negative_labels)
        kept_counts = counts.right[:, kept], counts.predicted[:, kept], counts.gold[:, kept]
        scores["positive_micro_f1"] = ExampleCounts(*kept_counts, "micro")
    metrics = {"accuracy": float((own == gold).all(axis=1).mean())}
    return metrics | {name: score.compute() / 100 for name, score in scores.items()}


def compute_regression_metrics(predictions: ArrayLike, references: ArrayLike) -> dict[str, float]:
    """Score regression.

    Args:
        predictions: Predicted values [examples], at least two.

    Returns:
        The mean squared error `mse`, and the correlations `pearson` and `spearman`, which are 0 if all predictions are
        equal.

    Raises:
        ValueError: All references are equal, so that there is no correlation.
    """
    if np.ptp(references) == 0:
        raise ValueError(
            f"a correlation needs at least two different gold values, but all {np.size(references)} are "
            f"{np.ravel(references)[0]}. Score more examples."
        )
    predictions, references = (np.asarray(values, dtype=np.float64) for values in (predictions, references))
    return {
        "pearson": ExampleValues(predictions, references, by_rank=False).compute() / 100,
        "spearman": ExampleValues(predictions, references, by_rank=True).compute() / 100,
        "mse": float(((predictions - references) ** 2).mean()),
    }


ANSWER_METRICS = [f"{group}{name}" for group in ("", "has_answer_", "no_answer_") for name in ("exact_match", "f1")]


def list_entity_metrics(tags: Sequence[str] = ()) -> list[str]:
    """Return the names of the metrics of named entities, also those of each type among some tags."""
    types = sorted({strip_prefix(tag) for tag in tags} - {"O"})
    each = [f"{entity}_{name}" for entity in types for name in ("precision", "recall", "f1")]
    return ["precision", "recall", "f1", "accuracy", "token_f1", *each]


def list_class_metrics(problem_type: str, negative_labels: Sequence[int] = ()) -> list[str]:
    """Return the names of the metrics of a sequence classifier; see `compute_class_metrics`."""
    if problem_type == "regression":
        return ["pearson", "spearman", "mse"]
    return ["accuracy", "micro_f1", "macro_f1"] + ["positive_micro_f1"] * bool(len(negative_labels))


def compute_entity_metrics(
    predictions: list[list[str]], references: list[list[str]], per_type: bool = False
) -> dict[str, float]:
    """Score named entities; an entity counts if its type and both ends are correct (seqeval, as conlleval).

    Args:
        predictions: Predicted tags of each sentence, e.g. B-Disease, I-Disease, O, in IOB, IOBES, BILOU or IO.
        per_type: Add `<type>_precision`, `<type>_recall` and `<type>_f1` for each type.

    Returns:
        Micro-averaged `precision`, `recall` and `f1` of entities, `accuracy` of tags, and `token_f1`, the mean token F1
        of all classes except O that occur among predictions or references, as for PICO. B- and I- of a type are one
        class. A class without a correct token counts 0 (nan in AdaLM's released code).
    """
    found, gold = (
        {(number, *entity) for number, tags in enumerate(sentences) for entity in find_entities(tags)}
        for sentences in (predictions, references)
    )
    pairs = [
        (normalize_tag(first), normalize_tag(second))
        for sentences in zip(predictions, references, strict=True)
        for first, second in zip(*sentences, strict=True)
    ]
    metrics = score_entities(found, gold) | {
        "accuracy": sum(first == second for first, second in pairs) / max(1, len(pairs)),
        "token_f1": score_tags(predictions, references, "token_f1").compute() / 100,
    }
    for kind in sorted({kind for _, kind, *_ in found | gold}) if per_type else ():
        own = score_entities(*({entity for entity in entities if entity[1] == kind} for entities in (found, gold)))
        metrics |= {f"{kind}_{name}": value for name, value in own.items()}
    return metrics


def score_entities(found: set[Any], gold: set[Any]) -> dict[str, float]:
    """Return `precision`, `recall` and `f1`; what has no entity counts 0."""
    correct = len(found & gold)
    return {
        "precision": correct / max(1, len(found)),
        "recall": correct / max(1, len(gold)),
        "f1": 2 * correct / max(1, len(found) + len(gold)),
    }


def compute_squad_metrics(predictions: dict[str, str], references: dict[str, Sequence[str]]) -> dict[str, float]:
    """Score answers as SQuAD does (Rajpurkar et al. 2016, 2018).

    Args:
        predictions: Question id -> answer; "" means no answer.
        references: Question id -> accepted answers; empty for a question without an answer.

    Returns:
        `exact_match` and `f1` in percent. If some questions have no answer, both also as `has_answer_*` and
        `no_answer_*`.
    """
    exact, overlap, answerable = [], [], []
    for question, answers in references.items():
        prediction = normalize_answer(predictions[question])
        accepted = [answer for answer in map(normalize_answer, answers) if answer]
        answerable.append(bool(accepted))
        exact.append(max(prediction == answer for answer in accepted or [""]))
        overlap.append(max(_compute_overlap_f1(prediction, answer) for answer in accepted or [""]))
    scores = {"exact_match": np.array(exact) * 100.0, "f1": np.array(overlap) * 100.0}
    metrics = {name: float(score.mean()) for name, score in scores.items()}
    if not all(answerable):
        groups = {"has_answer": np.array(answerable), "no_answer": ~np.array(answerable)}
        for group, members in groups.items():
            if members.any():
                metrics |= {f"{group}_{name}": float(score[members].mean()) for name, score in scores.items()}
    return metrics


def normalize_answer(text: str) -> str:
    """Return an answer as SQuAD compares it: lower case, no punctuation or English articles, single spaces."""
    text = "".join(character for character in text.lower() if character not in string.punctuation)
    return " ".join(re.sub(r"\b(a|an|the)\b", " ", text).split())


def _compute_overlap_f1(prediction: str, answer: str) -> float:
    """Return the F1 of two bags of words; 1 if both are empty."""
    if not prediction or not answer:
        return float(prediction == answer)
    predicted, gold = Counter(prediction.split()), Counter(answer.split())
    return 2 * (predicted & gold).total() / (predicted.total() + gold.total())
