"""Datastores on the Hub: a dataset repository that `load_dataset` reads as well.

The index stays at home: it is made again from the passages within minutes, by whatever version is installed there.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from huggingface_hub import DatasetCard, DatasetCardData, HfApi, snapshot_download
from tqdm.auto import tqdm

from hf_domain.datastore.manifest import (
    MANIFEST,
    SCHEMA,
    TOKENIZER,
    Manifest,
    chain_hashes,
    describe_file,
    read_manifest,
)
from hf_domain.datastore.splitting import FEATURES, fingerprint_tokenizer, hash_text
from hf_domain.datastore.store import Datastore
from hf_domain.results import write_json

CARD = """---
{metadata}
---

# {name}

{num_passages:,} passages of at most {max_length} tokens for retrieval-augmented domain adaptation, cut by
[hf-domain](https://pypi.org/project/hf-domain) from {num_documents:,} documents.

```python
from hf_domain.datastore import load_from_hub

datastore = load_from_hub("{name}", "datastore")  # makes the index
datastore.search(["some text"], k=10)
```

Columns: `id`, `document_id`, `text`, `input_ids` (of the tokenizer in `tokenizer/`). Analyzer: `{analyzer}`.
"""


def push_to_hub(
    datastore: Datastore,
    repo_id: str,
    *,
    private: bool | None = None,
    token: str | None = None,
    revision: str | None = None,
    licence: str | None = None,
) -> str:
    """Publish the passages as a dataset, in one commit. The text of deleted passages is left out.

    Args:
        datastore: What is published.
        repo_id: Where to; made if it does not exist.
        private: Whether a new repository is private. Default: what the account says.
        token: Of the Hub, if not the stored one.
        revision: Branch.
        licence: Of the texts, as the Hub writes it; yours to know.

    Returns:
        The address of the commit.
    """
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True).repo_id
    with tempfile.TemporaryDirectory() as folder:
        export_datastore(datastore, folder, repo_id, licence)
        commit = api.upload_folder(
            repo_id=repo_id,
            repo_type="dataset",
            folder_path=folder,
            revision=revision,
            delete_patterns="data/*",
            commit_message="Publish the datastore",
        )
    return commit.commit_url


def load_from_hub(
    repo_id: str,
    folder: str | os.PathLike,
    *,
    revision: str | None = None,
    token: str | None = None,
    cache_dir: str | os.PathLike | None = None,
    analyzer: str | Callable[[str], list[str]] | None = None,
) -> Datastore:
    """Make a datastore of a published one.

    Args:
        repo_id: A dataset of the Hub that `push_to_hub` made, or a folder that `export_datastore` wrote.
        folder: Where the datastore will be; must not exist.
        revision: Branch, tag or commit.
        token: Of the Hub, if not the stored one.
        cache_dir: Where the download is kept.
        analyzer: For the index. Default: the one it had.

    Returns:
        The datastore.

    Raises:
        FileExistsError: The folder exists.
        FileNotFoundError: The repository is not a datastore.
        ValueError: A file of it is damaged.
    """
    folder = Path(folder).absolute()
    if folder.exists():
        raise FileExistsError(f"a datastore is made in a new folder; {folder} exists. Name another or remove it.")
    source = Path(repo_id)
    if not source.is_dir():
        patterns = [MANIFEST, "data/*.parquet", f"{TOKENIZER}/*"]
        options: dict[str, Any] = {"revision": revision, "token": token, "cache_dir": cache_dir}
        source = Path(snapshot_download(repo_id, repo_type="dataset", allow_patterns=patterns, **options))
    folder.parent.mkdir(parents=True, exist_ok=True)
    # A folder of its own, not `FOLDER.unfinished`: there may be a build in it that was interrupted and will go on.
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as work:
        unfinished = Path(work, folder.name)
        unfinished.mkdir()
        datastore = _copy_datastore(source, unfinished, repo_id, analyzer)
        os.replace(unfinished, folder)
    return Datastore.load(folder, analyzer=datastore.analyzer.function)


def export_datastore(
    datastore: Datastore, folder: str | os.PathLike, name: str = "", licence: str | None = None
) -> None:
    """Write what `push_to_hub` publishes: passages as Parquet, manifest, tokenizer, card.

    Args:
        datastore: What is published.
        folder: Where to; made if it does not exist.
        name: Of the repository, for the card.
        licence: Of the texts, for the card.
    """
    folder = Path(folder)
    (folder / "data").mkdir(parents=True)
    shutil.copytree(datastore.folder / TOKENIZER, folder / TOKENIZER)
    manifest = replace(datastore.manifest, passages_hash="")
    deleted = pa.array(manifest.deleted, pa.int64())
    for number, part in enumerate(manifest.parts):
        with pa.memory_map(str(datastore.folder / part)) as source:
            table = pa.ipc.open_stream(source).read_all().select(list(FEATURES))
        is_deleted = pc.is_in(table["id"], deleted)
        for column, blank in (("document_id", ""), ("text", ""), ("input_ids", [])):
            place = table.schema.get_field_index(column)
            empty = pa.array([blank], SCHEMA.field(column).type)[0]
            table = table.set_column(place, SCHEMA.field(column), pc.if_else(is_deleted, empty, table[column]))
        manifest.passages_hash = _hash_table(manifest.passages_hash, table)
        pq.write_table(table, folder / "data" / f"train-{number:05}-of-{len(manifest.parts):05}.parquet")
    content = asdict(manifest) | {"parts": [], "files": {}, "index": None, "documents_hash": ""}
    write_json(folder / MANIFEST, content | {"fingerprint": manifest.fingerprint})
    metadata = DatasetCardData(
        license=licence,
        tags=["hf-domain", "datastore"],
        configs=[{"config_name": "default", "data_files": "data/*.parquet"}],
    )
    card = CARD.format(metadata=metadata, name=name, **(asdict(manifest) | {"num_passages": len(datastore)}))
    DatasetCard(card).save(folder / "README.md")


def _copy_datastore(
    source: Path, folder: Path, repo_id: str, analyzer: str | Callable[[str], list[str]] | None
) -> Datastore:
    """Make a datastore in an empty folder of what was published."""
    published = read_manifest(source)
    expected = json.loads((source / MANIFEST).read_text(encoding="utf-8"))["fingerprint"]
    shutil.copytree(source / TOKENIZER, folder / TOKENIZER)
    manifest = replace(published, passages_hash="", num_passages=0, parts=[], files={}, index=None, engine="tantivy")
    for file in tqdm(sorted((source / "data").glob("*.parquet")), desc="Copying passages", unit="file"):
        _copy_part(file, folder, manifest)
    if manifest.fingerprint != expected:
        raise ValueError(f"the passages of {repo_id} are not those that its {MANIFEST} describes. Publish them again.")
    if manifest.num_passages and not manifest.parts:
        raise ValueError(f"{repo_id} holds no passage. Publish it again.")
    write_json(folder / MANIFEST, asdict(manifest))
    datastore = Datastore.load(folder, analyzer=analyzer, rebuild_index=True)
    if fingerprint_tokenizer(datastore.tokenizer) != manifest.tokenizer:
        raise ValueError(f"the tokenizer of {repo_id} is not the one that cut the passages. Publish it again.")
    return datastore


def _copy_part(file: Path, folder: Path, manifest: Manifest) -> None:
    """Add a file of published passages to a datastore, not yet to its index."""
    table = pq.read_table(file, columns=list(FEATURES))
    hashes = pa.array([hash_text(text.as_py()) for text in table["text"]], pa.int64())
    ids = pa.array(range(manifest.num_passages, manifest.num_passages + len(table)), pa.int64())
    table = table.append_column("text_hash", hashes).set_column(0, "id", ids).cast(SCHEMA)
    part = f"passages-{len(manifest.parts):05}.arrow"
    with pa.OSFile(str(folder / part), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(table, max_chunksize=1000)
    manifest.passages_hash = _hash_table(manifest.passages_hash, table)
    manifest.num_passages += len(table)
    manifest.parts.append(part)
    manifest.files[part] = describe_file(folder / part)


def _hash_table(passages_hash: str, table: pa.Table) -> str:
    for batch in table.select(["document_id", "text"]).to_batches():
        for document_id, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            passages_hash = chain_hashes(passages_hash, document_id, text)
    return passages_hash
