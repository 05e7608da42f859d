"""Build a datastore, add to one, or open one, as the flags of `hf-domain build_datastore` say."""

import filecmp
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from datasets import Dataset, IterableDataset, load_dataset
from transformers import AutoTokenizer

from hf_domain.clusters import open_executor
from hf_domain.data.columns import find_document_columns
from hf_domain.data.files import load_files
from hf_domain.datastore.build import build_datastore
from hf_domain.datastore.manifest import read_manifest
from hf_domain.datastore.store import Datastore
from hf_domain.safe_io import explain_full_disk


@dataclass
class DocumentArguments:
    """The documents; not needed with only `--query`, `--rebuild_index` or `--push_to_hub_id`."""

    train_file: list[str] = field(
        default_factory=list, metadata={"help": "Documents: .txt (one per line) .jsonl .json .csv (.gz .zst) .parquet."}
    )
    dataset_name: str | None = field(default=None, metadata={"help": "A dataset of the Hub instead of files."})
    dataset_config_name: str | None = field(default=None, metadata={"help": "Configuration of the dataset."})
    split: str = field(default="train", metadata={"help": "Split of the dataset."})
    text_column_name: str | None = field(
        default=None, metadata={"help": "Default: `text`, or the only column of text."}
    )
    id_column_name: str | None = field(default=None, metadata={"help": "Column of ids. Default: the row number."})
    streaming: bool = field(default=False, metadata={"help": "Read during the build, without a copy in the cache."})
    held_out_file: str | None = field(
        default=None,
        metadata={"help": "Write every tenth document to this .jsonl instead, for the pre-training of RADA."},
    )


@dataclass
class DatastoreArguments:
    """The datastore."""

    output_dir: str = field(metadata={"help": "Folder of the datastore."})
    model_name_or_path: str | None = field(
        default=None,
        metadata={"help": "Encoder whose tokenizer cuts the passages; needed for a new datastore, else checked."},
    )
    max_length: int | None = field(default=None, metadata={"help": "Tokens of a passage at most. Default: 256."})
    analyzer: Literal["english", "standard", "cjk"] | None = field(
        default=None,
        metadata={"help": "How to split words. Default: cjk for Chinese, Japanese and Korean, else english."},
    )
    engine: Literal["tantivy", "elasticsearch", "opensearch"] | None = field(
        default=None, metadata={"help": "Search in this process (tantivy, the default) or on a server."}
    )
    add: bool = field(default=False, metadata={"help": "Add the documents to an existing datastore."})
    rebuild_index: bool = field(
        default=False, metadata={"help": "Rebuild the index of an existing datastore, with --analyzer."}
    )
    dask_scheduler: str | None = field(
        default=None, metadata={"help": "Cut and analyze on a Dask cluster: address or file of its scheduler."}
    )
    push_to_hub_id: str | None = field(default=None, metadata={"help": "Push the datastore to this dataset."})
    query: list[str] = field(
        default_factory=list, metadata={"help": "Show the passages that these texts find, when the datastore is there."}
    )
    num_passages: int = field(default=10, metadata={"help": "Passages that a query finds at most."})


def read_documents(data_args: DocumentArguments) -> Dataset | IterableDataset:
    """Open the documents, of files or of a dataset."""
    if bool(data_args.train_file) == bool(data_args.dataset_name):
        raise ValueError(
            "the documents must come from files or from a dataset. Give either --train_file or --dataset_name."
        )
    if data_args.train_file:
        return load_files(data_args.train_file, streaming=data_args.streaming)
    return load_dataset(
        data_args.dataset_name, data_args.dataset_config_name, split=data_args.split, streaming=data_args.streaming
    )


def load_datastore(args: DatastoreArguments) -> Datastore:
    """Open an existing datastore, whose passages stay as they were cut."""
    name, tokenizer = args.model_name_or_path, None
    if name is not None:
        tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    options: dict[str, Any] = {"analyzer": args.analyzer, "rebuild_index": True} if args.rebuild_index else {}
    manifest = read_manifest(Path(args.output_dir))
    for name in ("max_length", "engine") if args.rebuild_index else ("max_length", "engine", "analyzer"):
        given, found = getattr(args, name), getattr(manifest, name)
        if given not in (None, found):
            kept = f"--{name} of {args.output_dir} must be the one it was built with, {found}, but is {given}."
            raise ValueError(f"{kept} Leave it out, or build another datastore; --rebuild_index changes an analyzer.")
    return Datastore.load(args.output_dir, tokenizer, **options)


def check_arguments(data_args: DocumentArguments, args: DatastoreArguments) -> None:
    """Raise a ValueError or a FileNotFoundError if flags contradict each other or lack something."""
    exists, has_documents = Path(args.output_dir).exists(), bool(data_args.train_file or data_args.dataset_name)
    if not all(query.strip() for query in args.query):
        raise ValueError("--query must be a text, but one is empty. Write what to search for.")
    if not exists and args.query and not has_documents:
        raise FileNotFoundError(f"--query needs a datastore, but {args.output_dir} does not exist. Build it first.")
    if not exists and (args.add or args.rebuild_index):
        raise ValueError(f"--add and --rebuild_index need a datastore, but {args.output_dir} does not exist.")
    if args.model_name_or_path is None and not (exists and (args.add or not has_documents)):
        raise ValueError("a new datastore needs an encoder's tokenizer to cut the passages. Give --model_name_or_path.")


def build_or_open(data_args: DocumentArguments, args: DatastoreArguments) -> Datastore:
    """Return the datastore of the flags: a new one, or an existing one, to which the documents are added."""
    check_arguments(data_args, args)
    has_documents = bool(data_args.train_file or data_args.dataset_name)
    # The command of a finished build, perhaps killed at its very end, may be repeated.
    opens = Path(args.output_dir).exists() and (args.add or not has_documents)
    datastore = load_datastore(args) if opens else None
    return build_or_add(data_args, args, datastore) if datastore is None or has_documents else datastore


def build_or_add(data_args: DocumentArguments, args: DatastoreArguments, datastore: Datastore | None) -> Datastore:
    """Add the documents to a datastore, or to a new one."""
    documents = read_documents(data_args)
    columns: dict[str, Any] = choose_columns(documents, data_args.text_column_name, data_args.id_column_name)
    if data_args.held_out_file:
        documents = hold_out_every_tenth(documents, columns["text_column"], data_args.held_out_file)
    with open_executor(dask_scheduler=args.dask_scheduler) as executor:
        if datastore is not None:
            sys.stdout.write(f"{datastore.add(documents, **columns, executor=executor):,} new passages\n")
            return datastore
        tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path, trust_remote_code=False)
        options: dict[str, Any] = columns | {"max_length": args.max_length or 256, "engine": args.engine or "tantivy"}
        options |= {"analyzer": args.analyzer, "executor": executor}
        try:
            return build_datastore(documents, args.output_dir, tokenizer, **options)
        except FileExistsError as error:
            raise FileExistsError(f"{error} Or use --add.") from None


def choose_columns(
    documents: Dataset | IterableDataset, text_column: str | None, id_column: str | None
) -> dict[str, str | None]:
    """Return the columns as `build_datastore` takes them.

    Raises:
        ValueError: A column is missing, or the documents have two texts.
    """
    columns = find_document_columns(documents, text_column)
    if len(columns) > 1:
        raise ValueError(
            f"A document of a datastore must be one text, but there are {' and '.join(columns)}. Name one by "
            f"--text_column_name {columns[0]}; then the same command with --add and --text_column_name {columns[1]} "
            "adds the other."
        )
    names: dict[str, Any] = next(iter(documents), {})
    if id_column and id_column not in names:
        raise ValueError(f"--id_column_name must be a column of the documents, {', '.join(names)}, but is {id_column}")
    return {"text_column": columns[0], "id_column": id_column}


def hold_out_every_tenth(documents: Any, text_column: str, file: str) -> Any:
    """Write every tenth document to a file and return the others.

    Args:
        documents: A `Dataset` or `IterableDataset`.
        text_column: What is written.
        file: A .jsonl; it may be there already, of a run that was killed.

    Raises:
        ValueError: The file has another ending or other content.
    """
    if not file.endswith(".jsonl"):
        raise ValueError(f"--held_out_file must end in .jsonl, but is {file}")
    held, others = (
        documents.filter(lambda _, number, is_held=is_held: (number % 10 == 9) == is_held, with_indices=True)
        for is_held in (True, False)
    )
    unfinished = f"{file}.unfinished"  # always the same: a repeated command replaces what a killed one left
    with explain_full_disk(Path(file).parent), open(unfinished, "w", encoding="utf-8") as lines:
        lines.writelines(json.dumps({"text": row[text_column]}, ensure_ascii=False) + "\n" for row in held)
    if Path(file).exists() and not filecmp.cmp(unfinished, file, shallow=False):
        os.remove(unfinished)
        raise ValueError(f"--held_out_file must be a new file, but {file} holds something else. Name another.")
    os.replace(unfinished, file)
    return others
