"""exBERT: the layer of section 3.2 computed a second time, and its sizes; further proofs are in test_proofs.py."""

import copy
import math
from types import SimpleNamespace

import pytest
import torch
from method_models import METHODS, NUM_NEW, VOCABULARY, make_exbert, make_extended_batch
from safetensors import safe_open
from tiny_models import VOCAB_SIZE, make_batch, make_config, make_masked_lm
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, BertConfig

from hf_domain import (
    ExBertConfig,
    ExBertForMaskedLM,
    ExBertForTokenClassification,
    ExBertModel,
    VarMAEForMaskedLM,
)
from hf_domain.methods.new_embeddings import apply_delta
from hf_domain.modeling.backbone import find_encoder
from hf_domain.modeling.configuration_exbert import EXTENSION_SIZES
from hf_domain.modeling.layers_exbert import LARGEST_PADDING, check_extension_start, read_extension_vocabulary
from hf_domain.testing import check_activation_checkpointing, get_changed, train
from hf_domain.tokenization import VocabularyDelta

# ---------------------------------------------------------------------------------------- 1: the equations


def compute_side_output(side, hidden_states, allowed, norm_first):
    """T_ext and the gate token by token and head by head, from the parameters alone."""
    inner = side.attention_output.in_features
    size = inner // 4

    def normalize(norm, x):
        return (x - x.mean()) / (x.var(correction=0) + norm.eps).sqrt() * norm.weight + norm.bias

    def linear(part, x):
        return part.weight @ x + part.bias

    result, gates = torch.zeros_like(hidden_states), torch.zeros(hidden_states.shape[:2])
    for b, rows in enumerate(hidden_states):
        read = [normalize(side.attention_norm, row) if norm_first else row for row in rows]
        projected = torch.stack([linear(side.query_key_value, row) for row in read])
        query, key, value = projected[:, :inner], projected[:, inner : 2 * inner], projected[:, 2 * inner :]
        for i, row in enumerate(rows):
            context = []
            for head in range(4):
                part = slice(head * size, (head + 1) * size)
                scores = torch.stack([query[i, part] @ key[j, part] for j in range(len(rows))]) / math.sqrt(size)
                weights = scores.masked_fill(~allowed[b, i], -math.inf).softmax(0)
                context.append(weights @ value[:, part])
            attended = row + linear(side.attention_output, torch.cat(context))
            if not norm_first:
                attended = normalize(side.attention_norm, attended)
            fed = normalize(side.output_norm, attended) if norm_first else attended
            output = attended + linear(side.output, F.gelu(linear(side.intermediate, fed)))
            result[b, i] = output if norm_first else normalize(side.output_norm, output)
            gates[b, i] = 1 / (1 + torch.exp(-linear(side.gate, row)))
    return result, gates[..., None]


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_layers_equal_the_equation(family, attention):
    stock = make_masked_lm(family)
    model = ExBertForMaskedLM.from_backbone(stock, extension_vocabulary=VOCABULARY)
    model.set_attn_implementation("eager" if family == "deberta-v2" else attention)  # it has none but its own
    calls = []
    layers = model.model.get_base_layers()
    for layer in layers:
        layer.register_forward_pre_hook(lambda m, args, kwargs: calls.append((args, kwargs)), with_kwargs=True)
    batch = make_extended_batch(masked=False)
    hidden_states = model(**batch, output_hidden_states=True).hidden_states
    stock_layers = [module for module in stock.modules() if type(module) is type(layers[0]).__bases__[1]]
    for index, (layer, (args, kwargs)) in enumerate(zip(stock_layers, calls, strict=True)):
        base = layer(*args, **kwargs)
        base = base[0] if isinstance(base, tuple) else base
        allowed = batch["attention_mask"].bool()[:, None, :].expand(-1, 12, -1)
        if family == "modernbert" and index == 1:  # a local layer
            allowed = allowed & ((torch.arange(12)[:, None] - torch.arange(12)).abs() <= 4)
        side, gate = compute_side_output(layers[index].side, hidden_states[index], allowed, family == "modernbert")
        expected, actual = gate * base + (1 - gate) * side, hidden_states[index + 1]
        if family == "modernbert" and index == 1:
            expected = model.model.backbone.final_norm(expected)
        real = batch["attention_mask"].bool()
        torch.testing.assert_close(actual[real], expected[real], rtol=1e-4, atol=1e-4)


def test_flash_attention_is_refused_around_local_layers(tmp_path):
    """Its masks do not contain the window, which a side module takes from its mask."""
    stock = make_masked_lm("modernbert", layer_types=["sliding_attention", "full_attention"])
    model = ExBertForMaskedLM.from_backbone(stock)
    model.save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="does not support Flash Attention 2"):
        ExBertForMaskedLM.from_pretrained(tmp_path, attn_implementation="flash_attention_2")
    find_encoder(model).config._attn_implementation = "flash_attention_2"  # as an outer model or a kernel does
    with pytest.raises(ValueError, match=r"exBERT needs sdpa or eager attention .* uses flash_attention_2. Load it"):
        model(**make_batch(masked=False))
    for family, options in (("bert", {}), ("modernbert", {"extension_hidden_size": 0})):
        assert make_exbert(family, **options)._supports_flash_attn
    everywhere = make_masked_lm("modernbert", layer_types=["full_attention"] * 2)
    assert ExBertForMaskedLM.from_backbone(everywhere)._supports_flash_attn


def test_lookup_of_mixed_ids(family):
    stock = make_masked_lm(family)
    model = ExBertForMaskedLM.from_backbone(stock, extension_vocabulary=VOCABULARY)
    table = model.get_input_embeddings()
    ids = torch.tensor([[0, 119, 120, 129, 5, 125]])
    expected = torch.cat([stock.get_input_embeddings().weight, table.extension.weight])[ids]
    assert torch.equal(table(ids), expected)
    with pytest.raises(IndexError, match=r"below 130 \(120 of the base, 10 of the extension\), but go up to 130"):
        model(torch.tensor([[5, 130]]))


def test_extension_is_filled_from_the_base(family):
    normal = make_exbert(family).get_input_embeddings()
    assert 0.01 < normal.extension.weight.std() < 0.03  # the tiny encoders' own initializer_range is 0.2
    pieces = make_exbert(family, extension_init="pieces").get_input_embeddings()
    for new_id, old_ids in VOCABULARY.items():
        expected = sum(pieces.weight[i] for i in old_ids) / len(old_ids)
        torch.testing.assert_close(pieces.extension.weight[new_id - VOCAB_SIZE], expected)


def test_extension_of_an_untied_decoder_is_filled_from_the_base(family):
    stock = make_masked_lm(family, tie_word_embeddings=False)
    model = ExBertForMaskedLM.from_backbone(stock, extension_vocabulary=VOCABULARY, extension_init="pieces")
    for module in (model.get_input_embeddings(), model.get_output_embeddings()):
        expected = torch.stack([module.weight[old_ids].mean(dim=0) for old_ids in VOCABULARY.values()])
        torch.testing.assert_close(module.extension.weight, expected)


def test_vocabulary_alone_begins_as_that_of_adalm_does(family):
    stock = make_masked_lm(family).eval()
    with torch.no_grad():
        stock.get_output_embeddings().bias.copy_(torch.randn(VOCAB_SIZE) - 12)  # small encoders have such biases
    pieces = VOCABULARY | {VOCAB_SIZE + 3: []}  # an entry of unknown characters
    delta = VocabularyDelta(VOCAB_SIZE, {str(new_id): old_ids for new_id, old_ids in pieces.items()})
    model = ExBertForMaskedLM.from_backbone(
        copy.deepcopy(stock), extension_vocabulary=delta, extension_init="pieces", extension_hidden_size=0
    ).eval()
    apply_delta(stock, delta)
    batch = make_extended_batch()
    torch.testing.assert_close(model(**batch).logits, stock(**batch).logits)


def test_decoder_is_tied_to_both_tables(family, tmp_path):
    model = make_exbert(family)
    table, decoder = model.get_input_embeddings(), model.get_output_embeddings()
    assert decoder.weight is table.weight
    assert decoder.extension.weight is table.extension.weight
    inputs = []
    decoder.register_forward_pre_hook(lambda module, args: inputs.append(args[0]))
    logits = model(**make_extended_batch(masked=False)).logits
    weight, bias = torch.cat([table.weight, table.extension.weight]), [decoder.bias, decoder.extension.bias]
    torch.testing.assert_close(logits, inputs[0] @ weight.T + torch.cat(bias))
    model.save_pretrained(tmp_path)
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert sum(key.endswith("extension.weight") for key in file.keys()) == 1  # noqa: SIM118


def test_padded_base_table():
    stock = make_masked_lm("modernbert")
    vocabulary = {115 + i: [i] for i in range(NUM_NEW)}  # the tokenizer has 115 entries, the table 120 rows
    model = ExBertForMaskedLM.from_backbone(stock, extension_vocabulary=vocabulary)
    table = model.get_input_embeddings()
    assert torch.equal(table(torch.tensor([114, 115])), torch.stack([table.weight[114], table.extension.weight[0]]))
    assert model(**make_batch(masked=False)).logits.shape[-1] == model.config.vocab_size == 115 + NUM_NEW


# ----------------------------------------------------------------------------------------------- sizes

PUBLISHED_COUNTS = {16.3: 13_935_852, 23.4: 19_986_204, 33.2: 28_249_980, 66.3: 56_435_436, 100.0: 85_063_692}
PUBLISHED_TOTALS = {16.3: 137.62, 23.4: 143.67, 33.2: 151.94, 66.3: 180.12, 100.0: 208.75}
POOLER_AND_NEXT_SENTENCE_HEAD = 768 * 768 + 768 + 768 * 2 + 2  # the released code counts them, we have neither


@pytest.mark.parametrize("size", EXTENSION_SIZES)
def test_parameter_counts_of_the_released_code(size):
    config = ExBertConfig(backbone_config=BertConfig(), extension_vocab_size=17_658, extension_size=size)
    assert (config.extension_hidden_size, config.extension_intermediate_size) == EXTENSION_SIZES[size]
    with torch.device("meta"):
        model = ExBertForMaskedLM(config)
    side = sum(parameter.numel() for name, parameter in model.named_parameters() if ".side." in name)
    assert side == PUBLISHED_COUNTS[size]
    total = sum(parameter.numel() for parameter in model.parameters()) + POOLER_AND_NEXT_SENTENCE_HEAD
    assert round(total / 1e6, 2) == PUBLISHED_TOTALS[size]


def test_sizes_scale_with_the_base():
    config = ExBertConfig(backbone_config=BertConfig(hidden_size=1024, num_attention_heads=16), extension_size=16.3)
    assert (config.extension_hidden_size, config.extension_intermediate_size) == (160, 683)
    own = ExBertConfig(backbone_config=BertConfig(), extension_hidden_size=48, extension_intermediate_size=100)
    assert (own.extension_hidden_size, own.extension_intermediate_size) == (48, 100)


def test_ablations(family):
    batch = make_extended_batch()
    vocabulary_alone = make_exbert(family, extension_hidden_size=0)
    assert not any(".side." in name for name, _ in vocabulary_alone.named_parameters())
    assert vocabulary_alone(**batch).logits.shape[-1] == VOCAB_SIZE + NUM_NEW
    side_alone = ExBertForMaskedLM.from_backbone(make_masked_lm(family))
    assert not any("extension" in name for name, _ in side_alone.named_parameters())
    assert side_alone(**make_batch()).logits.shape[-1] == VOCAB_SIZE


# ------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"extension_size": 50}, "extension_size must be one of 16.3, .*but is 50"),
        ({"extension_hidden_size": 30}, "multiple of the base's 4 attention heads, but is 30. Use 32"),
        ({"extension_hidden_size": 0}, "an extension vocabulary or side modules"),
        ({"base_vocab_size": 121}, "base_vocab_size must be at most 120, .*but is 121"),
    ],
)
def test_wrong_option(option, message):
    with pytest.raises(ValueError, match=message):
        ExBertConfig(backbone_config=make_config("bert"), **option)


def test_models_without_a_decoder_or_its_bias_start_new_rows_from_pieces():
    config = make_config("modernbert")
    config.decoder_bias = False
    stock, options = AutoModelForMaskedLM.from_config(config), {"extension_vocabulary": VOCABULARY}
    options["extension_init"] = "pieces"
    model = ExBertModel.from_backbone(copy.deepcopy(stock), **options)
    assert model.get_output_embeddings() is None
    masked_lm = ExBertForMaskedLM.from_backbone(stock, **options)
    assert masked_lm.get_output_embeddings().bias is None
    for table in (model.get_input_embeddings(), masked_lm.get_input_embeddings()):
        (row, pieces), *_ = sorted(VOCABULARY.items())
        torch.testing.assert_close(table.extension.weight[row - len(table.weight)], table.weight[pieces].mean(0))


@pytest.mark.parametrize(
    ("vocabulary", "message"),
    [
        ({}, "must have an entry"),
        ({120: [1], 122: [2]}, "121 is missing"),
        ({120: [1], 121: [120]}, "which lie below 120"),
        (SimpleNamespace(old_size=200, pieces={"new": [1]}), "must be at most 120, the rows .*but is 200"),
    ],
)
def test_wrong_extension_vocabulary(vocabulary, message):
    with pytest.raises(ValueError, match=message):
        ExBertForMaskedLM.from_backbone(make_masked_lm("bert"), extension_vocabulary=vocabulary)


def test_a_table_of_another_tokenizer_is_refused():
    check_extension_start(10, 10 + LARGEST_PADDING)
    with pytest.raises(ValueError, match=f"starts at id 10 and the base has {11 + LARGEST_PADDING} rows"):
        check_extension_start(10, 11 + LARGEST_PADDING)


def test_extension_vocabulary_in_either_form():
    delta = SimpleNamespace(old_size=120, pieces={"b": [1, 2], "a": []})
    assert read_extension_vocabulary(delta) == read_extension_vocabulary({121: [], 120: [1, 2]}) == (120, [[1, 2], []])


def test_what_an_exbert_refuses():
    model = make_exbert()
    assert model.resize_token_embeddings() is model.get_input_embeddings()
    with pytest.raises(ValueError, match="must not have its method already, but it is of the type exbert"):
        ExBertForTokenClassification.from_backbone(model)
    with pytest.raises(ValueError, match=r"between 1 and 2, .* but is 3"):
        model.train_top_layers(3)
    with pytest.raises(ValueError, match="only ExBertForMaskedLM decodes"):
        VarMAEForMaskedLM.from_backbone(model)
    with pytest.raises(ValueError, match="extension_init must be"):
        make_exbert(extension_init="mean")


# ------------------------------------------------------------------------------------------- 2: no-op


def test_open_gate_is_the_base(family):
    stock = make_masked_lm(family)
    model = ExBertForMaskedLM.from_backbone(stock, extension_vocabulary=VOCABULARY, gate_bias_init=20.0)
    batch = make_batch(masked=False)
    logits = model(**batch).logits[..., :VOCAB_SIZE]
    torch.testing.assert_close(logits, stock(**batch).logits, rtol=0, atol=1e-5)
    even = ExBertForMaskedLM.from_backbone(stock)
    assert (even(**batch).logits - stock(**batch).logits).abs().max() > 1e-2
    assert all(layer.side.gate.bias == 0 for layer in even.get_base_layers())


# ----------------------------------------------------------- 3, 5: what trains, and with what gradient


def test_second_stage_trains_everything(family, tmp_path):
    make_exbert(family).save_pretrained(tmp_path / "first")
    model = ExBertForMaskedLM.from_pretrained(tmp_path / "first", freeze_backbone=False)
    before = copy.deepcopy(dict(model.named_parameters()))
    train(model, METHODS["exbert"].make_dataset(), tmp_path)
    assert get_changed(model, before) == before.keys()


def test_untied_decoder_of_the_base_is_frozen_too():
    model = make_exbert(tie_word_embeddings=False)
    decoder = model.get_output_embeddings()
    assert decoder.weight is not model.get_input_embeddings().weight
    assert not decoder.weight.requires_grad
    assert decoder.bias.requires_grad
    assert decoder.extension.weight.requires_grad


def test_fine_tuning_of_everything_and_of_the_top(family, tmp_path):
    make_exbert(family).save_pretrained(tmp_path)
    model = ExBertForTokenClassification.from_pretrained(tmp_path, num_labels=3)
    batch = make_extended_batch(masked=False)
    model.train()(**batch, labels=torch.randint(0, 3, batch["input_ids"].shape)).loss.backward()
    assert [name for name, parameter in model.named_parameters() if parameter.grad is None] == []
    model.train_top_layers(1)
    layer = model.get_base_layers()[1]
    last_norm = getattr(find_encoder(model), "final_norm", nn.Module())  # ModernBERT's
    chosen = {id(parameter) for part in (layer, last_norm, model.classifier) for parameter in part.parameters()}
    assert {id(parameter) for parameter in model.parameters() if parameter.requires_grad} == chosen
    assert id(layer.side.gate.weight) in chosen


# --------------------------------------------------------------------------- 4: saving, loading, heads


def test_missing_weights_are_initialized(tmp_path):
    make_exbert(extension_hidden_size=0).save_pretrained(tmp_path)
    config = ExBertConfig.from_pretrained(tmp_path, extension_hidden_size=8, gate_bias_init=3.0)
    model = ExBertForMaskedLM.from_pretrained(tmp_path, config=config)
    for layer in model.get_base_layers():
        assert layer.side.gate.bias == 3.0
        assert 0.01 < layer.side.query_key_value.weight.std() < 0.03
        assert torch.equal(layer.side.output_norm.weight, torch.ones(32))


# ----------------------------------------------------------- 6-8, 10: padding, evaluation, compilation


def test_side_modules_have_the_dropout_of_the_base(family):
    side = make_exbert(family, dropout=0.3).get_base_layers()[0].side
    assert side.dropout.p == side.attention_dropout == 0.3


def test_attention_of_the_side_modules_is_not_kept(family):
    model = make_exbert(family, dropout=0.0)
    batch = make_extended_batch()
    model(**batch).loss.backward()
    expected = [parameter.grad for parameter in model.parameters()]
    model.train().zero_grad()
    for layer in model.get_base_layers():
        layer.side.attention_dropout = 1e-9  # the kernel with dropout, which drops nothing
    inner, length = model.config.extension_hidden_size // model.config.num_attention_heads, batch["input_ids"].shape[1]
    kept = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: kept.append(tensor.shape) or tensor, lambda kept: kept
    ):
        loss = model(**batch).loss
    assert kept and not any(inner in shape and length in shape and len(shape) >= 3 for shape in kept)
    loss.backward()
    for one, other in zip(expected, (parameter.grad for parameter in model.parameters()), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("freeze_backbone", [True, False])
@pytest.mark.parametrize("backbone_dropout", [True, False])
def test_frozen_base_runs_without_dropout(family, freeze_backbone, backbone_dropout):
    model = make_exbert(family, dropout=0.3, freeze_backbone=freeze_backbone, backbone_dropout=backbone_dropout).train()
    side_modules = [layer.side for layer in model.get_base_layers()]
    for side in side_modules:
        side.eval()
    batch = make_extended_batch(masked=False)
    once, again = (model.model(**batch).last_hidden_state for _ in range(2))
    assert torch.equal(once, again) is (freeze_backbone and not backbone_dropout)
    for module in model.train().modules():
        is_side = any(module in set(side.modules()) for side in side_modules)
        assert not is_side or module.training
    assert not any(module.training for module in model.eval().modules())


def test_activation_checkpointing_computes_the_side_modules_again(family):
    model = make_exbert(family, dropout=0.0)
    runs = []
    model.get_base_layers()[0].side.gate.register_forward_hook(lambda *_: runs.append(1))
    check_activation_checkpointing(model, make_extended_batch())
    assert len(runs) == 3  # without: forward; with: forward, and once more for the backward pass


def test_hidden_states_are_the_mixed_ones_also_on_a_second_call(family):
    model = make_exbert(family)
    outputs = []
    for layer in model.get_base_layers():
        layer.register_forward_hook(lambda module, args, out: outputs.append(out[0] if type(out) is tuple else out))
    batch = make_extended_batch(masked=False)
    model(**batch, output_hidden_states=True)
    outputs.clear()
    hidden_states = model(**batch, output_hidden_states=True, return_dict=False)[1]
    assert torch.equal(hidden_states[1], outputs[0])
    copied = copy.deepcopy(model)
    assert torch.equal(copied(**batch).logits, model(**batch).logits)
