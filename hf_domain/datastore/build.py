"""Build a datastore from documents, or continue an interrupted build."""

import itertools
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_domain.data.files import load_rows, open_saved
from hf_domain.data.tables import Rows, Splits, choose_splits, has_splits
from hf_domain.datastore.analysis import Analyzer, choose_analyzer
from hf_domain.datastore.elasticsearch_index import connect
from hf_domain.datastore.manifest import MANIFEST, TOKENIZER, Manifest, chain_hashes, read_manifest
from hf_domain.datastore.splitting import check_tokenizer, fingerprint_tokenizer, read_documents
from hf_domain.datastore.store import Datastore
from hf_domain.datastore.tantivy_index import import_tantivy
from hf_domain.safe_io import LOCK, lock_folder

logger = logging.getLogger(__name__)

LOOKED_AT = 10  # documents that decide which analyzer fits
COMMIT_CHARACTERS = 16_000_000  # text between two commits, which an interruption loses: some seconds of work
COMMIT_SHARE = 1 / 16  # and at least this share of the datastore, so that 100 GB are 100 files and not 6,000


def build_datastore(
    documents: Rows | Splits,
    folder: str | os.PathLike,
    tokenizer: PreTrainedTokenizerBase,
    *,
    text_column: str = "text",
    id_column: str | None = None,
    max_length: int = 256,
    analyzer: str | Callable[[str], list[str]] | None = None,
    engine: Literal["tantivy", "elasticsearch", "opensearch"] = "tantivy",
    client: Any = None,
    executor: Executor | None = None,
) -> Datastore:
    """Cut documents into passages and index them.

    The folder appears when it is complete. Until then the work is in `FOLDER.unfinished`; after an interruption, the
    same call continues there. The call of a finished build returns its datastore.

    Args:
        documents: Rows with one text each, in the same order in every call: files or an object, see `load_rows`. Of
            several splits, `train`.
        folder: Where the datastore will be.
        tokenizer: The tokenizer of the encoder that will read the passages.
        text_column: Column of the text. Blank documents are counted and give no passage.
        id_column: Column of the document's id. Default: the number of the row.
        max_length: Largest number of tokens in a passage, with special tokens. Default: RADA, section 4.1.
        analyzer: `english`, `standard`, `cjk` or a function, see `Analyzer`. Default: `cjk` if the first documents are
            Chinese, Japanese or Korean, else `english`.
        engine: The search engine: tantivy in this process, or a server that `client` or the environment names.
        client: Client of Elasticsearch or OpenSearch, or a function that makes one, see `Datastore.load`.
        executor: Where documents are cut and analyzed, see `hf_domain.clusters.open_executor`; the datastore is the
            same everywhere. Default: in this process.

    Raises:
        FileExistsError: The folder exists, and is not a datastore of these documents and options.
        ValueError: The documents, the tokenizer or the options are invalid, or differ from those of the interrupted
            build.
        OSError: The disk is full; make room and repeat the call to continue.
    """
    folder = Path(folder).absolute()
    check_tokenizer(tokenizer, max_length)
    if engine == "tantivy":
        import_tantivy()
    else:
        connect(engine, client)
    documents = open_saved(documents)
    documents = choose_splits(documents)["train"] if has_splits(documents) else load_rows(documents, "documents")
    rows = read_documents(documents, text_column, id_column, 0)
    first = list(itertools.islice(rows, LOOKED_AT))
    analyzer = _find_analyzer(analyzer, [text for _, text in first])
    begun = Manifest(
        max_length=max_length,
        tokenizer=fingerprint_tokenizer(tokenizer),
        analyzer=Analyzer(analyzer).name,
        analyzer_fingerprint=Analyzer(analyzer).fingerprint,
        engine=engine,
    )
    if folder.exists():
        if (folder / LOCK).exists():  # of a build that was killed when its folder had moved
            with lock_folder(folder):
                pass
        return _open_built(folder, begun, Analyzer(analyzer), itertools.chain(first, rows), client)
    datastore = _begin(Path(f"{folder}.unfinished"), begun, Analyzer(analyzer), tokenizer)
    datastore.client = client
    total = len(documents) if isinstance(documents, Dataset) else None
    with datastore._write(), tqdm(total=total, desc="Building the datastore", unit="document") as progress:
        rows = itertools.chain(first, rows)
        committed = datastore.manifest.num_documents
        if _hash_documents(itertools.islice(rows, committed))[0] != datastore.manifest.documents_hash:
            raise ValueError(
                f"an interrupted build must continue with the same documents, but the first {committed} have changed. "
                "Remove the unfinished folder to start over."
            )
        progress.update(committed)
        for row in rows:
            characters = max(COMMIT_CHARACTERS, datastore.manifest.num_characters * COMMIT_SHARE)
            datastore._append(_take(itertools.chain([row], rows), characters, progress), executor, False)
            datastore._remove_leftovers()  # each commit has an index of its own; nobody reads an unfinished datastore
        if not len(datastore):
            shutil.rmtree(datastore.folder)
            raise ValueError(
                f"a datastore must hold at least one passage, but {datastore.manifest.num_documents} documents "
                f"have none. Check that {text_column} is the right column."
            )
        if engine != "tantivy":
            datastore._build_on_server(datastore.manifest)
        os.replace(datastore.folder, folder)
    (folder / LOCK).unlink(missing_ok=True)  # it moved with the folder
    return Datastore(folder, datastore.manifest, datastore.analyzer, client)


def _open_built(
    folder: Path, begun: Manifest, analyzer: Analyzer, rows: Iterable[tuple[str, str]], client: Any
) -> Datastore:
    """Return a datastore that the same call has built, perhaps just before it was killed."""
    manifest = read_manifest(folder) if (folder / MANIFEST).exists() else begun
    is_same = _find_difference(begun, manifest) is None
    documents_hash, count = _hash_documents(rows if is_same else ())
    if not count or (documents_hash, count) != (manifest.documents_hash, manifest.num_documents):
        raise FileExistsError(
            f"a datastore must be built in a new folder, but {folder} exists. Name another or remove it."
        )
    logger.info(f"{folder} is already built from these documents.")
    return Datastore(folder, manifest, analyzer, client)


def _find_difference(begun: Manifest, manifest: Manifest) -> str | None:
    """Return the first option in which two builds differ."""
    names = ("max_length", "tokenizer", "analyzer", "analyzer_fingerprint", "engine")
    return next((name for name in names if getattr(begun, name) != getattr(manifest, name)), None)


def _find_analyzer(analyzer: str | Callable[[str], list[str]] | None, texts: list[str]) -> str | Callable:
    """Return the requested analyzer, or the one that fits these texts; warn if the requested one does not."""
    fitting = choose_analyzer(texts)
    if analyzer is None:
        logger.info(f"Using the analyzer {fitting}, chosen by the language of the first {len(texts)} documents.")
        return fitting
    if analyzer == "english" and fitting == "cjk":
        logger.warning(
            "The analyzer english splits Chinese, Japanese and Korean text into single characters, and these "
            "documents have many. Use cjk."
        )
    return analyzer


def _begin(folder: Path, begun: Manifest, analyzer: Analyzer, tokenizer: PreTrainedTokenizerBase) -> Datastore:
    """Open an unfinished datastore, or create an empty one."""
    if (folder / MANIFEST).exists() and (manifest := read_manifest(folder)).num_documents:
        if name := _find_difference(begun, manifest):
            raise ValueError(
                f"an interrupted build must continue with the same options, but {folder} was begun with {name} "
                f"{getattr(manifest, name)}, now {getattr(begun, name)}. Use the same options, or remove that folder."
            )
        return Datastore(folder, manifest, analyzer)
    folder.mkdir(parents=True, exist_ok=True)
    datastore = Datastore(folder, begun, analyzer)
    with lock_folder(folder):  # another running build may have committed nothing yet; its tokenizer must stay
        tokenizer.save_pretrained(folder / TOKENIZER)
        datastore._commit(begun)
    return datastore


def _hash_documents(rows: Iterable[tuple[str, str]]) -> tuple[str, int]:
    """Return the hash of documents, as a manifest has it, and their number."""
    documents_hash, count = "", 0
    for document_id, text in rows:
        documents_hash, count = chain_hashes(documents_hash, document_id, text), count + 1
    return documents_hash, count


def _take(rows: Iterable[tuple[str, str]], characters: float, progress: tqdm) -> Iterator[tuple[str, str]]:
    """Yield documents with this many characters in total."""
    for document_id, text in rows:
        yield document_id, text
        progress.update()
        characters -= len(text)
        if characters <= 0:
            return
