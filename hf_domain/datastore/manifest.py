"""The manifest of a datastore: what belongs to it, with sizes and checksums.

A datastore may come from anywhere, so every field is checked, and file names cannot lead out of the folder.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow as pa

from hf_domain.datastore.splitting import FEATURES
from hf_domain.safe_io import read_json

FORMAT_VERSION = 2  # in version 1, passages_hash did not cover the token ids
MANIFEST = "datastore.json"
TOKENIZER = "tokenizer"
ENGINES = ("tantivy", "elasticsearch", "opensearch")
PART, INDEX = re.compile(r"passages-\d{5,9}\.arrow"), re.compile(r"index-\d{6,9}")
PLAIN_NAME = re.compile(r"\.?\w[\w.-]*")
MAX_LENGTH = 1_000_000  # tokens of a passage, in any datastore
SCHEMA = FEATURES.arrow_schema.append(pa.field("text_hash", pa.int64()))


@dataclass
class Manifest:
    """The content of a datastore."""

    max_length: int
    """Largest number of tokens in a passage."""
    tokenizer: str
    """Fingerprint of the tokenizer."""
    analyzer: str
    analyzer_fingerprint: str
    engine: str
    engine_version: str | None = None
    """Version of tantivy that wrote the index."""
    index: str | None = None
    """Folder of the index."""
    parts: list[str] = field(default_factory=list)
    """Files of the passages, in order."""
    num_documents: int = 0
    """Number of documents that were read."""
    num_characters: int = 0
    """Number of characters of the documents."""
    num_passages: int = 0
    """Number of passages ever added; their ids are 0 to this number minus 1."""
    num_duplicates: int = 0
    """Number of passages left out because another one has the same text."""
    documents_hash: str = ""
    passages_hash: str = ""
    deleted: list[int] = field(default_factory=list)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Size in bytes and SHA-256 of every file."""
    format_version: int = FORMAT_VERSION

    @property
    def fingerprint(self) -> str:
        """A digest that changes with the passages, and with nothing else."""
        return chain_hashes(self.passages_hash, self.tokenizer, self.max_length, self.deleted)[:32]

    @property
    def num_findable(self) -> int:
        """Number of passages that are not deleted."""
        return self.num_passages - len(self.deleted)

    def count_passage(self, document_id: str, text: str, input_ids: list[int]) -> None:
        """Add a passage to the count and to the hash, with everything that is shown or read of it."""
        self.passages_hash = chain_hashes(self.passages_hash, document_id, text, input_ids)
        self.num_passages += 1


def read_manifest(folder: Path) -> Manifest:
    """Read the manifest of a datastore; raise if it is missing or invalid."""
    file = folder / MANIFEST
    if not file.exists():
        unfinished = Path(f"{folder}.unfinished")
        raise FileNotFoundError(
            (
                f"the build of {folder} was interrupted. Run it again with the same options; it continues in "
                f"{unfinished}."
            )
            if unfinished.exists()
            else f"{folder} must be a datastore, but has no {MANIFEST}. Build one with build_datastore."
        )
    try:
        content = read_json(file)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} is damaged: {error}. Build the datastore again.") from error
    version = content.get("format_version") if isinstance(content, dict) else None
    if isinstance(content, dict) and version != FORMAT_VERSION:
        raise ValueError(
            f"the format of a datastore must be {FORMAT_VERSION}, but that of {folder} is {version!r}. Build the "
            "datastore again, or use the version of hf-domain that wrote it."
        )
    return _check_content(file, content)


def _check_content(file: Path, content: Any) -> Manifest:
    """Return the manifest in a file; raise if a field is missing, unknown or invalid."""

    def fail(name: str, expected: str) -> ValueError:
        found = f"is {str(content[name])[:80]}" if name in content else "is missing"
        return ValueError(f"{file} is damaged: {name} must be {expected}, but {found}. Build the datastore again.")

    if not isinstance(content, dict):
        raise ValueError(f"{file} is damaged: it must hold a JSON object. Build the datastore again.")
    content = {name: value for name, value in content.items() if name != "fingerprint"}  # of a published one
    if unknown := content.keys() - {field.name for field in fields(Manifest)}:
        raise ValueError(f"{file} is damaged: unknown fields {', '.join(sorted(unknown))}. Build the datastore again.")
    for name, (expected, is_valid) in _FIELDS.items():
        if name not in content or not is_valid(content[name]):
            raise fail(name, expected)
    manifest = Manifest(**content)
    if manifest.deleted and manifest.deleted[-1] >= manifest.num_passages:
        raise fail("deleted", f"ids below num_passages, {manifest.num_passages}")
    inside = {f"{manifest.index}/{Path(name).name}" for name in manifest.files}
    if not {*manifest.parts} <= manifest.files.keys() <= {*manifest.parts, *inside}:
        raise fail("files", "the parts and the files of the index")
    return manifest


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0  # True is an int as well


def _is_rising(value: Any) -> bool:
    return (
        isinstance(value, list)
        and all(map(_is_count, value))
        and all(first < second for first, second in pairwise(value))
    )


def _is_file(name: str, details: Any) -> bool:
    *folder, name = name.split("/")
    return (
        (len(folder) == 1 and INDEX.fullmatch(folder[0]) is not None and PLAIN_NAME.fullmatch(name) is not None)
        or (not folder and PART.fullmatch(name) is not None)
    ) and (
        isinstance(details, dict)
        and details.keys() == {"size", "sha256"}
        and _is_count(details["size"])
        and _is_text(details["sha256"])
    )


_COUNT = ("a whole number from 0", _is_count)
_TEXT = ("a string", _is_text)
_FIELDS: dict[str, tuple[str, Callable[[Any], bool]]] = {
    "max_length": (
        f"a whole number from 1 to {MAX_LENGTH:,}",
        lambda value: _is_count(value) and 1 <= value <= MAX_LENGTH,
    ),
    "tokenizer": _TEXT,
    "analyzer": _TEXT,
    "analyzer_fingerprint": _TEXT,
    "engine": (f"one of {', '.join(ENGINES)}", lambda value: _is_text(value) and value in ENGINES),
    "engine_version": ("a string or null", lambda value: value is None or _is_text(value)),
    "index": (
        "null or index- with a number",
        lambda value: value is None or (_is_text(value) and INDEX.fullmatch(value) is not None),
    ),
    "parts": (
        "a list of files in the folder, passages-NUMBER.arrow",
        lambda value: (
            isinstance(value, list)
            and all(_is_text(name) and PART.fullmatch(name) for name in value)
            and len({*value}) == len(value)
        ),
    ),
    "num_documents": _COUNT,
    "num_characters": _COUNT,
    "num_passages": _COUNT,
    "num_duplicates": _COUNT,
    "documents_hash": _TEXT,
    "passages_hash": _TEXT,
    "deleted": ("a rising list of ids", _is_rising),
    "files": (
        "sizes and checksums of the files in the folder",
        lambda value: isinstance(value, dict) and all(_is_file(*item) for item in value.items()),
    ),
}


def describe_file(file: Path) -> dict[str, Any]:
    """Return size and checksum."""
    with open(file, "rb") as content:
        return {"size": file.stat().st_size, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}


def chain_hashes(*values: Any) -> str:
    """Hash values together with all earlier ones, so that only the same sequence has the same hash."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
