"""Datastores on the Hub, as dataset repositories that `load_dataset` reads too.

The index is not uploaded: downloading rebuilds it from the passages within minutes, by the installed version.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from huggingface_hub import DatasetCard, DatasetCardData, HfApi, snapshot_download
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_domain.datastore.manifest import MANIFEST, SCHEMA, TOKENIZER, Manifest, describe_file, read_manifest
from hf_domain.datastore.splitting import FEATURES, fingerprint_tokenizer, hash_text
from hf_domain.datastore.store import Datastore
from hf_domain.datastore.verification import check_rows, load_tokenizer
from hf_domain.extras import name_package
from hf_domain.safe_io import read_json, write_json

BATCH_ROWS, GROUP_ROWS = 256, 10_000

CARD = """---
{metadata}
---

# {name}

{num_passages:,} passages of at most {max_length} tokens for retrieval-augmented domain adaptation, cut by
{package} from {num_documents:,} documents.

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
    license: str | None = None,
) -> str:
    """Publish the passages as a dataset, in one commit. The text of deleted passages is left out.

    Args:
        repo_id: The repository; created if missing.
        private: Whether a new repository is private. Default: the account's setting.
        token: Hub token, if not the stored one.
        license: License of the texts, in the Hub's spelling; only you know it.

    Returns:
        The address of the commit.
    """
    api = HfApi(token=token)
    repo_id = api.create_repo(repo_id, repo_type="dataset", private=private, exist_ok=True).repo_id
    with tempfile.TemporaryDirectory() as folder:
        export_datastore(datastore, folder, repo_id, license)
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
    """Download a published datastore and build its index.

    Args:
        repo_id: A dataset on the Hub made by `push_to_hub`, or a folder written by `export_datastore`.
        folder: Where the datastore will be; must not exist.
        token: Hub token, if not the stored one.
        analyzer: For the index. Default: the published one.

    Raises:
        FileExistsError: The folder exists.
        FileNotFoundError: The repository is not a datastore.
        ValueError: One of its files is damaged.
    """
    folder = Path(folder).absolute()
    if folder.exists():
        raise FileExistsError(
            f"a datastore must be made in a new folder, but {folder} exists. Name another or remove it."
        )
    source = Path(repo_id)
    if not source.is_dir():
        options: dict[str, Any] = {"revision": revision, "token": token, "cache_dir": cache_dir}
        options["allow_patterns"] = [MANIFEST, "data/*.parquet", f"{TOKENIZER}/*"]
        source = Path(snapshot_download(repo_id, repo_type="dataset", **options))
    folder.parent.mkdir(parents=True, exist_ok=True)
    # Not `FOLDER.unfinished`, which may hold an interrupted build that will continue.
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as work:
        unfinished = Path(work, folder.name)
        unfinished.mkdir()
        _copy_datastore(source, unfinished, repo_id)
        datastore = Datastore.load(unfinished, analyzer=analyzer, rebuild_index=True)
        os.replace(unfinished, folder)
    return Datastore.load(folder, analyzer=datastore.analyzer.function)


def export_datastore(
    datastore: Datastore, folder: str | os.PathLike, name: str = "", license: str | None = None
) -> None:
    """Write what `push_to_hub` publishes: passages as Parquet, manifest, tokenizer, card.

    Args:
        folder: Created if missing.
        name: Name of the repository, for the card.
        license: License of the texts, for the card.
    """
    folder = Path(folder)
    (folder / "data").mkdir(parents=True)
    shutil.copytree(datastore.folder / TOKENIZER, folder / TOKENIZER)
    manifest = replace(datastore.manifest, passages_hash="", num_passages=0)
    deleted = pa.array(manifest.deleted, pa.int64())
    for number, part in enumerate(manifest.parts):
        with pa.memory_map(str(datastore.folder / part)) as source:
            table = pa.ipc.open_stream(source).read_all().select(list(FEATURES))
        is_deleted = pc.is_in(table["id"], deleted)
        for column, blank in (("document_id", ""), ("text", ""), ("input_ids", [])):
            place = table.schema.get_field_index(column)
            empty = pa.array([blank], SCHEMA.field(column).type)[0]
            table = table.set_column(place, SCHEMA.field(column), pc.if_else(is_deleted, empty, table[column]))
        for batch in table.to_batches(BATCH_ROWS):
            for _, *passage in zip(*batch.to_pydict().values(), strict=True):
                manifest.count_passage(*passage)
        file = folder / "data" / f"train-{number:05}-of-{len(manifest.parts):05}.parquet"
        pq.write_table(table, file, row_group_size=GROUP_ROWS)
    content = asdict(manifest) | {"parts": [], "files": {}, "index": None, "documents_hash": ""}
    write_json(folder / MANIFEST, content | {"fingerprint": manifest.fingerprint})
    metadata = DatasetCardData(
        license=license,
        tags=["hf-domain", "datastore"],
        configs=[{"config_name": "default", "data_files": "data/*.parquet"}],
    )
    facts = asdict(manifest) | {"num_passages": len(datastore), "package": name_package()}
    card = CARD.format(metadata=metadata, name=name, **facts)
    DatasetCard(card).save(folder / "README.md")


def _copy_datastore(source: Path, folder: Path, repo_id: str) -> None:
    """Copy a published datastore, all but its index, into an empty folder."""
    published = read_manifest(source)
    expected = read_json(source / MANIFEST).get("fingerprint")
    if expected is None:
        raise ValueError(
            f"load_from_hub needs a published datastore, but {repo_id} is a working folder. Open it with "
            "Datastore.load, or publish it with push_to_hub."
        )
    tokenizer = load_tokenizer(source)
    if fingerprint_tokenizer(tokenizer) != published.tokenizer:
        raise ValueError(
            f"the tokenizer of {repo_id} must be the one that cut its passages, but is not. Publish the datastore "
            "again."
        )
    shutil.copytree(source / TOKENIZER, folder / TOKENIZER)
    manifest = replace(published, passages_hash="", num_passages=0, parts=[], files={}, index=None, engine="tantivy")
    for file in tqdm(sorted((source / "data").glob("*.parquet")), desc="Copying passages", unit="file"):
        _copy_part(file, folder, manifest, tokenizer, {*published.deleted})
    if manifest.fingerprint != expected or manifest.num_passages != published.num_passages:
        raise ValueError(
            f"the passages of {repo_id} must be those that its {MANIFEST} describes, but are not. Publish the "
            "datastore again."
        )
    write_json(folder / MANIFEST, asdict(manifest))


def _copy_part(
    file: Path, folder: Path, manifest: Manifest, tokenizer: PreTrainedTokenizerBase, deleted: set[int]
) -> None:
    """Add a file of published passages to a datastore, but not to its index."""
    part = f"passages-{len(manifest.parts):05}.arrow"
    with pa.OSFile(str(folder / part), "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
        for rows in _read_rows(file):
            check_rows(rows, manifest, tokenizer, deleted)
            rows["text_hash"] = [hash_text(text) for text in rows["text"]]
            writer.write_batch(pa.RecordBatch.from_pydict(rows, SCHEMA))
    manifest.parts.append(part)
    manifest.files[part] = describe_file(folder / part)


def _read_rows(file: Path) -> Iterator[dict[str, list]]:
    """Yield the passages of a file in batches."""
    try:
        source = pq.ParquetFile(file)
        if source.schema_arrow.names != list(FEATURES) or source.schema_arrow.field("input_ids") != SCHEMA.field(3):
            raise pa.ArrowInvalid(f"its columns are {', '.join(source.schema_arrow.names)}")
        for batch in source.iter_batches(BATCH_ROWS):
            if any(column.null_count for column in batch.columns):
                raise pa.ArrowInvalid("its passages have missing values")
            yield batch.to_pydict()
    except (pa.ArrowException, KeyError, OSError) as error:
        raise ValueError(
            f"published passages must be Parquet as push_to_hub writes it, but {file} is not: {error}. Publish "
            "the datastore again."
        ) from error
