"""Find the words of a domain from word counts of its text and of general text, so that masking can prefer them."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from transformers import PreTrainedTokenizerBase

from hf_domain.data.corpora import read_texts
from hf_domain.tokenization import WordCounts, batch_texts, count_words
from hf_domain.tokenization.counting import fingerprint_splitter

WORDS = 5000  # maximum number of preferred words
BOOST = 4.0  # a preferred word is this many times as likely to be predicted
MIN_COUNT = 5  # minimum count in the domain's text: the ratio of a rarer word is noise


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
    tokenizer: PreTrainedTokenizerBase, domain: WordCounts, general: WordCounts
) -> dict[tuple[int, ...], float]:
    """Choose the words that masking prefers: the largest ratio of their shares in the domain and in general text.

    Our choice: at most 5,000 words, each four times as likely to be predicted as other words.

    Args:
        tokenizer: The model's tokenizer, with a fast backend.
        domain: Counts of the domain's text by this tokenizer.
        general: Counts of general text.

    Returns:
        Token ids of a word -> its weight; all other words weigh 1.

    Raises:
        ValueError: The counts come from another tokenizer, or no word is more frequent in the domain.
    """
    splitter = fingerprint_splitter(tokenizer.backend_tokenizer)
    for name, counted in (("domain", domain), ("general", general)):
        if counted.splitter != splitter:
            raise ValueError(
                f"words must be counted with the model's tokenizer, but those of the {name} text were not. Count again"
            )
    words = [word for word, count in domain.words.items() if count >= MIN_COUNT and any(map(str.isalpha, word))]
    counts = np.array([[domain.words[word], general.words[word]] for word in words], dtype=float).reshape(-1, 2)
    totals = np.array([domain.words.total(), general.words.total()])
    ratio = np.log((counts[:, 0] + 1) / (totals[0] + 1)) - np.log((counts[:, 1] + 1) / (totals[1] + 1))
    preferred = np.flatnonzero(ratio > 0)
    if not len(preferred):
        raise ValueError(
            "some words must be more frequent in the domain than in general text, but none is. Check the two files"
        )
    preferred = preferred[np.argsort(-ratio[preferred], kind="stable")][:WORDS]
    model, ids = tokenizer.backend_tokenizer.model, tokenizer.backend_tokenizer.token_to_id
    pieces = (tuple(ids(token.value) for token in model.tokenize(words[number])) for number in preferred)
    return dict.fromkeys(pieces, BOOST)
