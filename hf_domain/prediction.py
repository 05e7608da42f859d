"""Label raw data (texts, pairs, words or questions) with a fine-tuned model, with probabilities."""

import copy
import logging
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, overload

import torch
from datasets import Dataset, DatasetDict, concatenate_datasets
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
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
from hf_domain.methods.gmap.reader import load_memory_reader
from hf_domain.methods.rada.passages import (
    PassageArguments,
    append_passages,
    check_single_text,
    count_positions,
    load_passage_reader,
)
from hf_domain.methods.stock_models import match_tokenizer
from hf_domain.tasks.classification import decode_logits, find_vote, name_predictions, tokenize_texts
from hf_domain.tasks.question_answering import check_questions, cut_windows, find_answers, tokenize_questions
from hf_domain.tasks.token_classification import prepare_for_words, tokenize_words
from hf_domain.training.arguments import DataArguments
from hf_domain.training.task_trainer import map_splits
from hf_domain.training.terminal import show_bars
from hf_domain.training.vote import NEW, NearestVote, join_columns, load_labeled

logger = logging.getLogger(__name__)

LONGEST = 512  # tokens; longer rows need much memory, and few tasks are trained on them


@dataclass
class Head:
    """The functions by which a kind of head reads rows and labels them."""

    auto_class: Any
    collator: Callable[[PreTrainedTokenizerBase], Any]
    prepare: Callable[..., tuple[Dataset, list[str]]]
    """Takes rows and the columns that the user named; returns the rows to read and their text columns."""
    tokenize: Callable[..., Any]
    """Takes a batch, the tokenizer to use, the text columns, the model's tokenizer and the length limit."""
    decode: Callable[..., list[dict[str, Any]]]
    """Takes Trainer's output, the tokenized rows, the rows and the configuration; returns the result of each row."""


@overload
def predict(
    model: str | os.PathLike | PreTrainedModel,
    data: Splits,
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
) -> DatasetDict: ...
@overload
def predict(
    model: str | os.PathLike | PreTrainedModel,
    data: Rows,
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
) -> Dataset: ...
def predict(
    model: str | os.PathLike | PreTrainedModel,
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
) -> Dataset | DatasetDict:
    """Label data with a fine-tuned model.

    Args:
        model: A folder, a name on the Hub, or a model with a head for sequence classification, token classification or
            question answering.
        data: Texts or rows, see `load_rows`, or splits of them. Token classification reads `tokens`, lists of words, or
            texts, which are split into words and punctuation. Question answering reads `question` and `context`.
        tokenizer: Default: the tokenizer saved with the model.
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
        The rows, or the splits, in their order, with two new columns. `prediction` is a label, a list of labels, a
        value, the tags of the words, or an answer. `probabilities` are those of every label, of each word's tag, or of
        the answer. An empty answer means that the context has none; a model gives it if it was fine-tuned with
        `version_2_with_negative`.

    Raises:
        FileNotFoundError: A file is missing.
        TypeError: The data contain neither texts nor rows.
        ValueError: The model has no such head or weights that are not finite, or the data do not fit it.
    """
    if max_seq_length is not None and max_seq_length < 3:
        raise ValueError(
            f"max_seq_length must be at least 3 (two special tokens and one of text), but is {max_seq_length}"
        )
    hub_options: dict[str, Any] = {"revision": revision, "token": token, "trust_remote_code": trust_remote_code}
    shows_bars = progress if progress is not None else sys.stderr.isatty() or is_in_notebook()
    network: Any = model
    if not isinstance(model, PreTrainedModel):
        name = os.fspath(model)
        task = find_head(AutoConfig.from_pretrained(name, **hub_options).architectures, name)
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(name, **hub_options)
        with show_bars(shows_bars):
            network = task.auto_class.from_pretrained(name, **hub_options)
    else:
        task = find_head([type(model).__name__], type(model).__name__)
        tokenizer = tokenizer or AutoTokenizer.from_pretrained(model.name_or_path, **hub_options)
    tokenizer = copy.deepcopy(tokenizer)  # `prepare_for_words` would change the caller's
    match_tokenizer(tokenizer, network)
    check_weights(network, network.name_or_path or type(network).__name__)
    appended = getattr(network.config, "appended_passage_length", None)
    if appended is not None and datastore is None:
        raise ValueError(
            f"{network.name_or_path} was trained with the best passage appended to each text, and must have the "
            "datastore of these passages, but none is given. Add it (--datastore)."
        )
    voters = load_voters(labeled_texts, network)
    trained = appended or getattr(network.config, "trained_length", None)
    length = min(max_seq_length or trained or LONGEST, tokenizer.model_max_length)
    length = min(length, count_positions(network) or length)
    passage_args = PassageArguments(datastore=datastore, num_passages=num_passages)
    passages = load_passage_reader(passage_args, network, tokenizer, PLAIN, appended is not None)
    memory = load_memory_reader(network, None, token=token)

    def label(rows: Dataset) -> Dataset:
        rows, columns = task.prepare(rows, text_columns or find_trained_columns(rows, network.config))
        splits, read_columns = DatasetDict(test=rows), columns
        # Before the model reads, so that wrong labels cost no time.
        vote = search_voters(voters, rows, columns, text_columns, network.config)
        if passages is not None:
            splits = passages.look_up(splits, columns)
        if passages is not None and appended is not None:
            check_single_text(columns, True)
            splits = append_passages(splits, passages.datastore, columns[0], tokenizer, length)
            read_columns = [*columns, "passage"]
        options = {"max_seq_length": length, **find_stride(network.config, length)}
        tokenize = partial(task.tokenize, columns=read_columns, own_tokenizer=tokenizer, **options)
        with tempfile.TemporaryDirectory() as folder:
            args = TrainingArguments(
                folder,
                per_device_eval_batch_size=batch_size,
                report_to="none",
                disable_tqdm=not shows_bars,
                dataloader_pin_memory=torch.cuda.is_available(),  # without a GPU, torch warns about it
            )
            inputs = read = map_splits(splits, tokenize, args, DataArguments(), tokenizer=tokenizer)
            collator = task.collator(tokenizer)
            if memory is not None:
                inputs = memory.add_inputs(read, splits, tokenize, args, DataArguments())
                collator = memory.collate(collator)
            if passages is not None and appended is None:
                collator = passages.collate(collator)
            output = Trainer(network, args, data_collator=collator).predict(inputs["test"])
        labels = task.decode(mix_in(vote, output), read["test"], rows, network.config)
        labeled = Dataset.from_list(labels)
        # The rows stay as they are, without what an earlier model said of them.
        replaced = {"prediction", "probabilities", *labeled.column_names} & {*rows.column_names}
        return concatenate_datasets([rows.remove_columns(sorted(replaced)), labeled], axis=1)

    with show_bars(shows_bars):
        data = open_saved(data)
        if has_splits(data):
            return DatasetDict({str(split): label(load_table(rows, str(split))) for split, rows in data.items()})
        return label(load_table(data))


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
            "none are given. Add those of its training (--labeled_file)."
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


def find_head(architectures: list[str] | None, name: str) -> Head:
    """Return the task of a model by the name of its class.

    Args:
        architectures: As in the configuration.
        name: The model's name, for errors.

    Raises:
        ValueError: The model has no task head.
    """
    for head, task in TASKS.items():
        if (architectures or [""])[0].endswith(head):
            return task
    raise ValueError(
        f"the model must have the head of a task ({', '.join(TASKS)}), but {name} is {architectures}. Fine-tune it "
        "with hf-domain classification, ner or qa."
    )


# ------------------------------------------------------------------------------------------ sequence classification


def find_stride(config: Any, length: int) -> dict[str, int]:
    """Return the tokens that windows of a context shared in training; windows of another length share a quarter."""
    stride = getattr(config, "trained_stride", None)
    return {"doc_stride": stride} if stride is not None and length == config.trained_length else {}


def find_trained_columns(rows: Dataset, config: Any) -> str | None:
    """Return the columns that the model was trained on, if the rows have texts in them: a pair has an order."""
    columns = getattr(config, "trained_columns", None) or []
    return ",".join(columns) if columns and {*columns} <= {*list_text_columns(rows)} else None


def prepare_texts(rows: Dataset, text_columns: str | None) -> tuple[Dataset, list[str]]:
    """Return the rows and their columns of text: one, or two for pairs."""
    columns = find_text_columns(rows, text_columns)
    logger.info(f"Columns of text: {' + '.join(columns)}")
    return rows, columns


def tokenize_columns(batch: Any, tokenizer: Any, columns: list[str], own_tokenizer: Any, max_seq_length: int) -> Any:
    """Tokenize texts or pairs."""
    return tokenize_texts([batch[column] for column in columns], tokenizer, max_seq_length=max_seq_length)


def decode_classes(output: Any, read: Dataset, rows: Dataset, config: Any) -> list[dict[str, Any]]:
    """Return the labels of each row with the probabilities of all labels; for a regression, only the value."""
    logits = output.predictions[0] if isinstance(output.predictions, tuple) else output.predictions
    problem_type = config.problem_type or ("regression" if config.num_labels == 1 else "single_label_classification")
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


# --------------------------------------------------------------------------------------------- token classification


def split_words(text: str) -> list[str]:
    """Split a text into words, punctuation marks and Chinese characters, as BERT's tokenizer does before WordPiece."""
    text = BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=False, lowercase=False
    ).normalize_str(text)
    return [word for word, _ in BertPreTokenizer().pre_tokenize_str(text)]


def prepare_words(rows: Dataset, text_columns: str | None) -> tuple[Dataset, list[str]]:
    """Return the rows with their words in `tokens`; texts are split into words."""
    if "tokens" not in rows.column_names:
        (column,) = find_text_columns(rows, text_columns or "text")
        rows = rows.map(lambda row: {"tokens": split_words(row[column] or "")}, desc="Splitting into words")
    for number, words in enumerate(rows["tokens"]):
        if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
            raise ValueError(
                f"tokens must be a list of words, but row {number} has {words!r}. Rename the column to have its texts "
                "split into words, or read the lists before."
            )
    return rows, ["tokens"]


def tokenize_tagged(batch: Any, tokenizer: Any, columns: list[str], own_tokenizer: Any, max_seq_length: int) -> Any:
    """Tokenize words; the label 0 marks the token that decides for its word."""
    prepare_for_words(tokenizer)
    words = batch[columns[0]]
    return tokenize_words(words, [[0] * len(row) for row in words], tokenizer, max_seq_length=max_seq_length)


def decode_tags(output: Any, read: Dataset, rows: Dataset, config: Any) -> list[dict[str, Any]]:
    """Return the tag of every word with its probability; a word beyond the length limit has no tag."""
    logits = output.predictions[0] if isinstance(output.predictions, tuple) else output.predictions
    labels = []
    for words, row, marks in zip(rows["tokens"], torch.from_numpy(logits).softmax(-1), output.label_ids, strict=True):
        best = row[torch.from_numpy(marks != -100)]
        missing = [None] * (len(words) - len(best))
        tags = [config.id2label[number] for number in best.argmax(-1).tolist()]
        labels.append({"prediction": [*tags, *missing], "probabilities": [*best.amax(-1).tolist(), *missing]})
    if number := sum(tag is None for label in labels for tag in label["prediction"]):
        logger.warning(
            f"{number:,} words lie beyond the maximum length and have no tag. Use a longer max_seq_length or shorter "
            "sentences."
        )
    return labels


# -------------------------------------------------------------------------------------------------- question answering


def prepare_questions(rows: Dataset, text_columns: str | None) -> tuple[Dataset, list[str]]:
    """Number questions without an id, and drop known answers."""
    columns = ["question", "context"]
    if missing := [name for name in columns if name not in rows.column_names]:
        raise ValueError(
            f"the data must have the columns question and context, but lack {', '.join(missing)}. Rename columns."
        )
    if "id" not in rows.column_names:
        rows = rows.add_column("id", [str(number) for number in range(len(rows))])
    check_questions({"test": rows.select_columns(["id", *columns])})
    return rows, columns


def tokenize_windows(
    batch: Any,
    tokenizer: Any,
    columns: list[str],
    own_tokenizer: Any,
    max_seq_length: int,
    doc_stride: int | None = None,
) -> Any:
    """Cut contexts into windows. A memory with its own tokenizer reads the same windows."""
    batch = {name: values for name, values in batch.items() if name != "answers"}
    stride = doc_stride or min(128, max_seq_length // 4)
    windows = tokenize_questions(batch, own_tokenizer, max_seq_length=max_seq_length, doc_stride=stride)
    if tokenizer is own_tokenizer:
        return windows
    texts: Any = cut_windows(batch, windows)
    return tokenize_texts(texts, tokenizer, max_seq_length=max_seq_length)


def decode_answers(output: Any, read: Dataset, rows: Dataset, config: Any) -> list[dict[str, Any]]:
    """Return the answer to each question, "" for none, with its probability among the best twenty."""
    answers = find_answers(
        rows,
        read,
        *output.predictions[:2],
        with_no_answer=getattr(config, "version_2_with_negative", False),
        null_score_diff_threshold=getattr(config, "null_score_diff_threshold", 0.0),
    )
    labels = []
    for answer in answers:
        # With a threshold other than 0, the answer is not always the most probable candidate.
        probabilities = [each["probability"] for each in answer["n_best"] if each["text"] == answer["text"]]
        labels.append({"prediction": answer["text"], "probabilities": next(iter(probabilities), None)})
    return labels


TASKS = {
    "ForSequenceClassification": Head(
        AutoModelForSequenceClassification, DataCollatorWithPadding, prepare_texts, tokenize_columns, decode_classes
    ),
    "ForTokenClassification": Head(
        AutoModelForTokenClassification,
        DataCollatorForTokenClassification,
        prepare_words,
        tokenize_tagged,
        decode_tags,
    ),
    "ForQuestionAnswering": Head(
        AutoModelForQuestionAnswering, DataCollatorWithPadding, prepare_questions, tokenize_windows, decode_answers
    ),
}
