import random

import pytest

from hf_domain.datastore.analysis import ANALYZERS, PROBE, Analyzer
from hf_domain.datastore.porter import stem


@pytest.mark.parametrize("analyzer", ANALYZERS)
def test_no_term_and_long_words(analyzer):
    analyze = Analyzer(analyzer)
    assert analyze("") == analyze(" \n ") == analyze("?! --") == []
    assert [len(term) for term in analyze("x" * 600)] == [255, 255, 90]
    assert analyze("x" * 300 + " 合同 " * 3) == analyze("x" * 300) + analyze("合同") * 3


def test_plain_chinese_has_the_same_terms_as_any():
    generator = random.Random(0)
    alphabet = "合同法第条一a1b2.,:_'-" + "\u3001\u3002\uff0c\uff1a\uff1b\uff08\uff09\u201c" + " \u0301カ한é"
    analyze = Analyzer("cjk")
    for size in (len(alphabet) - 5, len(alphabet)):
        for _ in range(2000):
            text = "".join(generator.choices(alphabet[:size], k=20))
            assert analyze(text) == [term for chunk in text.split() for term in ANALYZERS["cjk"](chunk)], text


def test_analyzers_are_distinguished_by_their_terms():
    def split(text):
        return text.lower().split()

    fingerprints = {Analyzer(analyzer).fingerprint for analyzer in (*ANALYZERS, split, str.split)}
    assert len(fingerprints) == 5
    analyzer = Analyzer(split)
    assert analyzer("A b") == ["a", "b"] and analyzer.name.endswith("split")
    with pytest.raises(ValueError, match="one of english, standard, cjk or a function, but is french"):
        Analyzer("french")
    assert Analyzer("english")(PROBE)


# Examples that Porter's paper gives for its steps, followed to the end, and the author's three changes.
STEMS = """
caresses caress  ponies poni  cats cat  feed feed  agreed agre  plastered plaster  motoring motor  sing sing
conflated conflat  hopping hop  falling fall  filing file  happy happi  sky sky  relational relat
vietnamization vietnam  hopefulness hope  formaliti formal  triplicate triplic  electriciti electr
adjustment adjust  adoption adopt  probate probat  rate rate  cease ceas  controll control  roll roll
methodology methodolog  possibly possibl  us us
"""


def test_stems():
    words = STEMS.split()
    assert [stem(word) for word in words[::2]] == words[1::2]
