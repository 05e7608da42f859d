"""What is scored on a test set without any training: a row that is no better has learned nothing."""

import tempfile
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from hf_domain.comparison.plan import Task
from hf_domain.comparison.scores import MAJORITY, Predictions, join_answers, join_labels, read_examples
from hf_domain.comparison.task_files import find_texts

# The nearest training texts by BM25 vote for their labels.
NEAREST = "vote of the nearest texts"
# How many of them vote is chosen on the validation set.
VOTERS = (1, 3, 5, 10, 20, 50)


def score_floors(task: Task, flags: Mapping[str, Any], folder: Path) -> dict[str, float]:
    """Score a test set without training.

    Args:
        task: Whose test set is scored.
        flags: Of the command that fine-tunes: they may limit the examples.
        folder: Of the plan.

    Returns:
        Percent by name: the majority baseline; for texts to be classified also the vote of the nearest training texts,
        where tantivy is installed.
    """
    names = ("max_train_samples", "max_eval_samples", "max_predict_samples")
    splits = zip(("train", "validation", "test"), names, strict=True)
    files = tuple((folder / task.get_file(split), flags.get(name)) for split, name in splits)
    times = tuple(file.stat().st_mtime_ns for file, _ in files)
    options = tuple(sorted((name, str(value)) for name, value in task.options.items()))
    return dict(_score_floors(task.kind, task.metric, options, files, times))


@cache
def _score_floors(kind: str, metric: str, options: tuple, files: tuple, times: tuple) -> dict[str, float]:
    """Score once for all rows and seeds; `times` tell files that were changed."""
    task = Task(kind, "", "", metric, dict(options))  # type: ignore[arg-type]
    splits = [read_examples(file, limit) for file, limit in files]
    floors = {MAJORITY: predict_majority(task, splits[0], splits[2])}
    if kind == "classification":
        columns = find_texts(kind, str(files[0][0]), Path(), task.options.get("text_column_names"))
        with suppress(ModuleNotFoundError):  # of the optional datastore
            floors[NEAREST] = predict_nearest(task, splits, columns)
    return {name: predictions.score().compute() for name, predictions in floors.items()}


def predict_majority(task: Task, train: list[dict[str, Any]], test: list[dict[str, Any]]) -> Predictions:
    """Predict what a model predicts that learned nothing: the most frequent training label, only O, or no answer."""
    if task.kind == "classification":
        majority = Counter(str(example["label"]) for example in train).most_common(1)[0][0]
        return join_labels([majority] * len(test), test, task)
    if task.kind == "ner":
        tags = [example["tags"] for example in test]
        return Predictions.of_names([["O"] * len(sentence) for sentence in tags], tags, task.metric)
    return join_answers({str(example["id"]): "" for example in test}, test, task.metric)


def predict_nearest(task: Task, splits: list[list[dict[str, Any]]], columns: list[str]) -> Predictions:
    """Let the training texts that BM25 finds vote with their scores; how many is chosen on the validation set.

    Args:
        task: Of single labels.
        splits: Training, validation and test examples.
        columns: Of text; a pair is one text.

    Raises:
        ModuleNotFoundError: tantivy is not installed.
    """
    from hf_domain.datastore.analysis import Analyzer, choose_analyzer
    from hf_domain.datastore.tantivy_index import TantivyIndex, write_index

    texts = [[" ".join(str(example.get(name) or "") for name in columns) for example in split] for split in splits]
    labels = [str(example["label"]) for example in splits[0]]
    majority = Counter(labels).most_common(1)[0][0]
    analyzer = Analyzer(choose_analyzer(texts[0]))
    with tempfile.TemporaryDirectory() as folder:
        write_index(Path(folder, "index"), analyzer, enumerate(texts[0]))
        index = TantivyIndex(Path(folder, "index"), analyzer)
        _, validation, test = (index.search(queries, max(VOTERS)) if queries else [] for queries in ([], *texts[1:]))

    def vote(found: list[tuple[list[int], list[float]]], count: int) -> list[str]:
        chosen = []
        for ids, scores in found:
            votes: dict[str, float] = defaultdict(float)
            for number, score in zip(ids[:count], scores[:count], strict=True):
                votes[labels[number]] += score
            chosen.append(max(votes, key=lambda label: votes[label]) if votes else majority)
        return chosen

    def validate(count: int) -> float:
        return join_labels(vote(validation, count), splits[1], task).score().compute()

    return join_labels(vote(test, max(VOTERS, key=validate)), splits[2], task)
