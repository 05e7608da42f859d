"""Load a corpus from files or the Hub, and cut it into examples for masked-language modeling."""

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

from datasets import (
    Dataset,
    DatasetDict,
    Features,
    IterableDataset,
    IterableDatasetDict,
    List,
    Value,
)
from datasets.fingerprint import Hasher
from filelock import FileLock
from transformers import PreTrainedTokenizerBase

from hf_domain.clusters import count_tasks, map_in_order
from hf_domain.data.columns import find_document_columns
from hf_domain.data.files import load_files, load_named, load_rows, open_saved
from hf_domain.data.masking import check_mask_token
from hf_domain.data.tables import Rows, Splits, choose_splits, has_splits

logger = logging.getLogger(__name__)

# Our choices. A stream tokenizes its sample again in training, so it is smaller.
SAMPLE, SAMPLE_OF_STREAM, MOST_UNKNOWN = 500, 50, 0.05
DOCUMENTS_PER_BATCH = 1000  # the default of `Dataset.map`: the documents that are packed together
BATCHES_PER_TASK = 4  # batches that workers tokenize between two writes


def load_corpus(
    data: Rows | Splits | None = None,
    validation_data: Rows | None = None,
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    text_column: str | None = None,
    validation_split_percentage: int = 5,
    num_validation_examples: int = 1000,
    streaming: bool = False,
    cache_dir: str | None = None,
    revision: str | None = None,
    token: bool | str | None = None,
) -> DatasetDict | IterableDatasetDict:
    """Load the documents of a corpus.

    Args:
        data: The training documents, see `load_rows`, or a `DatasetDict`, see `choose_splits`.
        validation_data: See `load_rows`. Default: a part of the training documents.
        dataset_name: A dataset of the Hub, or the folder of a dataset, instead of data.
        text_column: The column to read, or two as first,second. Default: see `find_document_columns`.
        validation_split_percentage: Percentage of the documents to hold out if there is no validation split; 0 holds
            out none. They are drawn at random, because corpora are often sorted by source, and are always the same.
            Default: as in run_mlm.py of transformers.
        num_validation_examples: With `streaming`, hold out this many documents at the start instead (our choice:
            the length of a stream is unknown).
        streaming: Read during training.
        cache_dir: Folder for what `datasets` caches.
        revision: Version of the dataset of the Hub.
        token: Access token of the Hub, for a private dataset.

    Returns:
        Splits `train` and, if any, `validation` with the single column `text`. Blank documents are left out.

    Raises:
        FileNotFoundError: A file is missing.
        TypeError: The data is an object without texts.
        ValueError: The corpus has no text column, no document, or too few documents to split; see also `load_rows`.
    """
    if not 0 <= validation_split_percentage < 100:
        raise ValueError(
            f"validation_split_percentage must be at least 0 and below 100, but is {validation_split_percentage}"
        )
    if (data is None) == (dataset_name is None):
        raise ValueError(
            "a corpus must be either files (--train_file) or a dataset of the Hub (--dataset_name), but "
            f"{'neither is' if data is None else 'both are'} given. Give one."
        )
    corpus: dict[str, Any] = {}
    if dataset_name is not None:
        options: dict[str, Any] = {"cache_dir": cache_dir, "revision": revision, "token": token}
        data = load_named(dataset_name, dataset_config_name, streaming=streaming, **options)
    data = open_saved(data, streaming)
    if has_splits(data):
        corpus = dict(choose_splits(data))
    else:
        corpus["train"] = load_rows(data, "data", streaming=streaming, cache_dir=cache_dir)
    if validation_data is not None:
        corpus["validation"] = load_rows(validation_data, "validation_data", streaming=streaming, cache_dir=cache_dir)
    corpus = {split: _select_documents(documents, text_column, split) for split, documents in corpus.items()}

    if "validation" not in corpus and validation_split_percentage:
        corpus = _hold_out(corpus["train"], validation_split_percentage, num_validation_examples)
    is_stream = any(isinstance(documents, IterableDataset) for documents in corpus.values())
    return IterableDatasetDict(corpus) if is_stream else DatasetDict(corpus)


def read_texts(path: str, text_column: str | None = None) -> Iterator[str]:
    """Yield the texts of a corpus file or a task file: both texts of a pair, or the words of `tokens`."""
    rows = load_files(path, streaming=True)
    first = next(iter(rows))
    has_words = text_column is None and "tokens" in first and "text" not in first
    columns = ["tokens"] if has_words else find_document_columns(rows, text_column)
    for row in rows:
        for value in map(row.get, columns):
            yield " ".join(value) if isinstance(value, list) else value or ""


def tokenize_corpus(
    corpus: Rows | Splits,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int = 128,
    line_by_line: bool = False,
    whole_words: bool = False,
    document_boundaries: bool = False,
    num_proc: int | None = None,
    executor: Executor | None = None,
    overwrite_cache: bool = False,
) -> DatasetDict | IterableDatasetDict:
    """Turn documents into examples of token ids for masked-language modeling.

    Args:
        corpus: Splits with the column `text`; anything else that `load_corpus` reads becomes `train`.
        max_seq_length: Maximum number of tokens of an example, special tokens included. The default is the length of
            the papers' first phase, and trains on a CPU.
        line_by_line: Make one example per document, truncated. Otherwise, join documents by the tokenizer's separator
            and cut them into examples of exactly `max_seq_length` tokens, with special tokens at both ends; the rest of
            every 1,000 documents is dropped.
        whole_words: Keep `word_ids`, which `DataCollatorForWholeWordMask` needs.
        document_boundaries: Fill an example with whole documents, each between its own special tokens; only documents
            that are longer than an example are cut, and no text is dropped. `attention_mask` numbers the documents of
            an example from 1, for `separate_documents`.
        num_proc: Number of processes; unused for a stream.
        executor: Where documents are tokenized instead, see `hf_domain.clusters.open_executor`; the examples are those
            of one process.
        overwrite_cache: Tokenize again even if a cached result exists.

    Returns:
        The splits with the columns `input_ids` and, with `whole_words`, `word_ids` (None outside words). Without
        `document_boundaries` the collators add the attention mask.

    Raises:
        ValueError: The tokenizer cannot mask, has no separator or no word ids, or the length exceeds its limit.
    """
    check_mask_token(tokenizer)
    if whole_words and not tokenizer.is_fast:
        raise ValueError(
            f"whole-word masking needs a tokenizer with word ids, but {type(tokenizer).__name__} has none. Use a fast "
            "tokenizer."
        )
    if not line_by_line and None in (tokenizer.cls_token_id, tokenizer.sep_token_id):
        raise ValueError(
            "the tokenizer must have a start token and a separator to pack documents, but has "
            f"cls_token={tokenizer.cls_token}, sep_token={tokenizer.sep_token}. Set them, or use line_by_line."
        )
    check_length(tokenizer, max_seq_length)
    if not has_splits(corpus):
        corpus = load_corpus(corpus, validation_split_percentage=0)
    numbers = document_boundaries and not line_by_line
    columns = ["input_ids", *["word_ids"] * whole_words, *["attention_mask"] * numbers]
    options: dict[str, Any] = {
        "batched": True,
        "input_columns": "text",
        "remove_columns": ["text"],
        "features": Features({column: List(Value("int32")) for column in columns}),
    }
    if isinstance(corpus, DatasetDict):
        options |= {"num_proc": num_proc, "load_from_cache_file": not overwrite_cache, "desc": "Tokenizing"}
    pack = _pack_whole_documents if document_boundaries else _pack_documents
    tokenize = partial(
        _truncate_documents if line_by_line else pack,
        tokenizer=tokenizer,
        max_seq_length=max_seq_length,
        whole_words=whole_words,
    )
    if executor is None and isinstance(corpus, DatasetDict):
        return DatasetDict({split: map_once(documents, tokenize, options) for split, documents in corpus.items()})
    if executor is None:
        return type(corpus)({split: documents.map(tokenize, **options) for split, documents in corpus.items()})
    if not isinstance(corpus, DatasetDict):
        raise ValueError("a stream is tokenized by the process that reads it. Leave out the cluster or the streaming.")
    examples = {}
    for split, documents in corpus.items():
        options |= {"num_proc": None, "batch_size": DOCUMENTS_PER_BATCH * BATCHES_PER_TASK * count_tasks(executor)}
        # An executor has no fingerprint that another run finds again.
        options["new_fingerprint"] = Hasher.hash([documents._fingerprint, tokenize])
        examples[split] = map_once(documents, partial(_map_batches, function=tokenize, executor=executor), options)
    return DatasetDict(examples)


def map_once(documents: Dataset, function: Callable[..., dict[str, list]], options: dict[str, Any]) -> Dataset:
    """Return `documents.map(function)`, but if another process computes the same, wait for it and read its cache.

    The methods of a comparison that start together would otherwise each tokenize the same corpus, on the same cores.
    """
    if not documents.cache_files:  # in memory, where nothing is cached
        return documents.map(function, **options)
    fingerprint = options.get("new_fingerprint") or Hasher.hash([documents._fingerprint, function])
    with FileLock(Path(documents.cache_files[0]["filename"]).with_name(f"mapping-{fingerprint}.lock")):
        return documents.map(function, **options)


def _map_batches(texts: list[str], function: Callable[..., dict[str, list]], executor: Executor) -> dict[str, list]:
    """Return the examples of texts, tokenized in the batches in which one process tokenizes them."""
    batches = [texts[start : start + DOCUMENTS_PER_BATCH] for start in range(0, len(texts), DOCUMENTS_PER_BATCH)]
    parts = [*map_in_order(executor, function, batches)]
    return {column: [*chain.from_iterable(part[column] for part in parts)] for column in parts[0]}


def check_length(tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> None:
    """Raise a ValueError if examples would exceed `tokenizer.model_max_length`, or have no room for text."""
    if max_seq_length < 3:
        raise ValueError(
            f"max_seq_length must be at least 3 (two special tokens and one of text), but is {max_seq_length}"
        )
    if max_seq_length > tokenizer.model_max_length:
        raise ValueError(
            f"max_seq_length must be at most {tokenizer.model_max_length}, the encoder's limit, but is "
            f"{max_seq_length}. Use a shorter length or another encoder."
        )


def check_batch(examples: Dataset | IterableDataset, batch_size: int) -> None:
    """Raise a ValueError unless there is at least one full batch.

    Args:
        batch_size: Examples per optimizer step, over all devices.
    """
    count = len(examples) if isinstance(examples, Dataset) else sum(1 for _ in examples.take(batch_size))
    if count < batch_size:
        raise ValueError(
            f"a corpus must fill at least one batch of {batch_size} examples, but has {count}. Use more text, a "
            "smaller batch, a shorter max_seq_length or line_by_line."
        )


def check_known(examples: Any, tokenizer: PreTrainedTokenizerBase, split: str, must_know: bool = True) -> None:
    """Warn if the tokenizer knows too few tokens of a split, in a sample of its examples.

    Args:
        examples: With `input_ids`; a stream is sampled at its start.
        must_know: Raise a ValueError if it knows none: masked LM neither masks nor predicts unknown tokens.
    """
    unknown, special = tokenizer.unk_token_id, {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    if isinstance(examples, Dataset):
        examples = examples.select_columns("input_ids").select(range(0, len(examples), len(examples) // SAMPLE + 1))
    rows = islice(examples, SAMPLE if isinstance(examples, Dataset) else SAMPLE_OF_STREAM)
    read = (row["input_ids"] for row in rows)
    flat = (ids if not ids or isinstance(ids[0], int) else chain(*ids) for ids in read)  # an example may be several
    tokens = [token for ids in flat for token in ids if token not in special]
    share = tokens.count(unknown) / len(tokens) if tokens else 0.0
    if share <= MOST_UNKNOWN:
        return
    advice = "Use an encoder for the language and the script of the text."
    model = tokenizer.backend_tokenizer.model if tokenizer.is_fast else None
    if longest := getattr(model, "max_input_chars_per_word", None):  # names of compounds are longer
        advice += (
            f" Words of more than {longest} characters are always unknown: if the text has such words, raise "
            "max_input_chars_per_word in tokenizer.json, and name TokenizersBackend as tokenizer_class in "
            "tokenizer_config.json, because BertTokenizer resets it."
        )
    if share == 1 and must_know:
        raise ValueError(
            f"the tokenizer must know the text, but every token of {split} is {tokenizer.unk_token}. {advice}"
        )
    logger.warning(
        f"{share:.0%} of the tokens of {split} are {tokenizer.unk_token}: the tokenizer does not know these words. "
        f"{advice}"
    )


def _select_documents(dataset: Any, text_column: str | None, split: str) -> Any:
    """Return the documents of a split as the column `text`, without blank ones; each text of a pair is a document."""
    if next(iter(dataset), None) is None:
        raise ValueError(f"a corpus must contain text, but its split {split} is empty. Use another dataset.")
    columns = find_document_columns(dataset, text_column)
    documents = dataset.select_columns(columns)
    if columns != ["text"]:
        documents = documents.map(
            _join_columns,
            batched=True,
            input_columns=columns,
            remove_columns=columns,
            features=Features({"text": Value("string")}),
        )
    documents = documents.filter(_has_text, input_columns="text")
    if next(iter(documents), None) is None:
        raise ValueError(
            f"a corpus must contain text, but all documents of {split} are blank. Check that {' + '.join(columns)} is "
            "the right column."
        )
    return documents


def _join_columns(*columns: list[str | None]) -> dict[str, list[str | None]]:
    return {"text": [text for row in zip(*columns, strict=True) for text in row]}


def _has_text(text: str | None) -> bool:
    return bool(text and not text.isspace())


def _hold_out(documents: Any, percentage: int, num_examples: int) -> dict[str, Any]:
    if isinstance(documents, IterableDataset):
        split: dict[str, Any] = {"train": documents.skip(num_examples), "validation": documents.take(num_examples)}
        if next(iter(split["train"]), None) is None:
            raise ValueError(
                f"a stream must be longer than the {num_examples} documents held out for validation, but is not. Hold "
                "out fewer."
            )
        return split
    count = max(1, round(len(documents) * percentage / 100))
    if count >= len(documents):
        raise ValueError(
            f"some documents must remain for training, but holding out {percentage} % takes {count} of "
            f"{len(documents)}. Hold out less, or give a validation file."
        )
    parts = documents.train_test_split(test_size=count, seed=0)
    return {"train": parts["train"], "validation": parts["test"]}


def _truncate_documents(
    texts: list[str], tokenizer: PreTrainedTokenizerBase, max_seq_length: int, whole_words: bool
) -> dict[str, list]:
    encodings = tokenizer(texts, truncation=True, max_length=max_seq_length)
    examples: dict[str, list] = {"input_ids": encodings["input_ids"]}
    if whole_words:
        examples["word_ids"] = [encodings.word_ids(row) for row in range(len(texts))]
    return examples


def _pack_documents(
    texts: list[str], tokenizer: PreTrainedTokenizerBase, max_seq_length: int, whole_words: bool
) -> dict[str, list]:
    encodings = tokenizer(texts, add_special_tokens=False, verbose=False)
    separator = tokenizer.sep_token_id
    tokens = [token for document in encodings["input_ids"] for token in (*document, separator)]
    length = max_seq_length - 2
    starts = range(0, len(tokens) - length + 1, length)
    examples: dict[str, list] = {
        "input_ids": [[tokenizer.cls_token_id, *tokens[start : start + length], separator] for start in starts]
    }
    if whole_words:
        words = [word for row in range(len(texts)) for word in (*encodings.word_ids(row), None)]
        examples["word_ids"] = [[None, *words[start : start + length], None] for start in starts]
    return examples


def _pack_whole_documents(
    texts: list[str], tokenizer: PreTrainedTokenizerBase, max_seq_length: int, whole_words: bool
) -> dict[str, list]:
    encodings = tokenizer(texts, add_special_tokens=False, verbose=False)
    documents, length = encodings["input_ids"], max_seq_length - 2
    pieces = [(row, start) for row, tokens in enumerate(documents) for start in range(0, len(tokens), length)]
    lengths = [min(length, len(documents[row]) - start) + 2 for row, start in pieces]
    rows, columns, count = choose_rows(lengths, max_seq_length)
    examples: dict[str, list] = {"input_ids": [[] for _ in range(count)], "attention_mask": [[] for _ in range(count)]}
    if whole_words:
        examples["word_ids"] = [[] for _ in range(count)]
    for piece in sorted(range(len(pieces)), key=lambda piece: columns[piece]):
        (row, start), block = pieces[piece], rows[piece]
        tokens, numbers = documents[row][start : start + length], examples["attention_mask"][block]
        examples["input_ids"][block] += [tokenizer.cls_token_id, *tokens, tokenizer.sep_token_id]
        numbers += [numbers[-1] + 1 if numbers else 1] * lengths[piece]
        if whole_words:
            examples["word_ids"][block] += [None, *encodings.word_ids(row)[start : start + length], None]
    return examples


def choose_rows(lengths: list[int], width: int) -> tuple[list[int], list[int], int]:
    """Return the row and the first column of each text, and the number of rows (first-fit decreasing)."""
    rows, columns, filled = [0] * len(lengths), [0] * len(lengths), list[int]()
    full, shortest = 0, min(lengths, default=0)
    for text in sorted(range(len(lengths)), key=lambda text: -lengths[text]):
        while full < len(filled) and filled[full] + shortest > width:  # a long document fills rows from the first on
            full += 1
        row = next((row for row in range(full, len(filled)) if filled[row] + lengths[text] <= width), len(filled))
        if row == len(filled):
            filled.append(0)
        rows[text], columns[text] = row, filled[row]
        filled[row] += lengths[text]
    return rows, columns, len(filled)
