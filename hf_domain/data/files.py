"""Check data files, then load them, so that a long run does not fail on them later.

The check reads every local file, in about a hundredth of the tokenization time. Errors give file and line.
`datasets.load_dataset` does the rest.
"""

import filecmp
import glob
import json
import os
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice, product
from pathlib import Path
from typing import Any

import pyarrow.parquet
from datasets import Dataset, DatasetDict, IterableDataset, IterableDatasetDict, load_dataset, load_from_disk
from datasets.exceptions import DatasetGenerationError
from fsspec.core import has_magic
from tqdm.auto import tqdm

from hf_domain.data.csv_files import (
    PACKED,
    QUOTE_IT,
    Form,
    Table,
    check_table,
    drop_packing,
    find_separator,
    open_bytes,
    read_cells,
)
from hf_domain.data.json_lines import parse_lines, parse_object
from hf_domain.data.squad import read_squad
from hf_domain.data.tables import Rows, find_paths, has_splits, join_rows, make_dataset
from hf_domain.safe_io import fingerprint_files, is_url, open_url

# Extension -> builder of datasets. All except parquet, which is compressed inside, may also end in .gz or .zst.
SPLITS = ("train", "validation", "test")
BUILDERS = {".txt": "text", ".jsonl": "json", ".json": "json", ".csv": "csv", ".tsv": "csv", ".parquet": "parquet"}
INDEX = "__index_level_0__"
SAVED = ("state.json", "dataset_dict.json")  # mark a folder of `Dataset.save_to_disk` and of `DatasetDict.save_to_disk`


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
        if is_saved(pattern):
            matches = sorted(str(path) for path in Path(pattern).rglob("*.arrow"))
        elif is_url(pattern):
            system, path = open_url(pattern)
            paths = sorted(system.glob(path)) if has_magic(path) else [path] if system.isfile(path) else []
            matches = [system.unstrip_protocol(path) for path in paths]
        else:
            matches = [pattern] if Path(pattern).is_file() else sorted(glob.glob(pattern, recursive=True))
            matches = [match for match in matches if Path(match).is_file()]
        if not matches:
            found = "none does"
            if Path(pattern).is_dir():
                endings = sorted({file.suffix for file in Path(pattern).iterdir()} & {*BUILDERS})
                found = f"it is a folder. Name its files, as {pattern}/*{[*endings, '.txt'][0]}"
            raise FileNotFoundError(
                f"at least one file must match {pattern}, but {found}. Check the path; relative paths start at "
                f"{Path.cwd()}."
            )
        files += matches
    return files


def load_rows(
    data: Rows, name: str = "data", *, streaming: bool = False, **load_options: Any
) -> Dataset | IterableDataset:
    """Load data from files or objects.

    Args:
        data: A path, a glob or a list of paths, see `load_files`; or texts, rows, a table or a dataset, see
            `make_dataset`. Strings in a list are paths if all are existing files, and texts otherwise.
        streaming: Read files while they are used.

    Raises:
        FileNotFoundError: A file is missing.
        TypeError: The object contains neither texts nor rows.
        ValueError: A file or the object cannot be used.
    """
    if (paths := find_paths(data)) is not None:
        return load_files(paths, streaming=streaming, **load_options)
    if isinstance(data, (list, tuple)) and data and all(str(item).endswith((*BUILDERS, *PACKED)) for item in data):
        missing = next(item for item in data if not os.path.isfile(str(item)))
        raise FileNotFoundError(f"strings in a list must be texts or existing files, but {name} lists {missing}.")
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
        patterns: One or several paths or globs of .txt, .jsonl, .json, .csv, .tsv (each also .gz or .zst) or .parquet
            files, of one format; or the folder of a split that `save_to_disk` wrote. A .txt file has one example per
            line. The header of a .csv file decides on its separator. A column is read as text if numbers would lose a
            part of its cells, such as the zeros of 000123. At a URL, pandas guesses.
        streaming: Read the files while they are used; the check still reads them once before, but no URL.
        load_options: For `datasets.load_dataset`, e.g. `cache_dir`.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: A file cannot be used: unknown extension, empty, binary, not UTF-8, broken JSON, rows of a .csv file
            with more or fewer cells than its header, or a stray quote that would swallow rows.
    """
    patterns = [patterns] if isinstance(patterns, str) else patterns
    files = find_files(patterns)
    if not files:
        raise FileNotFoundError("data must be at least one file, but no file is given")
    if (special := _load_special(patterns, files, streaming)) is not None:
        return special
    builders = {file: _get_builder(file) for file in files}
    if len(set(builders.values())) > 1:
        raise ValueError(f"all files of a dataset must have one format, but they have {builders}. Convert them to one.")
    builder, is_local = builders[files[0]], not any(map(is_url, files))
    _check_files(files)
    own_options: dict[str, Any] = {}
    num_rows = 0
    if builder == "csv":
        own_options, num_rows = _find_csv_options(files)
    elif builder == "text":
        own_options["encoding"] = "utf-8-sig"
    if is_local and not streaming:
        # datasets caches a file by path and time only. `cp -p` and `rsync -t` keep the time, so that datasets would
        # return the old content.
        own_options["name"] = f"content_{fingerprint_files(files)[:16]}"
    options = {"split": "train", "streaming": streaming, **own_options, **load_options}
    try:
        rows = load_dataset(builder, data_files=files, **options)
    except (DatasetGenerationError, ValueError) as error:
        cause = str(error.__cause__ or error).partition("\n")[0]
        raise ValueError(f"{', '.join(files)} cannot be read as {builder}: {cause}. Repair the file.") from error
    if builder == "csv":
        _check_csv(rows, files, num_rows if is_local else None)
    return rows


def _check_csv(rows: Dataset | IterableDataset, files: Sequence[str], num_rows: int | None) -> None:
    """Raise a ValueError if pandas did not read what the files have; `num_rows` is None for files at URLs."""
    # pandas takes the first cell of rows that are longer than the header as an index. Local files were checked.
    if num_rows is None and INDEX in (rows.column_names or next(iter(rows), {})):
        raise ValueError(
            f"each row of a .csv file must have as many cells as its header, but a row of {', '.join(files)} has more. "
            f"{QUOTE_IT.format('commas')}"
        )
    if num_rows is not None and isinstance(rows, Dataset) and len(rows) != num_rows:
        raise ValueError(
            f"all rows of a file must be read, but of the {num_rows:,} rows of {', '.join(files)}, {len(rows):,} are. "
            "Write the file again as .jsonl."
        )


def _load_special(patterns: Sequence[str], files: Sequence[str], streaming: bool) -> Dataset | IterableDataset | None:
    """Return a folder of `save_to_disk`, or the questions of files in SQuAD's nested form; None for other files."""
    if any(map(is_saved, patterns)):
        return _load_saved(patterns, streaming)
    nested = [_read_squad(file) for file in files]
    if not any(nested):
        return None
    if None in nested:
        raise ValueError(
            f"all files of a dataset must have one form, but only some of {', '.join(files)} are nested as SQuAD."
        )
    questions = Dataset.from_list([row for rows in nested for row in rows or []])
    return questions.to_iterable_dataset() if streaming else questions


def _read_squad(file: str) -> list[dict[str, Any]] | None:
    """Return the questions of a .json file in SQuAD's nested form; None for any other file."""
    if _get_suffix(file) != ".json":
        return None
    try:
        with open_bytes(file) as content:
            return read_squad(content.read().removeprefix(BOM_UTF8))
    except (EOFError, OSError, zlib.error):
        return None  # the check reports it


def _find_csv_options(files: Sequence[str]) -> tuple[dict[str, Any], int]:
    """Return the options of pandas for .csv files, and the number of rows of the local ones.

    Raises:
        ValueError: The files are not written alike; see also `check_table`.
    """
    tables = [Table(Form(find_separator(file)), 0, set()) if is_url(file) else check_table(file) for file in files]
    if len(forms := {table.form for table in tables}) > 1:
        found = " and ".join(sorted({form.describe() for form in forms}))
        raise ValueError(
            f"all files of a dataset must be written alike, but {', '.join(files)} have {found}. Convert them."
        )
    if not any(table.num_rows or is_url(file) for file, table in zip(files, tables, strict=True)):
        raise ValueError(f"a table must have a row below its header, but {', '.join(files)} has none. Add rows.")
    texts = sorted(set[str]().union(*(table.texts for table in tables)))
    options = {
        **forms.pop().options,
        # By default pandas reads "None", "NA" and "null" as missing, but they can be labels or texts.
        "keep_default_na": False,
        "na_values": [""],
        "converters": dict.fromkeys(texts, _keep_text),
    }
    return options, sum(table.num_rows for table in tables)


def _keep_text(cell: str) -> str | None:
    return cell or None


def load_named(name: str, config: str | None = None, *, streaming: bool = False, **options: Any) -> Any:
    """Load a dataset of the Hub, or a folder of one, also of one that `save_to_disk` wrote; all its splits."""
    if not is_saved(name):
        return load_dataset(name, config, streaming=streaming, **options)
    saved = load_from_disk(name)
    splits = saved if has_splits(saved) else DatasetDict(train=saved)
    return IterableDatasetDict({k: v.to_iterable_dataset() for k, v in splits.items()}) if streaming else splits


def open_saved(data: Any, streaming: bool = False) -> Any:
    """Return the splits, or the table, of a folder that `save_to_disk` wrote; anything else unchanged."""
    if not is_saved(data):
        return data
    splits = load_named(os.fspath(data), streaming=streaming)
    return splits if len(splits) > 1 else next(iter(splits.values()))


def is_saved(place: Any) -> bool:
    """Return whether a place is a folder that `save_to_disk` of `datasets` wrote."""
    return isinstance(place, (str, os.PathLike)) and any(os.path.isfile(os.path.join(place, mark)) for mark in SAVED)


def _load_saved(places: Sequence[str], streaming: bool) -> Dataset | IterableDataset:
    if len(places) > 1:
        raise ValueError(
            f"a folder of save_to_disk must be the only data, but is one of {', '.join(places)}. Join them."
        )
    table = open_saved(places[0], streaming)
    if has_splits(table):
        parts = ", ".join(os.path.join(places[0], split) for split in table)
        raise ValueError(f"data must be one split, but {places[0]} has {', '.join(table)}. Name one of {parts}.")
    return table


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
    return Path(drop_packing(file)).suffix


def _get_builder(file: str) -> str:
    if _get_suffix(file) not in BUILDERS or (file.endswith(PACKED) and _get_suffix(file) == ".parquet"):
        raise ValueError(
            f"a file name must end in {', '.join(BUILDERS)} (all but the last also in .gz or .zst), but {file} does "
            "not. Convert or rename the file."
        )
    return BUILDERS[_get_suffix(file)]


def _check_files(files: Sequence[str]) -> None:
    """Check the local ones of some files, see `_check_file`."""
    with tqdm(desc="Checking files", unit="B", unit_scale=True, delay=2, disable=None) as progress:
        for file in files:
            if not is_url(file):
                _check_file(file, progress)


def _check_file(file: str, progress: tqdm) -> None:
    """Raise a ValueError unless a file has an example, and its lines are UTF-8 and, in .jsonl, JSON objects."""
    if file.endswith(".parquet"):
        try:
            is_filled = bool(pyarrow.parquet.read_metadata(file).num_rows)
        except pyarrow.ArrowInvalid as error:
            raise ValueError(f"{file} must be a Parquet file, but is not: {error}. Convert or rename it.") from error
    else:
        is_filled = _check_text(file, progress)
    if not is_filled:
        raise ValueError(f"a file must contain at least one example, but {file} is empty. Name another.")


def _check_text(file: str, progress: tqdm) -> bool:
    """Check a file of text line by line, and return whether it has any."""
    is_filled = False
    try:
        with open_bytes(file) as lines:
            if _is_array(file, lines):
                return bool(parse_lines(json.loads, lines.read(), file, 1))
            parse = parse_object if _get_builder(file) == "json" else bytes.decode
            for number, line in enumerate(lines, 1):
                progress.update(len(line))
                if not line.isspace():
                    parse_lines(parse, line.rstrip(), file, number)  # an error at the newline would name the next line
                    is_filled = True
    except (EOFError, OSError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:  # of the system, and no content that is wrong
            raise
        packing = Path(file).suffix
        raise ValueError(
            f"{file} must be a complete {packing} file, but cannot be unpacked: {error}. Compress it again, or drop "
            f"the extension {packing}."
        ) from error
    return is_filled


def _is_array(file: str, lines: Any) -> bool:
    return _get_suffix(file) == ".json" and lines.peek(64).removeprefix(BOM_UTF8).lstrip().startswith(b"[")


def locate_row(patterns: str | Sequence[str], row: int) -> str:
    """Return where a row of a dataset is, for errors: "line 12 of train.jsonl", or "row 12 of ..." without lines.

    Args:
        patterns: As given to `load_files`.
        row: Number of the row, from 0.
    """
    if any(map(is_saved, [patterns] if isinstance(patterns, str) else patterns)):
        return f"row {row + 1} of {patterns}"
    places = chain.from_iterable(map(_list_places, find_files(patterns)))
    return next(islice(places, row, None), f"row {row + 1} of {patterns}")


def _list_places(file: str) -> Iterator[str]:
    """Yield the place where each row of a file begins."""
    if file.endswith(".parquet"):
        yield from (f"row {number} of {file}" for number in range(1, pyarrow.parquet.read_metadata(file).num_rows + 1))
        return
    if _get_builder(file) == "csv":
        cells = read_cells(file, check_table(file).form)
        yield from (f"line {line} of {file}" for line, *_ in islice(cells, 1, None))
        return
    if (questions := _read_squad(file)) is not None:
        yield from (f"question {row['id']} of {file}" for row in questions)
        return
    with open_bytes(file) as lines:
        if _is_array(file, lines):
            yield from (f"row {number} of {file}" for number in range(1, len(json.loads(lines.read())) + 1))
        else:
            yield from (f"line {number} of {file}" for number, line in enumerate(lines, 1) if not line.isspace())
