"""Fine-tune a model on a task from Python, as `hf-domain classification`, `ner` and `qa` do from the command line."""

import os
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NamedTuple, Unpack

from datasets import Dataset
from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.data.files import SPLITS, load_files, load_table, open_saved
from hf_domain.data.objects import ONLY_TASK, TaskData, is_path, write_files
from hf_domain.data.tables import Rows
from hf_domain.examples import run_classification, run_ner, run_qa
from hf_domain.hub import check_license
from hf_domain.methods.rada.passages import PassageArguments
from hf_domain.safe_io import lock_folder, read_json
from hf_domain.training.arguments import (
    ClassificationArguments,
    DataArguments,
    FineTunerArguments,
    FineTuningArguments,
    NerArguments,
    QuestionAnsweringArguments,
)
from hf_domain.training.calls import describe_call, show_call
from hf_domain.training.learning_rate import run_at_best_rate
from hf_domain.training.options import FineTuningOptions, check_names
from hf_domain.training.run import start_run
from hf_domain.training.run_files import METRICS
from hf_domain.training.run_folder import list_made

ROOM = "_data"  # a run never pushes a folder whose name begins with _
DATA = f"{ROOM}/{ONLY_TASK}"
QUESTION_COLUMNS = {"question", "context", "answers"}
HELD_OUT = 0.2  # of a table that has no splits; our choice


class FineTuned(NamedTuple):
    """A model of a task, with what it scored."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    metrics: dict[str, Any]
    """Scores of validation (`eval_...`) and test (`predict_...`), those of the majority baseline, and costs."""


def fine_tune(
    model: str | os.PathLike | PreTrainedModel,
    task: TaskData | Rows,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    output_dir: str | os.PathLike,
    method: Literal["plain", "gmap", "rada"] = "plain",
    memory: str | None = None,
    datastore: str | None = None,
    num_passages: int | None = None,
    text_columns: str | None = None,
    label_column: str | None = None,
    max_seq_length: int | None = None,
    num_train_epochs: float = 3.0,
    learning_rate: float | Sequence[float] | None = None,
    batch_size: int = 8,
    class_weights: Literal["none", "balanced"] = "none",
    nearest_vote: bool = False,
    train_top_layers: int = 0,
    early_stopping_patience: int | None = None,
    start: Literal["recommended", "paper"] = "recommended",
    data_license: str | None = None,
    seed: int = 42,
    **training_options: Unpack[FineTuningOptions],
) -> FineTuned:
    """Fine-tune a model to classify texts or pairs, to tag words, or to answer questions.

    The columns decide: `question`, `context` and `answers` are question answering, `tokens` are words to tag, and
    anything else is classification or regression. Checks, head, and scores are those of the commands. A model may leave
    questions unanswered if train has questions without an answer.

    Args:
        model: A folder, a name on the Hub, or a model in memory, such as `adapt` returns.
        task: A folder with train, validation and test .jsonl, or one of `save_to_disk`; the rows of these splits as a
            `DatasetDict` or a dictionary, of which only train is needed; or one table, a fifth of which is drawn for
            validation, in proportion to the labels.
        tokenizer: Default: the tokenizer saved with the model.
        output_dir: A folder without a model, for model, tokenizer, model card, metrics and predictions.
        method: `gmap` lets the model read the encoder `memory`; `rada` passages of `datastore`.
        num_passages: Number of passages to retrieve for a row; `predict` retrieves as many. Default: 10, or the number
            of the model's earlier fine-tuning.
        text_columns: Columns that a classifier reads, one or two as first,second. Default: a known pair, `text`, or the
            only column.
        label_column: Default: `label`, or `tags` for words.
        max_seq_length: Maximum number of tokens of a row. Default: 128 for classification, 384 for question answering,
            and the model's limit for words.
        learning_rate: Default: chosen by the width of the encoder. With several, the model is trained with each, and
            once more with the one that is best on validation.
        class_weights: `balanced` lets rare labels count as much in the loss as frequent ones.
        nearest_vote: Mix a classifier with a vote of the nearest training texts, see `hf-domain classification`.
        train_top_layers: Train only the head and this many top layers. Default: everything, embeddings included.
        early_stopping_patience: Stop after this many epochs without a better score, and keep the best weights.
        start: How the module of a method starts, see `hf-domain classification --start`.
        data_license: License of the task, an identifier of the Hub, for the model card.
        training_options: Fields of `TrainingArguments`.

    Returns:
        The trained model, ready for `predict`, its tokenizer and its metrics. `metrics["eval_beats_baseline"]` is
        false if the model did not learn its task.

    Raises:
        FileExistsError: The folder contains a model.
        FileNotFoundError: A file is missing.
        TypeError: The task contains no rows, or an option is unknown.
        ValueError: The task, the model or an option cannot be used.
    """
    call = describe_call(fine_tune, locals())
    check_names(fine_tune, training_options, {"epochs": "num_train_epochs"})
    check_license(data_license)
    folder = Path(output_dir)
    if made := list_made(folder):
        raise FileExistsError(f"output_dir must be a folder without a model, but {folder} has {made[0]}. Name another.")
    rate, rates = (learning_rate, None) if isinstance(learning_rate, float | int | None) else (None, [*learning_rate])
    options: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "logging_steps": 0.1, **training_options}
    training_args = FineTunerArguments(
        str(folder),
        do_train=True,
        num_train_epochs=num_train_epochs,
        per_device_train_batch_size=batch_size,
        learning_rate=rate,
        seed=seed,
        **options,
    )
    start_run(training_args)
    with lock_folder(folder), drop_rows(folder), open_model(model, tokenizer) as (name, tokenizer_name):
        files = find_splits(task, folder, label_column)
        run, kind = choose_command(files["train"])
        given: dict[str, Any] = {
            "text_column_name" if kind is NerArguments else "text_column_names": text_columns,
            "label_column_name": label_column,
            "max_seq_length": max_seq_length,
            "class_weights": None if class_weights == "none" else class_weights,
            "data_license": data_license,
            "nearest_vote": nearest_vote or None,
        }
        if kind is QuestionAnsweringArguments and max_seq_length is not None:
            given["doc_stride"] = max_seq_length // 3  # as the defaults, 128 of 384
        if kind is QuestionAnsweringArguments:
            answers = load_files(files["train"])["answers"]
            given["version_2_with_negative"] = any(not each["text"] for each in answers)
        given = {option: value for option, value in given.items() if value is not None}
        if foreign := given.keys() - {item.name for item in fields(kind)}:
            raise ValueError(
                f"{', '.join(sorted(foreign))} must be left out, because {run.__module__} does not use it."
            )
        model_args = FineTuningArguments(
            model_name_or_path=name,
            tokenizer_name=tokenizer_name,
            method=method,
            memory_name_or_path=memory,
            start=start,
            train_top_layers=train_top_layers,
            learning_rates=rates,
            early_stopping_patience=early_stopping_patience,
            overwrite_output_dir=True,  # no earlier call counts
        )
        training_args.do_eval = training_args.do_eval or "validation" in files
        training_args.do_predict = "test" in files
        data_args = kind(**given | {f"{split}_file": file for split, file in files.items()})
        with show_call(call):
            passage_args = PassageArguments(datastore, num_passages)
            trainer = run_at_best_rate(run, model_args, data_args, passage_args, training_args)
    trained = trainer.accelerator.unwrap_model(trainer.model).eval()
    trained.name_or_path = str(folder)  # where `predict` finds its tokenizer
    return FineTuned(trained, trainer.processing_class, read_json(folder / METRICS))


@contextmanager
def drop_rows(folder: Path) -> Iterator[None]:
    """Delete the rows written below `folder` at the end: whoever uploads the folder by hand should not publish them.

    Raises:
        ValueError: That of the call; it names a split in memory instead of its deleted file.
    """
    try:
        yield
    except ValueError as error:
        text = str(error)
        for split in SPLITS:
            text = text.replace(f"{folder / DATA / split}.jsonl", split)
        if text == str(error):
            raise
        raise ValueError(text) from None
    finally:
        shutil.rmtree(folder / ROOM, ignore_errors=True)


@contextmanager
def open_model(
    model: str | os.PathLike | PreTrainedModel, tokenizer: PreTrainedTokenizerBase | None
) -> Iterator[tuple[str, str | None]]:
    """Yield the names of a model and of its tokenizer; objects in memory are saved to a temporary folder."""
    if not isinstance(model, PreTrainedModel) and tokenizer is None:
        yield os.fspath(model), None
        return
    source = str(model.name_or_path) if isinstance(model, PreTrainedModel) else os.fspath(model)
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, Path(source).name or "model")
        (tokenizer or AutoTokenizer.from_pretrained(source, trust_remote_code=False)).save_pretrained(own)
        if not isinstance(model, PreTrainedModel):
            yield source, str(own)
            return
        model.save_pretrained(own)
        if (card := Path(source, "README.md")).is_file():  # names the license
            shutil.copy(card, own)
        yield str(own), None


def find_splits(task: TaskData | Rows, folder: Path, label_column: str | None = None) -> dict[str, str]:
    """Return the file of each split of a task; rows in memory are written below `folder`.

    Args:
        label_column: See `list_labels`.

    Raises:
        ValueError: The task has no split train, or another split than `SPLITS`.
    """
    task = open_saved(task)
    if is_path(task) and Path(task).is_dir():
        found = {split: Path(task, f"{split}.jsonl") for split in SPLITS}
        task = {split: file for split, file in found.items() if file.is_file()}
    elif not isinstance(task, Mapping):
        table = load_table(task, "task")
        held_out = draw_validation(list_labels(table, label_column))
        if {*table.column_names} >= QUESTION_COLUMNS:
            held_out = draw_contexts(table["context"])
        kept = sorted({*range(len(table))} - {*held_out})
        task = {"train": table.select(kept), "validation": table.select(held_out)}
    if "train" not in task or not {*task} <= {*SPLITS}:
        raise ValueError(
            f"a task must have the split train, and may have {' and '.join(SPLITS[1:])}, but has "
            f"{', '.join(map(str, task)) or 'none'}. Rename or add splits."
        )
    places, rows = {}, {}
    for split, data in task.items():
        file = f"{DATA}/{split}.jsonl"
        places[split] = os.fspath(data) if is_path(data) else str(folder / file)
        if not is_path(data):
            rows[file] = number_questions(load_table(data, split))
    write_files(rows, folder)
    return places


def list_labels(rows: Dataset, column: str | None = None) -> list[set[Any]]:
    """Return the labels of each row: one, several, the tags of its words, or none for fractions and questions.

    Args:
        column: Default: `tags` for words, else `label`.
    """
    column = column or ("tags" if "tokens" in rows.column_names else "label")
    if column not in rows.column_names:
        return [set()] * len(rows)
    listed = [value if isinstance(value, list) else [value] for value in rows[column]]
    if any(isinstance(label, float) for labels in listed for label in labels):
        return [set()] * len(rows)
    return [{*labels} for labels in listed]


def draw_contexts(contexts: Sequence[str]) -> list[int]:
    """Draw the questions on a fifth of the contexts: a context that was trained on would flatter the validation.

    Raises:
        ValueError: There are fewer than three contexts.
    """
    distinct = [*dict.fromkeys(contexts)]
    if len(distinct) < 3:
        raise ValueError(
            f"a table of questions must have three contexts, so that one can be held out for validation, but has "
            f"{len(distinct)}. Add rows, or pass the splits train and validation."
        )
    drawn = {distinct[number] for number in draw_validation([set()] * len(distinct))}
    return [row for row, context in enumerate(contexts) if context in drawn]


def draw_validation(labels: list[set[Any]]) -> list[int]:
    """Draw a fifth of the rows in proportion to the labels, so that training keeps a row of each label.

    Args:
        labels: Labels of each row, see `list_labels`.

    Raises:
        ValueError: Each row is the only one with some label.
    """
    left = Counter(label for each in labels for label in each)
    order = [*range(len(labels))]
    random.Random(0).shuffle(order)
    # Side by side, the rows of a label give every fifth. Of several labels, the rarest counts.
    order.sort(key=lambda row: min(((left[label], str(label)) for label in labels[row]), default=(0, "")))
    drawn: list[int] = []
    for place, row in enumerate(order, 1):
        if HELD_OUT * place >= len(drawn) + 0.5 and all(left[label] > 1 for label in labels[row]):
            drawn.append(row)
            left.subtract(labels[row])
    if not drawn:
        raise ValueError(
            f"a table must have two rows of some label, so that one can be held out for validation, but each of its "
            f"{len(labels)} rows has a label of its own. Add rows, or pass the splits train and validation."
        )
    return sorted(drawn)


def number_questions(rows: Dataset) -> Dataset:
    """Return rows with the column `id` that questions need."""
    if "id" in rows.column_names or not {*rows.column_names} >= QUESTION_COLUMNS:
        return rows
    return rows.add_column("id", [str(number) for number in range(len(rows))])


def choose_command(file: str) -> tuple[Callable[..., Any], type[DataArguments]]:
    """Return the function of the script that reads a training file, and the class of its arguments."""
    columns = {*load_files(file).column_names}
    if columns >= QUESTION_COLUMNS:
        return run_qa.run, QuestionAnsweringArguments
    if "tokens" in columns:
        return run_ner.run, NerArguments
    return run_classification.run, ClassificationArguments
