"""Find the words of a domain, which masking may prefer, by word counts of the domain's text and of general text."""

from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from hf_domain.data.corpora import read_texts
from hf_domain.tokenization import WordCounts, batch_texts, count_words
from hf_domain.tokenization.counting import fingerprint_splitter

WORDS = 5000  # preferred at most
BOOST = 4.0  # how much likelier a preferred word is predicted
MIN_COUNT = 5  # in the domain's text: a ratio of rarer words is noise


def load_counts(path: str, tokenizer: PreTrainedTokenizerBase) -> WordCounts:
    """Read counts of words, or count the words of a text.

    Args:
        path: What `WordCounts.save` wrote, or a file of text that `read_texts` reads.
        tokenizer: Cuts the text, with a fast backend.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It is a Parquet file that cannot be read.
    """
    if Path(path).suffix == ".parquet":
        try:
            holds_counts = "splitter" in map(bytes.decode, pq.read_schema(path).metadata or {})
        except pa.ArrowInvalid as error:
            raise ValueError(f"--word_counts must name files that can be read, but {path} cannot: {error}") from None
        if holds_counts:
            return WordCounts.load(path)
    return count_words(batch_texts(read_texts(path)), tokenizer.backend_tokenizer, progress=False)


def weigh_words(
    tokenizer: PreTrainedTokenizerBase,
    domain: WordCounts,
    general: WordCounts,
    rule: Literal["ratio", "keyword", "random"] = "ratio",
    seed: int = 0,
) -> dict[tuple[int, ...], float]:
    """Choose the words that masking prefers.

    The figures are our choice: 5,000 words at most, each four times as likely to be predicted as any other.

    Args:
        tokenizer: The tokenizer of the model, with a fast backend.
        domain: Counts of the domain's text, by this tokenizer.
        general: Counts of general text.
        rule: "ratio": words whose share in the domain is largest against that in general text. "keyword": those with
            the largest log-likelihood (Dunning 1993), which frequent words reach, too. "random": as many at random, the
            control: it shows what preferring any words does.
        seed: Of the random ones.

    Returns:
        The pieces of a word -> its weight; all others weigh 1.

    Raises:
        ValueError: The counts are another tokenizer's, or no word is more frequent in the domain.
    """
    splitter = fingerprint_splitter(tokenizer.backend_tokenizer)
    for name, counted in (("domain", domain), ("general", general)):
        if counted.splitter != splitter:
            raise ValueError(f"counts of words must be made with the model's tokenizer, but those of {name} are not")
    words = [word for word, count in domain.words.items() if count >= MIN_COUNT and any(map(str.isalpha, word))]
    counts = np.array([[domain.words[word], general.words[word]] for word in words], dtype=float).reshape(-1, 2)
    totals = np.array([domain.words.total(), general.words.total()])
    ratio = np.log((counts[:, 0] + 1) / (totals[0] + 1)) - np.log((counts[:, 1] + 1) / (totals[1] + 1))
    preferred = np.flatnonzero(ratio > 0)
    if not len(preferred):
        raise ValueError("a domain must have words that general text has less of, but these counts have none")
    score = ratio if rule == "ratio" else measure_log_likelihood(counts, totals)
    preferred = preferred[np.argsort(-score[preferred], kind="stable")][:WORDS]
    if rule == "random":
        preferred = np.random.default_rng(seed).choice(len(words), size=len(preferred), replace=False)
    model, ids = tokenizer.backend_tokenizer.model, tokenizer.backend_tokenizer.token_to_id
    pieces = (tuple(ids(token.value) for token in model.tokenize(words[number])) for number in preferred)
    return dict.fromkeys(pieces, BOOST)


def measure_log_likelihood(counts: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Return Dunning's G2 of each word, from counts [words, 2] and the totals [2] of two texts."""
    expected = counts.sum(1, keepdims=True) * totals / totals.sum()
    terms = np.where(counts > 0, counts * np.log(np.maximum(counts, 1) / expected), 0.0)
    return 2 * terms.sum(1)
