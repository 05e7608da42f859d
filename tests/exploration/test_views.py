"""What is shown of a model is what the model computes."""

import pytest
import torch
from method_models import NUM_NEW, make_exbert, make_gmap
from tiny_models import make_masked_lm
from tiny_tokenizers import SENTENCES, make_bert_tokenizer, make_tokenizer
from torch.nn import functional as F
from vocabulary_invariants import DOMAIN_TEXTS, TOKENIZERS

from hf_domain.exploration import views
from hf_domain.methods.gmap import memory
from hf_domain.tokenization import expand_vocabulary

TEXT = SENTENCES[0]


@pytest.fixture
def tokenizer():
    return make_bert_tokenizer()


@pytest.fixture
def model():
    return make_masked_lm("bert")  # its vocabulary has as many entries as the tokenizer


def test_texts_that_cannot_be_read(tokenizer, model):
    assert views.check_text(f" {TEXT}\n", tokenizer, model) == TEXT
    with pytest.raises(ValueError, match="but it is empty"):
        views.check_text(" \n", tokenizer)
    with pytest.raises(ValueError, match=r"at most 512 tokens, but this one has 10,002\. Shorten"):
        views.check_text("text " * 10_000, tokenizer)
    model.bert.embeddings.position_embeddings = torch.nn.Embedding(20, 32)
    with pytest.raises(ValueError, match="at most 20 tokens"):
        views.check_text("text " * 19, tokenizer, model)
    with pytest.raises(ValueError, match="at most 128 tokens"):
        views.measure_losses("text " * 127, make_masked_lm("bert"), tokenizer)


@pytest.mark.parametrize("name", TOKENIZERS)
def test_words_in_pieces(name):
    old, text = TOKENIZERS[name](), DOMAIN_TEXTS[0].lower()  # some do not know every capital
    new, delta, _ = expand_vocabulary(old, DOMAIN_TEXTS, min_frequency=2, step=15, progress=False)
    words = views.cut_words(text, new, old)
    pieces = [piece for word in words for piece in word]
    assert "".join(piece.text for piece in pieces) == "".join(text.split())
    ids = new(text, add_special_tokens=False)["input_ids"]
    assert [piece.is_new for piece in pieces] == [number >= delta.old_size for number in ids]
    assert 0 < sum(piece.is_new for piece in pieces) < len(pieces)
    assert views.cut_words(text, new, delta.old_size) == words
    assert not any(piece.is_new for word in views.cut_words(text, old) for piece in word)


def test_pieces_of_a_word_stand_together(tokenizer):
    words = views.cut_words("The encoder ☃", tokenizer)
    assert [[piece.text for piece in word] for word in words] == [["The"], ["encod", "er"], ["[UNK]"]]


@pytest.mark.parametrize("mask", views.MASKS)
@torch.no_grad()
def test_masks(model, tokenizer, mask):
    found = views.fill_masks(f"the {mask} reads {mask} text", model, tokenizer, 3)
    inputs = tokenizer("the [MASK] reads [MASK] text", return_tensors="pt")
    places = inputs["input_ids"][0] == tokenizer.mask_token_id
    best = model(**inputs).logits[0, places].softmax(-1).topk(3)
    names = [[tokenizer.decode([number]).strip() for number in row] for row in best.indices]
    assert [[token for token, _ in row] for row in found] == names
    assert torch.tensor([[share for _, share in row] for row in found]).allclose(best.values)
    assert views.fill_masks(f"the {mask}", model, tokenizer, 3)[0][0][0]
    with pytest.raises(ValueError, match=r"written as \[MASK\]"):
        views.fill_masks("no mask", model, tokenizer)


@torch.no_grad()
def test_losses_mask_each_token_alone(model, tokenizer):
    ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
    expected = []
    for place in range(1, ids.shape[1] - 1):
        masked = ids.clone()
        masked[0, place] = tokenizer.mask_token_id
        expected.append(F.cross_entropy(model(masked).logits[0, place], ids[0, place]).item())
    tokens, losses = zip(*views.measure_losses(TEXT, model, tokenizer), strict=True)
    assert list(losses) == pytest.approx(expected, abs=1e-4)
    assert list(tokens) == [tokenizer.decode([number]) for number in ids[0, 1:-1]]


@torch.no_grad()
def test_neighbors(model, tokenizer):
    table = model.get_input_embeddings().weight
    first, second = tokenizer.convert_tokens_to_ids(["text", "words"])
    table[second] = 2 * table[first]
    table[tokenizer.cls_token_id] = 3 * table[first]  # no word of a text
    assert views.find_neighbors("text", model, tokenizer, 4)[0] == ("words", pytest.approx(1.0))
    pieces = tokenizer("encoder", add_special_tokens=False)["input_ids"]
    cosines = F.cosine_similarity(table, table[pieces].mean(0, keepdim=True))
    cosines[[*pieces, *tokenizer.all_special_ids]] = -2
    best = (tokenizer.decode([cosines.argmax()]), pytest.approx(cosines.max().item()))
    assert len(pieces) == 2 and views.find_neighbors("encoder", model, tokenizer)[0] == best


@torch.no_grad()
def test_neighbors_of_a_word_in_byte_level_bpe():
    """Its words begin with a blank, so that the pieces of each were compared; and an unknown word has none."""
    tokenizer = make_tokenizer("roberta")
    tokenizer, _, _ = expand_vocabulary(tokenizer, ["the cardiomyopathy here"] * 20, progress=False)
    assert views.tokenize_word("cardiomyopathy", tokenizer) == ["Ġcardiomyopathy"]
    with pytest.raises(ValueError, match="has no token for 😀"):
        views.tokenize_word("😀", make_bert_tokenizer())


@torch.no_grad()
def test_neighbors_in_the_table_of_new_entries(tokenizer):
    model, number = make_exbert(), tokenizer.convert_tokens_to_ids("text")
    tokenizer.add_tokens([f"new{number}" for number in range(NUM_NEW)])
    embed = model.get_input_embeddings()
    embed.extension.weight[3] = embed.weight[number]
    assert views.find_neighbors("text", model, tokenizer)[0] == ("new3", pytest.approx(1.0))
    assert views.find_neighbors("new3", model, tokenizer)[0] == ("text", pytest.approx(1.0))


@torch.no_grad()
def test_gates_of_exbert(tokenizer):
    model = make_exbert()
    states = model(**tokenizer(TEXT, return_tensors="pt"), output_hidden_states=True).hidden_states
    (gates,) = views.measure_gates([TEXT], model, tokenizer)
    assert gates.columns[:3] == ["[CLS]", "the", "encod"]
    assert [*gates.rows] == ["layer 1", "layer 2"]
    for layer, state, row in zip(model.get_base_layers(), states, gates.rows.values(), strict=False):
        assert row == pytest.approx((1 - layer.side.gate(state).sigmoid())[0, :, 0].tolist(), abs=1e-5)


@pytest.mark.parametrize("strategy", ["gated", "chunk_gated"])
@torch.no_grad()
def test_gates_of_gmap(tokenizer, strategy):
    model = make_gmap(strategy=strategy, fusion="gate").eval()
    *found, heads = views.measure_gates([TEXT, SENTENCES[1]], model, tokenizer)
    inputs, base = tokenizer(TEXT, SENTENCES[1], return_tensors="pt"), model.base_model
    states = base.encode_memory(**inputs)
    assert len(found) == len(base.plan) == len(heads.rows)
    for gates, gate, (_, chosen) in zip(found, base.memory_gates, base.plan, strict=True):
        read = states[:, :, [base.state_indices.index(state) for state in chosen]]
        expected = gate(read).softmax(dim=2)[0, :, :, 0].T
        assert torch.tensor([*gates.rows.values()]).allclose(expected, atol=1e-5)
        assert len(gates.rows) == len(chosen) and len(gates.columns) == inputs["input_ids"].shape[1]
    shares = [gate.weight.sigmoid().tolist() for gate in base.head_gates]
    assert [*heads.rows.values()] == [pytest.approx(row) for row in shares]


def test_gates_over_the_tokens_of_the_memory(tokenizer, monkeypatch):
    model = make_gmap(strategy="gated", memory_tokenizer="own").eval()
    own = make_bert_tokenizer([TEXT])  # another one: it cuts the text into fewer kinds of pieces
    monkeypatch.setattr(views, "load_memory_tokenizer", lambda config: own)
    assert memory.load_memory_tokenizer is not views.load_memory_tokenizer
    (gates,) = views.measure_gates([SENTENCES[1]], model, tokenizer)
    assert gates.columns == [own.decode([number]) for number in own(SENTENCES[1])["input_ids"]]
    assert gates.columns != [tokenizer.decode([number]) for number in tokenizer(SENTENCES[1])["input_ids"]]


def test_models_without_gates(tokenizer, model):
    assert not views.has_gates(model.config)
    assert not views.has_gates(make_gmap(strategy="single_layer").config)
    assert not views.has_gates(make_exbert(extension_hidden_size=0).config)
    with pytest.raises(ValueError, match="must have gates, but BertForMaskedLM has none"):
        views.measure_gates([TEXT], model, tokenizer)
