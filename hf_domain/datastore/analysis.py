"""Text analyzers equal to Lucene's `english`, `standard` and `cjk`.

The analyzer matters far more than the engine. Two English stemmers change a tenth of the ten best passages; Chinese
characters instead of pairs of them change four tenths. The terms are therefore made here, equal to Lucene's and the
same for every engine.
"""

import hashlib
import json
import unicodedata
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from operator import add

import regex

from hf_domain.datastore.languages import ANALYZER_OF_LANGUAGE, recognize_language
from hf_domain.datastore.porter import stem

# Unicode's word boundaries (UAX 29), as in Lucene's StandardTokenizer. A mark belongs to the letter before it.
_MARKS = r"[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}]*"
_LETTER = rf"[\p{{WB=ALetter}}\p{{WB=Hebrew_Letter}}]{_MARKS}"
_DIGIT = rf"[\p{{WB=Numeric}}\uff10-\uff19]{_MARKS}"
_KATAKANA = rf"\p{{WB=Katakana}}{_MARKS}"
_UNDERSCORE = rf"\p{{WB=ExtendNumLet}}{_MARKS}"
_HEBREW_QUOTE = r"(?<=\p{WB=Hebrew_Letter})\"(?=\p{WB=Hebrew_Letter})"
_JOINER = rf"[\p{{WB=MidLetter}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{_MARKS}"
_LETTERS = rf"{_LETTER}(?:(?:{_JOINER}|{_HEBREW_QUOTE})?{_LETTER})*"
_NUMBER = rf"{_DIGIT}(?:(?:[\p{{WB=MidNum}}\p{{WB=MidNumLet}}\p{{WB=Single_Quote}}]{_MARKS})?{_DIGIT})*"
_RUN = rf"(?:(?:{_LETTERS}|{_NUMBER})+|(?:{_KATAKANA})+)"
_PICTURE = r"[\p{Emoji_Presentation}\p{Extended_Pictographic}]\p{M}*\p{EMod}?"
_EMOJI = rf"(?:\p{{RI}}\p{{RI}}|{_PICTURE}(?:\u200d{_PICTURE})*)"
WORD = regex.compile(
    rf"(?P<han>\p{{Han}}{_MARKS})|(?P<hiragana>\p{{Hiragana}}{_MARKS})|(?P<thai>(?:\p{{LB=SA}}{_MARKS})+)"
    rf"|(?P<word>(?:{_UNDERSCORE})*{_RUN}(?:(?:{_UNDERSCORE})+{_RUN})*(?:{_UNDERSCORE})*)|(?P<emoji>{_EMOJI})"
)
SYLLABLES = regex.compile(r"(?:\p{Hangul}|\p{WB=Katakana}|[\p{WB=Extend}\p{WB=Format}\p{WB=ZWJ}])+")
MAX_WORD_LENGTH = 255  # Lucene cuts longer ones

# fmt: off
ENGLISH_STOP_WORDS = frozenset((
    "a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no", "not", "of",
    "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to", "was", "will", "with",
))
# fmt: on
CJK_STOP_WORDS = ENGLISH_STOP_WORDS - {"an"} | {"s", "t", "www"}
POSSESSIVES = tuple(f"{quote}{letter}" for quote in "'\u2019\uff07" for letter in "sS")

# An analyzer's fingerprint is computed from its terms for these words.
PROBE = (
    "The methodologies of BERT's 3.14 cats' wi-fi x_y, U.S. O\u2019Neil naïve hopping relational 1,000 généralité "
    "不是一个好的モデル、ﾃﾞｰﾀと한국어 \uff26\uff35\uff2c\uff2c ไทย 😀"
)
CACHED_LENGTH = 40  # words repeat, Chinese sentences do not
CACHED_CHUNKS = 2**18  # some 50 MB


def choose_analyzer(texts: Iterable[str]) -> str:
    """Return the analyzer that fits the language of texts, see `recognize_language`."""
    return ANALYZER_OF_LANGUAGE[recognize_language(texts)]


class Analyzer:
    """Turns a text into terms.

    Args:
        analyzer: `english` (stop words and stems), `standard` (words), `cjk` (pairs of characters, for Chinese,
            Japanese and Korean), or a function from a text to a list of terms without white space.

    Raises:
        ValueError: The name is unknown.
    """

    def __init__(self, analyzer: str | Callable[[str], list[str]]):
        if isinstance(analyzer, str) and analyzer not in ANALYZERS:
            raise ValueError(f"the analyzer must be one of {', '.join(ANALYZERS)} or a function, but is {analyzer}")
        self.function = None if isinstance(analyzer, str) else analyzer
        self.name = analyzer if isinstance(analyzer, str) else getattr(analyzer, "__qualname__", repr(analyzer))

    @property
    def fingerprint(self) -> str:
        """A digest of the terms that the analyzer makes, whatever its name."""
        return hashlib.sha256(json.dumps(self(PROBE)).encode()).hexdigest()[:16]

    def __call__(self, text: str) -> list[str]:
        """Return the terms of a text, in order."""
        if self.function is not None:
            return self.function(text)
        terms = _CACHES[self.name]
        if len(terms) > CACHED_CHUNKS:
            terms.clear()
        return list(chain.from_iterable(map(terms.__getitem__, text.split())))


def _analyze_standard(chunk: str) -> Iterator[str]:
    for word, _, _ in _find_words(chunk):
        yield _lower(word)


def _analyze_english(chunk: str) -> Iterator[str]:
    for word, _, _ in _find_words(chunk):
        text = _lower(word[:-2] if word.endswith(POSSESSIVES) else word)
        if text not in ENGLISH_STOP_WORDS:
            yield stem(text)


def _analyze_cjk(chunk: str) -> Iterator[str]:
    run, end = "", 0  # characters that follow each other
    for word, start, is_cjk in _find_words(chunk):
        if not is_cjk or start != end:
            yield from _pair(run)
            run = ""
        text = _fold_width(word)
        if is_cjk:
            run, end = run + text, start + len(word)
        elif (lower := _lower(text)) not in CJK_STOP_WORDS:
            yield lower
    yield from _pair(run)


def _pair(run: str) -> Iterable[str]:
    return [run] if len(run) == 1 else map(add, run, run[1:])


def _find_words(chunk: str) -> Iterator[tuple[str, int, bool]]:
    """Yield words, where they begin, and whether their characters form pairs."""
    for match in WORD.finditer(chunk):
        kind = match.lastgroup
        is_cjk = kind in ("han", "hiragana") or (kind == "word" and SYLLABLES.fullmatch(match[0]) is not None)
        for start in range(match.start(), match.end(), MAX_WORD_LENGTH):
            yield chunk[start : min(start + MAX_WORD_LENGTH, match.end())], start, is_cjk


def _lower(word: str) -> str:
    """Lower-case each character alone: Lucene has no final sigma, and its dotted I becomes one character."""
    return word.lower() if word.isascii() else "".join(character.lower()[0] for character in word)


def _fold_width(word: str) -> str:
    """Convert full-width letters and digits to plain ones, and half-width Katakana to full width."""
    if word.isascii() or not any("\uff01" <= character <= "\uff9f" for character in word):
        return word
    return unicodedata.normalize("NFKC", word)


ANALYZERS = {"english": _analyze_english, "standard": _analyze_standard, "cjk": _analyze_cjk}


# Most Chinese text is runs of Han characters, ASCII and punctuation. The runs alone then give the terms in a tenth of
# the time, unless full-width punctuation between letters or digits may join them.
_PUNCTUATION = (
    "\u3001\u3002\u2026\u2014\u201c\u201d\u300a\u300b\u300c\u300d\u3010\u3011\uff01\uff1f\uff08\uff09\uff0c\uff1b\uff1a"
)
_PLAIN_CJK = regex.compile(rf"(?:\p{{Han}}|[!-~]|[{_PUNCTUATION}])*+")
_JOINED = regex.compile(rf"[!-~][{_PUNCTUATION}][!-~]")
_RUNS = regex.compile(r"\p{Han}++|[!-~]++")


def _make_cjk_terms(chunk: str) -> Iterator[str]:
    """The terms of `_analyze_cjk`."""
    if chunk.isascii() or not _PLAIN_CJK.fullmatch(chunk) or _JOINED.search(chunk):
        yield from _analyze_cjk(chunk)
        return
    for run in _RUNS.findall(chunk):
        yield from _CACHES["cjk"][run] if run.isascii() else _pair(run)


class _Cache(dict[str, tuple[str, ...]]):
    """Terms of the chunks between white space, each computed once."""

    def __init__(self, make_terms: Callable[[str], Iterable[str]]):
        self.make_terms = make_terms

    def __missing__(self, chunk: str) -> tuple[str, ...]:
        terms = tuple(self.make_terms(chunk))
        if len(chunk) <= CACHED_LENGTH:
            self[chunk] = terms
        return terms


_CACHES = {
    "english": _Cache(_analyze_english),
    "standard": _Cache(_analyze_standard),
    "cjk": _Cache(_make_cjk_terms),
}
