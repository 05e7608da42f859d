"""Score a test set without an encoder: a row that is not better has learned nothing, or nothing beyond words."""

import logging
import statistics
import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hf_domain.data.files import SPLITS
from hf_domain.extras import explain_missing
from hf_domain.tasks.baseline import make_constants
from hf_domain.tasks.files import PLAN_KINDS, Task, find_texts, get_label
from hf_domain.tasks.scores import (
    MAJORITY,
    Predictions,
    join_answers,
    join_labels,
    join_values,
    list_gold,
    read_examples,
)
from hf_domain.tasks.vote import count_votes, search_texts

logger = logging.getLogger(__name__)

# The nearest training texts by BM25 vote for their labels.
NEAREST = "vote of the nearest texts"
# A linear model of word and word-pair frequencies.
LINEAR = "linear model of words"
# The validation set chooses the number of texts that vote.
VOTERS = (1, 3, 5, 10, 20, 50)
# The same for the regularization of the linear model.
STRENGTHS = (0.1, 1.0, 10.0)

Rows = list[dict[str, Any]]


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
def _score_floors(kind: str, metric: str, options: tuple, files: tuple, times: tuple) -> dict[str, float]:
    """Score once for all rows and seeds; `times` detect changed files."""
    task = Task("", kind, "", metric, dict(options))  # type: ignore[arg-type]
    splits = [read_examples(file, limit) for file, limit in files]
    floors = {MAJORITY: predict_majority(task, splits[0], splits[2])}
    if PLAN_KINDS[kind].texts is None:
        columns = find_texts(kind, str(files[0][0]), Path(), task.options.get("text_column_names"))
        # A pair is one text.
        texts = [[" ".join(str(row.get(name) or "") for name in columns) for row in rows] for rows in splits]
        if (missing := explain_missing("the score of a vote of the nearest texts", "tantivy")) is None:
            floors[NEAREST] = predict_nearest(task, splits, texts)
        else:
            logger.warning(missing)
        floors[LINEAR] = predict_from_words(task, splits, texts)
    scores = {name: predictions.score().compute() for name, predictions in floors.items()}
    return scores | {MAJORITY: 0.0} if kind == "regression" else scores  # a constant has no correlation


def predict_majority(task: Task, train: Rows, test: Rows) -> Predictions:
    """Predict the same for every example, like a model that learned nothing.

    The prediction is the most frequent training label, the best set of labels on the training examples, the mean of a
    regression, only O, or no answer.
    """
    if task.kind == "regression":
        return join_values([statistics.mean(get_values(task, train))] * len(test), test, task)
    if task.kind == "ner":
        tags = [example["tags"] for example in test]
        return Predictions.of_names([["O"] * len(sentence) for sentence in tags], tags, task.metric)
    if task.kind == "qa":
        return join_answers({str(example["id"]): "" for example in test}, test, task.metric)
    names, matrix = make_matrix(task, train)
    if task.kind == "classification":
        majority = Counter(chain(*[list_gold(task.kind, example) for example in train])).most_common(1)[0][0]
        return join_labels([[majority]] * len(test), test, task)
    constants = make_constants("multi_label_classification", matrix, len(names))
    sets = [[name for name, logit in zip(names, logits, strict=True) if logit > 0] for logits in constants]
    best = max(sets, key=lambda labels: join_labels([labels] * len(train), train, task).score().compute())
    return join_labels([best] * len(test), test, task)


def predict_from_words(task: Task, splits: list[Rows], texts: list[list[str]]) -> Predictions:
    """Predict by a linear model of word frequencies; the validation set chooses its regularization.

    Args:
        task: A task of texts.
        splits: Training, validation and test examples.
        texts: Their texts.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

    # Without letters, as in texts of numbers, nothing would be left of the words; characters are words of Chinese.
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"[^\W\u2e80-\u9fff]+|[\u2e80-\u9fff]"
    )
    names, matrix = make_matrix(task, splits[0])
    if not any(map(vectorizer.build_tokenizer(), texts[0])) or len(names) < 2:
        return predict_majority(task, splits[0], splits[2])
    features = [vectorizer.fit_transform(texts[0]), *map(vectorizer.transform, texts[1:])]

    def predict(strength: float, part: int) -> Predictions:
        if task.kind == "regression":
            model = Ridge(1 / strength).fit(features[0], get_values(task, splits[0]))
            return join_values(model.predict(features[part]).tolist(), splits[part], task)
        model = LinearSVC(C=strength, class_weight="balanced")
        if task.kind == "classification":
            found = model.fit(features[0], matrix.argmax(1)).predict(features[part])
            return join_labels([[names[number]] for number in found], splits[part], task)
        with warnings.catch_warnings():  # a label that every example has needs no model
            warnings.simplefilter("ignore", UserWarning)
            rows = OneVsRestClassifier(model).fit(features[0], matrix.astype(int)).predict(features[part])
        return join_labels([[names[number] for number in np.flatnonzero(row)] for row in rows], splits[part], task)

    return choose_on_validation(STRENGTHS, predict)


def predict_nearest(task: Task, splits: list[Rows], texts: list[list[str]]) -> Predictions:
    """Let the training texts that BM25 finds vote with their scores; the validation set chooses their number.

    The label with the most votes wins. With several labels, each label with half of the votes wins; numbers are
    averaged. A text without results gets the most frequent label, or the mean. Arguments as in `predict_from_words`.

    Raises:
        ModuleNotFoundError: tantivy is not installed.
    """
    found = search_texts(texts[0], texts[1:], max(VOTERS))
    names, values = make_matrix(task, splits[0])

    def predict(count: int, part: int) -> Predictions:
        votes = count_votes(values, found[part - 1], count)
        if task.kind == "regression":
            return join_values(votes[:, 0].tolist(), splits[part], task)
        chosen = [[names[number]] for number in votes.argmax(1)]
        if task.kind == "multi_label":
            for row, (numbers, _) in enumerate(found[part - 1]):
                if numbers:  # neighbors that agree on no label predict none
                    chosen[row] = [names[number] for number in np.flatnonzero(votes[row] >= 0.5)]
        return join_labels(chosen, splits[part], task)

    return choose_on_validation(VOTERS, predict)


def choose_on_validation(options: Sequence[Any], predict: Callable[[Any, int], Predictions]) -> Predictions:
    """Predict the test set, split 2, with the option that scores best on the validation set, split 1."""
    best = max(options, key=lambda option: predict(option, 1).score().compute())
    return predict(best, 2)


def make_matrix(task: Task, train: Rows) -> tuple[list[str], np.ndarray]:
    """Return the names of the labels, and a row of 0 and 1 for each example; the values of a regression."""
    if task.kind == "regression":
        values = np.array(get_values(task, train))[:, None]
        return [*map(str, np.unique(values))], values
    labels = [list_gold(task.kind, example) for example in train]
    names = sorted({*chain(*labels)})
    return names, np.array([[float(name in own) for name in names] for own in labels])


def get_values(task: Task, examples: Rows) -> list[float]:
    """Return the value of each example of a regression."""
    return [float(get_label(task.kind, example)) for example in examples]
