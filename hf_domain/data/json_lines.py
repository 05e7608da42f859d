"""Read files of JSON lines row by row, with errors that name the line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


def read_rows(file: str, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row with its place.

    Args:
        file: Relative to the folder; errors name it so.
        folder: Where it is.

    Raises:
        ValueError: The file is missing or empty, or a line is no JSON object in UTF-8.
    """
    if not (folder / file).is_file():
        raise ValueError(f"there is no file {file}")
    has_rows = False
    with (folder / file).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if line.strip():
                has_rows = True
                where = f"line {number} of {file}"
                yield where, _parse_row(line, where)
    if not has_rows:
        raise ValueError(f"{file} is empty")


def _parse_row(line: bytes, where: str) -> dict[str, Any]:
    try:
        row = json.loads(line.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ValueError(f"a file must hold text in UTF-8, but {where} does not") from None
    except (ValueError, RecursionError):
        row = None
    if not isinstance(row, dict):
        raise ValueError(f"a line must be a JSON object, but {where} is none")
    return row
