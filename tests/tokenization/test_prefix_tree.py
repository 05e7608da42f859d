import itertools
import random
from collections import Counter

import numpy as np
import pytest

from hf_domain.tokenization.prefix_tree import PrefixTree, select_entries


def select_slowly(tails, counts, vocabulary, threshold, mark=""):
    """SubwordTextBuilder's rule: longest first, what is accepted takes its count from all its beginnings."""
    uses = Counter()
    for tail, count in zip(tails, counts, strict=True):
        for end in range(1, len(tail) + 1):
            uses[tail[:end]] += int(count)
    accepted = Counter()
    for string in sorted(uses, key=len, reverse=True):
        use = uses[string]
        known = mark + string in vocabulary
        if known or use >= threshold:
            if not known:
                accepted[mark + string] = use
            for end in range(1, len(string)):
                uses[string[:end]] -= use
    return accepted


def make_tails(seed, number=300):
    generator = random.Random(seed)
    syllables = ["ly", "mph", "o", "ma", "cy", "te", "s", "blas", "to", "ge", "n", "ß", "淋"]
    tails = ["".join(generator.choices(syllables, k=generator.randint(1, 5))) for _ in range(number)]
    return tails, np.array([generator.randint(1, 40) for _ in tails])


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("threshold", [2, 7, 30, 200])
def test_selection_equals_the_slow_one(seed, threshold):
    tails, counts = make_tails(seed)
    vocabulary = {"##lymph", "##o", "##cyte"}
    tree = PrefixTree(tails, counts, False, "##".__add__, vocabulary, min_frequency=2)
    assert tree.select(threshold) == select_slowly(tails, counts, vocabulary, threshold, mark="##")


def test_frequent_words_lend_nothing_inside():
    tails, counts = make_tails(9)
    inner = np.arange(len(tails)) % 2 == 0
    lends = ~inner | (counts < 10)
    tree = PrefixTree(tails, counts, inner, str, {}, min_frequency=2)
    assert tree.select(10) == select_slowly(itertools.compress(tails, lends), counts[lends], {}, 10)


def test_a_longer_entry_takes_its_uses_from_the_shorter():
    tree = PrefixTree(["lymphomas", "lymphoma"], np.array([3, 10]), False, str, {}, min_frequency=1)
    assert tree.select(3) == {"lymphomas": 3, "lymphoma": 10}
    assert tree.select(5) == {"lymphoma": 13}


@pytest.mark.parametrize("room", [1, 7, 40, 10_000])
def test_the_most_used_are_selected(room):
    tails, counts = make_tails(3, number=60)
    shorter = [tail[1:] or tail for tail in tails]
    trees = [
        PrefixTree(tails, counts, False, str, {}, 2),
        PrefixTree(shorter, counts, True, "##".__add__, {}, 2),
    ]

    def accept(threshold):
        rare = counts < threshold
        inside = select_slowly(itertools.compress(shorter, rare), counts[rare], {}, threshold, "##")
        return select_slowly(tails, counts, {}, threshold) + inside

    threshold = int(counts.sum())
    while threshold > 2 and len(accept(threshold)) < room:
        threshold -= 1
    accepted = accept(threshold)
    expected = sorted(accepted, key=lambda entry: (-accepted[entry], -len(entry), entry))[:room]
    assert select_entries(trees, room, min_frequency=2) == expected


def test_no_tails_select_nothing():
    tree = PrefixTree([], np.array([], int), False, str, {}, 1)
    assert tree.select(1) == {} and select_entries([tree, tree], 5, 1) == []
