"""Expand a vocabulary with the words of a corpus of any form."""

from collections.abc import Iterable, Sequence
from concurrent.futures import Executor
from typing import Literal

from transformers import PreTrainedTokenizerBase

from hf_domain import tokenization
from hf_domain.data.corpora import load_corpus
from hf_domain.data.files import find_files
from hf_domain.data.tables import Rows, Splits
from hf_domain.safe_io import fingerprint_files
from hf_domain.tokenization import ExpansionReport, VocabularyDelta, WordCounts


def expand_vocabulary(
    tokenizer: PreTrainedTokenizerBase,
    corpus: Rows | Splits | WordCounts,
    *,
    method: Literal["adalm", "exbert", "words"] = "adalm",
    words: Iterable[str] = (),
    size: int | None = None,
    step: int = 10_000,
    threshold: float = 0.01,
    select: Literal["algorithm", "last_accepted"] = "algorithm",
    max_size: int | None = None,
    min_frequency: int = 5,
    max_word_length: int = 50,
    training_tokens: int | None = None,
    min_exposures: float = 5.0,
    executor: Executor | None = None,
    progress: bool = True,
) -> tuple[PreTrainedTokenizerBase, VocabularyDelta, ExpansionReport]:
    """Add the words and sub-words of a domain to a tokenizer.

    The options are those of `hf_domain.tokenization.expand_vocabulary`, which reads a stream of texts without keeping
    it in memory.

    Args:
        tokenizer: A fast tokenizer with a WordPiece, byte-level BPE or Unigram model.
        corpus: Documents, see `load_corpus`, or their words as counted by `count_words`. Of several splits, `train`.
        method: `adalm` adds the entries that would be used most. `exbert` learns a vocabulary on the corpus and adds
            what the tokenizer does not have. `words` adds only `words`.
        words: Words of your own, which are added first and kept however rare they are.
        size: Size of the new vocabulary. Default: chosen on the corpus.
        min_frequency: Minimum occurrences of a new entry in the corpus.
        training_tokens: Keep only entries that a training of this many tokens shows at least `min_exposures` times.

    Returns:
        The new tokenizer, the delta for a model, see `apply_delta`, and a report of how the size was chosen.

    Raises:
        FileNotFoundError: A file is missing.
        TypeError: The tokenizer has no fast backend, or the corpus contains no texts.
        ValueError: An option, the corpus or the tokenizer cannot be used.
    """
    if not isinstance(corpus, WordCounts):
        corpus = load_corpus(corpus, validation_split_percentage=0)["train"]["text"]
    return tokenization.expand_vocabulary(
        tokenizer,
        corpus,
        method=method,
        words=words,
        size=size,
        step=step,
        threshold=threshold,
        select=select,
        max_size=max_size,
        min_frequency=min_frequency,
        max_word_length=max_word_length,
        training_tokens=training_tokens,
        min_exposures=min_exposures,
        executor=executor,
        progress=progress,
    )


def identify_corpus(files: Sequence[str]) -> str:
    """Return a digest of the files of a corpus; "" if they are gone, where its counts are enough."""
    try:
        return fingerprint_files(find_files(files))
    except FileNotFoundError:
        return ""
