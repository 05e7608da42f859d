from collections import Counter

import numpy as np
import pytest
from vocabulary_invariants import DOMAIN_TEXTS, make_wordpiece

from hf_domain.tokenization import count_shard, expand_vocabulary
from hf_domain.tokenization.wordpiece import learn_entries, spell_entries

UNKNOWN = "[UNK]"


def cut_slowly(word, vocabulary):
    """Greedy longest match from the left."""
    pieces = []
    start = 0
    while start < len(word):
        ends = range(len(word), start, -1)
        mark = "##" if start else ""
        piece = next((mark + word[start:end] for end in ends if mark + word[start:end] in vocabulary), None)
        if piece is None:
            return [UNKNOWN]
        pieces.append(piece)
        start += len(piece.removeprefix(mark))
    return pieces


def list_starts(word, vocabulary):
    """Where pieces of a word start, except the last: it is in the vocabulary as a whole."""
    pieces = cut_slowly(word, vocabulary)
    if pieces == [UNKNOWN]:
        return [0]
    lengths = [len(piece.removeprefix("##")) for piece in pieces]
    return [sum(lengths[:number]) for number in range(len(pieces) - 1)]


def accept_slowly(words, vocabulary, threshold):
    """All strings that would be used `threshold` times where a piece starts, longest first."""
    uses = Counter()
    for word, count in words.items():
        for start in list_starts(word, vocabulary):
            if start == 0 or count < threshold:
                uses.update({("##" * bool(start), word[start:end]): count for end in range(start + 1, len(word) + 1)})
    accepted = {}
    for mark, string in sorted(uses, key=lambda key: len(key[1]), reverse=True):
        use = uses[mark, string]
        if mark + string not in vocabulary:
            if use < threshold:
                continue
            accepted[mark + string] = use
        for end in range(1, len(string)):
            uses[mark, string[:end]] -= use
    return accepted


def grow_slowly(words, base, size, min_frequency):
    """Rounds of accepting and dropping, as plainly as can be."""
    entries = []
    for _ in range(5):
        room = size - len(base) - len(entries)
        threshold = sum(words.values()) * 4
        while threshold > min_frequency and len(accept_slowly(words, {*base, *entries}, threshold)) < room:
            threshold -= 1
        accepted = accept_slowly(words, {*base, *entries}, threshold)
        new = sorted(accepted, key=lambda entry: (-accepted[entry], -len(entry), entry))[:room]
        if not new:
            break
        entries += new
        while True:
            use = Counter()
            for word, count in words.items():
                for piece in cut_slowly(word, {*base, *entries}):
                    use[piece] += count
            if all(use[entry] >= min_frequency for entry in entries):
                break
            entries = [entry for entry in entries if use[entry] >= min_frequency]
    return sorted(entries, key=lambda entry: (-use[entry], entry))


@pytest.mark.parametrize("size", [160, 175, 300])
def test_the_expansion_equals_a_slow_one(size):
    tokenizer = make_wordpiece()
    words = count_shard(DOMAIN_TEXTS[:5], tokenizer.backend_tokenizer).words
    _, delta, _ = expand_vocabulary(tokenizer, DOMAIN_TEXTS[:5], size=size, step=1000, min_frequency=2, progress=False)
    expected = grow_slowly(words, tokenizer.get_vocab(), size, min_frequency=2)
    assert list(delta.pieces) == expected and expected
    for entry, pieces in delta.pieces.items():
        if not entry.startswith("##"):
            spelled = [piece for piece in cut_slowly(entry, tokenizer.get_vocab()) if piece != UNKNOWN]
            assert pieces == tokenizer.convert_tokens_to_ids(spelled)


def make_model(*entries):
    vocabulary = {entry: id_ for id_, entry in enumerate([UNKNOWN, *entries])}
    return {
        "type": "WordPiece",
        "unk_token": UNKNOWN,
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
        "vocab": vocabulary,
    }


def test_a_continuation_is_spelled_by_continuations():
    model = make_model("o", "t", "ot", "#", "##o", "##tro", "##pi", "##n", "##t")
    assert spell_entries(model, ["##otropin", "ott", "##ö", "ö"]) == {
        "##otropin": [5, 6, 7, 8],  # not "#", nor "ot"
        "ott": [3, 9],
        "##ö": [],
        "ö": [],
    }


def test_sub_words_become_entries_where_rare_words_share_them():
    words = ["blastocyst", "blastomer", "blastopor", "gonadotropin", "corticotropin", "somatotropin", "thyrotropin"]
    _, delta, _ = expand_vocabulary(make_wordpiece(), [" ".join(words)], min_frequency=3, progress=False)
    assert {"blasto", "##otropin"} <= delta.pieces.keys() and not delta.pieces.keys() & set(words)


@pytest.mark.parametrize("read", [100, 2])
def test_frequent_pairs_are_learned_first(read, monkeypatch):
    monkeypatch.setattr("hf_domain.tokenization.wordpiece.LEARNED_WORDS", read)  # 2: counts of a third
    words, counts = ["ab", "cd"], np.array([1, 5])
    characters = [*"abcd", *(f"##{character}" for character in "abcd")]
    for size, pairs in ((9, []), (10, ["cd"]), (11, ["cd", "ab"])):
        assert learn_entries(make_model(), words, counts, size) == characters + pairs
    assert learn_entries(make_model("cd", "##d"), words, counts, 11) == [*"abcd", "##a", "##b", "##c", "ab"]


def test_learning_is_deterministic():
    model = make_model()
    words = [f"{first}{second}{third}" for first in "abcdefgh" for second in "ijklmnop" for third in "qrstuvwx"]
    counts = np.ones(len(words), int)
    learned = {tuple(learn_entries(model, words, counts, size=150)) for _ in range(3)}
    assert len(learned) == 1
