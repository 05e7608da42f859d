"""Fine-tune a model on a task from Python, as `hf-domain classification`, `ner` and `qa` do from the command line."""

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, NamedTuple

from transformers import AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.data.files import SPLITS, load_files, load_table, open_saved
from hf_domain.data.objects import ONLY_TASK, TaskData, is_path, write_files
from hf_domain.data.tables import Rows
from hf_domain.hub import check_license
from hf_domain.methods.rada.passages import PassageArguments
from hf_domain.safe_io import lock_folder, read_json
from hf_domain.tasks import find_kind
from hf_domain.training.arguments import FineTunerArguments, FineTuningArguments, check_model
from hf_domain.training.calls import call, check_names, describe_call, name_arguments, use
from hf_domain.training.fine_tuning import run_fine_tuning
from hf_domain.training.run import start_run
from hf_domain.training.run_folder import METRICS, list_made

ROOM = "_data"  # a run never pushes a folder whose name begins with _
DATA = f"{ROOM}/{ONLY_TASK}"


# Arguments of `fine_tune` by the flags that mean them, for errors.
NAMES = {"text_column_names": "text_columns", "text_column_name": "text_columns", "label_column_name": "label_column"}
NAMES |= {"memory_name_or_path": "memory"}
NAMES |= {f"{split}_file": f"the split {split}" for split in SPLITS}


class FineTuned(NamedTuple):
    """A model of a task, with what it scored."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    metrics: dict[str, Any]
    """Scores of validation (`eval_...`) and test (`predict_...`), those of the majority baseline, and costs."""


@name_arguments(**NAMES)
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
    class_names: Sequence[str] | None = None,
    max_seq_length: int | None = None,
    num_train_epochs: float | None = None,
    learning_rate: float | None = None,
    batch_size: int | None = None,
    class_weights: Literal["none", "balanced"] = "none",
    nearest_vote: bool = False,
    train_top_layers: int = 0,
    early_stopping_patience: int | None = None,
    start: Literal["recommended", "paper"] = "recommended",
    data_license: str | None = None,
    trust_remote_code: bool = False,
    seed: int = 42,
    **training_options: Any,
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
        text_columns: Columns that a classifier reads, one or two as first,second. Default: `text`, a known pair,
            `sentence`, or the only column; all others are ignored and logged. Of words: `tokens` or `words`.
        label_column: Default: `label` or `labels`; for words `tags` or `ner_tags`.
        class_names: Names of the labels, if each label is a list of 0 and 1, one for each of them. Default: as the
            dataset declares them, or 0, 1, 2, ...
        max_seq_length: Maximum number of tokens of a row. Default: 128 for classification, 384 for question answering,
            and the model's limit for words.
        num_train_epochs: Default: without `max_steps`, the longer of three epochs and 1,000 steps, and no longer than
            the validation score improves; see "How long to train" in the guide.
        learning_rate: Default: chosen by the width of the encoder.
        batch_size: Default: 16.
        class_weights: `balanced` lets rare labels count as much in the loss as frequent ones.
        nearest_vote: Mix a classifier with a vote of the nearest training texts, see `hf-domain classification`.
        train_top_layers: Train only the head and this many top layers. Default: everything, embeddings included.
        early_stopping_patience: Stop after this many epochs without a better score, and keep the best weights.
        start: How the module of a method starts, see `hf-domain classification --start`.
        data_license: License of the task, an identifier of the Hub, for the model card.
        trust_remote_code: Run code that comes with the model.
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
    shown = describe_call(fine_tune, locals())
    check_names(fine_tune, training_options, {"epochs": "num_train_epochs"})
    check_license(data_license)
    folder = Path(output_dir)
    if made := list_made(folder):
        raise FileExistsError(f"output_dir must be a folder without a model, but {folder} has {made[0]}. Name another.")
    options: dict[str, Any] = {"report_to": "none", "save_strategy": "no", "logging_steps": 0.1, **training_options}
    if batch_size is not None:
        options["per_device_train_batch_size"] = batch_size
    training_args = FineTunerArguments(
        str(folder),
        do_train=True,
        num_train_epochs=num_train_epochs,
        learning_rate=learning_rate,
        seed=seed,
        **options,
    )
    start_run(training_args)
    if training_args.world_size > 1:  # each would write the task's files and the model it was given
        raise ValueError(
            f"fine_tune must run in one process, but this is one of {training_args.world_size}. Start it without "
            "torchrun, or start the script of the task with it, such as examples/run_classification.py."
        )
    with (
        lock_folder(folder),
        drop_rows(folder),
        open_model(model, tokenizer, trust_remote_code) as (name, tokenizer_name),
    ):
        files = find_splits(task, folder, label_column)
        kind = find_kind({*load_files(files["train"]).column_names})
        known = {item.name for item in fields(kind.arguments)}
        given: dict[str, Any] = {
            "text_column_name" if "text_column_name" in known else "text_column_names": text_columns,
            "label_column_name": label_column,
            "class_names": class_names and [*class_names],
            "max_seq_length": max_seq_length,
            "class_weights": None if class_weights == "none" else class_weights,
            "data_license": data_license,
            "nearest_vote": nearest_vote or None,
        }
        given = {option: value for option, value in given.items() if value is not None}
        if foreign := given.keys() - known:
            raise ValueError(f"{', '.join(sorted(foreign))} must be left out, because {kind.name} does not use it.")
        model_args = FineTuningArguments(
            model_name_or_path=name,
            tokenizer_name=tokenizer_name,
            method=method,
            memory_name_or_path=memory,
            start=start,
            trust_remote_code=trust_remote_code,
            train_top_layers=train_top_layers,
            early_stopping_patience=early_stopping_patience,
            overwrite_output_dir=True,  # no earlier call counts
        )
        training_args.do_eval = training_args.do_eval or "validation" in files
        training_args.do_predict = "test" in files
        data_args = kind.arguments(**given | {f"{split}_file": file for split, file in files.items()})
        with use(call, shown):
            passage_args = PassageArguments(datastore, num_passages)
            trainer = run_fine_tuning(kind, model_args, data_args, passage_args, training_args)
    trained = trainer.accelerator.unwrap_model(trainer.model, keep_fp32_wrapper=False).eval()
    trained.name_or_path = str(folder)  # where `predict` finds its tokenizer
    used: Any = trainer.processing_class
    return FineTuned(trained, used, read_json(folder / METRICS))


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
    model: str | os.PathLike | PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase | None,
    trust_remote_code: bool = False,
) -> Iterator[tuple[str, str | None]]:
    """Yield the names of a model and of its tokenizer; objects in memory are saved to a temporary folder."""
    if not isinstance(model, PreTrainedModel):
        check_model(model)
    if not isinstance(model, PreTrainedModel) and tokenizer is None:
        yield os.fspath(model), None
        return
    source = str(model.name_or_path) if isinstance(model, PreTrainedModel) else os.fspath(model)
    with tempfile.TemporaryDirectory() as folder:
        own = Path(folder, Path(source).name or "model")
        (tokenizer or AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)).save_pretrained(own)
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
        label_column: Default: that of the kind.

    Raises:
        ValueError: The task has no split train, or another split than `SPLITS`.
    """
    task = open_saved(task)
    if is_path(task) and Path(task).is_dir():
        found = {split: Path(task, f"{split}.jsonl") for split in SPLITS}
        task = {split: file for split, file in found.items() if file.is_file()}
    elif not isinstance(task, Mapping):
        table = load_table(task, "task")
        held_out = find_kind({*table.column_names}).hold_out(table, label_column)
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
            rows[file] = load_table(data, split)
    write_files(rows, folder)
    return places
