"""Metrics as the papers define them, computed offline; equal to those of scikit-learn, seqeval and scipy.

All scores lie between 0 and 1, except SQuAD's, which are percentages by definition.
"""

import re
import string
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas
from numpy.typing import ArrayLike


def compute_single_label_metrics(
    predictions: ArrayLike, references: ArrayLike, negative_labels: Sequence[int] = ()
) -> dict[str, float]:
    """Score single-label classification.

    Args:
        predictions: Predicted label ids [examples].
        references: Gold label ids [examples].
        negative_labels: Ids that mean "none of these". They add `positive_micro_f1`, the micro F1 over all other
            labels, with which AdaLM scores ChemProt (Yao et al. 2021, released code).

    Returns:
        `accuracy`, `micro_f1` (equal to accuracy by definition), `macro_f1` over the labels that occur among
        predictions or references, and perhaps `positive_micro_f1`.
    """
    predictions, references = np.asarray(predictions), np.asarray(references)
    labels = np.union1d(references, predictions)
    accuracy = float((predictions == references).mean())
    metrics = {"accuracy": accuracy, "micro_f1": accuracy}
    metrics["macro_f1"] = compute_f1(predictions[:, None] == labels, references[:, None] == labels, "macro")
    if len(negative_labels):
        labels = np.setdiff1d(labels, negative_labels)
        is_label = (predictions[:, None] == labels, references[:, None] == labels)
        metrics["positive_micro_f1"] = compute_f1(*is_label, "micro") if len(labels) else 0.0
    return metrics


def compute_f1(predictions: np.ndarray, references: np.ndarray, average: str) -> float:
    """Return the F1 of classes: over all of them (micro), or the mean of each, 0 for one that nothing has (macro).

    Args:
        predictions: True where an item has a class [items, classes].
        references: In the same form.
    """
    correct = (predictions & references).sum(axis=0)
    total = predictions.sum(axis=0) + references.sum(axis=0)
    if average == "micro":
        return float(2 * correct.sum() / max(1, total.sum()))
    return float((2 * correct / np.maximum(1, total)).mean())


def compute_multi_label_metrics(predictions: np.ndarray, references: np.ndarray) -> dict[str, float]:
    """Score multi-label classification.

    Args:
        predictions: 1 where a label is predicted, else 0 [examples, labels].

    Returns:
        `micro_f1`, `macro_f1` over all labels, and `accuracy`, the share of examples whose labels are all correct.
    """
    predictions, references = np.asarray(predictions, dtype=bool), np.asarray(references, dtype=bool)
    return {
        "micro_f1": compute_f1(predictions, references, "micro"),
        "macro_f1": compute_f1(predictions, references, "macro"),
        "accuracy": float((predictions == references).all(axis=1).mean()),
    }


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
    error = float(((predictions - references) ** 2).mean())
    if np.ptp(predictions) == 0:
        return {"pearson": 0.0, "spearman": 0.0, "mse": error}
    ranks = (pandas.Series(values).rank() for values in (predictions, references))  # ties have their mean rank
    return {
        "pearson": float(np.corrcoef(predictions, references)[0, 1]),
        "spearman": float(np.corrcoef(*ranks)[0, 1]),
        "mse": error,
    }


NAMES = {
    "single_label_classification": ["accuracy", "micro_f1", "macro_f1"],
    "multi_label_classification": ["micro_f1", "macro_f1", "accuracy"],
    "regression": ["pearson", "spearman", "mse"],
}
# Tags that say the place of a word in its entity; a task of one type may leave out the type.
PLACED = re.compile("[BIESLUM](-|$)")
ANSWER_METRICS = [f"{group}{name}" for group in ("", "has_answer_", "no_answer_") for name in ("exact_match", "f1")]


def list_entity_metrics(tags: Sequence[str] = ()) -> list[str]:
    """Return the names of the metrics of named entities, also those of each type among some tags."""
    types = sorted({strip_prefix(tag) for tag in tags} - {"O"})
    each = [f"{entity}_{name}" for entity in types for name in ("precision", "recall", "f1")]
    return ["precision", "recall", "f1", "accuracy", "token_f1", *each]


def list_class_metrics(problem_type: str, negative_labels: Sequence[int] = ()) -> list[str]:
    """Return the names of the metrics of a sequence classifier; see `compute_class_metrics`."""
    return NAMES[problem_type] + ["positive_micro_f1"] * bool(len(negative_labels))


def compute_class_metrics(
    predictions: np.ndarray, references: np.ndarray, problem_type: str, negative_labels: Sequence[int] = ()
) -> dict[str, float]:
    """Score a sequence classifier: its predictions, see `decode_logits`, and gold labels in the same form."""
    if problem_type == "regression":
        return compute_regression_metrics(predictions, references)
    if problem_type == "multi_label_classification":
        return compute_multi_label_metrics(predictions, references)
    return compute_single_label_metrics(predictions, references, negative_labels)


def compute_entity_metrics(
    predictions: list[list[str]], references: list[list[str]], per_type: bool = False
) -> dict[str, float]:
    """Score named entities; an entity counts if its type and both ends are correct (seqeval, as conlleval).

    Args:
        predictions: Predicted tags of each sentence, e.g. B-Disease, I-Disease, O, in IOB, IOBES, BILOU or IO.
        per_type: Add `<type>_precision`, `<type>_recall` and `<type>_f1` for each type.

    Returns:
        Micro-averaged `precision`, `recall` and `f1` of entities, `accuracy` of tags, and `token_f1` (see
        `compute_token_f1`).
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
        "token_f1": compute_token_f1(
            *([[normalize_tag(tag) for tag in s] for s in e] for e in (predictions, references))
        ),
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


def normalize_tag(tag: str) -> str:
    """Return a tag of BILOU as IOBES names it, L as E and U as S, and a bare type as a tag of IO: X as I-X.

    seqeval reads neither. It takes the first letter of a type for its place: Gene as an entity `ene`, Other as none.
    """
    if tag != "O" and not PLACED.match(tag):
        return f"I-{tag}"
    return re.sub("^U-", "S-", re.sub("^L-", "E-", tag))


def find_entities(tags: list[str]) -> list[tuple[str, int, int]]:
    """Return type, first and last place of each entity of a sentence, as conlleval and seqeval do.

    An entity ends after E and S, before O, B and S, and where the type changes; a lone I or E begins one.
    """
    entities, start, before, kind_before = [], 0, "O", ""
    for place, tag in enumerate([*map(normalize_tag, tags), "O"]):
        letter, kind = tag[0], tag[1:].split("-", 1)[-1] or "_"
        is_other = kind != kind_before
        if before != "O" and (before in "ES" or letter in "BSO" or is_other):
            entities.append((kind_before, start, place - 1))
        if letter != "O" and (letter in "BS" or before in "ESO" or is_other):
            start = place
        before, kind_before = letter, kind
    return entities


def strip_prefix(tag: str) -> str:
    """Return the class of a tag: B-X and I-X are X."""
    return re.sub("^[BIESLU]-", "", tag)


def compute_token_f1(predictions: list[list[str]], references: list[list[str]]) -> float:
    """Return the mean token F1 of all classes except O, as for PICO.

    The mean is over the classes that occur among predictions or references. A class without a correct token counts 0
    (nan in AdaLM's released code).

    Args:
        predictions: Predicted tags of each sentence; B- and I- of a type are one class.
    """
    gold, predicted = (
        np.array([strip_prefix(tag) for sentence in sentences for tag in sentence])
        for sentences in (references, predictions)
    )
    classes = np.array(sorted({*gold.tolist(), *predicted.tolist()} - {"O"}))
    return compute_f1(predicted[:, None] == classes, gold[:, None] == classes, "macro") if len(classes) else 0.0


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
