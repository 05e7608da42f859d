"""Read retrieval tasks in the layout of BEIR: `corpus.jsonl`, `queries.jsonl`, and a table in `qrels/` for each split.

A row of a table names a query, a passage of the corpus, and how relevant the passage is to the query.
"""

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hf_domain.data.json_lines import read_rows

CORPUS, QUERIES, JUDGED = "corpus.jsonl", "queries.jsonl", ".tsv"
COLUMNS = ["query-id", "corpus-id", "score"]


def load_texts(file: Path) -> dict[str, str]:
    """Return the texts of a corpus or of queries by id; a title stands before its text.

    Raises:
        ValueError: A row has no id or no text, or an id occurs twice.
    """
    texts: dict[str, str] = {}
    for where, row in read_rows(file.name, file.parent):
        name, parts = row.get("_id"), [row.get("title") or "", row.get("text") or ""]
        text = " ".join(str(part).strip() for part in parts if str(part).strip())
        if not isinstance(name, str | int) or not text:
            raise ValueError(
                f"every row must have an _id and a text, but {where} lacks one. Fill it in or drop the row."
            )
        if str(name) in texts:
            raise ValueError(f"every _id must occur once, but {where} repeats {name}. Drop one of the rows.")
        texts[str(name)] = text
    return texts


def read_judgments(file: Path) -> dict[str, list[str]]:
    """Return for each query the ids of its relevant passages, those with a score above 0; without any it is left out.

    Raises:
        ValueError: The file is missing, has other columns, or a score that is no number.
    """
    if not file.is_file():
        raise ValueError(f"there is no file {file.name}")
    try:
        header, *rows = file.read_text(encoding="utf-8-sig").split("\n")
    except UnicodeDecodeError:
        raise ValueError(f"a file must hold text in UTF-8, but {file.name} does not") from None
    if header.rstrip("\r").split("\t") != COLUMNS:
        raise ValueError(
            f"the first line of {file.name} must name the columns {', '.join(COLUMNS)}, separated by tabs, but is "
            f"{header[:80]!r}. Add the line, or convert the file."
        )
    relevant: dict[str, list[str]] = defaultdict(list)
    for number, row in enumerate(rows, start=2):
        if not row.strip():
            continue
        try:
            query, passage, score = row.rstrip("\r").split("\t")
            is_relevant = float(score) > 0
        except ValueError:
            raise ValueError(
                f"a judgment must be two ids and a number, but line {number} of {file.name} is {row!r}. Correct it."
            ) from None
        if is_relevant and passage not in relevant[query]:
            relevant[query].append(passage)
    if not relevant:
        raise ValueError(f"{file.name} must have a relevant passage for some query, but has none")
    return dict(relevant)


def read_queries(judgments: Path, passages: Mapping[str, str], queries: Mapping[str, str]) -> list[dict[str, Any]]:
    """Return the queries of a split: `id`, `query`, the ids of the `relevant` passages, and their texts, `passages`.

    Args:
        judgments: Table of the split.
        passages: See `load_texts`.
        queries: The same.

    Raises:
        ValueError: See `read_judgments`; or a judgment names a query or a passage that is not there.
    """
    rows = []
    for query, relevant in read_judgments(judgments).items():
        if lacking := [name for name in relevant if name not in passages]:
            raise ValueError(f"every passage of {judgments.name} must be in {CORPUS}, but {lacking[0]} is not")
        if query not in queries:
            raise ValueError(f"every query of {judgments.name} must be in {QUERIES}, but {query} is not")
        texts = [passages[name] for name in relevant]
        rows.append({"id": query, "query": queries[query], "relevant": relevant, "passages": texts})
    return rows
