"""A trimmed model computes what it computed before."""

import pytest
import torch
from tiny_models import FAMILIES, make_config, make_masked_lm
from tiny_tokenizers import make_tokenizer
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, BertTokenizer
from vocabulary_invariants import DOMAIN_TEXTS

from hf_domain.methods.adalm.trim import keep_rows
from hf_domain.modeling.modeling_exbert import ExBertForMaskedLM
from hf_domain.modeling.modeling_gmap import GMapForMaskedLM
from hf_domain.modeling.modeling_rada import RadaForMaskedLM
from hf_domain.modeling.modeling_varmae import VarMAEForMaskedLM
from hf_domain.tokenization import VocabularyDelta, trim_vocabulary

CORPUS = DOMAIN_TEXTS[:30]
KINDS = {family: "bert" if family in ("electra", "distilbert") else family for family in FAMILIES}
IDS = ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


def make_pair(family, tokenizer=None, tied=True):
    """A masked LM whose table has five rows of padding, and its tokenizer."""
    tokenizer = tokenizer or make_tokenizer(KINDS[family])
    config = make_config(family)
    config.vocab_size, config.tie_word_embeddings = len(tokenizer) + 5, tied
    for name in IDS:
        setattr(config, name, getattr(tokenizer, name))
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(config).eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)  # zeros would hide a wrong row
    return model, tokenizer


def run(model, tokenizer):
    batch = tokenizer(CORPUS[:4], padding=True, truncation=True, max_length=16, return_tensors="pt")
    with torch.no_grad():
        return model(**batch, output_hidden_states=True)


def check_trimmed(model, tokenizer, folder):
    """Trim both, save and load them, and compare with what they computed before."""
    before = run(model, tokenizer)
    trimmed, kept = trim_vocabulary(tokenizer, CORPUS, progress=False)
    keep_rows(model, kept)
    model.save_pretrained(folder)
    for small in (model, AutoModelForMaskedLM.from_pretrained(folder)):
        after = run(small, trimmed)
        assert torch.equal(before.hidden_states[-1], after.hidden_states[-1])
        torch.testing.assert_close(before.logits[..., kept], after.logits)
        assert small.config.vocab_size == len(trimmed) == len(small.get_input_embeddings().weight)
        assert small.get_input_embeddings().padding_idx == trimmed.pad_token_id
        assert [getattr(small.config, name) for name in IDS] == [getattr(trimmed, name) for name in IDS]


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("family", FAMILIES)
def test_states_and_logits_stay(family, tied, tmp_path):
    check_trimmed(*make_pair(family, tied=tied), tmp_path)


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_special_tokens_get_new_ids(family, tmp_path):
    """Those of the configuration as well, and the padding of the table."""
    tokenizer = make_tokenizer("bert")
    special = tokenizer.all_special_tokens
    entries = [entry for entry in sorted(tokenizer.get_vocab()) if entry not in special]
    tokenizer = BertTokenizer(vocab={entry: id_ for id_, entry in enumerate([*entries, *special])})
    model, _ = make_pair(family, tokenizer)
    old = model.config.pad_token_id
    check_trimmed(model, tokenizer, tmp_path)
    assert model.config.pad_token_id < old


@pytest.mark.parametrize("family", FAMILIES)
def test_classifiers_are_trimmed_too(family):
    torch.manual_seed(0)
    model, tokenizer = make_pair(family)
    model = AutoModelForSequenceClassification.from_config(model.config).eval()
    before = run(model, tokenizer).logits
    trimmed, kept = trim_vocabulary(tokenizer, CORPUS, progress=False)
    keep_rows(model, kept)
    torch.testing.assert_close(before, run(model, trimmed).logits)


@pytest.mark.parametrize("model_class", [VarMAEForMaskedLM, RadaForMaskedLM])
def test_methods_around_one_table_are_trimmed_too(model_class, tmp_path):
    model, tokenizer = make_pair("bert")
    wrapped = model_class.from_backbone(model).eval()
    before = run(wrapped, tokenizer)
    trimmed, kept = trim_vocabulary(tokenizer, CORPUS, progress=False)
    keep_rows(wrapped, kept)
    wrapped.save_pretrained(tmp_path)
    for small in (wrapped, model_class.from_pretrained(tmp_path)):
        torch.testing.assert_close(before.logits[..., kept], run(small, trimmed).logits)


def test_models_with_several_tables_are_refused():
    """A memory and passages would be read with the rows of other words."""
    extension = VocabularyDelta(120, {"lymph": [5, 6], "oma": [7]})
    for model in (
        GMapForMaskedLM.from_backbones(make_masked_lm("bert"), make_masked_lm("bert")),
        GMapForMaskedLM.from_backbones(make_masked_lm("bert"), make_pair("bert")[0]),
        RadaForMaskedLM.from_backbone(make_masked_lm("bert"), passage_encoder="frozen"),
        ExBertForMaskedLM.from_backbone(make_masked_lm("bert"), extension_vocabulary=extension),
    ):
        with pytest.raises(
            ValueError, match=f"must have a single table of words, but {type(model).__name__} has a second"
        ):
            keep_rows(model, range(60))
        assert len(model.get_input_embeddings().weight) == 120


def test_ids_of_another_table_are_refused():
    model = make_masked_lm("bert")
    for kept in ([], [3, 2], [2, 2], [-1, 2], [0, 120]):
        with pytest.raises(ValueError, match="`kept` must be ascending ids without repeats, from 0 to 119"):
            keep_rows(model, kept)
    assert len(model.get_input_embeddings().weight) == 120


def test_a_padding_token_that_numbers_the_positions_keeps_its_id():
    """RoBERTa counts its positions from there: all of them would move."""
    model = make_masked_lm("roberta")
    with pytest.raises(ValueError, match="must keep its id 1, from which this model numbers its positions, but would"):
        keep_rows(model, [1, 2, 3])
    assert len(model.get_input_embeddings().weight) == 120
