"""Parse lines of JSON and text, with errors that name the file and the line."""

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any


def read_rows(file: str, folder: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each row of a file of JSON lines with its place.

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
                yield f"line {number} of {file}", parse_lines(parse_object, line.rstrip(), file, number)
    if not has_rows:
        raise ValueError(f"{file} is empty")


def parse_lines(parse: Callable, content: bytes, file: str, number: int) -> Any:
    """Parse content that starts at line `number` of the file; errors name the line."""
    content = content.removeprefix(BOM_UTF8)
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


def parse_object(line: bytes) -> dict[str, Any]:
    """Parse a JSON object."""
    value = json.loads(line)
    if not isinstance(value, dict):
        raise json.JSONDecodeError("Expecting one object per line", line.decode(), 0)
    return value
