"""The questions that a kind of task answers, and the table of kinds.

Fine-tuning, prediction, comparisons and their commands ask a `TaskKind` alone, so that another package can add one.
"""

from collections import Counter
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

from datasets import Dataset, DatasetDict
from transformers import DataCollatorWithPadding, PreTrainedTokenizerBase, Trainer

from hf_domain.data.columns import Locate, name_example
from hf_domain.tasks.labels import HELD_OUT
from hf_domain.tasks.scores import Predictions

Rows: TypeAlias = Sequence[Mapping[str, Any]]
"""Lines of a task's file."""


@dataclass
class DataArguments:
    """The data of a task; each kind adds arguments."""

    dataset_name: str | None = field(default=None, metadata={"help": "Dataset of the Hub, instead of files."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of the dataset."})
    data_license: str | None = field(
        default=None, metadata={"help": "License of the data for the card, as the Hub spells it: cc-by-4.0."}
    )
    train_file: str | None = field(
        default=None, metadata={"help": "Training data: .jsonl .json .csv .tsv (.gz .zst) .parquet."}
    )
    validation_file: str | None = field(default=None, metadata={"help": "Validation data, in the same formats."})
    test_file: str | None = field(default=None, metadata={"help": "Test data, in the same formats."})
    max_train_samples: int | None = field(
        default=None, metadata={"help": "Use only this many training examples, from the first."}
    )
    max_eval_samples: int | None = field(default=None, metadata={"help": "Use only this many validation examples."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Use only this many test examples."})
    max_seq_length: int | None = field(
        default=None, metadata={"help": "Maximum number of tokens of an example. Default: the model's limit."}
    )
    pad_to_max_length: bool = field(default=False, metadata={"help": "Pad to max_seq_length, not per batch."})
    overwrite_cache: bool = field(default=False, metadata={"help": "Tokenize again, even if a cached result exists."})
    preprocessing_num_workers: int | None = field(
        default=None, metadata={"help": "Number of processes for tokenization and for passage search."}
    )
    memory_cache: str | None = field(
        default=None,
        metadata={"help": "With gmap and a frozen memory: folder that caches the memory's states."},
    )


class TaskKind:
    """What a kind of task reads, predicts and scores.

    An object belongs to one run. A fine-tuning calls `read`, `check`, `use`, `tokenize`, `check_examples`, `learn`,
    `score`, `finish`, `decode` and `list_files` in this order, and before them `follow` if there are no training data.
    `predict` calls `use`, `prepare`, `tokenize`, `check_examples` and `decode`. A comparison asks the class, without an
    object: its fields below, and the methods at the end.
    """

    name: ClassVar[str]
    head: ClassVar[str]
    """End of the names of the models, such as ForSequenceClassification."""
    auto_class: ClassVar[Any]
    pipeline_tag: ClassVar[str]
    """The Hub's name of the task."""
    arguments: ClassVar[type[DataArguments]] = DataArguments
    """The dataclass of the data's flags."""
    collator_class: ClassVar[Callable[..., Any]] = DataCollatorWithPadding
    default_length: ClassVar[int | None] = None
    """Maximum number of tokens if the user names none; None for the model's limit."""
    needs_train: ClassVar[bool] = True
    """Whether the training data, if they are given, define the labels of a run that does not train."""
    command: ClassVar[str] = ""
    """The command that fine-tunes, or the module of another package's script; empty if no plan can name the kind."""
    plan_metrics: ClassVar[tuple[str, ...]] = ()
    """The metrics that a plan can name; the first is that of a task that names none."""
    columns: ClassVar[tuple[str, ...]] = ("label",)
    """Columns that every row of a plan's task has, the label last."""
    texts: ClassVar[tuple[str, ...] | None] = None
    """Columns of text; None if their names vary."""
    labels_words: ClassVar[bool] = False
    """Whether every word has a label."""
    keeps_length: ClassVar[bool] = False
    """Whether an advice leaves the length of examples to the command."""
    problem_type: str = ""
    """The problem type of a classifier of texts, as in its configuration. The nearest texts can vote for its labels."""
    text_columns: list[str]
    """The columns that are read, set by `read` and `prepare`."""
    label_names: list[str] | None = None
    """Names of the labels in the order of their ids, set by `read`; None if the task has none."""
    label_ids: dict[Any, int] | None = None
    """The id of every value of the label column."""
    deciding: str = "f1"
    """The metric that stops a training early, and that must beat the baseline."""
    loss: Callable[..., Any] | None = None
    """A loss instead of the model's, for `Trainer(compute_loss_func=...)`."""
    tokenizer: PreTrainedTokenizerBase

    def __init__(self, args: Any):
        self.args = args

    @classmethod
    def fits(cls, columns: set[str]) -> bool:
        """Return whether rows with these columns are of this kind."""
        return columns >= {*cls.columns}

    @classmethod
    def hold_out(cls, rows: Dataset, label_column: str | None = None, share: float = HELD_OUT) -> list[int]:
        """Return the numbers of the rows that data without a validation set give to it.

        Args:
            label_column: Default: a known name.
            share: Share of the rows, a fifth.
        """
        raise NotImplementedError

    def follow(self, config: Any) -> None:
        """Take the labels of a fine-tuned model's configuration: there are no training data."""

    def read(self, splits: DatasetDict, locate: Locate = name_example) -> DatasetDict:
        """Check all rows, and find the columns and the labels; return the rows to use."""
        raise NotImplementedError

    def check(self, splits: DatasetDict, does_train: bool) -> None:
        """Check the rows that are left after `--max_train_samples`, and what depends on the names of the labels."""

    def measure_loss(self, config: Any, predictions: Any, labels: Any, examples: Dataset) -> float | None:
        """Return the loss of all examples, which no batch and no process changes; None keeps the mean of batches.

        Args:
            predictions: The logits of the examples in their order, or a tuple that begins with them.
            labels: As Trainer reads them.
            examples: The tokenized examples.
        """
        return None

    def list_metrics(self) -> Sequence[str] | None:
        """Return the names of the metrics, which may choose the best weights; None if they are not known."""
        return None

    def list_options(self) -> dict[str, Any]:
        """Return fields of the model's configuration that the task sets, beside the labels."""
        return {}

    def prepare(self, rows: Dataset, text_columns: str | None, config: Any) -> Dataset:
        """Return the rows to predict, and follow a fine-tuned model's configuration.

        Args:
            text_columns: Columns that the user named, or those of the training.
        """
        raise NotImplementedError

    def use(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Keep the model's tokenizer, and change it as the kind needs."""
        self.tokenizer = tokenizer

    def tokenize(self, batch: Any, tokenizer: PreTrainedTokenizerBase | None = None, does_train: bool = False) -> Any:
        """Return the model's inputs for a batch of rows, with `labels` if the rows have them.

        Args:
            tokenizer: That of a memory, which reads the same texts. Default: the model's.
            does_train: Whether the model trains on the rows.
        """
        raise NotImplementedError

    def check_examples(self, split: str, rows: Dataset, examples: Dataset) -> None:
        """Say which rows of a split have no example, and raise if all have none."""

    def learn(self, examples: DatasetDict, config: Any) -> None:
        """Keep what scores need of the tokenized training data, such as the most frequent label."""

    def decode(self, output: Any, rows: Dataset, examples: Dataset, config: Any) -> list[dict[str, Any]]:
        """Return `prediction` and `probabilities` of each row.

        Args:
            output: Trainer's, with `predictions` and `label_ids`.
            rows: The rows of a split.
            examples: What `tokenize` made of them; perhaps several for a row.
            config: The model's.
        """
        raise NotImplementedError

    def score(self, output: Any, rows: Dataset, examples: Dataset, config: Any) -> dict[str, Any]:
        """Return the metrics of a split, those of a prediction without training as `baseline_*`.

        Args: See `decode`.
        """
        raise NotImplementedError

    def finish(self, trainer: Trainer) -> None:
        """Choose on validation data how outputs become predictions, and keep it in the model's configuration."""

    def list_files(self, decoded: list[dict[str, Any]], split: str) -> dict[str, str]:
        """Return the text of each file of predictions by its name.

        Args:
            decoded: See `decode`.
            split: `eval` or `predict`.
        """
        raise NotImplementedError

    # What a comparison asks.

    @classmethod
    def fits_values(cls, values: Mapping[str, Any]) -> bool:
        """Return whether a task is of this kind by its columns, each with a value; see `find_values`."""
        return values.keys() >= {*cls.columns}

    @classmethod
    def find_label_column(cls, columns: Container[str]) -> str:
        """Return the column of labels."""
        return cls.columns[-1]

    @classmethod
    def list_flags(cls, rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
        """Return flags with which the command reads the rows of a task as this kind, beside the files."""
        return {}

    @classmethod
    def get_gold(cls, row: Mapping[str, Any]) -> Any:
        """Return what the prediction of a row should be."""
        return row[cls.find_label_column(row)]

    @classmethod
    def list_constants(cls, train: Rows) -> list[Any]:
        """Return predictions that are the same for every row; the best on the training rows is the baseline."""
        return [Counter(map(cls.get_gold, train)).most_common(1)[0][0]]

    @classmethod
    def read_predictions(cls, folder: Path, rows: Rows) -> list[Any]:
        """Return the prediction for each test row from the command's output folder, see `list_files`."""
        raise NotImplementedError

    @classmethod
    def pair(cls, predicted: Sequence[Any], rows: Rows, metric: str, ignored: Sequence[str] = ()) -> Predictions:
        """Pair predictions with the gold rows, to score them.

        Args:
            metric: One of `plan_metrics`.
            ignored: Labels without an F1 of their own.
        """
        return Predictions.pair(predicted, [*map(cls.get_gold, rows)], metric, ignored)


KINDS: dict[str, type[TaskKind]] = {}
"""The kinds by name; what is registered last is asked first."""
PLAN_KINDS: dict[str, type[TaskKind]] = {}
"""The kinds that a plan can name: those with a command. A classification is one for each problem type."""


def register_kind(kind: type[TaskKind]) -> type[TaskKind]:
    """Let `fine_tune`, `predict` and comparisons know a kind of task; also as a decorator of its class.

    Raises:
        ValueError: Another kind has the name.
    """
    if KINDS.get(kind.name, kind) is not kind:
        raise ValueError(f"a kind of task must have a name of its own, but {kind.name} is taken. Use another name.")
    KINDS[kind.name] = kind
    if kind.command:
        PLAN_KINDS[kind.name] = kind
    return kind


def find_kind(columns: set[str]) -> type[TaskKind]:
    """Return the kind of a task by the columns of its rows."""
    return next(kind for kind in reversed(KINDS.values()) if kind.fits(columns))


def find_kind_of_model(architectures: Sequence[str] | None, name: str) -> type[TaskKind]:
    """Return the kind of task of a model by the name of its class.

    Args:
        architectures: As in the configuration.
        name: The model's name, for errors.

    Raises:
        ValueError: The model has no head of a known kind.
    """
    for kind in reversed(KINDS.values()):
        if architectures and architectures[0].endswith(kind.head):
            return kind
    heads = ", ".join(kind.head for kind in KINDS.values())
    raise ValueError(
        f"the model must have the head of a task ({heads}), but {name} is {architectures}. Fine-tune it with hf-domain "
        "classification, ner or qa."
    )
