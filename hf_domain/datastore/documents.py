"""Choose the columns of documents for a datastore, and hold out documents for RADA's pre-training."""

import filecmp
import json
from pathlib import Path
from typing import Any

from datasets import Dataset, IterableDataset

from hf_domain.data.columns import find_document_columns
from hf_domain.safe_io import explain_full_disk, write_whole


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
    with explain_full_disk(Path(file).parent), write_whole(file) as unfinished:
        with unfinished.open("w", encoding="utf-8") as lines:
            lines.writelines(json.dumps({"text": row[text_column]}, ensure_ascii=False) + "\n" for row in held)
        if Path(file).exists() and not filecmp.cmp(unfinished, file, shallow=False):
            raise ValueError(f"--held_out_file must be a new file, but {file} holds something else. Name another.")
    return others
