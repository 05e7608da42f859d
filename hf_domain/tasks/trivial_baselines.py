"""Score a test set without an encoder: a row that is not better has learned nothing, or nothing beyond words."""

import statistics
import warnings
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from hf_domain.data.files import SPLITS
from hf_domain.datastore.nearest import search_texts
from hf_domain.tasks.baseline import make_constants
from hf_domain.tasks.files import TEXTS, VALUES, Task, find_texts, get_label
from hf_domain.tasks.labels import name_label
from hf_domain.tasks.retrieval import find_texts as find_texts_of
from hf_domain.tasks.retrieval import load_texts
from hf_domain.tasks.scores import (
    MAJORITY,
    Predictions,
    join_answers,
    join_labels,
    join_predictions,
    join_values,
    list_labels,
    read_examples,
)
from hf_domain.tasks.sentences import DEPTH, RetrievalTask
from hf_domain.tasks.vote import count_votes

# The nearest training texts by BM25 vote for their labels.
NEAREST = "vote of the nearest texts"
# A linear model of word and word-pair frequencies.
LINEAR = "linear model of words"
# Of a retrieval.
SEARCH = "search by BM25"
# The validation set chooses the number of texts that vote.
VOTERS = (1, 3, 5, 10, 20, 50)
# The same for the regularization of the linear model.
STRENGTHS = (0.1, 1.0, 10.0)


def score_floors(task: Task, flags: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """Return scores without an encoder, in percent by name.

    They are the majority baseline (the mean for a regression, nothing found for a retrieval), for texts a linear model
    of words, and with tantivy the vote of the nearest training texts, or for a retrieval the search by BM25.

    Args:
        flags: Flags of the command that fine-tunes; they may limit the examples.
        folder: Folder of the plan.
    """
    if task.kind == "retrieval":
        file = folder / task.get_file("test")
        return dict(_score_search(file, flags.get("max_predict_samples"), task.metric, file.stat().st_mtime_ns))
    limits = [flags.get(name) for name in ("max_train_samples", "max_eval_samples", "max_predict_samples")]
    folds = tuple(
        tuple((folder / task.get_file(split, fold), limit) for split, limit in zip(SPLITS, limits, strict=True))
        for fold in task.list_folds()
    )
    times = tuple(file.stat().st_mtime_ns for files in folds for file, _ in files)
    options = tuple(sorted((name, str(value)) for name, value in task.options.items()))
    return dict(_score_floors(task.kind, task.metric, options, folds, times))


@cache
def _score_search(file: Path, limit: Any, metric: str, time: int) -> dict[str, float]:
    """Score the search by BM25 once for all rows and seeds; `time` detects a changed file."""
    floors = {MAJORITY: 0.0}
    with suppress(ModuleNotFoundError):
        floors[SEARCH] = search_words(read_examples(file, limit), load_texts(find_texts_of(file)[0]), metric)
    return floors


@cache
def _score_floors(kind: str, metric: str, options: tuple, folds: tuple, times: tuple) -> dict[str, float]:
    """Score once for all rows and seeds; `times` detect changed files."""
    task = Task("", kind, "", metric, dict(options))  # type: ignore[arg-type]
    floors: dict[str, list[Predictions]] = defaultdict(list)
    for files in folds:
        splits = [read_examples(file, limit) for file, limit in files]
        floors[MAJORITY].append(predict_majority(task, splits[0], splits[2]))
        if kind not in TEXTS:
            columns = find_texts(kind, str(files[0][0]), Path(), task.options.get("text_column_names"))
            with suppress(ModuleNotFoundError):  # tantivy is an extra
                floors[NEAREST].append(predict_nearest(task, splits, columns))
            if kind != "similarity":
                floors[LINEAR].append(predict_from_words(task, splits, columns))
    scores = {name: join_predictions(parts).score().compute() for name, parts in floors.items() if parts}
    # A constant has no correlation; the constants of several folds would have a small one.
    return scores | {MAJORITY: 0.0} if kind in VALUES else scores


def predict_majority(task: Task, train: list[dict[str, Any]], test: list[dict[str, Any]]) -> Predictions:
    """Predict the same for every example, like a model that learned nothing.

    The prediction is the most frequent training label, the best set of labels on the training examples, the mean of a
    regression, only O, or no answer.
    """
    if task.kind == "classification":
        majority = Counter(name_label(example["label"]) for example in train).most_common(1)[0][0]
        return join_labels([[majority]] * len(test), test, task)
    if task.kind == "multi_label":
        return join_labels([find_constant_labels(task, train)] * len(test), test, task)
    if task.kind in VALUES:
        mean = statistics.mean(float(get_label(task.kind, example)) for example in train)
        return join_values([mean] * len(test), test, task)
    if task.kind == "ner":
        tags = [example["tags"] for example in test]
        return Predictions.of_names([["O"] * len(sentence) for sentence in tags], tags, task.metric)
    return join_answers({str(example["id"]): "" for example in test}, test, task.metric)


def find_constant_labels(task: Task, train: list[dict[str, Any]]) -> list[str]:
    """Return the set of labels that scores best as the prediction for every training example."""
    gold = [list_labels(task.kind, example) for example in train]
    names = sorted({label for labels in gold for label in labels})
    rows = [[float(name in labels) for name in names] for labels in gold]
    constants = make_constants("multi_label_classification", rows, len(names))
    sets = [[name for name, logit in zip(names, logits, strict=True) if logit > 0] for logits in constants]
    return max(sets, key=lambda labels: join_labels([labels] * len(train), train, task).score().compute())


def join_texts(splits: list[list[dict[str, Any]]], columns: list[str]) -> list[list[str]]:
    """Return the text of each example; a pair is one text."""
    return [[" ".join(str(example.get(name) or "") for name in columns) for example in split] for split in splits]


def predict_from_words(task: Task, splits: list[list[dict[str, Any]]], columns: list[str]) -> Predictions:
    """Predict by a linear model of word frequencies; the validation set chooses its regularization.

    Args:
        task: A task of texts.
        splits: Training, validation and test examples.
        columns: Columns of text; a pair is one text.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.svm import LinearSVC

    texts = join_texts(splits, columns)
    # Without letters, as in texts of numbers, nothing would be left of the words; characters are words of Chinese.
    vectorizer = TfidfVectorizer(
        ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"[^\W\u2e80-\u9fff]+|[\u2e80-\u9fff]"
    )
    names = sorted({label for example in splits[0] for label in list_labels(task.kind, example)})
    if not any(map(vectorizer.build_tokenizer(), texts[0])) or len(names) < 2:
        return predict_majority(task, splits[0], splits[2])
    train, validation, test = vectorizer.fit_transform(texts[0]), *map(vectorizer.transform, texts[1:])

    def predict(strength: float, features: Any, examples: list[dict[str, Any]]) -> Predictions:
        if task.kind in VALUES:
            values = [float(get_label(task.kind, example)) for example in splits[0]]
            return join_values(Ridge(1 / strength).fit(train, values).predict(features).tolist(), examples, task)
        labels = [list_labels(task.kind, example) for example in splits[0]]
        model = LinearSVC(C=strength, class_weight="balanced")
        if task.kind == "multi_label":
            gold = np.array([[name in own for name in names] for own in labels], dtype=int)
            with warnings.catch_warnings():  # a label that every example has needs no model
                warnings.simplefilter("ignore", UserWarning)
                chosen = OneVsRestClassifier(model).fit(train, gold).predict(features)
            found = [[name for name, is_it in zip(names, row, strict=True) if is_it] for row in chosen]
            return join_labels(found, examples, task)
        found = model.fit(train, [own[0] for own in labels]).predict(features)
        return join_labels([[str(name)] for name in found], examples, task)

    best = max(STRENGTHS, key=lambda strength: predict(strength, validation, splits[1]).score().compute())
    return predict(best, test, splits[2])


def predict_nearest(task: Task, splits: list[list[dict[str, Any]]], columns: list[str]) -> Predictions:
    """Let the training texts that BM25 finds vote with their scores; the validation set chooses their number.

    The label with the most votes wins. With several labels, each label with half of the votes wins; numbers are
    averaged. A text without results gets the most frequent label, or the mean.

    Args:
        task: A task of texts.
        splits: Training, validation and test examples.
        columns: Columns of text; a pair is one text.

    Raises:
        ModuleNotFoundError: tantivy is not installed.
    """
    texts = join_texts(splits, columns)
    validation, test = search_texts(texts[0], texts[1:], max(VOTERS))

    def validate(count: int) -> float:
        return vote(task, splits[0], validation, splits[1], count).score().compute()

    return vote(task, splits[0], test, splits[2], max(VOTERS, key=validate))


def search_words(queries: list[dict[str, Any]], passages: dict[str, str], metric: str) -> float:
    """Return the score of a search by BM25, in percent.

    Args:
        queries: See `read_queries`.
        passages: Texts of the corpus by id.
        metric: One of `METRICS`.

    Raises:
        ModuleNotFoundError: tantivy is not installed.
    """
    names = [*passages]
    (found,) = search_texts([*passages.values()], [[query["query"] for query in queries]], DEPTH)
    hits = [
        [{"corpus_id": names[number], "score": score} for number, score in zip(*each, strict=True)] for each in found
    ]
    return 100 * RetrievalTask(passages).compute_metrics(queries, hits)[metric]


def vote(
    task: Task,
    train: list[dict[str, Any]],
    found: list[tuple[list[int], list[float]]],
    test: list[dict[str, Any]],
    count: int,
) -> Predictions:
    """Predict the vote of the first `count` training examples that were found for each test example."""
    if task.kind in VALUES:
        values = np.array([[float(get_label(task.kind, example))] for example in train])
        return join_values(count_votes(values, found, count)[:, 0].tolist(), test, task)
    labels = [list_labels(task.kind, example) for example in train]
    names = sorted({*chain(*labels)})
    values = np.array([[float(name in own) for name in names] for own in labels])
    chosen = []
    for (numbers, _), votes in zip(found, count_votes(values, found, count), strict=True):
        several = [name for name, share in zip(names, votes, strict=True) if share >= 0.5]
        # Neighbors that agree on no label predict none.
        chosen.append(several if task.kind == "multi_label" and numbers else [names[votes.argmax()]])
    return join_labels(chosen, test, task)
