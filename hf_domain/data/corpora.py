"""Corpora for masked-language modeling: from files or the Hub to examples of token ids.

`datasets.load_dataset` does the reading. What is added here is what a long run needs before it starts: every local file
is read through once (a hundredth of the time that tokenizing takes) and what is wrong with it is said with its file and
line.
"""

import csv
import glob
import gzip
import hashlib
import io
import json
import os
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pyarrow.parquet
from datasets import (
    Dataset,
    DatasetDict,
    Features,
    IterableDataset,
    IterableDatasetDict,
    List,
    Value,
    load_dataset,
)
from datasets.exceptions import DatasetGenerationError
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_domain.data.masking import check_mask_token
from hf_domain.data.text_columns import find_document_columns

# Extension -> builder of datasets. All but parquet, which is compressed inside, may also end in .gz.
BUILDERS = {".txt": "text", ".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}


def find_files(patterns: str | Sequence[str]) -> list[str]:
    """Expand globs.

    Args:
        patterns: One or several paths or globs (`**` goes into folders).

    Returns:
        The files, in the order of the patterns and sorted within each.

    Raises:
        FileNotFoundError: A pattern matches no file.
    """
    files: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        matches = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))
        matches = [match for match in matches if Path(match).is_file()]
        if not matches:
            raise FileNotFoundError(f"no file matches {pattern}. Check the path; relative ones start at {Path.cwd()}.")
        files += matches
    return files


def load_files(
    patterns: str | Sequence[str], *, streaming: bool = False, **load_options: Any
) -> Dataset | IterableDataset:
    """Check files and load them.

    Args:
        patterns: One or several paths or globs of .txt, .jsonl, .json, .csv (each also .gz) or .parquet files, all of
            one format. A .txt file holds one example a line.
        streaming: Read the files while they are used; the check still reads them through once.
        load_options: For `datasets.load_dataset`, e.g. `cache_dir`.

    Returns:
        One dataset of all files.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file cannot be used: unknown extension, empty, binary, not UTF-8, broken JSON.
    """
    files = find_files(patterns)
    if not files:
        raise FileNotFoundError("data must be at least one file, but no name of a file is given")
    builders = {file: _get_builder(file) for file in files}
    if len(set(builders.values())) > 1:
        raise ValueError(f"the files of a dataset have one format; got {builders}. Convert them to one.")
    builder, content = builders[files[0]], None if streaming else hashlib.blake2b(digest_size=8)
    with tqdm(desc="Checking files", unit="B", unit_scale=True, delay=2) as progress:
        for file in files:
            _check_file(file, progress, content)
    if builder == "csv":
        # pandas takes "None", "NA" and "null" for missing: they are labels and texts. Only an empty cell is missing.
        load_options = {"keep_default_na": False, "na_values": [""], **load_options}
    if content is not None:
        # The cache of datasets knows a file by its path and its time alone: one that was replaced together with its
        # time, as by `cp -p` or `rsync -t`, would be read as it was.
        load_options = {"name": f"content_{content.hexdigest()}", **load_options}
    try:
        return load_dataset(builder, data_files=files, split="train", streaming=streaming, **load_options)
    except (DatasetGenerationError, ValueError) as error:
        cause = str(error.__cause__ or error).partition("\n")[0]
        raise ValueError(f"{', '.join(files)} cannot be read as {builder}: {cause}. Repair the file.") from error


def load_corpus(
    train_file: str | Sequence[str] | None = None,
    validation_file: str | Sequence[str] | None = None,
    *,
    dataset_name: str | None = None,
    dataset_config_name: str | None = None,
    text_column: str | None = None,
    validation_split_percentage: int = 5,
    num_validation_examples: int = 1000,
    streaming: bool = False,
    **load_options: Any,
) -> DatasetDict | IterableDatasetDict:
    """Load the documents of a corpus.

    Args:
        train_file: Files or globs, see `load_files`.
        validation_file: Likewise. Default: a part of the training documents.
        dataset_name: A dataset of the Hub (or a folder that holds one), instead of files.
        dataset_config_name: Its configuration.
        text_column: The column to read, or two as first,second. Default: see `find_document_columns`.
        validation_split_percentage: Share of the documents held out when there is no validation split: drawn at
            random, since corpora are often sorted by source, and always the same. 0: none. Default: as in run_mlm.py
            of transformers.
        num_validation_examples: With `streaming`, the first so many documents are held out instead (our choice: the
            length of a stream is not known).
        streaming: Read while training.
        load_options: For `datasets.load_dataset`: `cache_dir`, `revision`, `token`.

    Returns:
        Splits `train` and, if any, `validation` with the one column `text`. Blank documents are left out.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: The corpus cannot be used: see `load_files`; no text column; no document; too few to split.
    """
    if not 0 <= validation_split_percentage < 100:
        raise ValueError(
            f"validation_split_percentage must be at least 0 and below 100, but is {validation_split_percentage}"
        )
    if (not train_file) == (dataset_name is None):
        raise ValueError(
            f"a corpus is files or a dataset name; got train_file={train_file}, dataset_name={dataset_name}. Name one."
        )
    corpus: dict[str, Any] = {}
    if dataset_name is not None:
        loaded = load_dataset(dataset_name, dataset_config_name, streaming=streaming, **load_options)
        corpus = {split: loaded[split] for split in ("train", "validation") if split in loaded}
        if "train" not in corpus:
            raise ValueError(
                f"a corpus has a split train; {dataset_name} has {', '.join(loaded)}. Use another dataset."
            )
    else:
        assert train_file is not None
        corpus["train"] = load_files(train_file, streaming=streaming, **load_options)
    if validation_file is not None:
        corpus["validation"] = load_files(validation_file, streaming=streaming, **load_options)
    corpus = {split: _select_documents(documents, text_column, split) for split, documents in corpus.items()}

    if "validation" not in corpus and validation_split_percentage:
        corpus = _hold_out(corpus["train"], validation_split_percentage, num_validation_examples)
    return IterableDatasetDict(corpus) if streaming else DatasetDict(corpus)


def tokenize_corpus(
    corpus: DatasetDict | IterableDatasetDict,
    tokenizer: PreTrainedTokenizerBase,
    *,
    max_seq_length: int = 128,
    line_by_line: bool = False,
    whole_words: bool = False,
    num_proc: int | None = None,
    overwrite_cache: bool = False,
) -> DatasetDict | IterableDatasetDict:
    """Turn documents into examples of token ids for masked-language modeling.

    Args:
        corpus: Splits with the column `text`.
        tokenizer: The tokenizer of the model.
        max_seq_length: Tokens of an example at most, special tokens included. Default: the papers' phase of short
            sequences, and what a CPU can train.
        line_by_line: One example per document, truncated, as long as it is. Otherwise documents are joined by the
            tokenizer's separator and cut into examples of exactly `max_seq_length` tokens, each with special tokens at
            both ends; what is left at the end of 1000 documents is dropped.
        whole_words: Keep `word_ids`, which `DataCollatorForWholeWordMask` needs.
        num_proc: Processes; not used when streaming.
        overwrite_cache: Tokenize again although a cached result exists.

    Returns:
        The splits with the column `input_ids` and, on request, `word_ids` (None: of no word). The collators add the
        attention mask.

    Raises:
        ValueError: The tokenizer cannot mask, has no separator or no word ids, or takes fewer tokens.
    """
    check_mask_token(tokenizer)
    if whole_words and not tokenizer.is_fast:
        raise ValueError(
            f"whole-word masking needs word ids; {type(tokenizer).__name__} has none. Use a fast tokenizer."
        )
    if not line_by_line and None in (tokenizer.cls_token_id, tokenizer.sep_token_id):
        raise ValueError(
            "packing needs a start token and a separator; the tokenizer has "
            f"cls_token={tokenizer.cls_token}, sep_token={tokenizer.sep_token}. Set them or tokenize line by line."
        )
    check_length(tokenizer, max_seq_length)
    columns = ["input_ids", "word_ids"] if whole_words else ["input_ids"]
    options: dict[str, Any] = {
        "batched": True,
        "input_columns": "text",
        "remove_columns": ["text"],
        "features": Features({column: List(Value("int32")) for column in columns}),
    }
    if isinstance(corpus, DatasetDict):
        options |= {"num_proc": num_proc, "load_from_cache_file": not overwrite_cache, "desc": "Tokenizing"}
    tokenize = partial(
        _truncate_documents if line_by_line else _pack_documents,
        tokenizer=tokenizer,
        max_seq_length=max_seq_length,
        whole_words=whole_words,
    )
    return type(corpus)({split: documents.map(tokenize, **options) for split, documents in corpus.items()})


def check_length(tokenizer: PreTrainedTokenizerBase, max_seq_length: int) -> None:
    """Raise if examples would be longer than the model takes.

    Args:
        tokenizer: The tokenizer of the model; its `model_max_length` is the model's.
        max_seq_length: Tokens of an example at most.

    Raises:
        ValueError: The model takes fewer tokens, or nothing fits beside two special tokens.
    """
    if max_seq_length < 3:
        raise ValueError(f"max_seq_length must be at least 3, two special tokens and one of text; got {max_seq_length}")
    if max_seq_length > tokenizer.model_max_length:
        raise ValueError(
            f"max_seq_length is at most what the model takes, {tokenizer.model_max_length}; got {max_seq_length}. "
            "Lower it or use another encoder."
        )


def check_held_out(train_files: str | Sequence[str] | None, others: Mapping[str, str | Sequence[str] | None]) -> None:
    """Check that no file is trained on and tested on.

    Args:
        train_files: Paths or globs; missing files are left to `load_files`.
        others: Paths or globs of other splits, by the names of their flags.

    Raises:
        ValueError: A file of another split is a file of the training data.
    """
    trained = _resolve_files(train_files)
    for flag, patterns in others.items():
        if shared := sorted(trained & _resolve_files(patterns)):
            raise ValueError(f"{flag} must be data that is not trained on, but {shared[0]} is a train_file, too")


def _resolve_files(patterns: str | Sequence[str] | None) -> set[str]:
    patterns = [patterns] if isinstance(patterns, str) else patterns or []
    return {os.path.realpath(file) for pattern in patterns for file in glob.glob(pattern, recursive=True)}


def check_batch(examples: Dataset | IterableDataset, batch_size: int) -> None:
    """Raise unless there is at least one full batch.

    Args:
        examples: What is trained on.
        batch_size: Examples of one optimizer step, over all devices.

    Raises:
        ValueError: There are fewer examples than that.
    """
    count = len(examples) if isinstance(examples, Dataset) else sum(1 for _ in examples.take(batch_size))
    if count < batch_size:
        raise ValueError(
            f"a corpus fills at least one batch of {batch_size} examples; got {count}. "
            "Use more text, a smaller batch, a shorter max_seq_length or line_by_line."
        )


def _get_suffix(file: str) -> str:
    return Path(file.removesuffix(".gz")).suffix


def _get_builder(file: str) -> str:
    if _get_suffix(file) not in BUILDERS or file.endswith(".parquet.gz"):
        raise ValueError(
            f"files end in {', '.join(BUILDERS)}, all but the last also in .gz; got {file}. Convert or rename it."
        )
    return BUILDERS[_get_suffix(file)]


def _check_file(file: str, progress: tqdm, content: Any) -> None:
    """Read a file through into the hash `content`, if any; its lines are UTF-8 and, in .jsonl, JSON objects."""
    if file.endswith(".parquet"):
        try:
            num_rows = pyarrow.parquet.read_metadata(file).num_rows
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{file} is not a Parquet file: {error}. Convert or rename it.") from error
        if not num_rows:
            raise ValueError(f"a file holds at least one example; {file} is empty. Leave it out.")
        if content is not None:
            with open(file, "rb") as parquet:
                content.update(hashlib.file_digest(parquet, "blake2b").digest())
        return
    try:
        with _open(file) as lines:
            if _is_array(file, lines):
                text = lines.read()
                _update(content, text)
                has_content = bool(_parse(json.loads, text, file, 1))
            else:
                parse = _parse_object if _get_builder(file) == "json" else bytes.decode
                has_content = _check_lines(lines, parse, file, progress, content)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise ValueError(f"{file} is not a whole gzip file: {error}. Pack it again or drop the ending .gz.") from error
    if not has_content:
        raise ValueError(f"a file holds at least one example; {file} is empty. Leave it out.")
    _update(content, b"\0")  # no file holds one: where a file ends is part of the hash


def _open(file: str) -> Any:
    return gzip.open(file, "rb") if file.endswith(".gz") else open(file, "rb")


def _is_array(file: str, lines: Any) -> bool:
    return _get_suffix(file) == ".json" and lines.peek(64).lstrip().startswith(b"[")


def _update(content: Any, data: bytes) -> None:
    if content is not None:
        content.update(data)


def _check_lines(lines: Iterable[bytes], parse: Callable, file: str, progress: tqdm, content: Any) -> bool:
    has_content = False
    for number, line in enumerate(lines, 1):
        progress.update(len(line))
        _update(content, line)
        if not line.isspace():
            _parse(parse, line.rstrip(), file, number)  # a newline would count as the next line
            has_content = True
    return has_content


def locate_row(patterns: str | Sequence[str], row: int) -> str:
    """Say where a row of a dataset stands, for a message.

    Args:
        patterns: As `load_files` took them.
        row: The number of the row, from 0.

    Returns:
        Such as "line 12 of train.jsonl"; "row 12 of ..." where a file has no lines.
    """
    places = chain.from_iterable(map(_list_places, find_files(patterns)))
    return next(islice(places, row, None), f"row {row + 1} of {patterns}")


def _list_places(file: str) -> Iterator[str]:
    """Yield where each row of a file begins."""
    if file.endswith(".parquet"):
        yield from (f"row {number} of {file}" for number in range(1, pyarrow.parquet.read_metadata(file).num_rows + 1))
        return
    with _open(file) as lines:
        if _is_array(file, lines):
            yield from (f"row {number} of {file}" for number in range(1, len(json.loads(lines.read())) + 1))
        elif _get_builder(file) == "csv":
            # A quoted cell may hold line breaks, and blank lines are no rows.
            rows = csv.reader(io.TextIOWrapper(lines, encoding="utf-8-sig", newline=""))
            starts, end = [], 0
            with suppress(csv.Error):  # of a longer cell than the module reads
                for row in rows:
                    starts += [end + 1] if row else []
                    end = rows.line_num
            yield from (f"line {start} of {file}" for start in starts[1:])
        else:
            yield from (f"line {number} of {file}" for number, line in enumerate(lines, 1) if not line.isspace())


def _parse(parse: Callable, content: bytes, file: str, number: int) -> Any:
    """Parse content that starts at line `number` of the file; say where it cannot be."""
    if b"\0" in content:
        number += content.count(b"\n", 0, content.index(b"\0"))
        raise ValueError(
            f"a file holds text in UTF-8; {file}, line {number} has a zero byte. "
            "Leave a binary file out; convert a text, e.g. with iconv."
        )
    try:
        return parse(content)
    except UnicodeDecodeError as error:
        number += content.count(b"\n", 0, error.start)
        raise ValueError(
            f"a file holds text in UTF-8; {file}, line {number} has the byte {content[error.start]:#04x}, "
            f"{error.reason}. Convert it, e.g. with iconv."
        ) from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{file}, line {number + error.lineno - 1} is broken JSON: {error.msg} at column {error.colno}. "
            "Repair or remove the line."
        ) from error
    except RecursionError:
        raise ValueError(f"{file}, line {number} must be plain JSON, but is nested too deep. Remove it.") from None


def _parse_object(line: bytes) -> dict:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise json.JSONDecodeError("Expecting one object a line", line.decode(), 0)
    return value


def _select_documents(dataset: Any, text_column: str | None, split: str) -> Any:
    """Keep the texts of a split, as the column `text`, without blank documents; each text of a pair is a document."""
    if next(iter(dataset), None) is None:
        raise ValueError(f"a corpus holds text; its split {split} is empty. Use another dataset.")
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
            f"a corpus holds text; all documents of {split} are blank. Is {' + '.join(columns)} the right column?"
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
                f"the first {num_examples} documents are held out; the corpus has no more. Hold out fewer."
            )
        return split
    count = max(1, round(len(documents) * percentage / 100))
    if count >= len(documents):
        raise ValueError(
            f"{percentage} % of a corpus are held out, here {count} of {len(documents)} documents, which leaves none. "
            "Hold out less or give a validation file."
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
