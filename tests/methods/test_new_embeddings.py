import numpy as np
import pytest
import torch
from families import VOCAB_SIZE as FAMILY_SIZE
from families import make_family
from method_models import make_exbert, make_gmap, make_rada
from tiny_models import VOCAB_SIZE
from tiny_tokenizers import make_tokenizer
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertModel,
    DebertaV2Config,
    DebertaV2ForMaskedLM,
    DistilBertConfig,
    DistilBertForMaskedLM,
    ElectraConfig,
    ElectraForMaskedLM,
    ModernBertConfig,
    ModernBertForMaskedLM,
    RobertaConfig,
    RobertaForMaskedLM,
    XLMRobertaConfig,
    XLMRobertaForMaskedLM,
)
from vocabulary_invariants import DOMAIN_TEXTS

from hf_domain import GMapForSequenceClassification
from hf_domain.methods.new_embeddings import (
    apply_delta,
    check_not_expanded,
    grow_tables,
)
from hf_domain.tokenization import VocabularyDelta, expand_vocabulary, trim_vocabulary

SIZE = 40
DELTA = VocabularyDelta(SIZE, {"a": [7, 9], "b": [11], "c": [], "d": [12, 12, 13]})
SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
FAMILIES = {
    BertForMaskedLM: (BertConfig, SHAPE),
    RobertaForMaskedLM: (RobertaConfig, SHAPE),
    XLMRobertaForMaskedLM: (XLMRobertaConfig, SHAPE),
    ElectraForMaskedLM: (ElectraConfig, {**SHAPE, "embedding_size": 8}),
    DistilBertForMaskedLM: (DistilBertConfig, {"dim": 16, "n_layers": 1, "n_heads": 2, "hidden_dim": 16}),
    ModernBertForMaskedLM: (ModernBertConfig, {**SHAPE, "pad_token_id": 0}),
    DebertaV2ForMaskedLM: (DebertaV2Config, SHAPE),
}


def make_model(model_class=BertForMaskedLM, rows=SIZE, tied=True):
    torch.manual_seed(0)
    config_class, shape = FAMILIES[model_class]
    config = config_class(**shape, vocab_size=rows, tie_word_embeddings=tied)
    model = model_class(config)
    decoder = model.get_output_embeddings()
    if decoder is not None and decoder.bias is not None:
        torch.nn.init.normal_(decoder.bias)  # zeros would hide a wrong row
    return model


def read_tables(model):
    decoder = model.get_output_embeddings()
    tables = [model.get_input_embeddings().weight, decoder.weight, decoder.bias]
    return [table.detach().clone() for table in tables]


def average(old, pieces):
    """The rows that DELTA asks for, one by one."""
    return torch.stack([old[ids].mean(dim=0) if ids else old.mean(dim=0) for ids in pieces])


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("model_class", FAMILIES)
def test_new_rows_are_the_mean_of_their_pieces(model_class, tied, tmp_path):
    model = make_model(model_class, tied=tied)
    before = read_tables(model)
    apply_delta(model, DELTA)
    after = read_tables(model)
    for old, new in zip(before, after, strict=True):
        assert len(new) == DELTA.new_size
        assert torch.equal(new[:SIZE], old)
        torch.testing.assert_close(new[SIZE:], average(old, DELTA.pieces.values()))
    assert (model.get_input_embeddings().weight is model.get_output_embeddings().weight) == tied
    assert model.config.vocab_size == DELTA.new_size
    loss = model(input_ids=torch.tensor([[3, SIZE + 3]]), labels=torch.tensor([[-100, SIZE + 3]])).loss
    assert torch.isfinite(loss)
    model.save_pretrained(tmp_path)
    for saved, loaded in zip(after, read_tables(model_class.from_pretrained(tmp_path)), strict=True):
        assert torch.equal(saved, loaded)


def test_random_and_mean_rows():
    before = read_tables(make_model())
    random, mean = make_model(), make_model()
    apply_delta(random, DELTA, init="random")
    apply_delta(mean, DELTA, init="mean")
    weight, _, bias = read_tables(random)
    assert 0.01 < weight[SIZE:].std() < 0.04 and torch.equal(bias[SIZE:], torch.zeros(4))
    for old, new in zip(before, read_tables(mean), strict=True):
        torch.testing.assert_close(new[SIZE:], average(old, [[]] * 4))


def test_a_padded_table_is_filled_and_does_not_shrink():
    model = make_model(rows=64)
    before = read_tables(model)
    apply_delta(model, DELTA)
    for old, new in zip(before, read_tables(model), strict=True):
        assert len(new) == 64
        assert torch.equal(new[:SIZE], old[:SIZE]) and torch.equal(new[DELTA.new_size :], old[DELTA.new_size :])
        # The padding is no part of any mean.
        torch.testing.assert_close(new[SIZE : DELTA.new_size], average(old[:SIZE], DELTA.pieces.values()))


def test_a_model_without_a_head_and_in_half_precision():
    model = BertModel(BertConfig(**SHAPE, vocab_size=SIZE)).to(torch.bfloat16)
    old = model.get_input_embeddings().weight.detach().clone()
    apply_delta(model, DELTA)
    new = model.get_input_embeddings().weight
    assert new.dtype == torch.bfloat16
    torch.testing.assert_close(new[SIZE:], average(old.float(), DELTA.pieces.values()).to(torch.bfloat16))


def test_an_empty_delta_changes_nothing():
    model = make_model()
    before = read_tables(model)
    apply_delta(model, VocabularyDelta(SIZE))
    assert all(torch.equal(old, new) for old, new in zip(before, read_tables(model), strict=True))


@pytest.mark.parametrize("rows", [SIZE - 1, SIZE + 1025])
def test_a_table_of_another_tokenizer_is_refused(rows):
    model = make_model(rows=rows)
    before = read_tables(model)
    with pytest.raises(ValueError, match=r"but has [\d,]+ rows"):
        apply_delta(model, DELTA)
    assert all(torch.equal(old, new) for old, new in zip(before, read_tables(model), strict=True))


def test_an_unknown_init_is_refused():
    with pytest.raises(ValueError, match="`init`"):
        apply_delta(make_model(), DELTA, init="zeros")


def test_biases_follow_the_frequency_of_entries():
    """On the line that numpy fits to the biases of old entries; the rows are still the means of their pieces."""
    generator = np.random.default_rng(0)
    counts = generator.integers(0, 500, DELTA.new_size)
    counts[[3, 4]] = 0  # never seen: no logarithm, no part of the line
    counts[SIZE:] = [7, 1, 90, 30]
    model = make_model()
    with torch.no_grad():
        model.get_output_embeddings().bias += torch.from_numpy(2 * np.log(counts[:SIZE] + 1)).float() - 12
    before = read_tables(model)
    apply_delta(model, VocabularyDelta(SIZE, DELTA.pieces, counts.tolist()))
    weight, _, bias = read_tables(model)
    seen = np.flatnonzero(counts[:SIZE])
    line = np.polyfit(np.log(counts[seen]), before[2].numpy()[seen], 1)
    old = before[2].numpy()[seen]
    expected = np.polyval(line, np.log(counts[SIZE:])).clip(old.min(), old.max())
    assert bias[SIZE:].tolist() == pytest.approx(expected.tolist(), abs=1e-5)
    assert torch.equal(bias[:SIZE], before[2])
    torch.testing.assert_close(weight[SIZE:], average(before[0], DELTA.pieces.values()))


@pytest.mark.parametrize("num_seen", [0, 3])
def test_biases_that_nothing_predicts_are_those_of_the_pieces(num_seen):
    """A list of words that all become entries leaves no old entry; the line through none had NaN biases."""
    counts = [9] * num_seen + [0] * (SIZE - num_seen) + [7, 1, 90, 30]
    model = make_model()
    before = read_tables(model)
    apply_delta(model, VocabularyDelta(SIZE, DELTA.pieces, counts))
    torch.testing.assert_close(read_tables(model)[2][SIZE:], average(before[2], DELTA.pieces.values()))


def test_predicted_biases_stay_among_the_old_ones():
    """Nor does a new entry win because frequent old entries happen to have low biases."""
    model = make_model()
    counts = [*range(1, SIZE + 1), 10**9, 1, 90, 30]
    with torch.no_grad():
        model.get_output_embeddings().bias.copy_(-torch.arange(SIZE).float())
    apply_delta(model, VocabularyDelta(SIZE, DELTA.pieces, counts))
    bias = read_tables(model)[2]
    assert bias[SIZE:].tolist() == pytest.approx([bias[:SIZE].mean().item()] * 4)
    model = make_model()
    with torch.no_grad():
        model.get_output_embeddings().bias.copy_(torch.arange(SIZE).float())
    apply_delta(model, VocabularyDelta(SIZE, DELTA.pieces, counts))
    assert read_tables(model)[2][SIZE] == SIZE - 1


def test_padding_wins_no_prediction():
    """Its rows have no entry, and resizing leaves them a bias of 0."""
    model = make_model()
    with torch.no_grad():
        model.get_output_embeddings().bias -= 12.6
    apply_delta(model, DELTA, pad_to_multiple_of=64)
    weight, _, bias = read_tables(model)
    assert len(bias) == 64
    assert torch.equal(bias[SIZE + 4 :], bias[:SIZE].min().expand(20))
    torch.testing.assert_close(weight[SIZE + 4 :], weight[:SIZE].mean(dim=0).expand(20, -1))


def test_a_trimmed_expansion_is_not_expanded_again():
    """Its size alone does not tell: the rows of the new words were trained."""
    tokenizer = make_tokenizer("bert")
    expanded, delta, _ = expand_vocabulary(tokenizer, DOMAIN_TEXTS, min_frequency=2, progress=False)
    trimmed, _ = trim_vocabulary(expanded, DOMAIN_TEXTS, progress=False)
    assert len(trimmed) < delta.new_size
    check_not_expanded(tokenizer, delta)
    for again in (expanded, trimmed):
        with pytest.raises(ValueError, match=f"must be expanded only once, .* already has {len(again)} entries"):
            check_not_expanded(again, delta)


@pytest.mark.parametrize(
    "model",
    [make_exbert(), make_rada(passage_encoder="frozen"), make_gmap(), make_gmap(head=GMapForSequenceClassification)],
    ids=lambda model: type(model).__name__,
)
def test_a_finished_model_grows_by_added_tokens(model):
    size, table = model.config.vocab_size, model.get_input_embeddings().weight.clone()
    grow_tables(model, VocabularyDelta(size, {"[E1]": [], "[/E1]": []}))
    new = [model.get_input_embeddings()]
    if hasattr(model.base_model, "passage_backbone"):
        new.append(model.base_model.passage_backbone.get_input_embeddings())
    for each in new:
        rows = each(torch.tensor([size, size + 1]))
        torch.testing.assert_close(rows, table[:VOCAB_SIZE].mean(0).expand(2, -1))
    assert model.config.vocab_size == size + 2


@pytest.mark.parametrize(
    ("family", "message"),
    [
        ("esm", "together with the head"),  # its head adds a bias of the old size
        ("ibert", "together with the head"),  # transformers refuses to resize it
        ("mobilebert", "together with the head"),  # its method takes no options
        ("xlm", "together with the head"),  # its loss counts the old entries
        ("perceiver", "must have an embedding table"),
    ],
)
def test_a_table_that_cannot_grow_is_refused(family, message):
    with pytest.raises(ValueError, match=message) as caught:
        apply_delta(make_family(family), VocabularyDelta(FAMILY_SIZE, {"new": [5, 6]}))
    assert str(caught.value).endswith("Use another family.") and "\n" not in str(caught.value)


def test_an_encoder_that_reads_some_lengths_only_grows():
    """Nystromformer cannot read the few tokens by which the head of others is tried."""
    model = make_family("nystromformer")
    apply_delta(model, VocabularyDelta(FAMILY_SIZE, {"new": [5, 6]}))
    assert model.get_output_embeddings().out_features == FAMILY_SIZE + 1
