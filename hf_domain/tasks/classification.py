"""Sequence classification and regression: texts and labels to model inputs, logits to predictions."""

import json
import logging
import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from datasets import Dataset, DatasetDict
from numpy.typing import ArrayLike
from transformers import (
    AutoModelForSequenceClassification,
    BatchEncoding,
    PreTrainedTokenizerBase,
    Trainer,
)
from transformers.loss.loss_utils import ForSequenceClassificationLoss

from hf_domain.data.columns import (
    Locate,
    check_columns,
    choose_column,
    describe_columns,
    find_split_columns,
    find_text_columns,
    name_example,
)
from hf_domain.tasks.baseline import DECIDING, compare_with_baseline, make_constants
from hf_domain.tasks.class_weights import make_weighted_loss
from hf_domain.tasks.kind import PLAN_KINDS, DataArguments, Rows, TaskKind, register_kind
from hf_domain.tasks.labels import (
    HELD_OUT,
    check_spread,
    check_variety,
    draw_validation,
    find_ids,
    has_fractions,
    hide_unknown,
    list_labels,
    name_label,
    name_multi_hot,
    read_labels,
    warn_of_units,
)
from hf_domain.tasks.metrics import compute_class_metrics, list_class_metrics
from hf_domain.tasks.outputs import LABELS, VALIDATED, format_labels, get_logits, predict_validation, read_label_lines

logger = logging.getLogger(__name__)
LABEL_COLUMNS = ("label", "labels")


@dataclass
class ClassificationArguments(DataArguments):
    """The data of a classification or a regression."""

    text_column_names: str | None = field(
        default=None,
        metadata={"help": "Column of text, or two as first,second. Default: a known pair, `text`, or the only column."},
    )
    label_column_name: str | None = field(
        default=None, metadata={"help": "Column of labels. Default: label, or labels."}
    )
    class_names: list[str] | None = field(
        default=None, metadata={"help": "Names of the labels of lists of 0 and 1, one for each label."}
    )
    max_seq_length: int | None = field(
        default=None,
        metadata={"help": "Maximum number of tokens of an example. Default: 128, or the model's limit if it is less."},
    )
    do_regression: bool | None = field(
        default=None, metadata={"help": "Predict labels as numbers. Default: on if they are fractions."}
    )
    multi_label: bool | None = field(
        default=None, metadata={"help": "Allow any number of labels per example. Default: on if labels are lists."}
    )
    class_weights: Literal["none", "balanced"] = field(
        default="none",
        metadata={"help": "balanced: rare labels count as much in the loss as frequent ones (as in scikit-learn)."},
    )
    negative_labels: str | None = field(
        default=None,
        metadata={"help": "Labels that mean 'none of these', as a,b. Adds the metric positive_micro_f1 without them."},
    )
    nearest_vote: bool = field(
        default=False,
        metadata={
            "help": "Mix the probabilities with a vote of the nearest training texts by BM25; the validation set "
            "chooses its weight. Predictions then need labeled texts."
        },
    )
    append_passage: bool = field(
        default=False,
        metadata={"help": "Append the best passage of --datastore to the text, cut to the remaining length."},
    )


@register_kind
class Classification(TaskKind):
    """Texts or pairs of texts with one label, several labels, or a value."""

    name, head, pipeline_tag = "classification", "ForSequenceClassification", "text-classification"
    auto_class, arguments = AutoModelForSequenceClassification, ClassificationArguments
    args: ClassificationArguments
    default_length = 128
    command = "classification"
    plan_metrics: ClassVar[tuple[str, ...]] = ("macro_f1", "micro_f1", "positive_micro_f1")
    problem_type = "single_label_classification"
    parse: ClassVar[Callable[[str], Any]] = str
    """Reads the prediction of a line in the file of labels."""
    constants: Sequence[np.ndarray] = ()
    """Logits of constant predictions, see `make_constants`."""
    chosen: dict[str, int]
    """The number of the constant for each metric, if there are several."""

    @classmethod
    def fits(cls, columns: set[str]) -> bool:
        """Return True: rows that no other kind reads are texts with labels."""
        return True

    @classmethod
    def hold_out(cls, rows: Dataset, label_column: str | None = None, share: float = HELD_OUT) -> list[int]:
        """Draw a fifth of the rows in proportion to the labels."""
        return draw_validation(list_labels(rows, label_column or choose_column(rows, LABEL_COLUMNS)), share)

    def follow(self, config: Any) -> None:
        """Take the labels and the problem type of a fine-tuned model."""
        self.problem_type = find_model_type(config)
        self.label_names, self.label_ids = [config.id2label[number] for number in range(config.num_labels)], {}
        if self.args.do_regression is None:
            self.args.do_regression = self.problem_type == "regression"

    def read(self, splits: DatasetDict, locate: Locate = name_example) -> DatasetDict:
        """Find the columns of text, the problem type and the labels."""
        args, first = self.args, next(iter(splits.values()))
        if args.label_column_name is None:
            args.label_column_name = choose_column(first, LABEL_COLUMNS)
        column = args.label_column_name
        check_columns(splits, [column], "--label_column_name", optional_in_test=column)
        splits = name_multi_hot(hide_unknown(splits, column), column, args.class_names, locate)
        self.text_columns = find_split_columns(splits, column, args.text_column_names, locate)
        if any(column in rows.column_names for rows in splits.values()):
            found = read_labels(splits, column, args.do_regression, args.multi_label, locate)
            self.problem_type, self.label_names, self.label_ids = found
        self.deciding = DECIDING[self.problem_type]
        return splits

    def check(self, splits: DatasetDict, does_train: bool) -> None:
        """Check that labels differ, and that the negative ones exist."""
        column, names = str(self.args.label_column_name), self.label_names or []
        if does_train:
            check_variety(splits["train"][column], column)
        if self.problem_type == "regression":
            check_spread(splits, column)
            if does_train:
                warn_of_units(splits["train"][column], column)
        self.negative_labels = find_ids(self.args.negative_labels, names)

    def measure_loss(self, config: Any, predictions: Any, labels: Any, examples: Dataset) -> float:
        """See `TaskKind`; class weights count, as in training."""
        logits = torch.from_numpy(get_logits(predictions)).float()
        gold = torch.from_numpy(labels)
        if self.loss is not None:
            return float(self.loss((logits,), gold))
        return float(ForSequenceClassificationLoss(gold, logits, config))

    def list_metrics(self) -> list[str]:
        """Return the names of the metrics."""
        return list_class_metrics(self.problem_type, self.negative_labels)

    def list_options(self) -> dict[str, Any]:
        """Return the problem type."""
        return {"problem_type": self.problem_type}

    def prepare(self, rows: Dataset, text_columns: str | None, config: Any) -> Dataset:
        """Find the columns of text: one, or two for pairs."""
        self.text_columns = find_text_columns(rows, text_columns)
        logger.info(describe_columns(rows, self.text_columns))
        return rows

    def tokenize(
        self, batch: Any, tokenizer: PreTrainedTokenizerBase | None = None, does_train: bool = False
    ) -> BatchEncoding:
        """Tokenize texts or pairs."""
        args, texts = self.args, [batch[column] for column in self.text_columns]
        options: Any = {"max_seq_length": args.max_seq_length, "pad_to_max_length": args.pad_to_max_length}
        encodings = tokenize_texts(texts, tokenizer or self.tokenizer, **options)
        if self.label_ids is not None and args.label_column_name in batch:
            encodings["labels"] = encode_labels(batch[args.label_column_name], self.problem_type, self.label_ids)
        return encodings

    def learn(self, examples: DatasetDict, config: Any) -> None:
        """Keep the constant predictions that a model must beat, and weigh the labels."""
        if "train" not in examples:
            return  # no label is known to be frequent
        labels, names = examples["train"]["labels"][:], self.label_names or []
        self.constants, self.chosen = make_constants(self.problem_type, labels, len(names)), {}
        if len(self.constants) > 1:  # the training labels choose one for each metric
            known = self.score_constants(np.asarray(labels), config)
            self.chosen = {name: max(range(len(known)), key=lambda number: known[number][name]) for name in known[0]}
        self.loss = make_weighted_loss(self.args.class_weights, self.problem_type, labels, names)

    def score(self, output: Any, rows: Dataset, examples: Dataset, config: Any) -> dict[str, Any]:
        """Return the metrics of logits, and those of the best constant predictions."""
        gold = np.asarray(output.label_ids)
        metrics, scores = self.score_logits(output.predictions, gold, config), self.score_constants(gold, config)
        if not scores:
            return metrics
        baseline = {name: scores[self.chosen.get(name, 0)][name] for name in metrics}
        return compare_with_baseline(metrics, baseline, self.deciding)

    def score_constants(self, gold: np.ndarray, config: Any) -> list[dict[str, float]]:
        """Return the metrics of each constant prediction."""
        shape = len(gold), len(self.label_names or [])
        return [self.score_logits(np.broadcast_to(constant, shape), gold, config) for constant in self.constants]

    def score_logits(self, logits: Any, gold: np.ndarray, config: Any) -> dict[str, float]:
        """Return the metrics of logits."""
        predictions = decode_logits(logits, self.problem_type, getattr(config, "label_thresholds", None))
        return compute_class_metrics(predictions, gold, self.problem_type, self.negative_labels)

    def finish(self, trainer: Trainer) -> None:
        """Choose the thresholds of several labels on the validation set, if there is one; otherwise they are one half.

        They go into `config.label_thresholds`, one probability per label.
        """
        config: Any = trainer.model.config  # type: ignore[union-attr]
        if config.problem_type != "multi_label_classification":
            return
        config.label_thresholds = None
        if trainer.eval_dataset is None:
            return
        config.label_thresholds = choose_thresholds(*predict_validation(trainer))
        told = [f"{config.id2label[number]} {value:.2f}" for number, value in enumerate(config.label_thresholds)]
        logger.info(f"Thresholds chosen on the validation set: {', '.join(told)}")

    def decode(self, output: Any, rows: Dataset, examples: Dataset, config: Any) -> list[dict[str, Any]]:
        """Return the labels of each row with the probabilities of all labels; for a regression, only the value."""
        logits, problem_type = get_logits(output.predictions), find_model_type(config)
        names = [config.id2label[number] for number in range(config.num_labels)]
        thresholds = getattr(config, "label_thresholds", None)
        predictions = name_predictions(decode_logits(logits, problem_type, thresholds), problem_type, names)
        if problem_type == "regression":
            return [{"prediction": value} for value in predictions]
        scores = torch.from_numpy(logits)
        probabilities = scores.softmax(-1) if problem_type == "single_label_classification" else scores.sigmoid()
        return [
            {"prediction": prediction, "probabilities": dict(zip(names, row.tolist(), strict=True))}
            for prediction, row in zip(predictions, probabilities, strict=True)
        ]

    def list_files(self, decoded: list[dict[str, Any]], split: str) -> dict[str, str]:
        """Return the file of labels."""
        name = VALIDATED if split == "eval" else LABELS
        return {name: format_labels(row["prediction"] for row in decoded)}

    @classmethod
    def get_gold(cls, row: Mapping[str, Any]) -> Any:
        """Return the name of the label, or those of several."""
        label = row["label"]
        return [*map(name_label, label)] if isinstance(label, list) else name_label(label)

    @classmethod
    def encode_gold(cls, rows: Rows) -> tuple[list[Any], np.ndarray]:
        """Return the names of the labels, or the values of a regression, and the labels of `encode_labels`."""
        gold = [cls.get_gold(row) for row in rows]
        names = sorted({name for label in gold for name in (label if isinstance(label, list) else [label])})
        return names, np.asarray(encode_labels(gold, cls.problem_type, {name: i for i, name in enumerate(names)}))

    @classmethod
    def list_constants(cls, train: Rows) -> list[Any]:
        """Return the constants of `make_constants`, with which a fine-tuning compares its scores, too."""
        names, labels = cls.encode_gold(train)
        constants = np.stack(make_constants(cls.problem_type, labels, len(names)))
        return name_predictions(decode_logits(constants, cls.problem_type), cls.problem_type, names)

    @classmethod
    def read_predictions(cls, folder: Path, rows: Rows) -> list[Any]:
        """Return the label of each row, the labels or the value."""
        return [*map(cls.parse, read_label_lines(folder))]


class MultiLabel(Classification):
    """Several labels, as a plan names the kind."""

    plan_metrics, parse = ("macro_f1", "micro_f1"), json.loads
    problem_type = "multi_label_classification"

    @classmethod
    def fits_values(cls, values: Mapping[str, Any]) -> bool:
        """Return whether labels are lists."""
        return isinstance(values.get("label"), list)


class Regression(Classification):
    """Values, as a plan names the kind. They may be in `score`, beside labels of another task."""

    plan_metrics, parse = ("pearson", "spearman"), float
    problem_type = "regression"

    @classmethod
    def fits_values(cls, values: Mapping[str, Any]) -> bool:
        """Return whether labels are fractions, or there are only scores.

        Raises:
            ValueError: Either column may hold the values.
        """
        score = values.get("score")
        has_scores = isinstance(score, int | float) and math.isfinite(score)
        is_fraction = has_fractions([values.get("label")])
        if is_fraction and has_scores:
            raise ValueError(
                "the values of a regression must be in one column, but the task has fractions in label and numbers in "
                "score. Remove one of them, or set kind: regression, which predicts score."
            )
        return is_fraction or (has_scores and "label" not in values)

    @classmethod
    def find_label_column(cls, columns: Container[str]) -> str:
        """Return the column of values."""
        return "score" if "score" in columns else "label"

    @classmethod
    def list_flags(cls, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the column of values; whole numbers are values, too."""
        return {"label_column_name": cls.find_label_column(next(iter(rows))), "do_regression": True}

    @classmethod
    def get_gold(cls, row: Mapping[str, Any]) -> float:
        """Return the value."""
        return float(row[cls.find_label_column(row)])


PLAN_KINDS.update(multi_label=MultiLabel, regression=Regression)


def tokenize_texts(
    texts: Sequence[Sequence[str | None]],
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int | None,
    pad_to_max_length: bool = False,
) -> BatchEncoding:
    """Tokenize one column of texts, or two for pairs, of which the longer text is truncated first; None is empty."""
    columns = [[text or "" for text in column] for column in texts]
    padding = "max_length" if pad_to_max_length else False
    return tokenizer(*columns, truncation=True, max_length=max_seq_length, padding=padding)


def find_model_type(config: Any) -> str:
    """Return the problem type of a classifier, of which older ones do not save it."""
    return config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")


def find_vote(config: dict[str, Any], architecture: str = "") -> dict[str, Any] | None:
    """Return the vote of the nearest texts in the configuration of a classifier; None without one, or without a weight.

    Args:
        config: Content of a configuration. Another model that was made from a classifier may have it, but no vote.
        architecture: Name of the model's class. Default: as in the configuration.
    """
    is_classifier = "ForSequenceClassification" in (architecture or str(config.get("architectures")))
    vote = config.get("nearest_vote") if is_classifier else None
    return vote if vote and vote["weight"] else None


def encode_labels(labels: list[Any], problem_type: str, ids: dict[Any, int], size: int | None = None) -> list[Any]:
    """Return labels as the model's loss expects them: values, rows of 0 and 1 (multi-label), or ids.

    Args:
        labels: As in the dataset; `read_labels` has checked them.
        ids: See `find_labels`; unused for regression.
        size: Number of labels that the model has. Default: that of the ids.
    """
    if problem_type == "regression":
        return [float(label) for label in labels]
    if problem_type == "multi_label_classification":
        rows = np.zeros((len(labels), size or len(ids)), dtype=np.float32)
        for row, names in zip(rows, labels, strict=True):
            row[[ids[name] for name in names]] = 1
        return rows.tolist()
    return [ids[label] for label in labels]


def decode_logits(
    logits: np.ndarray | tuple[np.ndarray, ...], problem_type: str, thresholds: Sequence[float] | None = None
) -> np.ndarray:
    """Turn the logits of a sequence classifier into predictions.

    Args:
        logits: [examples, labels], or a tuple that begins with them.
        thresholds: See `choose_thresholds`; default one half.

    Returns:
        For regression, values [examples]. For multi-label classification, 0 or 1 [examples, labels]: 1 where the
        probability exceeds the label's threshold. Otherwise, label ids [examples].
    """
    logits = get_logits(logits)
    if problem_type == "regression":
        return logits.squeeze(-1)
    if problem_type == "multi_label_classification":
        return (logits > compute_logits(0.5 if thresholds is None else thresholds)).astype(int)
    return logits.argmax(-1)


def compute_logits(probabilities: ArrayLike) -> np.ndarray:
    """Return the logits of probabilities."""
    values = np.asarray(probabilities, dtype=float)
    return np.log(values) - np.log1p(-values)


def choose_thresholds(logits: np.ndarray, labels: np.ndarray) -> list[float]:
    """Return for each label the threshold on its probability that gives the best F1.

    A threshold lies midway between two probabilities; a label without examples gets one half.

    Args:
        logits: [examples, labels] of held-out examples.
        labels: [examples, labels], 0 or 1.
    """
    probabilities = 1 / (1 + np.exp(-logits.astype(float)))
    thresholds = []
    for own, gold in zip(probabilities.T, np.asarray(labels).T, strict=True):
        order = np.argsort(-own, kind="stable")
        values, found = own[order], np.cumsum(gold[order])
        f1 = 2 * found / (np.arange(1, len(gold) + 1) + gold.sum())
        f1[:-1][values[:-1] == values[1:]] = 0  # a threshold cannot separate equal probabilities
        last = int(f1.argmax())
        below = values[last + 1] if last + 1 < len(values) else 0.0
        thresholds.append(float(np.clip((values[last] + below) / 2, 1e-6, 1 - 1e-6)) if found[-1] else 0.5)
    return thresholds


def name_predictions(predictions: np.ndarray, problem_type: str, label_names: list[str]) -> list[Any]:
    """Return for each prediction of `decode_logits` a value, a list of label names (multi-label) or a label name."""
    if problem_type == "regression":
        return predictions.tolist()
    if problem_type == "multi_label_classification":
        return [[label_names[label] for label in np.flatnonzero(row)] for row in predictions]
    return [label_names[label] for label in predictions]
