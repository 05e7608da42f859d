"""Expand a vocabulary with the words of a corpus of any form."""

import functools
import inspect
from collections.abc import Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from hf_domain import tokenization
from hf_domain.data.corpora import load_corpus
from hf_domain.data.files import find_files
from hf_domain.data.tables import Rows, Splits
from hf_domain.safe_io import fingerprint_files
from hf_domain.tokenization import ExpansionReport, VocabularyDelta, WordCounts


@functools.wraps(tokenization.expand_vocabulary, assigned=())  # editors and `help` show its options
def expand_vocabulary(
    tokenizer: PreTrainedTokenizerBase, corpus: Rows | Splits | WordCounts, **options: Any
) -> tuple[PreTrainedTokenizerBase, VocabularyDelta, ExpansionReport]:
    """Add the words and sub-words of a domain to a tokenizer.

    This is `hf_domain.tokenization.expand_vocabulary` for a corpus of any form. That one reads a stream of texts
    without keeping it in memory.

    Args:
        tokenizer: A fast tokenizer with a WordPiece, byte-level BPE or Unigram model.
        corpus: Documents, see `load_corpus`, or their words as counted by `count_words`. Of several splits, `train`.
        options: Further arguments of `hf_domain.tokenization.expand_vocabulary`: `method`, `words`, `size`,
            `training_tokens` and more.

    Returns:
        The new tokenizer, the delta for a model, see `apply_delta`, and a report of how the size was chosen.

    Raises:
        FileNotFoundError: A file is missing.
        TypeError: The tokenizer has no fast backend, the corpus contains no texts, or there is no such option.
        ValueError: An option, the corpus or the tokenizer cannot be used.
    """
    inspect.signature(tokenization.expand_vocabulary).bind(tokenizer, corpus, **options)  # before a corpus is read
    if not isinstance(corpus, WordCounts):
        corpus = load_corpus(corpus, validation_split_percentage=0)["train"]["text"]
    return tokenization.expand_vocabulary(tokenizer, corpus, **options)


def identify_corpus(files: Sequence[str]) -> str:
    """Return a digest of the files of a corpus; "" if they are gone, where its counts are enough."""
    try:
        return fingerprint_files(find_files(files))
    except FileNotFoundError:
        return ""
