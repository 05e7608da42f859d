"""Score a test set without an encoder: a row that is not better has learned nothing, or nothing beyond words."""

import logging
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from hf_domain.data.files import SPLITS
from hf_domain.extras import explain_missing
from hf_domain.tasks.classification import name_predictions
from hf_domain.tasks.files import Task, find_texts, list_ignored, read_examples
from hf_domain.tasks.kind import PLAN_KINDS
from hf_domain.tasks.scores import MAJORITY, Predictions
from hf_domain.tasks.vote import count_votes, make_matrix, search_texts

logger = logging.getLogger(__name__)

# The nearest training texts by BM25 vote for their labels.
NEAREST = "vote of the nearest texts"
# A linear model of word and word-pair frequencies.
LINEAR = "linear model of words"
# The validation set chooses the number of texts that vote.
VOTERS = (1, 3, 5, 10, 20, 50)
# The same for the regularization of the linear model.
STRENGTHS = (0.1, 1.0, 10.0)

Pair = Callable[[Sequence[Any], int], Predictions]


def score_floors(task: Task, flags: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """Return scores without an encoder, in percent by name.

    They are the majority baseline (the mean for a regression), and for texts a linear model of words and, with tantivy,
    the vote of the nearest training texts.

    Args:
        flags: Flags of the command that fine-tunes; they may limit the examples.
        folder: Folder of the plan.
    """
    limits = [flags.get(name) for name in ("max_train_samples", "max_eval_samples", "max_predict_samples")]
    files = tuple((folder / task.get_file(split), limit) for split, limit in zip(SPLITS, limits, strict=True))
    times = tuple(file.stat().st_mtime_ns for file, _ in files)
    options = tuple(sorted((name, str(value)) for name, value in task.options.items()))
    return dict(_score_floors(task.kind, task.metric, options, files, times))


@cache
def _score_floors(name: str, metric: str, options: tuple, files: tuple, times: tuple) -> dict[str, float]:
    """Score once for all rows and seeds; `times` detect changed files."""
    kind: Any = PLAN_KINDS[name]
    splits = [read_examples(file, limit) for file, limit in files]

    def pair(predicted: Sequence[Any], part: int) -> Predictions:
        return kind.pair(predicted, splits[part], metric, list_ignored(metric, dict(options)))

    best, *others = kind.list_constants(splits[0])
    if others:
        best = max((best, *others), key=lambda constant: pair([constant] * len(splits[0]), 0).score().compute())
    floors = {MAJORITY: pair([best] * len(splits[2]), 2)}
    if kind.problem_type:
        columns = find_texts(name, str(files[0][0]), Path(), dict(options).get("text_column_names"))
        # A pair is one text.
        texts = [[" ".join(str(row.get(column) or "") for column in columns) for row in rows] for rows in splits]
        names, gold = kind.encode_gold(splits[0])
        if (missing := explain_missing("the score of a vote of the nearest texts", "tantivy")) is None:
            floors[NEAREST] = predict_nearest(kind.problem_type, names, gold, texts, pair)
        else:
            logger.warning(missing)
        words = predict_from_words(kind.problem_type, names, gold, texts, pair)
        floors[LINEAR] = floors[MAJORITY] if words is None else words
    return {name: predictions.score().compute() for name, predictions in floors.items()}


def predict_from_words(
    problem_type: str, names: list[Any], gold: np.ndarray, texts: list[list[str]], pair: Pair
) -> Predictions | None:
    """Predict by a linear model of word frequencies; the validation set chooses its regularization.

    Args:
        names: The names of the labels, or the values of a regression.
        gold: The labels of the training texts, see `encode_labels`.
        texts: The texts of training, validation and test.
        pair: Pairs the predictions for a split with its gold labels.

    Returns:
        None if there are no words, or nothing to choose from.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

    # Without letters, as in texts of numbers, nothing would be left of the words; characters are words of Chinese.
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"[^\W\u2e80-\u9fff]+|[\u2e80-\u9fff]"
    )
    if not any(map(vectorizer.build_tokenizer(), texts[0])) or len(names) < 2:
        return None
    features = [vectorizer.fit_transform(texts[0]), *map(vectorizer.transform, texts[1:])]

    def predict(strength: float, part: int) -> Predictions:
        model = Ridge(1 / strength) if problem_type == "regression" else LinearSVC(C=strength, class_weight="balanced")
        model = OneVsRestClassifier(model) if problem_type == "multi_label_classification" else model
        with warnings.catch_warnings():  # a label that every example has needs no model
            warnings.simplefilter("ignore", UserWarning)
            found = model.fit(features[0], gold).predict(features[part])
        return pair(name_predictions(found, problem_type, names), part)

    return choose_on_validation(STRENGTHS, predict)


def predict_nearest(
    problem_type: str, names: list[Any], gold: np.ndarray, texts: list[list[str]], pair: Pair
) -> Predictions:
    """Let the training texts that BM25 finds vote with their scores; the validation set chooses their number.

    The label with the most votes wins. With several labels, each label with half of the votes wins; numbers are
    averaged. A text without results gets the most frequent label, or the mean. Arguments as in `predict_from_words`.

    Raises:
        ModuleNotFoundError: tantivy is not installed.
    """
    found = search_texts(texts[0], texts[1:], max(VOTERS))
    values = make_matrix(gold, problem_type, 1 if problem_type == "regression" else len(names))

    def predict(count: int, part: int) -> Predictions:
        votes = count_votes(values, found[part - 1], count)
        chosen = votes[:, 0] if problem_type == "regression" else votes.argmax(1)
        if problem_type == "multi_label_classification":
            has_neighbors = [[bool(numbers)] for numbers, _ in found[part - 1]]
            # Neighbors that agree on no label predict none.
            chosen = np.where(has_neighbors, votes >= 0.5, np.eye(len(names), dtype=bool)[chosen])
        return pair(name_predictions(chosen, problem_type, names), part)

    return choose_on_validation(VOTERS, predict)


def choose_on_validation(options: Sequence[Any], predict: Callable[[Any, int], Predictions]) -> Predictions:
    """Predict the test set, split 2, with the option that scores best on the validation set, split 1."""
    best = max(options, key=lambda option: predict(option, 1).score().compute())
    return predict(best, 2)
