"""Vocabulary expansion (AdaLM, Algorithm 1; exBERT's extension vocabulary) inside the tokenizer's model.

Tokens added with `add_tokens` are split off before the model sees a text, even in the middle of words, which makes
texts longer. Here the new entries are part of the model, and `AutoTokenizer` loads the result as a plain tokenizer.
"""

import itertools
import logging
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Literal, NamedTuple

import numpy as np
from tokenizers import Tokenizer
from tqdm.auto import tqdm
from transformers import PreTrainedTokenizerBase

from . import bpe, unigram, wordpiece
from .counting import WordCounts, batch_texts, count_words, fingerprint_splitter, split_texts
from .delta import VocabularyDelta
from .report import CurvePoint, ExpansionReport, ExposureLimit
from .segmentation import Model, Segmentation, measure_log_probability, read_unknown, read_vocabulary, segment_words
from .tokenizer_file import read_tokenizer, replace_model

KINDS: dict[str, ModuleType] = {"WordPiece": wordpiece, "BPE": bpe, "Unigram": unigram}
ROUNDS = 5  # rounds to fill a vocabulary up to a size, as in tensor2tensor's builder
TOLERANCE = 0.01  # if a vocabulary misses the wanted size by more, the corpus has no more entries
GONE = -1  # replaces the id of a dropped entry
USEFUL_ENTRIES = 100  # listed in the report
WORTHWHILE = 0.02  # share of the corpus' tokens; below it, the savings do not pay for the new rows
MANY_LONG_WORDS = 0.01  # of the words of a corpus
# Thai, Lao, Burmese, Khmer, Japanese and Chinese: languages without spaces between words.
UNSPACED = re.compile(
    r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
    r"\U00020000-\U0003ffff]"
)

logger = logging.getLogger(__name__)


def expand_vocabulary(
    tokenizer: PreTrainedTokenizerBase,
    corpus: Iterable[str] | WordCounts,
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

    Symbols of the paper: raw vocab V_0 is `tokenizer`, the corpus D is `corpus`, the step V_delta is `step`, the
    threshold delta is `threshold`; P_i(D) is the `log_probability` of the report's curve. Sizes are round: V_i is V_0,
    rounded to the nearest step, plus i steps (40k, 50k, ... for BERT's 30,522, as in Tables 8 and 9).

    Args:
        tokenizer: A fast tokenizer with a WordPiece, byte-level BPE or Unigram model.
        corpus: Documents, or their words as counted by `count_words`.
        method: "adalm" adds the entries that would be used most, step by step (Algorithm 1). "exbert" learns a
            WordPiece vocabulary on the corpus, and adds its entries that the tokenizer does not have. "words" adds
            only `words`.
        words: Words of your own, which are added first and kept however rare they are. The report's `own_words` says
            how often the corpus shows each. A word that the tokenizer splits before its model, such as one with a
            hyphen in BERT, cannot be an entry.
        size: Size of the new vocabulary, instead of the automatic choice. With "exbert", the size of the learned
            vocabulary; None uses the size of the tokenizer's, as in the paper.
        step: Entries per step; 10,000 in the paper.
        threshold: Stop when (P_i - P_(i-1)) / |P_(i-1)| falls below this; 0.01 in the paper.
        select: "algorithm" returns the vocabulary of the step that fell below, as Algorithm 1 is printed (and as the
            paper's 50k for computer science); "last_accepted" the one before (the paper's 60k for biomedicine).
        max_size: Follow the curve up to this size even after the choice (Figure 4). None stops at the choice.
        min_frequency: Minimum occurrences of a new entry in the corpus, as the new tokenizer splits it. 5 is our
            choice: the row of a rarer entry hardly trains (section 6.3 of the paper).
        max_word_length: Words of more characters contribute nothing to new entries. 50 is our choice: most longer
            words are addresses, sequences and words run together. The new WordPiece tokenizer reads words of this
            length, where the old one may stop at 100 characters.
        training_tokens: Tokens of the planned training. Keep only the entries that it is expected to show at least
            `min_exposures` times; the report's `exposure` gives their number and their savings.
        min_exposures: 5 is our choice. Masked language modeling at 15 % then predicts an entry 0.75 times.
        executor: Where the corpus is counted, see `count_words`.

    Returns:
        The new tokenizer (the very same object if there is nothing to add), the delta for a model, and a report of how
        the size was chosen. Old ids keep their meaning; new ones follow, the most frequent entry first.

    Raises:
        TypeError: The tokenizer has no fast backend, or the corpus is not an iterable of strings.
        ValueError: An option is out of range, the corpus is empty or was counted for another tokenizer, or the
            tokenizer's model cannot be expanded, or not with words of the corpus' language.
    """
    words = [*dict.fromkeys(word.strip() for word in words if word.strip())]
    _check_options(method, words, size, step, threshold, select, max_size, min_frequency)
    _check_exposures(training_tokens, min_exposures)
    state = read_tokenizer(tokenizer)
    kind = KINDS[state["model"]["type"]]
    if (longest := state["model"].get("max_input_chars_per_word")) is not None:  # a longer word is unknown to WordPiece
        state["model"]["max_input_chars_per_word"] = max(longest, max_word_length)
    original_size = max(read_vocabulary(state["model"]).values()) + 1
    algorithm = ALGORITHMS[method]
    algorithm.check(kind, original_size, size, max_size)
    if not isinstance(corpus, WordCounts):
        corpus = count_words(batch_texts(corpus), tokenizer.backend_tokenizer, executor, progress)
    _check_counts(corpus, tokenizer.backend_tokenizer)
    unspaced = _measure_unspaced(corpus, tokenizer.backend_tokenizer) if kind is not unigram else 0.0
    if unspaced > 0.5:
        raise ValueError(_explain_unspaced(unspaced, state["model"]["type"]))
    forms = _find_forms(words, tokenizer.backend_tokenizer, corpus)
    domain = Domain(kind, state["model"], original_size, corpus, min_frequency, max_word_length)
    domain.kept = {form for each in forms.values() for form in each} - read_vocabulary(state["model"]).keys()

    options = Options(size, max_size, step, threshold, select, progress)
    history, chosen, stopped_by = algorithm.choose(domain, options)
    best = _rank_entries(domain, domain.limit_exposure(history[chosen], training_tokens, min_exposures))
    new_tokenizer = replace_model(tokenizer, state, best.model) if best.entries else tokenizer
    use = best.segmentation.count_pieces(domain.counts, best.size).tolist()
    delta = VocabularyDelta(domain.size, kind.spell_entries(domain.model, best.entries), use)
    report = ExpansionReport(
        method=method,
        documents=corpus.documents,
        words=int(domain.counts.sum()),
        distinct_words=len(domain.words),
        min_frequency=min_frequency,
        stopped_by=stopped_by,
        curve=_make_curve(history),
        chosen=chosen,
        useful_entries=_list_useful_entries(domain, best, delta),
        unreachable=_find_unreachable(new_tokenizer, domain, best),
        own_words=_list_words(forms, read_vocabulary(best.model), domain.kept, use),
        saved=1 - best.tokens / history[0].tokens,
        exposure=_compare_exposure(history[0], history[chosen], best, training_tokens, min_exposures),
    )
    report.warnings = [*_list_warnings(report, kind, delta, unspaced), *_name_long_words(domain)]
    for warning in report.warnings:
        logger.warning(warning)
    return new_tokenizer, delta, report


@dataclass
class Vocabulary:
    """The original entries and some new ones, with the resulting segmentation of the corpus' words."""

    entries: list[str]
    size: int
    model: Model
    segmentation: Segmentation
    use: np.ndarray
    """How often each new entry occurs in the corpus, shape [entries]."""
    tokens: int
    log_probability: float


class Domain:
    """An original tokenizer model and the words of a corpus, most frequent first."""

    def __init__(
        self,
        kind: ModuleType,
        model: Model,
        size: int,
        corpus: WordCounts,
        min_frequency: int,
        max_word_length: int,
    ) -> None:
        self.kind = kind
        self.model = model
        self.size = size
        self.documents = corpus.documents
        self.min_frequency = min_frequency
        self.max_word_length = max_word_length
        ranked = sorted(corpus.words.items(), key=lambda item: (-item[1], item[0]))
        self.words = [word for word, _ in ranked]
        self.counts = np.array([count for _, count in ranked])
        self.kept: set[str] = set()
        """Entries that stay however rare they are: the user's own words."""

    def begin(self) -> list[Vocabulary]:
        """Return the original vocabulary, and the one with the entries that stay, if there are any."""
        original = self.try_entries([])
        return [original, self.try_entries(sorted(self.kept), original)] if self.kept else [original]

    def find_rare(self, vocabulary: Vocabulary, least_use: float) -> np.ndarray:
        """Return which entries are used less often than this and may go, bool, shape [entries]."""
        kept = np.array([entry in self.kept for entry in vocabulary.entries], bool)
        return (vocabulary.use < least_use) & ~kept

    def try_entries(self, entries: list[str], before: Vocabulary | None = None) -> Vocabulary:
        """Split the words of the corpus with the original vocabulary and these entries.

        Args:
            entries: New entries in the order of their ids.
            before: The previous vocabulary; only words that the difference can affect are split again.
        """
        model = self.kind.add_entries(self.model, entries, self.size) if entries else self.model
        segmentation = self._recut(model, entries, before) if before else segment_words(model, self.words)
        size = self.size + len(entries)
        counts = segmentation.count_pieces(self.counts, size)
        log_probability = measure_log_probability(counts, self.documents)
        return Vocabulary(entries, size, model, segmentation, counts[self.size :], int(counts.sum()), log_probability)

    def _recut(self, model: Model, entries: list[str], before: Vocabulary) -> Segmentation:
        ids = {entry: id_ for id_, entry in enumerate(entries, self.size)}
        renumbered = np.array([*range(self.size), *(ids.get(entry, GONE) for entry in before.entries)])
        old = Segmentation(renumbered[before.segmentation.ids], before.segmentation.starts)
        touched = np.logical_or.reduceat(old.ids == GONE, old.starts[:-1])
        if not set(before.entries).issuperset(entries):
            # A word that is already one known piece cannot gain from another entry.
            touched |= (old.lengths > 1) | (old.ids[old.starts[:-1]] == read_unknown(model))
        numbers = np.flatnonzero(touched)
        return old.replace(numbers, segment_words(model, [self.words[number] for number in numbers]))

    def settle(self, vocabulary: Vocabulary, least_use: float | None = None) -> Vocabulary:
        """Drop entries that other entries replace, until each occurs at least `least_use` times in the corpus.

        Args:
            least_use: None uses `min_frequency`.
        """
        least_use = self.min_frequency if least_use is None else least_use
        while (rare := self.find_rare(vocabulary, least_use)).any():
            at_work = list(itertools.compress(vocabulary.entries, ~rare))
            vocabulary = self.try_entries(at_work, vocabulary)
        return vocabulary

    def limit_exposure(self, vocabulary: Vocabulary, training_tokens: int | None, min_exposures: float) -> Vocabulary:
        """Drop entries that a training on this many tokens of the corpus would show too rarely; None drops none.

        Shorter entries then spell the dropped words, and are used more. The corpus has more tokens, so that training
        sees a smaller share of it.
        """
        if training_tokens is None:
            return vocabulary
        least_use = min_exposures * vocabulary.tokens / training_tokens
        while self.find_rare(vocabulary, least_use).any():
            vocabulary = self.settle(vocabulary, least_use)
            least_use = min_exposures * vocabulary.tokens / training_tokens
        return vocabulary

    def grow(self, vocabulary: Vocabulary, size: int) -> Vocabulary:
        """Add the most frequent entries up to a size: one step of Algorithm 1.

        A new entry moves the positions where later pieces of a word start, so some entries of a round end up unused.
        The next round replaces them by entries that the new segmentation needs.
        """
        for _ in range(ROUNDS):
            new = self.kind.propose_entries(
                vocabulary.model,
                self.words,
                self.counts,
                vocabulary.segmentation,
                room=max(0, size - vocabulary.size),
                min_frequency=self.min_frequency,
                max_word_length=self.max_word_length,
            )
            if not new:
                break
            vocabulary = self.settle(self.try_entries(vocabulary.entries + new, vocabulary))
        return vocabulary


# ------------------------------------------------------------------------------------------------ the algorithms


class Options(NamedTuple):
    """The arguments of `expand_vocabulary` that control the choice of the size."""

    size: int | None
    max_size: int | None
    step: int
    threshold: float
    select: str
    progress: bool


def _check_growth(kind: ModuleType, original_size: int, size: int | None, max_size: int | None) -> None:
    last = max_size if size is None else size
    if last is not None and last <= original_size:
        raise ValueError(
            f"the new vocabulary must exceed the tokenizer's {original_size:,} entries, but its size is {last:,}. "
            "Choose a larger size."
        )


def _grow_by_steps(domain: Domain, options: Options) -> tuple[list[Vocabulary], int, str]:
    """Run AdaLM's Algorithm 1: add the entries that would be used most, step by step.

    Returns:
        The tried vocabularies, the position of the chosen one, and the reason for stopping.
    """
    last = options.max_size if options.size is None else options.size
    sizes = _list_sizes(domain.size, options.step, last)
    bar = tqdm(sizes, desc="Trying sizes", unit="size", disable=not options.progress)
    history, failed = _follow_curve(domain, bar, options.threshold, stop=last is None)
    if failed is not None and options.size is None:
        return history, failed - (options.select == "last_accepted"), "threshold"
    if last is None or history[-1].size < (1 - TOLERANCE) * last:
        return history, len(history) - 1, "corpus"
    return history, len(history) - 1, "max_size" if options.size is None else "size"


def _list_sizes(original: int, step: int, last: int | None) -> Iterator[int]:
    """Yield round sizes above the original one, up to `last`.

    They count from the nearest round size, not from the one below. The first step is then at least half as long as the
    others; a shorter one would look like the end of the rise.
    """
    for size in itertools.count(round(original / step) * step + step, step):
        if last is not None and size >= last:
            yield last
            return
        yield size


def _follow_curve(
    domain: Domain, sizes: Iterable[int], threshold: float, stop: bool
) -> tuple[list[Vocabulary], int | None]:
    """Run the loop of Algorithm 1.

    Returns:
        The vocabularies, beginning with the original, and the position of the first whose rise fell below the
        threshold. With `stop` the list ends there; otherwise it ends at the last size, or when the corpus has no more
        entries.
    """
    history, failed = domain.begin(), None
    for size in sizes:
        grown = domain.grow(history[-1], size)
        if grown.size <= history[-1].size:
            break
        history.append(grown)
        if failed is None and _improve(*history[-2:]) < threshold:
            failed = len(history) - 1
        if (stop and failed) or history[-1].size < (1 - TOLERANCE) * size:
            break
    return history, failed


def _check_word_pieces(kind: ModuleType, original_size: int, size: int | None, max_size: int | None) -> None:
    if kind is not wordpiece:
        name = next(name for name, each in KINDS.items() if each is kind)
        raise ValueError(
            f"exBERT's algorithm needs a WordPiece tokenizer, but the tokenizer's model is {name}. Use method='adalm'."
        )
    if max_size is not None:
        raise ValueError(f"max_size, {max_size}, limits the steps of method='adalm'; 'exbert' has none. Use size.")


def _learn_word_pieces(domain: Domain, options: Options) -> tuple[list[Vocabulary], int, str]:
    """Learn a WordPiece vocabulary on the corpus, and return the same as `_grow_by_steps` (exBERT)."""
    short = [number for number, word in enumerate(domain.words) if len(word) <= domain.max_word_length]
    words = [domain.words[number] for number in short]
    learned = wordpiece.learn_entries(domain.model, words, domain.counts[short], options.size or domain.size)
    history = domain.begin()
    new = [entry for entry in learned if entry not in domain.kept]
    history.append(domain.settle(domain.try_entries(sorted(domain.kept) + new)))
    return history, len(history) - 1, "size"


def _check_nothing(kind: ModuleType, original_size: int, size: int | None, max_size: int | None) -> None:
    if size is not None or max_size is not None:
        raise ValueError("method='words' adds a list of words, whose number is the size. Leave out size and max_size.")


def _add_words_alone(domain: Domain, options: Options) -> tuple[list[Vocabulary], int, str]:
    """Add the user's own words and nothing else; returns the same as `_grow_by_steps`."""
    history = domain.begin()
    return history, len(history) - 1, "words"


class Algorithm(NamedTuple):
    """A way to choose new entries."""

    check: Callable[[ModuleType, int, int | None, int | None], None]
    """Raises a ValueError for a wrong model or size, before the corpus is counted."""
    choose: Callable[[Domain, Options], tuple[list[Vocabulary], int, str]]


ALGORITHMS = {
    "adalm": Algorithm(_check_growth, _grow_by_steps),
    "exbert": Algorithm(_check_word_pieces, _learn_word_pieces),
    "words": Algorithm(_check_nothing, _add_words_alone),
}


# ------------------------------------------------------------------------------------------------ the report


def _improve(before: Vocabulary, after: Vocabulary) -> float:
    """Return the relative rise of P(D), over |P|: (P_i - P_(i-1)) / P_(i-1) as printed is negative for every rise."""
    return (after.log_probability - before.log_probability) / (abs(before.log_probability) or 1.0)


def _make_curve(history: list[Vocabulary]) -> list[CurvePoint]:
    rises = [None, *(_improve(*pair) for pair in itertools.pairwise(history))]
    return [
        CurvePoint(vocabulary.size, vocabulary.log_probability, rise, vocabulary.tokens)
        for vocabulary, rise in zip(history, rises, strict=True)
    ]


def _compare_exposure(
    original: Vocabulary, proposed: Vocabulary, kept: Vocabulary, training_tokens: int | None, min_exposures: float
) -> ExposureLimit | None:
    if training_tokens is None:
        return None
    return ExposureLimit(
        training_tokens=training_tokens,
        min_exposures=min_exposures,
        proposed=len(proposed.entries),
        proposed_saving=1 - proposed.tokens / original.tokens,
        kept=len(kept.entries),
        saving=1 - kept.tokens / original.tokens,
    )


def _rank_entries(domain: Domain, vocabulary: Vocabulary) -> Vocabulary:
    """Assign ids in the order of use; ties in alphabetical order."""
    ranked = sorted(zip(-vocabulary.use, vocabulary.entries, strict=True))
    return domain.try_entries([entry for _, entry in ranked])


def _check_options(
    method: str,
    words: list[str],
    size: int | None,
    step: int,
    threshold: float,
    select: str,
    max_size: int | None,
    min_frequency: int,
) -> None:
    if method not in ALGORITHMS:
        raise ValueError(f"`method` must be {' or '.join(map(repr, ALGORITHMS))}, but is {method!r}.")
    if method == "words" and not words:
        raise ValueError("method='words' needs `words`, but there are none. Name at least one word.")
    if select not in ("algorithm", "last_accepted"):
        raise ValueError(f"`select` must be 'algorithm' or 'last_accepted', but is {select!r}.")
    if step < 1:
        raise ValueError(f"`step` must be at least 1 entry, but is {step}.")
    if not 0 < threshold < 1:
        raise ValueError(f"`threshold` must be between 0 and 1 (the paper's 1 % is 0.01), but is {threshold}.")
    if size is not None and size < 1:
        raise ValueError(f"`size` must be at least 1 entry, but is {size}.")
    if min_frequency < 1:
        raise ValueError(f"`min_frequency` must be at least 1, but is {min_frequency}.")
    if size is not None and max_size is not None:
        raise ValueError(
            f"only one of `size` and `max_size` may be given, but they are {size:,} and {max_size:,}. Leave one out."
        )


def _check_exposures(training_tokens: int | None, min_exposures: float) -> None:
    if training_tokens is not None and training_tokens < 1:
        raise ValueError(f"`training_tokens` must be at least 1, but is {training_tokens}.")
    if not 0 < min_exposures < float("inf"):
        raise ValueError(f"`min_exposures` must be a number above 0, but is {min_exposures}.")


def _check_counts(corpus: WordCounts, backend: Tokenizer) -> None:
    if not corpus.words:
        raise ValueError("the corpus must contain words, but is empty. Use another corpus.")
    if corpus.splitter != fingerprint_splitter(backend):
        raise ValueError(
            "the corpus must be counted with the tokenizer's normalizer and pre-tokenizer, whose fingerprint is "
            f"{fingerprint_splitter(backend)}, but that of the counts is {corpus.splitter}. Count the corpus again."
        )


def _measure_unspaced(corpus: WordCounts, backend: Tokenizer) -> float:
    """Return the share of letters of languages without spaces between words."""
    decode = backend.decoder.decode if backend.decoder and '"ByteLevel"' in backend.to_str() else "".join
    unspaced = spaced = 0
    for word, count in corpus.words.items():
        rest, found = UNSPACED.subn("", decode([word]))
        unspaced += count * found
        spaced += count * sum(map(str.isalpha, rest))
    return unspaced / max(1, unspaced + spaced)


def _explain_unspaced(share: float, kind: str) -> str:
    """Return why a WordPiece or BPE model cannot get words of such a language, and what to use instead."""
    reason = {
        "WordPiece": "BERT's pre-tokenizer makes each Chinese character, and each Thai or Japanese phrase, one word",
        "BPE": "a byte-level pre-tokenizer makes a whole phrase one word",
    }[kind]
    return (
        f"a {kind} model needs spaces between words, but {share:.0%} of the corpus' letters are of a language without "
        f"spaces: {reason}. Use an encoder with a Unigram tokenizer (XLM-R, multilingual DeBERTa-v3), or keep "
        "the original vocabulary."
    )


def _list_warnings(report: ExpansionReport, kind: ModuleType, delta: VocabularyDelta, unspaced: float) -> Iterator[str]:
    if unspaced > 0.1:
        yield _explain_unspaced(unspaced, "WordPiece" if kind is wordpiece else "BPE")
    if report.saved < WORTHWHILE:
        yield (
            f"The new entries save {report.saved:.1%} of the corpus' tokens. Below {WORTHWHILE:.0%}, training the new "
            "rows costs more than shorter texts save: keep the original tokenizer."
        )
    if report.unreachable:
        yield (
            f"{len(report.unreachable):,} new entries, such as {report.unreachable[0]}, are never produced: the "
            "tokenizer finds another token first. Their rows stay untrained. Remove the tokens that were added to it."
        )
    if kind is bpe and delta.pieces:
        yield (
            "Load this tokenizer with AutoTokenizer. RobertaTokenizer.from_pretrained, or the class of another "
            "byte-level BPE, rebuilds the model from its merges and splits the new words into old pieces."
        )


def _name_long_words(domain: Domain) -> Iterator[str]:
    """Warn if a corpus has many words, such as names of compounds, that are too long to contribute."""
    long = [number for number, word in enumerate(domain.words) if len(word) > domain.max_word_length]
    share = float(domain.counts[long].sum() / max(1, domain.counts.sum()))
    if share > MANY_LONG_WORDS:
        yield (
            f"{share:.1%} of the corpus' words have more than max_word_length={domain.max_word_length} characters and "
            f"contribute nothing, such as {domain.words[long[0]][:30]}... Raise max_word_length if they are words."
        )


def _list_useful_entries(domain: Domain, vocabulary: Vocabulary, delta: VocabularyDelta) -> list[dict[str, Any]]:
    useful: list[dict[str, Any]] = [
        {
            "entry": entry,
            "id": domain.size + number,
            "pieces": pieces,
            "frequency": int(vocabulary.use[number]),
            "tokens_saved": int(vocabulary.use[number]) * max(0, len(pieces) - 1),
        }
        for number, (entry, pieces) in enumerate(delta.pieces.items())
    ]
    return sorted(useful, key=lambda row: -row["tokens_saved"])[:USEFUL_ENTRIES]


def _find_forms(words: list[str], backend: Tokenizer, corpus: WordCounts) -> dict[str, list[str]]:
    """Return each word as the tokenizer's model receives it: the forms in the corpus, or else the one after a blank.

    A byte-level BPE receives a word with and without the blank before it. A word that is split has no form.
    """
    forms: dict[str, list[str]] = {}
    for word in words:
        split = [list(split_texts(Counter([text]), backend)) for text in (f" {word}", word)]
        whole = [*dict.fromkeys(parts[0] for parts in split if len(parts) == 1)]
        forms[word] = [form for form in whole if form in corpus.words] or whole[:1]
    return forms


def _list_words(
    forms: dict[str, list[str]], vocabulary: dict[str, int], new: set[str], use: list[int]
) -> list[dict[str, Any]]:
    """List the user's words: their entries, whether these are new, and how often the corpus shows them."""
    return [
        {
            "word": word,
            "entries": entries,
            "new": any(entry in new for entry in entries),
            "frequency": sum(use[vocabulary[entry]] for entry in entries),
        }
        for word, entries in forms.items()
    ]


def _find_unreachable(tokenizer: PreTrainedTokenizerBase, domain: Domain, vocabulary: Vocabulary) -> list[str]:
    """List the entries that the finished tokenizer does not produce in the most frequent word that uses them."""
    if not vocabulary.entries:
        return []
    ids, places = np.unique(vocabulary.segmentation.ids, return_index=True)
    witnesses = np.searchsorted(vocabulary.segmentation.starts, places[ids >= domain.size], side="right") - 1
    decoder = tokenizer.backend_tokenizer.decoder
    words = {domain.words[witness] for witness in witnesses}
    texts = [decoder.decode([word]) if decoder else word for word in words]
    # Some words never begin a text, such as the rest of `5mg`; put them after a bracket.
    tokens = tokenizer(texts + [f"({text}" for text in texts], add_special_tokens=False)["input_ids"]
    made = set(itertools.chain.from_iterable(tokens))
    entries = enumerate(vocabulary.entries, domain.size)
    return [entry for id_, entry in entries if id_ not in made and id_ in ids]  # the corpus may lack a word of the user
