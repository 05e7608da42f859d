"""Find documents that share word sequences with the items of a task: training on them would leak the test."""

import re
from collections.abc import Iterable, Iterator

# Usual for test sets of language models; our own corpora were filtered with it.
RUNNING_WORDS = 10
# Chinese and Japanese have no spaces between words: each character counts as a word.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")


def list_runs(text: str, length: int = RUNNING_WORDS) -> Iterator[str]:
    """Yield each sequence of `length` words, in lower case and without punctuation."""
    words = WORD.findall(text.lower())
    for start in range(len(words) - length + 1):
        yield " ".join(words[start : start + length])


def find_clean(documents: Iterable[str], items: Iterable[str]) -> list[int]:
    """Return the numbers of the documents that share no sequence of ten words with any item.

    Items of fewer than ten words are ignored.

    Args:
        documents: Documents of a corpus.
        items: Texts of a task.
    """
    known = {run for item in items for run in list_runs(item)}
    return [number for number, text in enumerate(documents) if known.isdisjoint(list_runs(text))]
