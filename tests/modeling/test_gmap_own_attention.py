"""G-MAP around families whose attention does not go through transformers' interface, or whose layers share weights."""

import copy

import pytest
import torch
from families import make_batch, make_family

from hf_domain import GMapForMaskedLM
from hf_domain.testing import check_activation_checkpointing, check_padding, check_saved_and_loaded

# The attention module of a layer, its key and value projections, and what reads its context: a layer inside, or nobody.
ATTENTIONS = {
    "deberta-v2": ("encoder.layer.{}.attention.self", "key_proj", "value_proj", None),
    "mpnet": ("encoder.layer.{}.attention.attn", "k", "v", "o"),
    "roformer": ("encoder.layer.{}.attention.self", "key", "value", None),
}


@pytest.fixture(params=ATTENTIONS)
def family(request):
    return request.param


def make_gmap(family, memory="bert", **options):
    """A G-MAP whose maps of the context are not at their start, zero."""
    options = {"starts_as_encoder": True, "memory_tokenizer": "same", **options}
    model = GMapForMaskedLM.from_backbones(make_family(family), make_family(memory), **options)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "memory_outputs" in name:
                parameter.add_(torch.randn_like(parameter))
    return model.eval()


def make_padded_batch():
    batch = make_batch()
    batch["attention_mask"][0, 8:] = 0
    batch["attention_mask"][2, 5:] = 0
    return batch


@torch.no_grad()
def test_a_layer_reads_the_memory_by_the_equation(family):
    """Each context c becomes c + W (attention of c to the memory's keys and values - c), head by head."""
    model, batch = make_gmap(family, strategy="single_layer", memory_layers=[2]), make_padded_batch()
    states = model.model.memory(**{n: batch[n] for n in ("input_ids", "attention_mask")}).last_hidden_state
    path, key, value, reader = ATTENTIONS[family]
    expected = make_family(family)
    attention = expected.base_model.get_submodule(path.format(1))
    keys, values = (getattr(attention, name)(states) for name in (key, value))
    hidden = batch["attention_mask"][:, None, None, :] == 0

    def change(context):
        q, k, v = (each.view(4, 12, 4, 8).transpose(1, 2) for each in (context, keys, values))
        scores = (q @ k.transpose(-1, -2) / 8**0.5).masked_fill(hidden, -torch.inf)
        read = (scores.softmax(-1) @ v).transpose(1, 2).reshape(4, 12, 32)
        return context + (read - context) @ model.model.memory_outputs[0].weight.T

    if reader is None:
        attention.register_forward_hook(lambda module, inputs, output: (change(output[0]), *output[1:]))
    else:
        getattr(attention, reader).register_forward_pre_hook(lambda module, inputs: (change(inputs[0]),))
    real = batch.pop("attention_mask").bool()
    plain = make_family(family)(input_ids=batch["input_ids"], attention_mask=real.long()).logits
    inputs = {"input_ids": batch["input_ids"], "attention_mask": real.long()}
    actual = model(**inputs).logits
    torch.testing.assert_close(actual[real], expected(**inputs).logits[real], rtol=1e-4, atol=1e-5)
    assert (actual[real] - plain[real]).abs().max() > 1e-3


def test_a_masked_memory_is_the_plain_domain_encoder(family):
    model, batch = make_gmap(family), make_padded_batch()
    nothing = torch.zeros_like(batch["attention_mask"])
    with torch.no_grad():
        expected = make_family(family)(**batch).logits
        assert torch.equal(model(**batch, memory_attention_mask=nothing).logits, expected)
        assert not torch.allclose(model(**batch).logits, expected)


def test_proofs(family, tmp_path):
    model, batch = make_gmap(family), make_padded_batch()
    check_padding(model, batch)
    model.requires_grad_(True)  # transformers lets the fixed positions of a RoFormer train after loading
    model.freeze_parameters()
    model.model.freeze_parameters()
    loaded = check_saved_and_loaded(model, batch, tmp_path)
    assert loaded.config.fusion == "cross"
    if model.supports_gradient_checkpointing and make_family(family).supports_gradient_checkpointing:
        check_activation_checkpointing(model, batch)


def test_a_copy_reads_its_own_memory(family):
    model, batch = make_gmap(family), make_padded_batch()
    model(**batch).loss.backward()
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in model.model.memory_outputs.parameters():
            parameter.zero_()
        assert torch.equal(make_family(family)(**batch).logits, model(**batch).logits)
        assert not torch.allclose(copied(**batch).logits, model(**batch).logits)


def test_another_fusion_is_refused(family):
    with pytest.raises(ValueError, match=r"fusion must be 'cross' for a \w+Model, whose attention is its own"):
        make_gmap(family, fusion="gate")


def test_a_shared_layer_reads_the_memory_each_time():
    """ALBERT's two layers are one module: it reads one chunk of the memory, twice."""
    model, batch = make_gmap("albert"), make_padded_batch()
    assert (model.config.fusion, model.config.memory_layers, len(model.model.memory_gates)) == ("memory", [1], 1)
    key = model.model.backbone.get_submodule("encoder.albert_layer_groups.0.albert_layers.0.attention.key")
    calls = []
    key.register_forward_hook(lambda module, inputs, output: calls.append(inputs[0].shape))
    model(**batch)
    assert len(calls) == 4  # of the states and of the memory, in each of two layers
    check_padding(model, batch)
    with pytest.raises(ValueError, match=r"ascending layers from 1 to 1, but is \[2\]"):
        make_gmap("albert", memory_layers=[2])


def test_what_has_no_keys_of_the_context_is_refused():
    with pytest.raises(ValueError, match="stops with") as caught:
        make_gmap("convbert")  # half of its context comes from a convolution
    assert str(caught.value).count("\n") == 0
