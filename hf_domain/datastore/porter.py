"""Porter's stemmer with the three changes its author made later, which Lucene's EnglishAnalyzer has.

M. F. Porter, An algorithm for suffix stripping, Program 14(3), 1980; the changes are named at
https://tartarus.org/martin/PorterStemmer: `bli` instead of `abli`, `logi` -> `log`, and words of two letters stay.
Stemmers that are called Porter elsewhere lack them (methodologi for methodology) and find other passages.
"""

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
STEP_4 = tuple(
    (suffix, "")
    for suffix in (
        "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ion", "ou", "ism", "ate",
        "iti", "ous", "ive", "ize",
    )
)  # fmt: skip


def stem(word: str) -> str:
    """Cut the suffixes off a lower-cased word."""
    if len(word) < 3:
        return word
    if word.endswith(("sses", "ies")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith("ss"):
        word = word[:-1]
    word = _strip_past(word)
    if word.endswith("y") and "v" in _mark(word[:-1]):
        word = word[:-1] + "i"
    word = _replace(_replace(word, STEP_2), STEP_3)
    if not word.endswith("ion") or word.endswith(("sion", "tion")):
        word = _replace(word, STEP_4, least=2)
    if word.endswith("e") and (_measure(word[:-1]) > 1 or (_measure(word[:-1]) == 1 and not _ends_short(word[:-1]))):
        word = word[:-1]
    return word[:-1] if word.endswith("ll") and _measure(word) > 1 else word


def _mark(word: str) -> str:
    """Return c for each consonant and v for each vowel; a y is a vowel after a consonant."""
    marks = ""
    for letter in word:
        is_vowel = letter in "aeiou" or (letter == "y" and marks.endswith("c"))
        marks += "v" if is_vowel else "c"
    return marks


def _measure(stem: str) -> int:
    """Porter's m: how often consonants follow vowels."""
    return _mark(stem).count("vc")


def _ends_short(word: str) -> bool:
    """Porter's *o: consonant, vowel, consonant, the last one not w, x or y."""
    return _mark(word).endswith("cvc") and word[-1] not in "wxy"


def _strip_past(word: str) -> str:
    if word.endswith("eed"):
        return word[:-1] if _measure(word[:-3]) else word
    stem = word.removesuffix("ing") if word.endswith("ing") else word.removesuffix("ed")
    if stem == word or "v" not in _mark(stem):
        return word
    if stem.endswith(("at", "bl", "iz")):
        return stem + "e"
    if stem[-1:] == stem[-2:-1] and _mark(stem).endswith("c"):
        return stem if stem[-1] in "lsz" else stem[:-1]
    return stem + "e" if _measure(stem) == 1 and _ends_short(stem) else stem


def _replace(word: str, suffixes: tuple[tuple[str, str], ...], least: int = 1) -> str:
    """Replace the first suffix that the word has, if the measure of what is before it is large enough."""
    for suffix, replacement in suffixes:
        if word.endswith(suffix):
            stem = word.removesuffix(suffix)
            return stem + replacement if _measure(stem) >= least else word
    return word
