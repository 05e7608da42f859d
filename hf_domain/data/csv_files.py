"""Find out how a .csv or .tsv file is written, and read its cells, so that no row is lost and no number changes.

pandas, which reads these files for `datasets`, swallows rows behind a stray quote, and drops the zeros of 000123. Both
are found here before it reads.
"""

import csv
import gzip
import io
import logging
import re
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import pyarrow

from hf_domain.extras import require
from hf_domain.safe_io import is_url, open_url

logger = logging.getLogger(__name__)

# Suffixes of compressed files.
PACKED = (".gz", ".zst")
SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
# Texts that pandas reads as numbers: 000123, +49, and identifiers such as 2310009E13, a clone of RIKEN.
CODE = re.compile(r"\+|0\d|\d+[eE]\d")
QUOTE_IT = 'Put cells that contain {} into quotes ("), or write the file again with a CSV library.'
DOUBLE_IT = "Delete the quote, or write the file again with a CSV library, which writes a quote of a text twice."
# A cell of a header that recurs in its column, or is a number, is probably the first example. Long cells are texts.
LONGEST_VALUE, MOST_VALUES = 40, 1000


class Form(NamedTuple):
    """How the cells of a file are written."""

    separator: str = ","
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL  # or QUOTE_NONE

    @property
    def options(self) -> dict[str, Any]:
        """The options of pandas."""
        return {"sep": self.separator, "quoting": self.quoting}

    def describe(self) -> str:
        """Return the form in words."""
        return SEPARATORS[self.separator] + (" without quotes" if self.quoting == csv.QUOTE_NONE else "")


class Table(NamedTuple):
    """What a check found in a file; `texts` are the columns that pandas must not read as numbers."""

    form: Form
    num_rows: int
    texts: set[str]


class StrayQuoteError(ValueError):
    """Quotes of a file that cannot mark its cells."""


def open_bytes(file: str) -> Any:
    """Open a path or a URL for reading, unpacked if it ends in .gz or .zst."""
    if is_url(file):
        system, path = open_url(file)
        stream = system.open(path, "rb")
    else:
        stream = open(file, "rb")  # noqa: SIM115
    if file.endswith(".zst"):
        require("a .zst file", "zstandard")  # with which datasets unpacks it; pyarrow notices a file that was cut off
        return io.BufferedReader(pyarrow.CompressedInputStream(stream, "zstd"))
    return gzip.open(stream) if file.endswith(".gz") else stream


def drop_packing(file: str) -> str:
    """Return the name of a file without the suffix of its compression."""
    return file.removesuffix(PACKED[0]).removesuffix(PACKED[1])


def check_table(file: str) -> Table:
    """Read a .csv or .tsv file once, and return how to read it.

    Quotes mark cells if they do so in every row. In files without quoting, as .tsv files mostly are, they are text.

    Raises:
        ValueError: A row has more or fewer cells than the header, or a stray quote would swallow rows.
    """
    form = Form(find_separator(file))
    try:
        table = _check_cells(file, form)
    except StrayQuoteError as error:
        plain = form._replace(quoting=csv.QUOTE_NONE)
        try:
            _, header, _ = next(read_cells(file, plain))
            if any('"' in name for name in header):  # whoever quotes the header quotes the cells
                raise error
            table = _check_cells(file, plain)
        except ValueError:
            raise error from None
        logger.warning(f"The quotes of {file} are read as text, each line as a row, because {error}")
    if table.form.separator != ("\t" if is_tabbed(file) else ","):
        logger.info(f"The cells of {file} are separated by {SEPARATORS[table.form.separator]}, as its header is")
    return table


def is_tabbed(file: str) -> bool:
    """Return whether a file name promises tabs."""
    return drop_packing(file).endswith(".tsv")


def find_separator(file: str) -> str:
    """Return the separator that cuts the header into most cells; the one that the file's name promises wins ties."""
    with io.TextIOWrapper(open_bytes(file), encoding="utf-8-sig") as lines:
        header = next((line for line in lines if not line.isspace()), "")
    promised = "\t" if is_tabbed(file) else ","
    return max(
        sorted(SEPARATORS, key=lambda separator: separator != promised),
        key=lambda separator: len(next(csv.reader([header], delimiter=separator))),
    )


def read_cells(file: str, form: Form) -> Iterator[tuple[int, list[str], list[str]]]:
    """Yield the rows of a file, header included: the line where a row begins, its cells, and its lines.

    A quoted cell may contain line breaks. Blank lines are not rows.

    Raises:
        StrayQuoteError: Text follows a closing quote, or a quote is never closed.
    """
    limit = csv.field_size_limit(2**31 - 1)  # the default, 131,072 characters, is shorter than some documents
    lines: list[str] = []

    def record(text: Any) -> Iterator[str]:
        for line in text:
            lines.append(line)
            yield line

    try:
        with io.TextIOWrapper(open_bytes(file), encoding="utf-8-sig", newline="") as text:
            rows = csv.reader(record(text), delimiter=form.separator, quoting=form.quoting, strict=True)
            start = 1
            try:
                for row in rows:
                    if row and not (len(row) == 1 and row[0].isspace()):
                        yield start, row, lines
                    start = rows.line_num + 1
                    lines.clear()
            except csv.Error as error:
                is_open = "unexpected end of data" in str(error)
                found = "is never closed" if is_open else f"closes before text in line {rows.line_num}"
                raise StrayQuoteError(
                    f'a quote (") that opens a cell must close at its end, but in {file} one of line {start} {found}. '
                    f"{DOUBLE_IT}"
                ) from None
    finally:
        csv.field_size_limit(limit)


def _check_cells(file: str, form: Form) -> Table:
    """Check that all rows have as many cells as the header, and that no quote swallowed a row."""
    rows = read_cells(file, form)
    _, header, _ = next(rows)
    kinds: dict[str, set[str]] = {name: set() for name in header}
    values: list[dict[str, int]] = [{} for _ in header]  # a value of a column -> the line where it first stands
    suspects: list[tuple[tuple[int, int], list[tuple[int, str]]]] = []  # first and last line, and the cells between
    num_rows = 0
    for line, row, lines in rows:
        num_rows += 1
        if len(row) != len(header):
            raise ValueError(
                f"each row of a .csv file must have as many cells as its header, but {file}, line {line} has "
                f"{len(row)} cells and the header {len(header)}. {QUOTE_IT.format(SEPARATORS[form.separator])}"
            )
        for name, cell in zip(header, row, strict=True):
            if "text" not in (own := kinds[name]):
                own.add(_find_kind(cell) if cell else "float")  # pandas makes floats of integers beside empty cells
        if len(lines) == 1:
            _note_values(values, row, line)
        elif form.quoting != csv.QUOTE_NONE and (inside := _cut_swallowed(lines, form.separator, len(header))):
            suspects.append(((line, line + len(lines) - 1), inside))
    if swallowed := [lines for lines, inside in suspects if any(cell in values[column] for column, cell in inside)]:
        first, last = swallowed[0]
        raise StrayQuoteError(
            f'a quote (") that opens a cell must close at its end, but in {file} one of line {first} closes in line '
            f"{last}, and the lines look like rows of their own. {DOUBLE_IT}"
        )
    _warn_of_missing_header(file, header, values)
    return Table(form, num_rows, {name for name, own in kinds.items() if "text" in own or own >= {"float", "long"}})


def _note_values(values: list[dict[str, int]], row: list[str], line: int) -> None:
    for own_values, cell in zip(values, row, strict=True):
        if cell.strip() and len(cell) <= LONGEST_VALUE and len(own_values) < MOST_VALUES:
            own_values.setdefault(cell, line)


def _cut_swallowed(lines: list[str], separator: str, num_cells: int) -> list[tuple[int, str]]:
    """Cut the lines of one row as if quotes were text.

    Returns:
        The cells, each with its column, that then would not belong to the quoted cell: behind it in the first line,
        before it in the last, and all others between. Empty if some line has not as many cells as the header.
    """
    cut = [line.rstrip("\r\n").split(separator) for line in lines]
    if num_cells == 1 or any(len(cells) != num_cells for cells in cut):
        return []
    opening = next((column for column, cell in enumerate(cut[0]) if cell.startswith('"')), 0)
    inside = [(column, cell) for column, cell in enumerate(cut[0]) if column > opening]
    for cells in cut[1:-1]:
        inside += [(column, cell) for column, cell in enumerate(cells) if column != opening]
    return inside + [(column, cell) for column, cell in enumerate(cut[-1]) if column < opening]


def _warn_of_missing_header(file: str, header: list[str], values: list[dict[str, int]]) -> None:
    for name, own_values in zip(header, values, strict=True):
        is_number = name.strip() and _find_kind(name) not in ("text", "bool")
        if is_number or name in own_values:
            found = "is a number" if is_number else f"is also a cell of this column, in line {own_values[name]}"
            logger.warning(
                f"The first line of {file} is read as its header, but {name!r} {found}. If the line is an example, "
                "write the names of the columns above it."
            )
            return


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
