"""Porter's stemmer with the three changes its author made later, which Lucene's EnglishAnalyzer has.

M. F. Porter, An algorithm for suffix stripping, Program 14(3), 1980; the changes are named at
https://tartarus.org/martin/PorterStemmer: `bli` instead of `abli`, `logi` -> `log`, and words of two letters stay.
Stemmers that are called Porter elsewhere lack them (methodologi for methodology) and find other passages.
"""

from itertools import pairwise

VOWELS = frozenset("aeiou")

# If one suffix ends with another, the longer comes first.
STEP_2 = (
    ("ational", "ate"), ("tional", "tion"), ("enci", "ence"), ("anci", "ance"), ("izer", "ize"), ("bli", "ble"),
    ("alli", "al"), ("entli", "ent"), ("eli", "e"), ("ousli", "ous"), ("ization", "ize"), ("ation", "ate"),
    ("ator", "ate"), ("alism", "al"), ("iveness", "ive"), ("fulness", "ful"), ("ousness", "ous"), ("aliti", "al"),
    ("iviti", "ive"), ("biliti", "ble"), ("logi", "log"),
)  # fmt: skip
STEP_3 = (
    ("icate", "ic"), ("ative", ""), ("alize", "al"), ("iciti", "ic"), ("ical", "ic"), ("ful", ""), ("ness", ""),
)  # fmt: skip
STEP_4 = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate", "iti",
    "ous", "ive", "ize",
)  # fmt: skip


def stem(word: str) -> str:
    """Cut the suffixes off a lower-cased word."""
    if len(word) < 3:
        return word
    word = _strip_plural(word)
    word = _strip_past(word)
    if word.endswith("y") and _has_vowel(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(word, STEP_2)
    word = _replace(word, STEP_3)
    word = _strip_suffix(word)
    return _strip_end(word)


def _mark_consonants(word: str) -> list[bool]:
    marks: list[bool] = []
    for letter in word:
        marks.append(not marks or not marks[-1] if letter == "y" else letter not in VOWELS)
    return marks


def _measure(stem: str) -> int:
    """Porter's m: how often consonants follow vowels."""
    marks = _mark_consonants(stem)
    return sum(after and not before for before, after in pairwise(marks))


def _has_vowel(stem: str) -> bool:
    return not all(_mark_consonants(stem))


def _ends_double(word: str) -> bool:
    return len(word) > 1 and word[-1] == word[-2] and _mark_consonants(word)[-1]


def _ends_short(word: str) -> bool:
    """Porter's *o: consonant, vowel, consonant, the last one not w, x or y."""
    return _mark_consonants(word)[-3:] == [True, False, True] and word[-1] not in "wxy"


def _strip_plural(word: str) -> str:
    if word.endswith(("sses", "ies")):
        return word[:-2]
    return word[:-1] if word.endswith("s") and not word.endswith("ss") else word


def _strip_past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    suffix = next((suffix for suffix in ("ed", "ing") if word.endswith(suffix)), None)
    if suffix is None or not _has_vowel(word[: -len(suffix)]):
        return word
    word = word[: -len(suffix)]
    if word.endswith(("at", "bl", "iz")):
        return word + "e"
    if _ends_double(word):
        return word if word[-1] in "lsz" else word[:-1]
    return word + "e" if _measure(word) == 1 and _ends_short(word) else word


def _replace(word: str, suffixes: tuple[tuple[str, str], ...]) -> str:
    for suffix, replacement in suffixes:
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            return stem + replacement if _measure(stem) else word
    return word


def _strip_suffix(word: str) -> str:
    for suffix in STEP_4:
        if word.endswith(suffix):
            stem = word[: -len(suffix)]
            if suffix == "ion" and not stem.endswith(("s", "t")):
                return word
            return stem if _measure(stem) > 1 else word
    return word


def _strip_end(word: str) -> str:
    if word.endswith("e"):
        measure = _measure(word[:-1])
        if measure > 1 or (measure == 1 and not _ends_short(word[:-1])):
            word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word
