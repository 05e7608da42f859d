"""Documents that share running words with the items of a task: a model that was trained on them knows the test."""

import re
from collections.abc import Iterable, Iterator

# As is usual for test sets of language models; our corpora were filtered so, too.
RUNNING_WORDS = 10
# Chinese and Japanese write no blanks: there a character counts as a word.
WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\W_\u3040-\u30ff\u3400-\u9fff]+")


def list_runs(text: str, length: int = RUNNING_WORDS) -> Iterator[str]:
    """Yield every `length` words that follow each other, in lower case and without punctuation."""
    words = WORD.findall(text.lower())
    for start in range(len(words) - length + 1):
        yield " ".join(words[start : start + length])


def find_clean(documents: Iterable[str], items: Iterable[str]) -> list[int]:
    """Find the documents that share no ten running words with any item; shorter items are in none.

    Args:
        documents: Of a corpus.
        items: Texts of a task.

    Returns:
        The numbers of the documents.
    """
    known = {run for item in items for run in list_runs(item)}
    return [number for number, text in enumerate(documents) if known.isdisjoint(list_runs(text))]
