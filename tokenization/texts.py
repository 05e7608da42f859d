"""Read the texts of a corpus, and refuse everything else."""

import os
from collections.abc import Iterable, Iterator
from typing import Any


def read_texts(corpus: Any) -> Iterator[str]:
    """Yield the texts of a corpus.

    A table (`datasets.Dataset`, `pandas.DataFrame`) gives its column `text`, or its only column of text; several splits
    (`datasets.DatasetDict`) give `train`. A string or a dictionary is iterable too, and without a check its characters
    or keys would count as documents.

    Raises:
        TypeError: The corpus is not an iterable of texts.
    """
    for number, text in enumerate(_find_texts(corpus)):
        if text is not None and not isinstance(text, str):
            raise TypeError(
                f"each document must be a string, but document {number} is of type {type(text).__name__}. Pass only "
                'the texts, e.g. `(row["text"] for row in rows)`.'
            )
        yield text or ""


def _find_texts(corpus: Any) -> Iterable[Any]:
    found = f"texts must be an iterable of strings, but are of type {type(corpus).__name__}"
    if isinstance(corpus, str | bytes | os.PathLike):
        raise TypeError(f"{found}. Pass a list of texts; for a file, open it and pass the file: each line is a text.")
    if isinstance(corpus, dict):
        if hasattr(corpus.get("train"), "column_names"):
            return _find_texts(corpus["train"])
        raise TypeError(f"{found} with the keys {_join(corpus)}. Pass the texts of one of them.")
    if hasattr(corpus, "columns") and hasattr(corpus, "dtypes"):
        # pandas calls a column of strings `object` or `string`; a column of numbers fails at its first value.
        texts = [name for name, kind in corpus.dtypes.items() if str(kind).startswith(("object", "str"))]
        return (None if text != text else text for text in corpus[_choose(texts, corpus.columns, found)])
    if isinstance(names := getattr(corpus, "column_names", None), list):
        features = getattr(corpus, "features", None) or {}
        texts = [name for name in names if getattr(features.get(name), "dtype", None) in ("string", "large_string")]
        column = _choose(texts, names, found)
        return (row[column] for row in corpus.select_columns(column))
    if not isinstance(corpus, Iterable):
        raise TypeError(f"{found}. Pass a list of texts.")
    return corpus


def _choose(texts: list[str], names: Iterable[Any], found: str) -> str:
    if "text" in texts:
        return "text"
    if len(texts) != 1:
        raise TypeError(f'{found} with the columns {_join(names)}. Pass one column, e.g. `table["text"]`.')
    return texts[0]


def _join(names: Iterable[Any]) -> str:
    return ", ".join(map(str, names)) or "(none)"
