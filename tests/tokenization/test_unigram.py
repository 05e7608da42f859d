import itertools
import json

import pytest
from vocabulary_invariants import DOMAIN_TEXTS, make_deberta, make_xlm_roberta

from hf_domain.tokenization import expand_vocabulary
from hf_domain.tokenization.unigram import BONUS, TIE_BREAK, add_entries

GENERAL = ["the doctor has a plan", "two spaces and a tab", "blood is made of cells in the bone", "naive cafe muller"]


def read_model(tokenizer):
    return json.loads(tokenizer.backend_tokenizer.to_str())["model"]


def expand(tokenizer, **options):
    return expand_vocabulary(tokenizer, DOMAIN_TEXTS, min_frequency=2, step=15, progress=False, **options)


@pytest.mark.parametrize("make", [make_xlm_roberta, make_deberta])
def test_a_piece_scores_what_its_spelling_did(make):
    tokenizer = make()
    new_tokenizer, delta, _ = expand(tokenizer)
    old, new = (dict(map(tuple, read_model(each)["vocab"])) for each in (tokenizer, new_tokenizer))
    spelling = {id_: piece for piece, id_ in tokenizer.get_vocab().items()}
    assert {piece: score for piece, score in new.items() if piece in old} == old
    for entry, pieces in delta.pieces.items():
        score = sum(old[spelling[id_]] for id_ in pieces) + BONUS * (len(pieces) - 1)
        assert -1e-12 < new[entry] - score < TIE_BREAK + 1e-12
        assert "".join(spelling[id_] for id_ in pieces) == entry


@pytest.mark.parametrize("make", [make_xlm_roberta, make_deberta])
def test_texts_without_new_pieces_are_cut_as_before(make):
    tokenizer = make()
    new_tokenizer, _, _ = expand(tokenizer)
    assert new_tokenizer(GENERAL)["input_ids"] == tokenizer(GENERAL)["input_ids"]


def test_punctuation_is_no_part_of_an_entry():
    _, delta, _ = expand(make_xlm_roberta())
    assert "▁lymphoma" in delta.pieces
    assert not [entry for entry in delta.pieces if set(entry) & set(",;:.()")]


def test_sub_words_become_entries():
    texts = [" ".join(f"{first}otropin" for first in "abcdefg"), "blastocyst blastomer blastopor"]
    _, delta, _ = expand_vocabulary(make_xlm_roberta(), texts, size=170, step=1000, min_frequency=3, progress=False)
    assert "otropin" in delta.pieces and "▁blasto" in delta.pieces


def test_words_are_found_in_sentences_without_blanks():
    contexts = ["患者有{}的病史。", "没有发现{}。", "{}的治疗方案如下。", "考虑为{}可能。"]
    characters = sorted(set("".join(contexts)) - set("{}") | set("淋巴瘤"))
    vocab = [*read_model(make_xlm_roberta())["vocab"][:-1], *[[character, -9.0] for character in characters]]
    tokenizer = type(make_xlm_roberta())(vocab=[(piece, score) for piece, score in [*vocab, ["<mask>", 0.0]]])
    text = "".join(context.format("淋巴瘤") for context in contexts) * 3
    _, delta, _ = expand_vocabulary(tokenizer, [text], min_frequency=12, progress=False)
    assert len(text) > 50 and list(delta.pieces) == ["淋巴瘤"]


def test_the_mask_of_deberta_keeps_its_id():
    tokenizer = make_deberta()
    assert tokenizer.mask_token_id == len(read_model(tokenizer)["vocab"])
    new_tokenizer, delta, _ = expand(tokenizer)
    assert new_tokenizer.mask_token_id == tokenizer.mask_token_id
    assert delta.old_size == tokenizer.mask_token_id + 1
    assert new_tokenizer("a [MASK]")["input_ids"] == tokenizer("a [MASK]")["input_ids"]


def test_ids_with_a_hole_are_refused():
    with pytest.raises(ValueError, match="positions"):
        add_entries(read_model(make_xlm_roberta()), ["▁new"], first_id=10_000)


def test_the_best_cut_has_the_fewest_tokens_of_those_that_were_best():
    # Independent search over all cuts of a word, by old score first and number of tokens second.
    tokenizer = make_xlm_roberta()
    new_tokenizer, delta, _ = expand(tokenizer, size=190)
    old = dict(map(tuple, read_model(tokenizer)["vocab"]))
    for word in ["▁lymphomas", "▁lymphoma", "▁blastoma", "▁patients"]:
        best = min(((-round(score, 6), len(pieces)) for pieces, score in _list_cuts(word, old, delta, tokenizer)))
        assert len(new_tokenizer.tokenize(word.removeprefix("▁"))) == best[1]


def _list_cuts(word, old, delta, tokenizer):
    spelling = {id_: piece for piece, id_ in tokenizer.get_vocab().items()}
    scores = dict(old)
    for entry, pieces in delta.pieces.items():
        scores[entry] = sum(old[spelling[id_]] for id_ in pieces)
    for number in range(len(word)):
        for borders in itertools.combinations(range(1, len(word)), number):
            pieces = [word[start:end] for start, end in itertools.pairwise((0, *borders, len(word)))]
            if all(piece in scores for piece in pieces):
                yield pieces, sum(scores[piece] for piece in pieces)
