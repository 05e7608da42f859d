"""The tags of words in IOB, IOBES, BILOU or IO: their entities, places and types."""

import re

# Tags that say the place of a word in its entity; a task of one type may leave out the type.
PLACED = re.compile("[BIESLUM](-|$)")


def normalize_tag(tag: str) -> str:
    """Return a tag of BILOU as IOBES names it, L as E and U as S, and a bare type as a tag of IO: X as I-X.

    seqeval reads neither. It takes the first letter of a type for its place: Gene as an entity `ene`, Other as none.
    """
    if tag != "O" and not PLACED.match(tag):
        return f"I-{tag}"
    return re.sub("^U-", "S-", re.sub("^L-", "E-", tag))


def find_entities(tags: list[str]) -> list[tuple[str, int, int]]:
    """Return type, first and last place of each entity of a sentence, as conlleval and seqeval do.

    An entity ends after E and S, before O, B and S, and where the type changes; a lone I or E begins one.
    """
    entities, start, before, kind_before = [], 0, "O", ""
    for place, tag in enumerate([*map(normalize_tag, tags), "O"]):
        letter, kind = tag[0], tag[1:].split("-", 1)[-1] or "_"
        is_other = kind != kind_before
        if before != "O" and (before in "ES" or letter in "BSO" or is_other):
            entities.append((kind_before, start, place - 1))
        if letter != "O" and (letter in "BS" or before in "ESO" or is_other):
            start = place
        before, kind_before = letter, kind
    return entities


def strip_prefix(tag: str) -> str:
    """Return the class of a tag: B-X and I-X are X."""
    return re.sub("^[BIESLU]-", "", tag)
