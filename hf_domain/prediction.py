"""Label raw data (texts, pairs, words or questions) with a fine-tuned model, with probabilities."""

import copy
import csv
import json
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import pandas
import torch
from datasets import Dataset, DatasetDict, Value, concatenate_datasets
from transformers import (
    AutoConfig,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
)
from transformers.utils.import_utils import is_in_notebook

from hf_domain.checks import check_weights
from hf_domain.data.columns import find_text_columns, list_text_columns
from hf_domain.data.files import load_table, open_saved
from hf_domain.data.tables import Rows, Splits, has_splits
from hf_domain.methods import PLAIN
from hf_domain.methods.rada.passages import (
    PassageArguments,
    append_passages,
    check_single_text,
    count_positions,
    load_passage_reader,
)
from hf_domain.methods.stock_models import match_tokenizer
from hf_domain.safe_io import explain_full_disk, write_text
from hf_domain.tasks import TaskKind, find_kind_of_model
from hf_domain.tasks.classification import find_vote
from hf_domain.tasks.ensembles import ADDED, join_predictions
from hf_domain.tasks.vote import NEW, NearestVote, join_columns, load_labeled
from hf_domain.training.arguments import check_model
from hf_domain.training.calls import name_arguments
from hf_domain.training.memory_reader import load_memory_reader
from hf_domain.training.task_trainer import map_splits
from hf_domain.training.terminal import show_bars

logger = logging.getLogger(__name__)

LONGEST = 512  # tokens; longer rows need much memory, and few tasks are trained on them


Model: TypeAlias = str | os.PathLike | PreTrainedModel


@name_arguments(text_column_names="text_columns", label_column_name="label_column", labeled_file="labeled_texts")
def predict(
    model: Model | Sequence[Model],
    data: Rows | Splits,
    tokenizer: PreTrainedTokenizerBase | None = None,
    *,
    datastore: str | None = None,
    num_passages: int | None = None,
    labeled_texts: Rows | None = None,
    text_columns: str | None = None,
    max_seq_length: int | None = None,
    batch_size: int = 32,
    progress: bool | None = None,
    revision: str = "main",
    token: str | None = None,
    trust_remote_code: bool = False,
) -> Any:
    """Label data with a fine-tuned model.

    Args:
        model: A folder, a name on the Hub, or a model with the head of a task; or several fine-tunings of one task,
            whose predictions are joined, see `join_predictions`.
        data: Texts or rows, see `load_rows`, or splits of them. Token classification reads `tokens`, lists of words, or
            texts, which are split into words and punctuation. Question answering reads `question` and `context`.
        tokenizer: Default: the tokenizer saved with the model. Several models in memory need it.
        datastore: Folder of the passages that a RADA reads, or that were appended to the texts in training.
        num_passages: Number of passages to retrieve for a row. Default: as many as in fine-tuning.
        labeled_texts: Texts with labels, see `load_rows`, of a classifier that was trained with `--nearest_vote`: those
            of its training, or others. The nearest ones vote.
        text_columns: Columns that a sequence classifier reads, one or two as first,second. Default: those of the
            training if the data have them, else a known pair, `text`, or the only column.
        max_seq_length: Maximum number of tokens of a row. Default: that of the training; if the model does not say it,
            its limit, at most 512.
        progress: Show bars. Default: only in a terminal or a notebook, since each state of a bar is a line in a file.
        revision: Branch, tag or commit of the model.
        token: Token of the Hub, instead of the stored one.
        trust_remote_code: Run code that comes with the model.

    Returns:
        A `Dataset` of the rows, or a `DatasetDict` of the splits, in their order, with two new columns. `prediction` is
        a label, a list of labels, a value, the tags of the words, or an answer. `probabilities` are those of every
        label, of each word's tag, or of the answer. An empty answer means that the context has none; a model gives it
        if it was fine-tuned with `version_2_with_negative`.

    Raises:
        FileNotFoundError: A file is missing.
        TypeError: The data contain neither texts nor rows.
        ValueError: The model has no such head or weights that are not finite, or the data do not fit it.
    """
    if not isinstance(model, str | os.PathLike | PreTrainedModel):
        options = {name: value for name, value in locals().items() if name not in ("model", "data")}
        return predict_together(model, data, **options)
    if max_seq_length is not None and max_seq_length < 3:
        raise ValueError(
            f"max_seq_length must be at least 3 (two special tokens and one of text), but is {max_seq_length}"
        )
    hub_options: dict[str, Any] = {"revision": revision, "token": token, "trust_remote_code": trust_remote_code}
    shows_bars = progress if progress is not None else sys.stderr.isatty() or is_in_notebook()
    kind_class, network, tokenizer = load_network(model, tokenizer, hub_options, shows_bars)
    tokenizer = copy.deepcopy(tokenizer)  # a kind may change it, and this is the caller's
    match_tokenizer(tokenizer, network)
    check_weights(network, network.name_or_path or type(network).__name__)
    appended = getattr(network.config, "appended_passage_length", None)
    if appended is not None and datastore is None:
        raise ValueError(
            f"{network.name_or_path} was trained with the best passage appended to each text, and must have the "
            "datastore of these passages, but none is given. Add it as --datastore."
        )
    voters = load_voters(labeled_texts, network)
    trained = appended or getattr(network.config, "trained_length", None)
    length = min(max_seq_length or trained or LONGEST, tokenizer.model_max_length)
    length = min(length, count_positions(network) or length)
    passage_args = PassageArguments(datastore=datastore, num_passages=num_passages)
    passages = load_passage_reader(passage_args, network, tokenizer, PLAIN, appended is not None)
    memory = load_memory_reader(network, None, token=token)

    def label(rows: Dataset) -> Dataset:
        kind = kind_class(kind_class.arguments(max_seq_length=length))
        kind.use(tokenizer)
        rows = kind.prepare(rows, text_columns or find_trained_columns(rows, network.config), network.config)
        splits, columns = DatasetDict(test=rows), kind.text_columns
        # Before the model reads, so that wrong labels cost no time.
        vote = search_voters(voters, rows, columns, text_columns, network.config)
        if passages is not None:
            splits = passages.look_up(splits, columns)
        if passages is not None and appended is not None:
            check_single_text(columns, True)
            splits = append_passages(splits, passages.datastore, columns[0], tokenizer, length)
            kind.text_columns = [*columns, "passage"]
        with tempfile.TemporaryDirectory() as folder:
            args = TrainingArguments(
                folder,
                per_device_eval_batch_size=batch_size,
                report_to="none",
                disable_tqdm=not shows_bars,
                dataloader_pin_memory=torch.cuda.is_available(),  # without a GPU, torch warns about it
            )
            inputs: Any = (read := map_splits(splits, kind.tokenize, args, kind.args))
            kind.check_examples("test", rows, read["test"])
            collator: Any = kind.collator_class(tokenizer)
            if memory is not None:
                inputs = memory.add_inputs(read, splits, kind.tokenize, args, kind.args)
                collator = memory.collate(collator)
            if passages is not None and appended is None:
                collator = passages.collate(collator)
            output = Trainer(network, args, data_collator=collator).predict(inputs["test"])
        decoded = kind.decode(mix_in(vote, output), rows, read["test"], network.config)
        labeled = Dataset.from_list([{name: row[name] for name in ADDED if name in row} for row in decoded])
        # The rows stay as they are, without what an earlier model said of them.
        replaced = {*ADDED} & {*rows.column_names}
        return concatenate_datasets([rows.remove_columns(sorted(replaced)), labeled], axis=1)

    with show_bars(shows_bars):
        data = open_saved(data)
        if has_splits(data):
            return DatasetDict({str(split): label(load_table(rows, str(split))) for split, rows in data.items()})
        return label(load_table(data))


def load_network(
    model: Model, tokenizer: PreTrainedTokenizerBase | None, hub_options: dict[str, Any], shows_bars: bool
) -> tuple[type[TaskKind], Any, PreTrainedTokenizerBase]:
    """Return the kind of a model's task, the model and its tokenizer.

    Raises:
        ValueError: The folder cannot be loaded, or the model has no head of a task.
    """
    if isinstance(model, PreTrainedModel):
        kind = find_kind_of_model([type(model).__name__], type(model).__name__)
        return kind, model, tokenizer or AutoTokenizer.from_pretrained(model.name_or_path, **hub_options)
    name = os.fspath(model)
    check_model(name)
    kind = find_kind_of_model(AutoConfig.from_pretrained(name, **hub_options).architectures, name)
    tokenizer = tokenizer or AutoTokenizer.from_pretrained(name, **hub_options)
    with show_bars(shows_bars):
        return kind, kind.auto_class.from_pretrained(name, **hub_options), tokenizer


def predict_together(models: Sequence[Model], data: Any, **options: Any) -> Any:
    """Return the joined predictions of several models, see `predict`.

    Raises:
        ValueError: There are no models, or they have different labels.
    """
    if not models:
        raise ValueError("an ensemble must have one model or more, but has none. Name its models.")
    if len(models) == 1:
        return predict(models[0], data, **options)
    for name in models:
        if not isinstance(name, PreTrainedModel):
            check_model(name)
    data = open_saved(data)
    if has_splits(data):
        return DatasetDict({str(split): predict_together(models, rows, **options) for split, rows in data.items()})
    rows = load_table(data)
    outputs = [predict(model, rows, **options) for model in models]
    others = outputs[0].remove_columns([name for name in ADDED if name in outputs[0].column_names])
    columns = [[{name: row[name] for name in ADDED if name in row} for row in output] for output in outputs]
    joined = Dataset.from_list([join_predictions(row) for row in zip(*columns, strict=True)])
    return concatenate_datasets([others, joined], axis=1)


def load_voters(labeled_texts: Rows | None, network: Any) -> Dataset | None:
    """Return the labeled texts that vote with a model; None for a model without a vote.

    Raises:
        ValueError: The model has a vote and they are missing, or it has none.
    """
    trained = getattr(network.config, "nearest_vote", None)
    vote = find_vote(network.config.to_dict(), type(network).__name__)
    if vote and labeled_texts is None:
        raise ValueError(
            f"{network.name_or_path} was trained with a vote of the nearest texts, and must have labeled texts, but "
            "none are given. Add those of its training as --labeled_file."
        )
    if not trained and labeled_texts is not None:
        raise ValueError(
            f"labeled texts need a model that was trained with --nearest_vote, but {network.name_or_path} has no vote. "
            "Leave them out."
        )
    if not vote and labeled_texts is not None:
        logger.warning(
            "The labeled texts do not vote: on the validation set of the training, the model alone was best."
        )
        return None
    return None if labeled_texts is None else load_table(labeled_texts)


def search_voters(
    voters: Dataset | None, rows: Dataset, columns: list[str], text_columns: str | None, config: Any
) -> NearestVote | None:
    """Return the vote of labeled texts for each row, see `load_voters`; None without a vote."""
    if voters is None:
        return None
    label = config.nearest_vote["label_column"]
    texts = voters.remove_columns([label] if label in voters.column_names else [])
    # Labeled texts have the columns of the training, whatever those of the new ones are called.
    own = find_text_columns(texts, find_trained_columns(texts, config) or text_columns)
    return load_labeled(voters, own, join_columns(rows, columns), config)


def mix_in(vote: NearestVote | None, output: Any) -> Any:
    """Return Trainer's output with a vote in its predictions."""
    return output if vote is None else output._replace(predictions=vote.mix(output.predictions, NEW))


def find_trained_columns(rows: Dataset, config: Any) -> str | None:
    """Return the columns that the model was trained on, if the rows have texts in them: a pair has an order."""
    columns = getattr(config, "trained_columns", None) or []
    return ",".join(columns) if columns and {*columns} <= {*list_text_columns(rows)} else None


def check_new_file(file: Path) -> None:
    """Raise before a prediction unless its output file is new, and of a format that `write_rows` knows."""
    if file.suffix not in (".jsonl", ".csv"):
        raise ValueError(f"--output_file must end in .jsonl or .csv, but is {file}. Name another.")
    if file.exists():
        raise FileExistsError(f"--output_file must be a new file, but {file} exists. Name another.")


def write_rows(rows: Dataset, file: Path) -> None:
    """Write labeled rows to a .csv file, or else as lines of JSON."""
    for leftover in file.parent.glob(f"{file.name}.*.unfinished"):  # of a call that was killed
        leftover.unlink()
    with explain_full_disk(file.absolute().parent):
        write_text(file, format_csv(rows) if file.suffix == ".csv" else format_rows(rows))


def format_rows(rows: Dataset) -> str:
    """Return rows as lines of JSON. Dates, which datasets reads in JSON and Parquet, become text."""
    return "".join(json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in rows)


def format_csv(rows: Dataset) -> str:
    """Return rows as CSV, with lists as JSON: pandas writes NumPy's text, which leaves out the middle of long lists."""
    rows = rows.flatten()
    table = rows.to_pandas()
    for name, feature in rows.features.items():
        if isinstance(feature, Value) and "int" in feature.dtype and table[name].isna().any():
            # Otherwise 7 becomes 7.0, and long ids lose digits.
            table[name] = pandas.array(rows[name], dtype=feature.dtype.replace("int", "Int").replace("u", "U"))
        if not isinstance(feature, Value):
            values = rows[name]
            table[name] = [
                json.dumps(each, ensure_ascii=False) if isinstance(each, list | dict) else each for each in values
            ]
    # Unquoted, a carriage return ends a row for most readers.
    has_returns = any("\r" in cell for name in table for cell in table[name] if isinstance(cell, str))
    return table.to_csv(index=False, quoting=csv.QUOTE_NONNUMERIC if has_returns else csv.QUOTE_MINIMAL)
