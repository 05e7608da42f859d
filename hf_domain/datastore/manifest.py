"""What a datastore consists of."""

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from hf_domain.datastore.splitting import FEATURES
from hf_domain.results import read_json

FORMAT_VERSION = 1
MANIFEST = "datastore.json"
TOKENIZER = "tokenizer"
SCHEMA = FEATURES.arrow_schema.append(pa.field("text_hash", pa.int64()))


@dataclass
class Manifest:
    """What a datastore consists of."""

    max_length: int
    """Tokens of a passage at most."""
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
    """Documents that were read."""
    num_characters: int = 0
    """Of the documents."""
    num_passages: int = 0
    """Passages that were ever added; their ids are 0 to this."""
    num_duplicates: int = 0
    """Passages that were left out because another one has the same text."""
    documents_hash: str = ""
    passages_hash: str = ""
    deleted: list[int] = field(default_factory=list)
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Size in bytes and SHA-256 of every file."""
    format_version: int = FORMAT_VERSION

    @property
    def fingerprint(self) -> str:
        """Changes with any change of the passages, and with nothing else."""
        return chain_hashes(self.passages_hash, self.tokenizer, str(self.max_length), json.dumps(self.deleted))[:32]


def read_manifest(folder: Path) -> Manifest:
    """Read what a datastore consists of; raise if there is none or it cannot be read."""
    file = folder / MANIFEST
    if not file.exists():
        unfinished = Path(f"{folder}.unfinished")
        raise FileNotFoundError(
            f"the building of {folder} was interrupted. Build it again with the same options: {unfinished} goes on."
            if unfinished.exists()
            else f"{folder} is not a datastore: it has no {MANIFEST}. Build one with build_datastore."
        )
    try:
        content = read_json(file)
        version = content["format_version"]
    except (ValueError, TypeError, KeyError) as error:
        raise ValueError(f"{file} is damaged: {error}. Build the datastore anew.") from error
    if version != FORMAT_VERSION:
        raise ValueError(
            f"this version of hf-domain reads datastores of format {FORMAT_VERSION}; {folder} has format {version}. "
            "Build it anew or use another version of hf-domain."
        )
    content.pop("fingerprint", None)  # of a published one
    return Manifest(**content)


def describe_file(file: Path) -> dict[str, Any]:
    """Return size and checksum."""
    with open(file, "rb") as content:
        return {"size": file.stat().st_size, "sha256": hashlib.file_digest(content, "sha256").hexdigest()}


def chain_hashes(*values: str) -> str:
    """Hash values together with those before them."""
    return hashlib.sha256("\0".join(values).encode()).hexdigest()
