"""The manifest of a datastore: what belongs to it, with sizes and checksums.

A datastore may come from anywhere, so every field is checked, and file names cannot lead out of the folder.
"""

import hashlib
import json
import re
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
    if (name := _find_damage(content)) is not None:
        raise _describe_damage(file, f"{name} is {str(content[name])[:80]}")
    return Manifest(**content)


def _find_damage(content: dict[str, Any]) -> str | None:
    """Return the first field that has another type than in a manifest, or a value that no datastore has."""
    example = Manifest(1, "", "", "", "", engine_version="", index="index")
    for name, value in content.items():
        is_missing = value is None and name in ("engine_version", "index")
        if type(value) is not type(getattr(example, name)) and not is_missing:  # True is an int as well
            return name
    parts = [str(name) for name in content["parts"]]
    files, deleted, count = content["files"], content["deleted"], content["num_passages"]
    of_index = {name for name in files if name.startswith(f"{content['index']}/")}
    are_files = all(FILE.fullmatch(name) and _describes_file(details) for name, details in files.items())
    are_passages = all(type(number) is int and 0 <= number < count for number in deleted)
    conditions = {
        "max_length": 1 <= content["max_length"] <= MAX_LENGTH,
        "engine": content["engine"] in ENGINES,
        "index": content["index"] is None or INDEX.fullmatch(content["index"]),
        "parts": all(map(PART.fullmatch, parts)) and len({*parts}) == len(parts),
        "files": are_files and sorted(files.keys() - of_index) == sorted(parts),
        "num_passages": count >= 0,
        "deleted": are_passages and deleted == sorted({*deleted}),
    }
    return next((name for name, holds in conditions.items() if not holds), None)


def _describes_file(details: Any) -> bool:
    return isinstance(details, dict) and [*map(type, map(details.get, ("size", "sha256")))] == [int, str]


def _describe_damage(file: Path, damage: str) -> ValueError:
    return ValueError(f"{file} is damaged: {damage}. Build the datastore again.")


def describe_file(file: Path) -> dict[str, Any]:
    """Return size and checksum."""
    with open(file, "rb") as content:
        return {"size": file.stat().st_size, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}


def chain_hashes(*values: Any) -> str:
    """Hash values together with all earlier ones, so that only the same sequence has the same hash."""
    return hashlib.sha256(json.dumps(values).encode()).hexdigest()
