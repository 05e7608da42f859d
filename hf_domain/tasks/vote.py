"""Mix the probabilities of a classifier with a vote of the labeled texts nearest to each text.

A nearest-neighbor model beside the network, as in kNN-LM (Khandelwal et al. 2020), here beside a fine-tuned classifier
(Li et al. 2023, "Revisiting k-NN for Fine-tuning Pre-trained Language Models"). BM25 finds the neighbors, as in REINA
(Wang et al. 2022): an index of words errs on other texts than the network, of which it needs no states.
"""

import logging
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from torch.nn.functional import binary_cross_entropy_with_logits, cross_entropy, mse_loss

from hf_domain.datastore.analysis import Analyzer, choose_analyzer
from hf_domain.extras import require
from hf_domain.tasks.classification import encode_labels
from hf_domain.tasks.kind import TaskKind
from hf_domain.tasks.labels import check_values, find_labels, name_multi_hot
from hf_domain.tasks.outputs import predict_validation

logger = logging.getLogger(__name__)

COUNTS = (1, 3, 5, 10)
"""Numbers of texts that may vote."""
WEIGHTS = tuple(number / 20 for number in range(20))
"""Weights that the vote may get; 0 leaves the classifier as it is."""
NEW = "new"  # the split of texts without labels
SMALLEST = 1e-6  # a probability of 0 has no logarithm


@dataclass
class NearestVote:
    """The vote of labeled texts, for the texts of one or more splits.

    Args:
        values: [texts, labels] of the labeled texts: 1 for each label of a text, or for a regression its value.
        found: For each split and each of its texts, the numbers of the nearest labeled texts and their scores.
        label_column: Column of the labels.
        count: Number of texts that vote.
        weight: Share of the vote in the probabilities, 0 to 1.
    """

    problem_type: str
    values: np.ndarray
    found: Mapping[str, Sequence[tuple[list[int], list[float]]]]
    label_column: str = "label"
    count: int = 0
    weight: float = 0.0

    def mix(self, predictions: Any, split: str) -> Any:
        """Return a network's predictions for a split with the vote in them.

        Args:
            predictions: Logits [texts, labels], or a tuple that begins with them.
        """
        if self.weight == 0:
            return predictions
        logits, *others = predictions if isinstance(predictions, tuple) else (predictions,)
        votes = count_votes(self.values, self.found[split], self.count)
        mixed = mix_votes(logits, votes, self.weight, self.problem_type)
        return (mixed, *others) if isinstance(predictions, tuple) else mixed

    def choose(self, logits: np.ndarray, labels: np.ndarray, split: str) -> None:
        """Choose count and weight by the loss on a split, see `measure_loss`.

        The loss and not the metric: macro F1 jumps with single texts of rare labels.

        Args:
            logits: [texts, labels] of the network alone.
            labels: Their labels, as Trainer reads them.
        """
        gold = make_matrix(labels.tolist(), self.problem_type, logits.shape[1])
        votes = {count: count_votes(self.values, self.found[split], count) for count in COUNTS}

        def measure(choice: tuple[float, int]) -> float:
            weight, count = choice
            return measure_loss(mix_votes(logits, votes[count], weight, self.problem_type), gold, self.problem_type)

        # The first of equal ones: no vote before any, then few texts.
        self.weight, self.count = min(product(WEIGHTS, COUNTS), key=measure)


def make_vote(
    texts: Sequence[str], labels: Sequence[Any], queries: Mapping[str, Sequence[str]], config: Any, label_column: str
) -> NearestVote:
    """Search the nearest labeled texts of the texts of each split.

    Args:
        labels: As Trainer reads them.
        config: The model's; a `nearest_vote` says how many texts vote, with which weight.

    Raises:
        ModuleNotFoundError: tantivy is not installed.
    """
    require("a vote of the nearest texts", "tantivy")
    found = search_texts(texts, list(queries.values()), max(COUNTS))
    values = make_matrix(labels, config.problem_type, config.num_labels)
    vote = NearestVote(config.problem_type, values, dict(zip(queries, found, strict=True)), label_column)
    if chosen := getattr(config, "nearest_vote", None):
        vote.count, vote.weight = chosen["count"], chosen["weight"]
    return vote


def load_vote(kind: TaskKind, splits: DatasetDict, config: Any, does_train: bool) -> NearestVote | None:
    """Return the vote of the training texts of a run for its other splits; None without `--nearest_vote`.

    Args:
        kind: A classification, which has read the splits.

    Raises:
        ModuleNotFoundError: tantivy is not installed.
        ValueError: There are no texts that vote, or no validation texts, which choose the weight. Or the run does not
            train a model without a vote.
    """
    args = kind.args
    if not getattr(args, "nearest_vote", False):
        return None
    if not does_train and not getattr(config, "nearest_vote", None):
        raise ValueError(
            "--nearest_vote needs --do_train, or a model that was trained with it, but this run does neither. Add "
            "--do_train, or leave the flag out."
        )
    if does_train and "validation" not in splits:
        raise ValueError(
            "--nearest_vote needs validation texts, which choose its weight, but there are none. Add --validation_file "
            "and --do_eval."
        )
    if "train" not in splits:
        raise ValueError("--nearest_vote needs training texts, which vote, but there are none. Add --train_file.")
    texts = {split: join_columns(rows, kind.text_columns) for split, rows in splits.items()}
    column, ids = args.label_column_name, kind.label_ids or {}
    labels = encode_labels(splits["train"][column], config.problem_type, ids, config.num_labels)
    return make_vote(texts.pop("train"), labels, texts, config, column)


def load_labeled(labeled: Dataset, columns: Sequence[str], queries: Sequence[str], config: Any) -> NearestVote:
    """Return the vote of labeled texts for new ones, the split `NEW`, as a fine-tuned model's configuration says.

    Args:
        labeled: Texts and their labels, those of the training or others.
        columns: Columns of its texts.
        queries: The new texts.
        config: That of a model with a `nearest_vote`.

    Raises:
        ModuleNotFoundError: tantivy is not installed.
        ValueError: There is no column of labels, a label is missing, or the model does not know it.
    """
    name = config.nearest_vote["label_column"]
    if name not in labeled.column_names:
        raise ValueError(
            f"the labeled texts must have the column {name}, as in the training, but have "
            f"{', '.join(labeled.column_names)}. Rename a column."
        )
    splits, ids = DatasetDict(labeled=labeled), dict[Any, int]()
    if config.problem_type == "regression":
        check_values(splits, name)
    else:
        named = [config.id2label[number] for number in range(config.num_labels)]
        splits = name_multi_hot(splits, name, named)
        labeled = splits["labeled"]
        names, numbers = find_labels(splits, name)
        own = {label: number for number, label in config.id2label.items()}
        ids = {value: own[names[number]] for value, number in numbers.items() if names[number] in own}
        several = config.problem_type == "multi_label_classification"
        if unknown := {*(chain(*labeled[name]) if several else labeled[name])} - {*ids}:
            raise ValueError(
                f"the labels must be those of the model ({', '.join(sorted(own))}), but the labeled texts have "
                f"{', '.join(sorted(names[numbers[value]] for value in unknown))}. Rename the labels, or leave these "
                "texts out."
            )
    labels = encode_labels(labeled[name], config.problem_type, ids, config.num_labels)
    texts = join_columns(labeled, columns)
    known = {*texts}
    if shared := sum(query in known for query in queries):
        logger.warning(
            f"{shared:,} of {len(queries):,} texts are also labeled texts, and their own labels vote for them. Scores "
            "on them are too good."
        )
    return make_vote(texts, labels, {NEW: queries}, config, name)


def set_vote(trainer: Any) -> None:
    """Choose the weight of a FineTuningTrainer's vote on its validation set, if it has one, and save it with the model.

    It goes into `config.nearest_vote`, which `hf-domain predict` reads: the number of texts that vote, their weight,
    which is 0 if the model alone is best, and the column of their labels.
    """
    vote = trainer.vote
    if vote is None:
        return
    vote.weight = 0.0  # so that the model is read alone
    vote.choose(*predict_validation(trainer), "validation")
    chosen = {"count": vote.count, "weight": vote.weight, "label_column": vote.label_column}
    trainer.model.config.nearest_vote = chosen
    if vote.weight == 0:
        logger.info("On the validation set, no vote of the nearest training texts is better than the model alone.")
    else:
        logger.info(f"On the validation set, {vote.count} nearest training texts vote, with weight {vote.weight:.2f}")


def search_texts(
    texts: Sequence[str], queries: Sequence[Sequence[str]], count: int
) -> list[list[tuple[list[int], list[float]]]]:
    """Return for each query of each list the numbers of the nearest texts, the nearest first, and their scores.

    A text without any word of the query is not found.

    Raises:
        ModuleNotFoundError: tantivy is not installed.
    """
    from hf_domain.datastore.tantivy_index import TantivyIndex, write_index

    analyzer = Analyzer(choose_analyzer(texts))
    with tempfile.TemporaryDirectory() as folder:
        write_index(Path(folder, "index"), analyzer, enumerate(texts))
        index = TantivyIndex(Path(folder, "index"), analyzer)
        return [index.search(each, count) if each else [] for each in queries]


def join_columns(rows: Dataset, columns: Sequence[str]) -> list[str]:
    """Return the text of each row; a pair is one text."""
    texts = zip(*(rows[name] for name in columns), strict=True)
    return [" ".join(str(part or "") for part in parts) for parts in texts]


def make_matrix(labels: Sequence[Any] | np.ndarray, problem_type: str, size: int) -> np.ndarray:
    """Return labels as Trainer reads them as a matrix [texts, labels], of 0 and 1 or of a regression's values."""
    if problem_type == "single_label_classification":
        return np.eye(size)[np.asarray(labels, dtype=int)]
    return np.asarray(labels, dtype=float).reshape(len(labels), size)


def count_votes(values: np.ndarray, found: Sequence[tuple[list[int], list[float]]], count: int) -> np.ndarray:
    """Return the mean of the values of the nearest texts, each weighted by its score.

    A text for which nothing was found gets the mean of all values.

    Args:
        values: [texts, labels].
        found: For each query, numbers of texts, the nearest first, and their scores.
        count: Number of texts that vote.

    Returns:
        [queries, labels].
    """
    votes = np.empty((len(found), values.shape[1]))
    for row, (numbers, scores) in zip(votes, found, strict=True):
        weights = np.asarray(scores[:count])
        row[:] = weights @ values[numbers[:count]] / weights.sum() if len(weights) else values.mean(0)
    return votes


def mix_votes(logits: np.ndarray, votes: np.ndarray, weight: float, problem_type: str) -> np.ndarray:
    """Return the logits of a classifier whose probabilities are mixed with votes; values of a regression are mixed.

    Args:
        logits: [texts, labels].
        votes: The same shape, see `count_votes`.
        weight: Share of the votes.
    """
    if weight == 0:
        return logits
    own = torch.from_numpy(logits).double()
    if problem_type == "regression":
        mixed = (1 - weight) * own + weight * torch.from_numpy(votes)
    else:
        several = problem_type == "multi_label_classification"
        mixed = (1 - weight) * (own.sigmoid() if several else own.softmax(-1)) + weight * torch.from_numpy(votes)
        mixed = mixed.clamp(SMALLEST, 1 - SMALLEST)
        mixed = mixed.logit() if several else mixed.log()
    return mixed.float().numpy()


def measure_loss(logits: np.ndarray, gold: np.ndarray, problem_type: str) -> float:
    """Return the negative log-likelihood of labels, each label counting the same, or a regression's mean squared error.

    Of several labels, each label's presence and its absence count the same. A vote helps with rare labels most: in a
    trial of five tasks, it gained 2.9 points of macro F1 if this loss chose, and 2.0 if each text counted the same.

    Args:
        logits: [texts, labels].
        gold: The same shape, see `make_matrix`.
    """
    own, target = torch.from_numpy(logits).double(), torch.from_numpy(gold)
    if problem_type == "regression":
        return float(mse_loss(own, target))
    if problem_type == "multi_label_classification":
        losses = binary_cross_entropy_with_logits(own, target, reduction="none")
        parts = [(losses * share).sum(0) / share.sum(0).clamp(min=1) for share in (target, 1 - target)]
        return float(torch.stack(parts).sum(0).mean())
    return float(cross_entropy(own, target.argmax(-1), weight=1 / target.sum(0).clamp(min=1)))
