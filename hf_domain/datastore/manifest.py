"""The manifest of a datastore: what belongs to it, with sizes and checksums.

A datastore may come from anywhere, so every field is checked, and file names cannot lead out of the folder.
"""

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field, fields
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
FILE = re.compile(rf"{PART.pattern}|{INDEX.pattern}/\.?\w[\w.-]*")
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
    except ValueError as error:
        raise _describe_damage(file, str(error)) from error
    if not isinstance(content, dict):
        raise _describe_damage(file, "it must hold a JSON object")
    if (version := content.get("format_version")) != FORMAT_VERSION:
        raise ValueError(
            f"the format of a datastore must be {FORMAT_VERSION}, but that of {folder} is {version!r}. Build the "
            "datastore again, or use the version of hf-domain that wrote it."
        )
    content.pop("fingerprint", None)  # of a published one
    if differing := content.keys() ^ {field.name for field in fields(Manifest)}:
        raise _describe_damage(file, f"missing or unknown fields {', '.join(sorted(differing))}")
    for name, is_valid in _VALID.items():
        if not is_valid(content[name]):
            raise _describe_damage(file, f"{name} is {str(content[name])[:80]}")
    manifest = Manifest(**content)
    if manifest.deleted and manifest.deleted[-1] >= manifest.num_passages:
        raise _describe_damage(file, f"deleted has ids from num_passages, {manifest.num_passages}")
    inside = {name for name in manifest.files if name.startswith(f"{manifest.index}/")}
    if {*manifest.parts} != manifest.files.keys() - inside:
        raise _describe_damage(file, "files has others than the parts and those of the index")
    return manifest


def _describe_damage(file: Path, damage: str) -> ValueError:
    return ValueError(f"{file} is damaged: {damage}. Build the datastore again.")


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_count(value: Any) -> bool:
    return type(value) is int and value >= 0  # True is an int as well


def _is_file(name: str, details: Any) -> bool:
    return (
        FILE.fullmatch(name) is not None
        and isinstance(details, dict)
        and details.keys() == {"size", "sha256"}
        and _is_count(details["size"])
        and _is_text(details["sha256"])
    )


_VALID: dict[str, Callable[[Any], Any]] = {
    "max_length": lambda value: _is_count(value) and 1 <= value <= MAX_LENGTH,
    "engine": lambda value: value in ENGINES,
    "engine_version": lambda value: value is None or _is_text(value),
    "index": lambda value: value is None or (_is_text(value) and INDEX.fullmatch(value)),
    "parts": lambda value: (
        isinstance(value, list)
        and all(_is_text(name) and PART.fullmatch(name) for name in value)
        and len({*value}) == len(value)
    ),
    "deleted": lambda value: isinstance(value, list) and all(map(_is_count, value)) and value == sorted({*value}),
    "files": lambda value: isinstance(value, dict) and all(_is_file(*item) for item in value.items()),
    **dict.fromkeys(("tokenizer", "analyzer", "analyzer_fingerprint", "documents_hash", "passages_hash"), _is_text),
    **dict.fromkeys(("num_documents", "num_characters", "num_passages", "num_duplicates"), _is_count),
}


def describe_file(file: Path) -> dict[str, Any]:
    """Return size and checksum."""
    with open(file, "rb") as content:
        return {"size": file.stat().st_size, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}


def chain_hashes(*values: Any) -> str:
    """Hash values together with all earlier ones, so that only the same sequence has the same hash."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
