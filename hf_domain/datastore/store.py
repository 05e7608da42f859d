"""A datastore is a folder of passages and an index over them.

    datastore.json          the manifest: what belongs to the datastore, with sizes and checksums
    passages-00000.arrow    passages, memory-mapped; further files for what was added later
    index-000001/           the index of tantivy; none if a server searches
    tokenizer/              the tokenizer that cut the passages

A file is written once and never changed. New files are written beside the old ones and become valid when the manifest
is replaced. A killed process or a full disk leaves the datastore as it was, and the next writer removes the leftovers.
Files with other names do not belong to the datastore and are never touched.
"""

import itertools
import operator
import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from datasets import Dataset, IterableDataset, concatenate_datasets
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from hf_domain.clusters import map_in_order
from hf_domain.datastore.analysis import Analyzer
from hf_domain.datastore.elasticsearch_index import ElasticsearchIndex, build_index, connect
from hf_domain.datastore.manifest import (
    INDEX,
    MANIFEST,
    PART,
    SCHEMA,
    TOKENIZER,
    Manifest,
    chain_hashes,
    describe_file,
    read_manifest,
)
from hf_domain.datastore.splitting import FEATURES, fingerprint_tokenizer, hash_text, read_documents, split_documents
from hf_domain.datastore.tantivy_index import TantivyIndex, import_tantivy, write_index
from hf_domain.datastore.verification import check_rows, find_analyzer, load_tokenizer
from hf_domain.safe_io import lock_folder, write_json

LOST = "client"  # stands for a client that cannot be pickled
# Files that a failed writer may leave behind.
WRITTEN = re.compile(rf"{PART.pattern}|{INDEX.pattern}|datastore\.json\.(\w+\.)?unfinished")
BATCH_SIZE = 1000  # documents tokenized at once


class Datastore:
    """Passages and the index over them.

    `build_datastore` makes one, `Datastore.load` opens one. A pickled datastore opens its folder again.

    Attributes:
        manifest: The content of the datastore.
    """

    def __init__(self, folder: Path, manifest: Manifest, analyzer: Analyzer, client: Any = None):
        self.folder = folder
        self.manifest = manifest
        self.analyzer = analyzer
        self.client = client

    @classmethod
    def load(
        cls,
        folder: str | os.PathLike,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        analyzer: str | Callable[[str], list[str]] | None = None,
        rebuild_index: bool = False,
        client: Any = None,
    ) -> Self:
        """Open a datastore. Passages are memory-mapped; the files of the index are read once to compare checksums.

        Args:
            tokenizer: The tokenizer of the model that will read the passages; checked if given.
            analyzer: The function that made the index, if it was a function. With `rebuild_index`, any analyzer.
            rebuild_index: Make the index again from the passages: if it is damaged or of another version, or to change
                the analyzer.
            client: Client of Elasticsearch or OpenSearch, or a function without arguments that makes one, which
                `num_proc` needs. Default: made from the environment, see `elasticsearch_index.connect`.

        Raises:
            ValueError: The tokenizer, analyzer or version is another one, or a file is damaged.
        """
        folder = Path(folder).absolute()
        manifest = read_manifest(folder)
        if tokenizer is not None and fingerprint_tokenizer(tokenizer) != manifest.tokenizer:
            raise ValueError(
                f"a datastore must be read with the tokenizer that cut it, {folder / TOKENIZER}, but this is "
                f"{tokenizer.name_or_path or type(tokenizer).__name__}. Build a datastore for this tokenizer."
            )
        datastore = cls(folder, manifest, find_analyzer(manifest, analyzer, rebuild_index), client)
        datastore._check_files(manifest.parts)
        if rebuild_index:
            with datastore._write():
                datastore._commit_index(replace(datastore.manifest))
        else:
            datastore._check_index()
        return datastore

    def __getstate__(self) -> dict[str, Any]:
        analyzer = self.analyzer.function or self.analyzer.name
        client = self.client if callable(self.client) else self.client and LOST
        state = {"folder": str(self.folder), "analyzer": analyzer, "fingerprint": self.fingerprint, "client": client}
        # What was found is cached by this state; a function is pickled by its name, whatever it computes.
        return state | {"analyzer_fingerprint": self.analyzer.fingerprint}

    def __setstate__(self, state: dict[str, Any]) -> None:
        manifest = read_manifest(Path(state["folder"]))
        analyzer, client = Analyzer(state["analyzer"]), state["client"]
        self.__init__(Path(state["folder"]), manifest, analyzer, client)  # type: ignore[misc]
        if (self.analyzer.fingerprint, self.fingerprint) != (manifest.analyzer_fingerprint, state["fingerprint"]):
            raise ValueError(f"a datastore must not change while it is searched, but {self.folder} did. Start again.")

    def __len__(self) -> int:
        """Number of passages that are not deleted."""
        return self.manifest.num_findable

    @property
    def fingerprint(self) -> str:
        """A digest that changes with the passages, and with nothing else."""
        return self.manifest.fingerprint

    @cached_property
    def passages(self) -> Dataset:
        """All passages, including deleted ones, memory-mapped: row i has the id i.

        Columns `id` (int64), `document_id` (string), `text` (string), `input_ids` (list of int32, with special
        tokens).
        """
        return self._table.select_columns(list(FEATURES))

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """The tokenizer that cut the passages."""
        return load_tokenizer(self.folder)

    @cached_property
    def connection(self) -> Any:
        """The client of the search server."""
        if self.client == LOST:
            raise ValueError(
                "a datastore that is searched in several processes must make its own client in each, but has one that "
                "cannot be sent to them. Pass client=FUNCTION, which returns a client, or name the server in the "
                "environment."
            )
        return connect(self.manifest.engine, self.client)

    @cached_property
    def index(self) -> Any:
        """The index, opened on first use."""
        if self.manifest.engine != "tantivy":
            return ElasticsearchIndex(self.manifest, self.analyzer, self.connection)
        if self.manifest.index is None:
            raise ValueError(
                f"{self.folder} must have an index, but has none: its build was interrupted. Build it again."
            )
        return TantivyIndex(self.folder / self.manifest.index, self.analyzer)

    def search(self, texts: Sequence[str], k: int = 10) -> list[tuple[list[int], list[float]]]:
        """Find passages by BM25 (k1 = 1.2, b = 0.75).

        Args:
            k: Largest number of passages for each query. Default: RADA, section 4.1.

        Returns:
            For each query ids and scores, best first; of equal scores the lowest id first. Fewer than k if no more
            passages share a term with the query.
        """
        if isinstance(texts, str):
            raise ValueError(f"texts must be a list of queries, but is the text {texts[:50]!r}. Put it into a list.")
        if k < 1:
            raise ValueError(f"k, the number of passages to find, must be at least 1, but is {k}")
        return self.index.search(texts, k)

    def read_texts(self) -> Iterator[tuple[int, str]]:
        """Yield ids and texts of the passages that are not deleted, in order."""
        hidden = set(self.manifest.deleted)
        for batch in self._table.data.select(["id", "text"]).to_batches():
            for number, text in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if number not in hidden:
                    yield number, text

    def find_texts(self, texts: Iterable[str]) -> list[int | None]:
        """Return the ids of the passages with exactly these texts, None for a text without one."""
        hashes, ids = self._sorted_hashes
        wanted = np.array([hash_text(text) for text in texts], np.int64)
        places = np.searchsorted(hashes, wanted)
        found = np.zeros(len(wanted), bool)
        if len(hashes):
            found = hashes[np.minimum(places, len(hashes) - 1)] == wanted
        return [int(ids[place]) if is_found else None for place, is_found in zip(places, found, strict=True)]

    def add(
        self,
        documents: Dataset | IterableDataset,
        *,
        text_column: str = "text",
        id_column: str | None = None,
        executor: Executor | None = None,
    ) -> int:
        """Add documents: all of them, or none if anything goes wrong.

        Args:
            documents: As for `build_datastore`.
            id_column: As for `build_datastore`. Default: numbers that continue from the last one.
            executor: As for `build_datastore`.

        Returns:
            The number of new passages. Passages that the datastore already holds are skipped.

        Raises:
            ValueError: Another process is writing or has changed the analyzer, or a document has no text.
        """
        with self._write():
            before = self.manifest.num_passages
            rows = read_documents(documents, text_column, id_column, self.manifest.num_documents)
            self._append(rows, executor)
        return self.manifest.num_passages - before

    def delete(self, passage_ids: Iterable[int] = (), document_ids: Iterable[str] = ()) -> int:
        """Remove passages, and index the others again.

        Rows and ids stay; only a new build removes the text from the disk. A text that several documents have is one
        passage, which belongs to the first of them.

        Args:
            document_ids: Documents whose passages are all deleted.

        Returns:
            The number of deleted passages.

        Raises:
            TypeError: An id of a passage is no whole number, or the ids of documents are one string, which would be
                taken letter by letter.
            ValueError: A passage or document does not exist, or another process is writing or has changed the analyzer.
        """
        if isinstance(document_ids, str):
            raise TypeError(
                f"document_ids must be a list of ids, but is the string {document_ids!r}. Put it into a list."
            )
        numbers, names = {operator.index(number) for number in passage_ids}, {*document_ids}
        with self._write():
            missing: set[Any] = {number for number in numbers if not 0 <= number < self.manifest.num_passages}
            if names:
                documents = self._table.data["document_id"]
                rows = pc.indices_nonzero(pc.is_in(documents, pa.array(names, pa.string())))
                numbers |= set(rows.to_pylist())
                missing |= names - set(documents.take(rows).to_pylist())
            if missing:
                raise ValueError(
                    "only passages and documents of the datastore can be deleted, and "
                    f"{', '.join(sorted(map(str, missing)))} is not there. A text that an earlier document "
                    "has as well is a passage of that one."
                )
            numbers -= set(self.manifest.deleted)
            if numbers:
                self._commit_index(replace(self.manifest, deleted=sorted({*self.manifest.deleted, *numbers})))
        return len(numbers)

    def verify(self) -> None:
        """Read everything: compare all files with their checksums, and tokenize all texts again.

        Use it for a datastore that somebody else built. It proves that the model reads what the passages show.

        Raises:
            ValueError: A file is damaged, or a passage's tokens are not those of its text.
        """
        self._check_files(tqdm(self.manifest.files, desc="Verifying", unit="file", delay=2), read=True)
        found, deleted = replace(self.manifest, passages_hash="", num_passages=0), set(self.manifest.deleted)
        with tqdm(total=self.manifest.num_passages, desc="Verifying", unit="passage", delay=2) as progress:
            for rows in self.passages.iter(BATCH_SIZE):
                check_rows(rows, found, self.tokenizer, deleted)
                progress.update(len(rows["id"]))
        if found.fingerprint != self.fingerprint:
            raise ValueError(
                f"the passages of {self.folder} must be those of its {MANIFEST}, but are not. Build the datastore "
                "again."
            )

    @cached_property
    def _table(self) -> Dataset:
        parts = [Dataset.from_file(str(self.folder / part)) for part in self.manifest.parts]
        return concatenate_datasets(parts) if parts else Dataset(SCHEMA.empty_table())

    @cached_property
    def _sorted_hashes(self) -> tuple[np.ndarray, np.ndarray]:
        """Hashes of the texts that are not deleted, in ascending order, with their ids."""
        ids = np.delete(np.arange(self.manifest.num_passages), np.array(self.manifest.deleted, int))
        hashes = self._table.data["text_hash"].to_numpy()[ids]
        order = np.argsort(hashes, kind="stable")
        return hashes[order], ids[order]

    @contextmanager
    def _write(self) -> Iterator[None]:
        """Keep other writers out, and remove the leftovers of failed ones."""
        with lock_folder(self.folder):
            self._refresh()
            self._remove_leftovers()
            try:
                yield
            except BaseException:
                self._remove_leftovers()
                raise
            finally:
                self.__dict__.pop("_known", None)

    def _refresh(self) -> None:
        """Load what was committed since opening, so that the next write neither replaces it nor removes its files."""
        manifest = read_manifest(self.folder)
        for name in ("max_length", "tokenizer", "analyzer_fingerprint", "engine"):
            ours, theirs = getattr(self.manifest, name), getattr(manifest, name)
            if ours != theirs:
                raise ValueError(
                    f"the datastore changed after it was loaded: {self.folder} now has {name} {theirs} instead of "
                    f"{ours}. Load it again."
                )
        if manifest != self.manifest:
            self._adopt(manifest)

    def _remove_leftovers(self) -> None:
        """Remove our files that the manifest on the disk does not name; an interrupt may come right after a commit."""
        if not self.folder.exists():
            return
        manifest = read_manifest(self.folder)
        for path in self.folder.iterdir():
            if WRITTEN.fullmatch(path.name) and path.name not in (manifest.index, *manifest.parts):
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink()

    def _append(
        self, documents: Iterable[tuple[str, str]], executor: Executor | None = None, is_last: bool = True
    ) -> None:
        """Write documents as one more part, index them and commit both. A server indexes only after the last part."""
        manifest = replace(self.manifest, parts=[*self.manifest.parts], files={**self.manifest.files})
        part = f"passages-{len(manifest.parts):05}.arrow"
        passages = self._write_part(self.folder / part, documents, manifest, executor)
        if manifest.engine == "tantivy":
            index = self._name_index()
            base = self.folder / self.manifest.index if self.manifest.index else None
            write_index(self.folder / index, self.analyzer, passages, base=base)
            self._describe_index(manifest, index)
        else:
            for _ in passages:
                pass
        if manifest.num_passages > self.manifest.num_passages:
            manifest.parts.append(part)
            manifest.files[part] = describe_file(self.folder / part)
        else:
            (self.folder / part).unlink()
        if manifest.engine != "tantivy" and is_last:
            self._build_on_server(manifest)
        self._commit(manifest)

    def _write_part(
        self, file: Path, documents: Iterable[tuple[str, str]], manifest: Manifest, executor: Executor | None
    ) -> Iterator[tuple[int, str | list[str]]]:
        """Write passages to a file, count them in the manifest, and yield what the index needs of them."""
        documents = iter(documents)
        batches, kept = itertools.tee(iter(lambda: list(itertools.islice(documents, BATCH_SIZE)), []))
        # Workers analyze all passages; without them, duplicates are dropped before.
        analyzer = self.analyzer if executor is not None and manifest.engine == "tantivy" else None
        splits = map_in_order(executor, split_documents, batches, self.tokenizer, manifest.max_length, analyzer)
        with open(file, "wb") as sink, pa.ipc.new_stream(sink, SCHEMA) as writer:
            for batch, split in zip(kept, splits, strict=True):
                rows: list[dict[str, Any]] = []
                indexed: list[tuple[int, str | list[str]]] = []
                for (document_id, text), passages in zip(batch, split, strict=True):
                    manifest.num_documents += 1
                    manifest.num_characters += len(text)
                    manifest.documents_hash = chain_hashes(manifest.documents_hash, document_id, text)
                    for passage, text_hash, terms in passages:
                        if text_hash in self._known:
                            manifest.num_duplicates += 1
                            continue
                        self._known.add(text_hash)
                        indexed.append((manifest.num_passages, terms))
                        values = (manifest.num_passages, document_id, passage.text, passage.input_ids, text_hash)
                        rows.append(dict(zip(SCHEMA.names, values, strict=True)))
                        manifest.count_passage(document_id, passage.text, passage.input_ids)
                writer.write_batch(pa.RecordBatch.from_pylist(rows, SCHEMA))
                yield from indexed

    @cached_property
    def _known(self) -> set[int]:
        """Hashes of the texts that are not deleted: about 70 bytes of memory each, while passages are added."""
        return set(self._sorted_hashes[0].tolist())

    def _commit_index(self, manifest: Manifest) -> None:
        """Write the next index from all passages that are not deleted, and commit it.

        Deleted from an index, passages would keep counting in the scores of the others.
        """
        if manifest.engine == "tantivy":
            index = self._name_index()
            passages = Datastore(self.folder, manifest, self.analyzer).read_texts()
            write_index(self.folder / index, self.analyzer, passages)
            self._describe_index(manifest, index)
        else:
            self._build_on_server(manifest)
        manifest.analyzer, manifest.analyzer_fingerprint = self.analyzer.name, self.analyzer.fingerprint
        self._commit(manifest)

    def _build_on_server(self, manifest: Manifest) -> None:
        passages = Datastore(self.folder, manifest, self.analyzer).read_texts()
        build_index(manifest, self.analyzer, passages, self.connection)

    def _name_index(self) -> str:
        return f"index-{int((self.manifest.index or 'index-0').rpartition('-')[2]) + 1:06}"

    def _describe_index(self, manifest: Manifest, index: str) -> None:
        """Put the files of an index into the manifest; segments have equal names only if they are equal."""
        known = {Path(name).name: details for name, details in manifest.files.items() if name not in manifest.parts}
        manifest.files = {name: details for name, details in manifest.files.items() if name in manifest.parts}
        for file in sorted((self.folder / index).iterdir()):
            is_segment = not file.name.endswith(".json")
            details = known.get(file.name) if is_segment else None
            manifest.files[f"{index}/{file.name}"] = details or describe_file(file)
        manifest.index, manifest.engine_version = index, import_tantivy().__version__

    def _commit(self, manifest: Manifest) -> None:
        write_json(self.folder / MANIFEST, asdict(manifest))
        self._adopt(manifest)

    def _adopt(self, manifest: Manifest) -> None:
        self.manifest = manifest
        for name in ("passages", "index", "_table", "_sorted_hashes"):
            self.__dict__.pop(name, None)

    def _check_index(self) -> None:
        self._check_files([name for name in self.manifest.files if name not in self.manifest.parts], read=True)
        _ = self.index  # fails here, not at the first search

    def _check_files(self, names: Iterable[str], read: bool = False) -> None:
        """Compare the sizes of files with those in the manifest and, if they are read, their checksums, too."""
        for name in names:
            file, expected = self.folder / name, self.manifest.files[name]
            size = file.stat().st_size if file.exists() else None
            if size is None:
                damage = "is missing"
            elif size != expected["size"]:
                damage = f"has {size} bytes instead of {expected['size']}"
            elif read and describe_file(file)["sha256"] != expected["sha256"]:
                damage = "does not have the checksum that it was written with"
            else:
                continue
            remedy = "Build the datastore again."
            if name not in self.manifest.parts:
                remedy = "Make the index again from the passages: Datastore.load(..., rebuild_index=True)."
            raise ValueError(f"{file} {damage}. {remedy}")
