"""Recognize the language of a text as far as its analyzer depends on it."""

from collections.abc import Iterable

import regex

ENGLISH, UNKNOWN = "English", "Latin letters, taken as English"
LATIN = "another language in Latin letters"
CJK, OTHER = "Chinese, Japanese or Korean", "another script"
ANALYZER_OF_LANGUAGE = {ENGLISH: "english", UNKNOWN: "english", LATIN: "standard", OTHER: "standard", CJK: "cjk"}

CHARACTERS = {name: regex.compile(pattern) for name, pattern in {"letter": r"\p{L}", "latin": r"\p{Latin}"}.items()}
CJK_CHARACTERS = regex.compile(r"[\p{Han}\p{Hiragana}\p{Katakana}\p{Hangul}]")
ACCENTED = regex.compile(r"[[\p{Latin}]--[A-Za-z]]", regex.VERSION1)
WORDS = regex.compile(r"\p{L}+")
CJK_SHARE = 0.2  # of the letters; an English term in a Chinese text has five, a Chinese one two
LATIN_SHARE = 0.5
# English prose has no accents; Vietnamese, Czech, Turkish, Finnish, French and Portuguese have 3 % or more.
ACCENTED_SHARE = 0.02
# Of the words. English prose has a fifth of these, other languages hardly one; lists of terms have neither.
FUNCTION_WORDS_SHARE = 0.04
# fmt: off
ENGLISH_WORDS = frozenset((
    "the", "of", "and", "to", "that", "with", "for", "this", "are", "is", "was", "by", "from", "which", "be", "we",
))
OTHER_WORDS = frozenset((
    "der", "die", "das", "und", "den", "von", "mit", "ist", "nicht",  # German
    "le", "la", "les", "des", "et", "du", "est", "que", "une", "dans",  # French
    "el", "los", "las", "del", "en", "es", "por", "una",  # Spanish
    "os", "da", "do", "em", "um", "uma", "dos",  # Portuguese
    "il", "di", "che", "della", "per", "gli", "un", "de",  # Italian, and several
    "het", "een", "van", "voor", "op", "og", "och", "det", "som", "er", "att",  # Dutch and Scandinavian
    "yang", "dan", "untuk", "dengan", "ya", "wa", "kwa",  # Indonesian, Swahili
))
# fmt: on


def recognize_language(texts: Iterable[str]) -> str:
    """Return a key of `ANALYZER_OF_LANGUAGE`, by the letters and the most frequent words of the texts.

    Latin letters without frequent words of any language, such as a list of terms, are `UNKNOWN`.
    """
    text = "\n".join(texts)
    letters = len(CHARACTERS["letter"].findall(text))
    latin = len(CHARACTERS["latin"].findall(text))
    if len(CJK_CHARACTERS.findall(text)) > CJK_SHARE * letters:
        return CJK
    if latin < LATIN_SHARE * letters:
        return OTHER
    words = [word.lower() for word in WORDS.findall(text)]
    english, others = (sum(word in known for word in words) for known in (ENGLISH_WORDS, OTHER_WORDS))
    if max(english, others) >= FUNCTION_WORDS_SHARE * len(words) and words:
        return ENGLISH if english >= others else LATIN
    return LATIN if len(ACCENTED.findall(text)) > ACCENTED_SHARE * letters else UNKNOWN
