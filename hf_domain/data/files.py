"""Check data files, then load them, so that a long run does not fail on them later.

The check reads every local file once, in about a hundredth of the tokenization time. Errors give file and line.
`datasets.load_dataset` does the rest.
"""

import csv
import filecmp
import glob
import gzip
import hashlib
import io
import json
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import pyarrow.parquet
from datasets import Dataset, IterableDataset, load_dataset
from datasets.exceptions import DatasetGenerationError
from fsspec.core import has_magic
from tqdm.auto import tqdm

from hf_domain.data.tables import Rows, find_paths, join_rows, make_dataset
from hf_domain.safe_io import is_url, open_url

# Extension -> builder of datasets. All except parquet, which is compressed inside, may also end in .gz.
BUILDERS = {".txt": "text", ".jsonl": "json", ".json": "json", ".csv": "csv", ".parquet": "parquet"}

# Texts that pandas reads as numbers: 000123, +49, and identifiers such as 2310009E13, a clone of RIKEN.
CODE = re.compile(r"\+|0\d|\d+[eE]\d")
INDEX = "__index_level_0__"
LONG_ROW = "each row of a .csv file must have as many cells as its header"
QUOTE_IT = 'Put cells that contain commas into quotes ("), or write the file again with a CSV library.'


def find_files(patterns: str | Sequence[str]) -> list[str]:
    """Expand globs.

    Args:
        patterns: One or several paths, URLs that fsspec opens (`s3://bucket/*.parquet`, `hf://datasets/...`), or globs
            of them (`**` matches nested folders).

    Returns:
        The files in the order of the patterns, sorted within each pattern.

    Raises:
        FileNotFoundError: A pattern matches no file.
    """
    files: list[str] = []
    for pattern in [patterns] if isinstance(patterns, str) else patterns:
        if is_url(pattern):
            system, path = open_url(pattern)
            paths = sorted(system.glob(path)) if has_magic(path) else [path] if system.isfile(path) else []
            matches = [system.unstrip_protocol(path) for path in paths]
        else:
            matches = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))
            matches = [match for match in matches if Path(match).is_file()]
        if not matches:
            raise FileNotFoundError(
                f"at least one file must match {pattern}, but none does. Check the path; relative paths start at "
                f"{Path.cwd()}."
            )
        files += matches
    return files


def load_rows(
    data: Rows, name: str = "data", *, streaming: bool = False, **load_options: Any
) -> Dataset | IterableDataset:
    """Load data from files or objects.

    Args:
        data: A path, a glob or a list of `Path` objects, see `load_files`; or texts, rows, a table, a dataset or a
            function, see `make_dataset`. Strings in a list are texts, not paths.
        streaming: Read files while they are used.

    Raises:
        FileNotFoundError: A file is missing.
        TypeError: The object contains neither texts nor rows.
        ValueError: A file or the object cannot be used.
    """
    if (paths := find_paths(data)) is not None:
        return load_files(paths, streaming=streaming, **load_options)
    if isinstance(data, (list, tuple)) and data and all(str(item).endswith((*BUILDERS, ".gz")) for item in data):
        raise ValueError(f"strings in a list must be texts, but {name} lists file names. Make them Path objects.")
    return make_dataset(data, name)


def load_table(data: Rows, name: str = "data") -> Dataset:
    """Load data as `load_rows` does, a stream to its end."""
    rows = load_rows(data, name)
    return rows if isinstance(rows, Dataset) else join_rows(rows)


def load_files(
    patterns: str | Sequence[str], *, streaming: bool = False, **load_options: Any
) -> Dataset | IterableDataset:
    """Check files and load them.

    Args:
        patterns: One or several paths or globs of .txt, .jsonl, .json, .csv (each also .gz) or .parquet files, all of
            one format. A .txt file has one example per line. A column of a local .csv file is read as text if numbers
            would lose a part of its cells, such as the zeros of 000123. At a URL, pandas guesses.
        streaming: Read the files while they are used; the check still reads them once before, but no URL.
        load_options: For `datasets.load_dataset`, e.g. `cache_dir`.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file cannot be used: unknown extension, empty, binary, not UTF-8, broken JSON, rows of a .csv file
            with more or fewer cells than its header.
    """
    files = find_files(patterns)
    if not files:
        raise FileNotFoundError("data must be at least one file, but no file is given")
    builders = {file: _get_builder(file) for file in files}
    if len(set(builders.values())) > 1:
        raise ValueError(f"all files of a dataset must have one format, but they have {builders}. Convert them to one.")
    builder, content = builders[files[0]], None if streaming else hashlib.blake2b(digest_size=8)
    texts = set[str]()
    with tqdm(desc="Checking files", unit="B", unit_scale=True, delay=2, disable=None) as progress:
        for file in files:
            if not is_url(file):
                _check_file(file, progress, content)
                texts |= _check_cells(file) if builder == "csv" else set()
    if builder == "csv":
        # By default pandas reads "None", "NA" and "null" as missing, but they can be labels or texts.
        load_options = {"keep_default_na": False, "na_values": [""], **load_options}
        load_options = {"converters": dict.fromkeys(sorted(texts), _keep_text), **load_options}
    if content is not None and not any(map(is_url, files)):
        # datasets caches a file by path and time only. `cp -p` and `rsync -t` keep the time, so that datasets would
        # return the old content.
        load_options = {"name": f"content_{content.hexdigest()}", **load_options}
    try:
        rows = load_dataset(builder, data_files=files, split="train", streaming=streaming, **load_options)
    except (DatasetGenerationError, ValueError) as error:
        cause = str(error.__cause__ or error).partition("\n")[0]
        raise ValueError(f"{', '.join(files)} cannot be read as {builder}: {cause}. Repair the file.") from error
    # pandas takes the first cell of rows that are longer than the header as an index. Local files were checked.
    if builder == "csv" and any(map(is_url, files)) and INDEX in (rows.column_names or next(iter(rows), {})):
        raise ValueError(f"{LONG_ROW}, but a row of {', '.join(files)} has more. {QUOTE_IT}")
    return rows


def check_held_out(
    train_files: str | Sequence[str] | None,
    others: Mapping[str, str | Sequence[str] | None],
    train_flag: str = "train_file",
) -> None:
    """Raise a ValueError if a file, or a copy of it, is both training data and test or validation data.

    Args:
        train_files: Paths or globs; `load_files` reports missing files.
        others: Paths or globs of other splits, by flag.
        train_flag: The flag of the training data, for errors.
    """
    trained = _resolve_files(train_files)
    for flag, patterns in others.items():
        held_out = _resolve_files(patterns)
        if shared := sorted(trained & held_out):
            raise ValueError(
                f"{flag} must not be trained on, but {shared[0]} is also a {train_flag}. Use another file."
            )
        local = ([file for file in sorted(files) if Path(file).is_file()] for files in (held_out, trained))
        for file, train_file in product(*local):
            if os.path.getsize(file) and filecmp.cmp(file, train_file, shallow=False):
                raise ValueError(
                    f"{flag} must not be trained on, but {file} has the content of the {train_flag} {train_file}. Use "
                    "another file."
                )


def _resolve_files(patterns: str | Sequence[str] | None) -> set[str]:
    patterns = [patterns] if isinstance(patterns, str) else patterns or []
    local = {os.path.realpath(file) for pattern in patterns for file in glob.glob(pattern, recursive=True)}
    return local | {file for pattern in patterns if is_url(pattern) for file in find_files(pattern)}


def _get_suffix(file: str) -> str:
    return Path(file.removesuffix(".gz")).suffix


def _get_builder(file: str) -> str:
    if _get_suffix(file) not in BUILDERS or file.endswith(".parquet.gz"):
        raise ValueError(
            f"a file name must end in {', '.join(BUILDERS)} (all but the last also in .gz), but {file} does not. "
            "Convert or rename the file."
        )
    return BUILDERS[_get_suffix(file)]


def _check_file(file: str, progress: tqdm, content: Any) -> None:
    """Check that a file's lines are UTF-8 and, in .jsonl, JSON objects; add them to the hash `content`, if any."""
    if file.endswith(".parquet"):
        try:
            num_rows = pyarrow.parquet.read_metadata(file).num_rows
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{file} must be a Parquet file, but is not: {error}. Convert or rename it.") from error
        if not num_rows:
            raise ValueError(f"a file must contain at least one example, but {file} is empty. Leave it out.")
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
        raise ValueError(
            f"{file} must be a complete gzip file, but cannot be unpacked: {error}. Compress it again, or drop the "
            "extension .gz."
        ) from error
    if not has_content:
        raise ValueError(f"a file must contain at least one example, but {file} is empty. Leave it out.")
    _update(content, b"\0")  # marks the end of the file in the hash; no file contains a zero byte


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
            _parse(parse, line.rstrip(), file, number)  # an error at the newline would name the next line
            has_content = True
    return has_content


def _read_cells(file: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a .csv file, header included, each with the line where it begins.

    A quoted cell may contain line breaks. Blank lines are not rows.
    """
    limit = csv.field_size_limit(2**31 - 1)  # the default, 131,072 characters, is shorter than some documents
    try:
        with io.TextIOWrapper(_open(file), encoding="utf-8-sig", newline="") as lines:
            rows, end = csv.reader(lines), 0
            for row in rows:
                if row and not (len(row) == 1 and row[0].isspace()):
                    yield end + 1, row
                end = rows.line_num
    finally:
        csv.field_size_limit(limit)


def _check_cells(file: str) -> set[str]:
    """Check that commas separate the cells of a .csv file, and that all rows have as many as the header.

    Returns:
        The columns whose cells are texts, or lose digits or signs if pandas reads them as numbers.
    """
    rows = _read_cells(file)
    _, header = next(rows)
    if len(header) == 1 and (found := re.search("[;\t|]", header[0])):
        raise ValueError(
            f"the cells of a .csv file must be separated by commas, but the header of {file} is {header[0]!r}, "
            f"separated by {found[0]!r}. Write the file again with commas."
        )
    kinds: dict[str, set[str]] = {name: set() for name in header}
    for line, row in rows:
        if len(row) != len(header):
            raise ValueError(
                f"{LONG_ROW}, but {file}, line {line} has {len(row)} cells and the header {len(header)}. {QUOTE_IT}"
            )
        for name, cell in zip(header, row, strict=True):
            if "text" not in (own := kinds[name]):
                own.add(_find_kind(cell) if cell else "float")  # pandas makes floats of integers beside empty cells
    return {name for name, own in kinds.items() if "text" in own or own >= {"float", "long"}}


def _find_kind(cell: str) -> str:
    """Return how pandas may read a cell without a loss: as int, long (an int that a float would round), float, or text.

    Columns of booleans are left to pandas.
    """
    digits = cell.strip().removeprefix("-")
    try:
        size = float(digits)
    except ValueError:
        return "bool" if digits.lower() in ("true", "false") else "text"
    if CODE.match(digits):
        return "text"
    if not digits.isdecimal():
        return "float"
    return "int" if size < 2**53 else "long" if size < 2**63 else "text"


def _keep_text(cell: str) -> str | None:
    return cell or None


def locate_row(patterns: str | Sequence[str], row: int) -> str:
    """Return where a row of a dataset is, for errors: "line 12 of train.jsonl", or "row 12 of ..." without lines.

    Args:
        patterns: As given to `load_files`.
        row: Number of the row, from 0.
    """
    places = chain.from_iterable(map(_list_places, find_files(patterns)))
    return next(islice(places, row, None), f"row {row + 1} of {patterns}")


def _list_places(file: str) -> Iterator[str]:
    """Yield the place where each row of a file begins."""
    if file.endswith(".parquet"):
        yield from (f"row {number} of {file}" for number in range(1, pyarrow.parquet.read_metadata(file).num_rows + 1))
        return
    if _get_builder(file) == "csv":
        yield from (f"line {line} of {file}" for line, _ in islice(_read_cells(file), 1, None))
        return
    with _open(file) as lines:
        if _is_array(file, lines):
            yield from (f"row {number} of {file}" for number in range(1, len(json.loads(lines.read())) + 1))
        else:
            yield from (f"line {number} of {file}" for number, line in enumerate(lines, 1) if not line.isspace())


def _parse(parse: Callable, content: bytes, file: str, number: int) -> Any:
    """Parse content that starts at line `number` of the file; errors name the line."""
    if b"\0" in content:
        number += content.count(b"\n", 0, content.index(b"\0"))
        raise ValueError(
            f"a file must be UTF-8 text, but {file}, line {number} has a zero byte. Leave a binary file out; convert "
            "a text file, e.g. with iconv."
        )
    try:
        return parse(content)
    except UnicodeDecodeError as error:
        number += content.count(b"\n", 0, error.start)
        raise ValueError(
            f"a file must be UTF-8 text, but {file}, line {number} has the byte {content[error.start]:#04x}, "
            f"{error.reason}. Convert the file, e.g. with iconv."
        ) from error
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{file}, line {number + error.lineno - 1} must be JSON, but is not: {error.msg} at column "
            f"{error.colno}. Correct or remove the line."
        ) from error
    except RecursionError:
        raise ValueError(f"{file}, line {number} must be plain JSON, but is nested too deeply. Remove it.") from None


def _parse_object(line: bytes) -> dict:
    value = json.loads(line)
    if not isinstance(value, dict):
        raise json.JSONDecodeError("Expecting one object per line", line.decode(), 0)
    return value
