"""The wrapper: what it takes over from a stock encoder must be the encoder's, in all seven families."""

import copy

import pytest
import torch
import transformers
from families import make_family
from method_models import READERS, make_gmap, make_rada
from tiny_models import VOCAB_SIZE, make_batch, make_config, make_masked_lm, reload
from transformers import AutoModel, BertConfig

import hf_domain
from hf_domain import (
    ExBertForMaskedLM,
    GMapForMaskedLM,
    RadaForMaskedLM,
    RadaForTokenClassification,
    VarMAEConfig,
    VarMAEForMaskedLM,
    VarMAEForTokenClassification,
)
from hf_domain.modeling.backbone import find_layers, normalizes_first
from hf_domain.modeling.configuration_backbone import strip_remote_code_keys

PLAIN = {"residual": True, "batch_norm": False}  # a VarMAE whose fresh module is the identity


@pytest.mark.parametrize("tied", [False, True])
def test_logits_equal_the_stock_model(family, tied):
    stock = make_masked_lm(family)
    model = VarMAEForMaskedLM.from_backbone(stock, **PLAIN, tie_word_embeddings=tied)
    batch = make_batch(masked=False)
    assert torch.equal(model(**batch).logits, stock(**batch).logits)


@pytest.mark.parametrize("tied", [False, True])
def test_decoder_is_the_embedding_table_only_when_tied(family, tied):
    model = VarMAEForMaskedLM.from_backbone(make_masked_lm(family), tie_word_embeddings=tied)
    shared = model.get_output_embeddings().weight.data_ptr() == model.get_input_embeddings().weight.data_ptr()
    assert shared is tied
    assert torch.equal(model.get_output_embeddings().weight, model.get_input_embeddings().weight)


def build_exbert(source, **options):
    vocabulary = {VOCAB_SIZE: [5, 6]}
    return ExBertForMaskedLM.from_backbone(source, extension_vocabulary=vocabulary, extension_hidden_size=0, **options)


def build_gmap(source, **options):
    return GMapForMaskedLM.from_backbones(source, make_masked_lm("bert"), starts_as_encoder=True, **options)


UNTIED = {"rada": RadaForMaskedLM.from_backbone, "exbert": build_exbert, "gmap": build_gmap}


@pytest.mark.parametrize("source", [*READERS, "varmae"])
@pytest.mark.parametrize("method", UNTIED)
def test_untied_decoder_stays_untied(method, source, tmp_path):
    """Tied, it would replace the encoder's embeddings."""
    if source == "varmae":
        stock = VarMAEForMaskedLM.from_backbone(make_masked_lm("bert"), **PLAIN)
        torch.nn.init.normal_(stock.get_output_embeddings().weight)
    else:
        stock = make_masked_lm(source, tie_word_embeddings=False)
    model, batch = UNTIED[method](stock).eval(), make_batch(masked=False)
    loaded = reload(model, tmp_path)
    expected = stock(**batch).logits
    for each in (model, loaded):
        assert not each.config.tie_word_embeddings
        torch.testing.assert_close(each(**batch).logits[..., :VOCAB_SIZE], expected, rtol=0, atol=1e-5)
    with pytest.raises(ValueError, match=f"must be False, because the decoder of this {type(stock).__name__} does not"):
        UNTIED[method](stock, tie_word_embeddings=True)


def test_encoder_without_a_decoder_keeps_the_default():
    encoder = make_masked_lm("bert", tie_word_embeddings=False).bert
    assert RadaForTokenClassification.from_backbone(encoder).config.tie_word_embeddings
    assert not VarMAEForTokenClassification.from_backbone(encoder).config.tie_word_embeddings


@pytest.mark.parametrize("tied", [False, True])
def test_resized_vocabulary_survives_saving(family, tied, tmp_path):
    model = VarMAEForMaskedLM.from_backbone(make_masked_lm(family), tie_word_embeddings=tied)
    model.resize_token_embeddings(VOCAB_SIZE + 16, mean_resizing=False)
    loaded = reload(model, tmp_path)
    assert loaded.config.vocab_size == loaded.config.backbone_config.vocab_size == VOCAB_SIZE + 16
    batch = make_batch(masked=False)
    logits = loaded(**batch).logits
    assert logits.shape[-1] == VOCAB_SIZE + 16
    assert torch.equal(logits, model(**batch).logits)


def nest_rada(top):
    return top.from_backbone(make_rada(dropout=0.0, passage_encoder="frozen"))


def nest_gmap(top):
    return top.from_backbone(make_gmap(dropout=0.0))


@pytest.mark.parametrize(
    ("nest", "top"),
    [
        (nest_rada, VarMAEForMaskedLM),
        (nest_gmap, VarMAEForMaskedLM),
        (nest_gmap, RadaForMaskedLM),
        (nest_gmap, ExBertForMaskedLM),
    ],
)
def test_added_tokens_reach_nested_models(nest, top):
    """A frozen passage encoder below grows too, and a memory below skips what it has no row for."""
    model = nest(top).eval()
    model.resize_token_embeddings(VOCAB_SIZE + 3)
    batch = make_batch(masked=False)
    batch["input_ids"][:, 2] = VOCAB_SIZE + 2
    if nest is nest_rada:
        batch["passage_input_ids"] = torch.full((4, 2, 5), VOCAB_SIZE + 1)
        rows = model.base_model.backbone.passage_backbone.get_input_embeddings().weight[VOCAB_SIZE:]
        assert torch.equal(rows, model.get_input_embeddings().weight[VOCAB_SIZE:]) and not rows.requires_grad
    logits = model(**batch).logits
    assert logits.shape[-1] == VOCAB_SIZE + 3 and logits.isfinite().all()


def test_from_backbone_copies_and_takes_a_name_or_an_encoder(family, tmp_path):
    stock = make_masked_lm(family)
    before = copy.deepcopy(stock.state_dict())
    stock.save_pretrained(tmp_path)
    by_name = VarMAEForMaskedLM.from_backbone(str(tmp_path), **PLAIN)
    by_model = VarMAEForMaskedLM.from_backbone(stock, **PLAIN)
    by_encoder = VarMAEForTokenClassification.from_backbone(AutoModel.from_pretrained(tmp_path), num_labels=3)
    batch = make_batch(masked=False)
    assert torch.equal(by_name(**batch).logits, by_model(**batch).logits)
    expected = stock.base_model(**batch).last_hidden_state
    assert torch.equal(by_encoder.model.encode(**batch).last_hidden_state, expected)
    by_model.get_input_embeddings().weight.data.zero_()
    by_model.config.vocab_size = 7
    assert all(torch.equal(value, before[key]) for key, value in stock.state_dict().items())
    assert stock.config.vocab_size == VOCAB_SIZE


SAME = {"VarMAE": PLAIN, "ExBert": {"gate_bias_init": 40.0}, "GMap": {"starts_as_encoder": True}, "Rada": {}}


@pytest.mark.parametrize("head", ["SequenceClassification", "TokenClassification"])
@pytest.mark.parametrize("method", SAME)
@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_classifier_brings_its_labels_and_its_head(family, method, head, tmp_path, caplog):
    labels = {"id2label": dict(enumerate("xyz")), "label2id": {"x": 0, "y": 1, "z": 2}}
    labels["problem_type"] = "single_label_classification"
    stock = getattr(transformers, f"AutoModelFor{head}").from_config(make_config(family, **labels)).eval()
    stock.save_pretrained(tmp_path)
    model_class = getattr(hf_domain, f"{method}For{head}")
    others = [make_masked_lm("bert")] if method == "GMap" else []
    build = model_class.from_backbones if others else model_class.from_backbone
    batch = make_batch(masked=False)
    for source in (stock, str(tmp_path)):
        model = build(source, *others, **SAME[method])
        config = model.config
        assert (config.num_labels, config.id2label) == (3, labels["id2label"])
        assert (config.label2id, config.problem_type) == (labels["label2id"], labels["problem_type"])
        torch.testing.assert_close(model(**batch).logits, stock(**batch).logits)
    assert "random" not in caplog.text
    fewer = build(stock, *others, **SAME[method], num_labels=2)
    assert fewer.config.id2label == {0: "LABEL_0", 1: "LABEL_1"}
    renamed = build(stock, *others, **SAME[method], id2label={0: "z", 1: "y", 2: "x"})
    assert not torch.equal(renamed(**batch).logits, stock(**batch).logits)
    assert caplog.text.count(f"of the {method}For{head} start at random, because a {type(stock).__name__} has") == 2


FIRST = ("eurobert", "modernbert", "roberta-prelayernorm", "xlm-roberta-xl")


@pytest.mark.parametrize("kind", [*FIRST, "albert", "bert", "deberta-v2", "gte", "mpnet"])
def test_where_layers_normalize_shows_in_their_states(kind):
    """Sums of what is normalized first grow; a last norm leaves states of mean 0 and deviation 1."""
    model = make_family(kind).base_model
    if kind == "deberta-v2":
        config = copy.deepcopy(model.config)
        config.norm_rel_ebd = "layer_norm"  # DeBERTa-v3's
        model = AutoModel.from_config(config)
    assert normalizes_first(model) == (kind in FIRST)
    found = []
    find_layers(model)[0].register_forward_hook(lambda layer, inputs, output: found.append(output))
    model.eval()(input_ids=torch.arange(5, 12)[None])
    states = found[0][0] if isinstance(found[0], tuple) else found[0]
    deviation = states.std(-1, correction=0)
    assert torch.allclose(deviation, torch.ones_like(deviation), atol=1e-3) == (kind not in FIRST)


def test_errors_of_from_backbone():
    stock = make_masked_lm("bert")
    with pytest.raises(ValueError, match=r"options must be of VarMAEConfig .*kl_weight.* no option kl_wieght"):
        VarMAEForMaskedLM.from_backbone(stock, kl_wieght=1.0)
    with pytest.raises(ValueError, match="masked-LM head, but it is a BertModel"):
        VarMAEForMaskedLM.from_backbone(stock.bert)
    with pytest.raises(ValueError, match="legacy=True"):
        VarMAEForMaskedLM(VarMAEConfig(backbone_config=make_config("deberta-v2", legacy=False)))


def test_hidden_states_and_attentions_are_the_encoders(family):
    stock = make_masked_lm(family)
    model = VarMAEForMaskedLM.from_backbone(stock)
    batch = make_batch(masked=False)
    ours = model(**batch, output_hidden_states=True).hidden_states
    theirs = stock(**batch, output_hidden_states=True).hidden_states
    as_tuple = model(**batch, output_hidden_states=True, return_dict=False)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    assert isinstance(as_tuple, tuple)
    assert torch.equal(as_tuple[1][-1], ours[-1])


def test_nested_configuration_cannot_switch_on_code(tmp_path):
    nested = {
        "model_type": "bert",
        "auto_map": {"AutoModel": "evil.Evil"},
        "trust_remote_code": True,
        "hidden_size": 32,
    }
    config = VarMAEConfig(backbone_config={**nested, "deeper": {"trust_remote_code": True}})
    assert not hasattr(config.backbone_config, "auto_map")
    config.backbone_config.auto_map = {"AutoModel": "evil.Evil"}
    config.save_pretrained(tmp_path)
    text = (tmp_path / "config.json").read_text()
    assert "evil" not in text
    assert "trust_remote_code" not in text
    config = VarMAEConfig(backbone_config=BertConfig(auto_map={"AutoModel": "evil.Evil"}))
    assert config.hidden_size == 768 and not hasattr(config.backbone_config, "auto_map")
    assert strip_remote_code_keys({"a": {"auto_map": 1, "b": 2}}) == {"a": {"b": 2}}


def test_override_of_a_nested_configuration_leaves_the_rest(tmp_path):
    model = VarMAEForMaskedLM.from_backbone(make_masked_lm("modernbert"))
    loaded = reload(model, tmp_path, backbone_config={"mlp_dropout": 0.25})
    nested = loaded.config.backbone_config
    assert (nested.model_type, nested.mlp_dropout) == ("modernbert", 0.25)
    assert nested.hidden_size == model.config.backbone_config.hidden_size
    for other in (BertConfig(hidden_size=48), {"model_type": "bert", "hidden_size": 48}):
        replaced = VarMAEConfig.from_pretrained(tmp_path, backbone_config=other).backbone_config
        assert (replaced.model_type, replaced.hidden_size, replaced.num_hidden_layers) == ("bert", 48, 12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_nested_models_have_one_type(dtype, tmp_path):
    """The configuration of the innermost encoder still names the type in which it was saved."""
    other = torch.bfloat16 if dtype == torch.float32 else torch.float32
    inner, outer = tmp_path / "inner", tmp_path / "outer"
    VarMAEForMaskedLM.from_backbone(make_masked_lm("bert")).to(other).save_pretrained(inner)
    RadaForMaskedLM.from_backbone(VarMAEForMaskedLM.from_pretrained(inner)).save_pretrained(outer)
    for loaded in (RadaForTokenClassification, RadaForMaskedLM):
        model = loaded.from_pretrained(outer, dtype=dtype)
        assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_model_around_one_of_the_same_method():
    """The new part would read in place of the trained one, also with another model in between."""
    inner = make_rada(head=RadaForMaskedLM)
    with pytest.raises(ValueError, match=r"not have its method already.*the type rada.*Classification.from_pretrained"):
        RadaForTokenClassification.from_backbone(inner)
    with pytest.raises(ValueError, match="it is of the type rada, or has such a model inside"):
        RadaForMaskedLM.from_backbone(VarMAEForMaskedLM.from_backbone(inner))


def test_frozen_passage_encoder_around_a_nested_model_grows(tmp_path):
    inner = VarMAEForMaskedLM.from_backbone(make_masked_lm("bert"))
    model = RadaForTokenClassification.from_backbone(inner, passage_encoder="frozen")
    model.resize_token_embeddings(VOCAB_SIZE + 3)
    rows = model.model.passage_backbone.get_input_embeddings().weight[VOCAB_SIZE:]
    assert torch.equal(rows, model.get_input_embeddings().weight[VOCAB_SIZE:])
    reload(model, tmp_path)


@pytest.mark.parametrize("method", ["gmap", "rada", "exbert"])
def test_lm_head_of_a_varmae_reads_what_it_learned_to_read(method):
    """Calibration made it undo the normalization, which heads of tasks leave out."""
    batch = make_batch()
    start = {"residual": True, "normalized_states": False, "log_variance_init": -4.0}
    inner = VarMAEForMaskedLM.from_backbone(make_masked_lm("bert"), **start)
    inner.calibrate([make_batch() for _ in range(4)])
    if method == "gmap":
        outer = GMapForMaskedLM.from_backbones(inner, make_masked_lm("bert"), starts_as_encoder=True)
    elif method == "rada":
        outer = RadaForMaskedLM.from_backbone(inner)
    else:
        outer = ExBertForMaskedLM.from_backbone(inner, gate_bias_init=30.0)
    torch.testing.assert_close(outer.eval()(**batch).logits, inner.eval()(**batch).logits, rtol=0, atol=1e-4)
    assert not inner.config.normalized_states
