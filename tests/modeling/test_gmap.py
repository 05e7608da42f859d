"""G-MAP: the memory of every strategy computed a second time; further proofs are in test_proofs.py."""

import copy
import json
import math
import shutil
from inspect import signature

import pytest
import torch
from families import make_family
from method_models import METHODS, READERS, make_gmap
from safetensors import safe_open
from tiny_models import VOCAB_SIZE, make_batch, make_config, make_masked_lm, reload
from tiny_tokenizers import MAKERS, make_bert_tokenizer
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertModel,
    DistilBertConfig,
)

from hf_domain import (
    GMapConfig,
    GMapForMaskedLM,
    GMapForMultipleChoice,
    GMapForQuestionAnswering,
    GMapForSequenceClassification,
    GMapForTokenClassification,
    GMapModel,
    VarMAEForTokenClassification,
)
from hf_domain.modeling.attention_gmap import find_self_attention
from hf_domain.modeling.configuration_gmap import assign_states, choose_memory_layers
from hf_domain.modeling.pretrained_gmap import read_same_ids
from hf_domain.testing import check_compiled, get_changed, train

STRATEGIES = ["single_layer", "multiple_layer", "gated", "chunk_gated"]


@pytest.fixture(params=READERS)
def family(request):
    """Each of the six families whose layers read a memory."""
    return request.param


CLOSE = {"rtol": 1e-2, "atol": 1e-3}  # of numbers that were rounded to bfloat16


def make_bert(layers=2, width=32, vocab_size=VOCAB_SIZE):
    config = make_config("bert")
    config.num_hidden_layers, config.hidden_size, config.vocab_size = layers, width, vocab_size
    model = AutoModelForMaskedLM.from_config(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def is_gate(name):
    return "memory_gates." in name or "head_gates." in name


# ---------------------------------------------------------------------------------------- 1: the equations


def get_projections(module):
    """Query, key and value as functions of one matrix, whatever the family calls them."""
    if hasattr(module, "Wqkv"):
        parts = module.Wqkv.weight.chunk(3)
        return [lambda x, part=part: x @ part.T for part in parts]
    names = ("q_lin", "k_lin", "v_lin") if hasattr(module, "k_lin") else ("query", "key", "value")
    parts = [getattr(module, name) for name in names]
    return [lambda x, part=part: x @ part.weight.T + part.bias for part in parts]


def turn(rows, positions, theta):
    """Rotary embedding by complex numbers; the families rotate halves, so entry i goes with entry i + size / 2."""
    half = rows.shape[-1] // 2
    angles = positions[:, None] * theta ** (-torch.arange(half) / half)
    turned = torch.complex(rows[:, :half], rows[:, half:]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat([turned.real, turned.imag], dim=-1)


def attend(query, key, value, allowed):
    scores = (query @ key.T / math.sqrt(query.shape[-1])).masked_fill(~allowed, -math.inf)
    return scores.softmax(-1) @ value


def compute_context(module, hidden_states, memory, allowed, memory_allowed, fusion, theta=None):
    """What the attention of a layer returns before its output projection, for one example, from parameters alone."""
    query, key, value = (projection(hidden_states) for projection in get_projections(module))
    memory_key, memory_value = (projection(memory) for projection in get_projections(module)[1:])
    positions, memory_positions = torch.arange(len(hidden_states)), torch.arange(len(memory))
    contexts = []
    for head in range(4):
        part = slice(8 * head, 8 * head + 8)
        q, k, v, mk, mv = (x[:, part] for x in (query, key, value, memory_key, memory_value))
        if theta:
            q, k = turn(q, positions, theta), turn(k, positions, theta)
            mk = mk if fusion == "cross" else turn(mk, memory_positions, theta)
        if fusion == "memory":
            both = torch.cat([allowed, memory_allowed], dim=1)
            contexts.append(attend(q, torch.cat([k, mk]), torch.cat([v, mv]), both))
            continue
        own = attend(q, k, v, allowed)
        read = attend(own if fusion == "cross" else q, mk, mv, memory_allowed)
        share = 1.0 if fusion == "cross" else 1 / (1 + torch.exp(-module.test_head_gate[head]))
        contexts.append((1 - share) * own + share * read)
    return torch.cat(contexts, dim=1)


def mix(states, gate):
    """Eq. of the gate, token by token: a softmax over layers."""
    mixed = torch.zeros_like(states[0])
    for b in range(mixed.shape[0]):
        for t in range(mixed.shape[1]):
            scores = torch.stack([gate.weight[0] @ state[b, t] + gate.bias[0] for state in states])
            mixed[b, t] = sum(alpha * state[b, t] for alpha, state in zip(scores.softmax(0), states, strict=True))
    return mixed


def build_expected_memory(model, states, strategy, depth):
    """The memory of each layer that reads one, by layer, from the memory encoder's hidden states 0 ... l."""
    gates = model.memory_gates
    if strategy == "single_layer":
        return {math.ceil(0.75 * depth): states[-1]}
    if strategy == "multiple_layer":
        return {layer: states[layer] for layer in range(1, depth + 1)}
    if strategy == "gated":
        return {math.ceil(0.75 * depth): mix(states[1:], gates[0])}
    half = depth // 2
    return {half: mix(states[1 : half + 1], gates[0]), depth: mix(states[half + 1 :], gates[1])}


def check_layers(model, memory_stock, batch, strategy, fusion, depth):
    """Compare every layer of the domain encoder that reads memory with `compute_context`."""
    states = memory_stock.base_model(
        batch["input_ids"], batch["attention_mask"], output_hidden_states=True
    ).hidden_states
    expected = build_expected_memory(model.base_model, states, strategy, depth)
    layers = next(m for m in model.get_backbone().modules() if isinstance(m, torch.nn.ModuleList))
    seen = {}
    for number, (layer, memory) in enumerate(expected.items()):
        module = find_self_attention(layers[layer - 1])
        if fusion == "gate":
            module.test_head_gate = model.base_model.head_gates[number].weight.detach()
        seen[layer] = (module, memory, [], [])
        if hasattr(module, "Wqkv"):  # its layer normalizes before it projects
            seen[layer] = (module, layers[layer - 1].attn_norm(memory), [], [])
        module.register_forward_pre_hook(
            lambda m, args, kwargs, seen=seen[layer][2]: seen.append(args[0] if args else kwargs["hidden_states"]),
            with_kwargs=True,
        )
        module.register_forward_hook(lambda m, args, out, seen=seen[layer][3]: seen.append(out[0]))
    model(**batch)
    real = batch["attention_mask"].bool()
    for layer, (module, memory, inputs, outputs) in seen.items():
        for b in range(len(real)):
            allowed = memory_allowed = real[b].expand(12, 12)
            theta = None
            if hasattr(module, "Wqkv"):
                local = layer == 2  # the first of every three layers is global
                theta = 10_000.0 if local else 160_000.0
                if local:
                    near = (torch.arange(12)[:, None] - torch.arange(12)).abs() <= 4
                    allowed = memory_allowed = allowed & near
            context = compute_context(module, inputs[0][b], memory[b], allowed, memory_allowed, fusion, theta)
            for name in ("out_lin", "Wo"):
                if hasattr(module, name):
                    context = getattr(module, name)(context)
            torch.testing.assert_close(outputs[0][b][real[b]], context[real[b]], rtol=1e-4, atol=1e-4)
    return seen


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("fusion", ["memory", "cross", "gate"])
def test_memory_attention_equals_the_equation(family, attention, fusion):
    memory = make_masked_lm(family)
    model = GMapForMaskedLM.from_backbones(make_masked_lm(family), memory, strategy="multiple_layer", fusion=fusion)
    model.set_attn_implementation(attention)
    batch = make_batch(masked=False)
    if family == "modernbert" and fusion != "memory":  # away from its window the padding is all that a token sees
        batch["attention_mask"][0, 10] = 1
    assert len(check_layers(model, memory, batch, "multiple_layer", fusion, 2)) == 2


@pytest.mark.parametrize("fusion", ["memory", "cross", "gate"])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_memory_of_every_strategy_equals_the_equation(strategy, fusion):
    memory = make_bert(layers=4)
    model = GMapForMaskedLM.from_backbones(make_bert(layers=4), memory, strategy=strategy, fusion=fusion)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if is_gate(name):
                parameter.copy_(torch.randn_like(parameter))
    seen = check_layers(model, memory, make_batch(masked=False), strategy, fusion, 4)
    layers = {"single_layer": [3], "gated": [3], "multiple_layer": [1, 2, 3, 4], "chunk_gated": [2, 4]}
    assert list(seen) == layers[strategy]


def test_layers_and_chunks():
    assert [choose_memory_layers(strategy, 12) for strategy in STRATEGIES] == [[9], list(range(1, 13)), [9], [6, 12]]
    assert [choose_memory_layers(strategy, 6) for strategy in STRATEGIES] == [[5], list(range(1, 7)), [5], [3, 6]]
    low, high = list(range(1, 7)), list(range(7, 13))
    assert assign_states("chunk_gated", [6, 12], 12, 12) == [low, high]
    assert assign_states("chunk_gated", [2, 4, 6], 6, 5) == [[1, 2], [3, 4], [5]]
    assert assign_states("gated", [9], 12, 12) == [low + high]
    assert assign_states("single_layer", [9], 12, 24) == [[24]]
    assert assign_states("multiple_layer", [1, 5, 12], 12, 12) == [[1], [5], [12]]
    assert assign_states("multiple_layer", [1, 2, 3], 3, 12) == [[4], [8], [12]]
    config = GMapConfig(backbone_config=BertConfig(), memory_config=BertConfig())
    assert config.plan_memory() == [(6, low), (12, high)]
    config = GMapConfig(backbone_config=BertConfig(), memory_config=BertConfig(), memory_source="inputs")
    assert config.plan_memory() == [(6, list(range(6))), (12, list(range(6, 12)))]  # the released code's


def test_inputs_of_the_layers_as_memory():
    memory = make_bert()
    outputs = make_gmap(strategy="multiple_layer")
    inputs = GMapForMaskedLM.from_backbones(make_bert(), memory, strategy="multiple_layer", memory_source="inputs")
    batch = make_batch(masked=False)
    expected = memory.base_model(**batch, output_hidden_states=True).hidden_states
    actual = inputs.model.encode_memory(**batch)
    torch.testing.assert_close(actual, torch.stack(expected[:-1], dim=2))
    assert outputs.model.state_indices == [1, 2]


def test_modernbert_as_memory_of_another_family():
    memory = make_masked_lm("modernbert")
    model = GMapModel.from_backbones(make_bert(), memory, strategy="multiple_layer")
    batch = make_batch(masked=False)
    states = memory.base_model(**batch, output_hidden_states=True).hidden_states
    expected = torch.stack([memory.model.final_norm(states[1]), states[2]], dim=2)
    torch.testing.assert_close(model.encode_memory(**batch), expected)
    alike = GMapModel.from_backbones(make_masked_lm("modernbert"), memory, strategy="multiple_layer")
    assert torch.equal(alike.encode_memory(**batch)[:, :, 0], states[1])  # its layers normalize what they read


def test_attentions_over_both_parts():
    model = make_gmap(strategy="gated", dropout=0.0)
    model.set_attn_implementation("eager")
    batch = make_batch(masked=False)
    attentions = model(**batch, output_attentions=True).attentions
    assert [weights.shape[-1] for weights in attentions] == [12, 24]
    torch.testing.assert_close(attentions[1].sum(-1), torch.ones(4, 4, 12))
    padding = (batch["attention_mask"] == 0).repeat(1, 2)[:, None, None]
    assert attentions[1].masked_fill(~padding, 0).max() == 0
    assert 0.2 < attentions[1][..., 12:].sum(-1).mean() < 0.8  # about half of the mass is the memory's


# ------------------------------------------------------------------------------------------- parameters


@pytest.mark.parametrize(
    ("options", "added"),
    [
        ({}, 2 * (768 + 1)),
        ({"strategy": "gated"}, 768 + 1),
        ({"strategy": "single_layer"}, 0),
        ({"strategy": "multiple_layer"}, 0),
        ({"strategy": "multiple_layer", "fusion": "gate"}, 12 * 12),
        ({"strategy": "single_layer", "fusion": "cross"}, 0),
        ({"strategy": "single_layer", "starts_as_encoder": True}, 768 * 768),
    ],
)
def test_nothing_is_added_but_the_gates(options, added):
    config = GMapConfig(backbone_config=BertConfig(), memory_config=BertConfig(), **options)
    with torch.device("meta"):
        model = GMapModel(config)
        encoder = sum(parameter.numel() for parameter in BertModel(BertConfig(), add_pooling_layer=False).parameters())
    assert sum(parameter.numel() for parameter in model.parameters()) == 2 * encoder + added


def test_fresh_gates():
    model = GMapForMaskedLM.from_backbones(make_bert(layers=12), make_bert(layers=12), fusion="gate")
    assert all(gate.bias == 0 for gate in model.model.memory_gates)
    heads = torch.cat([gate.weight for gate in model.model.head_gates])
    assert 0.01 < heads.std() < 0.15  # N(0, 0.05): about half of each
    assert heads.abs().max() < 0.3


# -------------------------------------------------------------------------------------------- 2: no-op


@pytest.mark.parametrize("fusion", ["memory", "cross", "gate"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_masked_memory_is_the_plain_domain_encoder(family, fusion, attention):
    stock = make_masked_lm(family)
    model = GMapForMaskedLM.from_backbones(stock, make_masked_lm(family), fusion=fusion)
    stock.set_attn_implementation(attention)
    model.set_attn_implementation(attention)
    batch = make_batch(masked=False)
    with torch.no_grad():
        expected = stock(**batch).logits
        nothing = torch.zeros_like(batch["input_ids"])
        assert torch.equal(model(**batch, memory_attention_mask=nothing).logits, expected)
        assert (model(**batch).logits - expected).abs().max() > 1e-2
        # Beside examples that have a memory the same sums are taken over more keys.
        nothing[1:] = 1
        mixed = model(**batch, memory_attention_mask=nothing).logits
        torch.testing.assert_close(mixed[:1, :9], expected[:1, :9], rtol=1e-4, atol=1e-5)
        assert (mixed[1:] - expected[1:]).abs().max() > 1e-2


@pytest.mark.parametrize("fusion", ["memory", "cross", "gate"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_recommended_start_is_the_domain_encoder_and_ends_as_the_paper(family, fusion, attention):
    """A fresh memory changes no bit; where its map is the identity, the model is the paper's."""
    stock, memory = make_masked_lm(family, dropout=0.0), make_masked_lm(family)
    paper = GMapForMaskedLM.from_backbones(stock, memory, fusion=fusion)
    model = GMapForMaskedLM.from_backbones(stock, memory, fusion=fusion, starts_as_encoder=True)
    for each in (stock, paper, model):
        each.set_attn_implementation(attention)
    batch = make_batch()
    assert torch.equal(model(**batch).logits, stock(**batch).logits)
    loss = model.train()(**batch).loss
    assert torch.equal(loss, model.eval()(**batch).loss)
    loss.backward()
    outputs = model.model.memory_outputs
    assert all(output.weight.grad.abs().max() > 0 for output in outputs)
    with torch.no_grad():
        model.model.memory_gates.load_state_dict(paper.model.memory_gates.state_dict())
        model.model.head_gates.load_state_dict(paper.model.head_gates.state_dict())
        for output in outputs:
            output.weight.copy_(torch.eye(32))
        torch.testing.assert_close(model(**batch).logits, paper(**batch).logits, rtol=1e-4, atol=1e-5)


# ----------------------------------------------------------- 3, 5: what trains, and with what gradient


def test_memory_runs_without_gradient_and_dropout(family, tmp_path):
    make_gmap(family, fusion="gate").save_pretrained(tmp_path / "model")
    model = GMapForMaskedLM.from_pretrained(tmp_path / "model")  # loading makes everything trainable
    seen = []

    def look(module, args, output):
        seen.append((output.last_hidden_state.requires_grad, torch.is_grad_enabled(), module.training))

    model.get_memory().register_forward_hook(look)
    train(model, METHODS["gmap"].make_dataset(), tmp_path)
    assert seen == [(False, False, False)] * 3
    assert model.training and model.model.backbone.training
    ids = make_batch()["input_ids"]
    assert torch.equal(model.model.encode_memory(ids), model.model.encode_memory(ids))


def test_gates_train(tmp_path):
    model = make_gmap(strategy="gated")
    before = copy.deepcopy(dict(model.named_parameters()))
    train(model, METHODS["gmap"].make_dataset(), tmp_path)
    assert "model.memory_gates.0.weight" in get_changed(model, before)
    batch = make_batch(masked=False)
    with torch.no_grad():
        logits = model.eval()(**batch).logits
        model.model.memory_gates[0].bias.add_(3.0)  # moves the scores of all layers alike
        torch.testing.assert_close(model(**batch).logits, logits, rtol=1e-4, atol=1e-4)


def test_trained_memory(tmp_path):
    model = make_gmap(freeze_memory=False, dropout=0.0)
    before = copy.deepcopy(dict(model.named_parameters()))
    train(model, METHODS["gmap"].make_dataset(), tmp_path)
    assert any(name.startswith("model.memory.") for name in get_changed(model, before))
    assert model.get_memory().training
    batch = make_batch(masked=False)
    states = model.model.encode_memory(**batch)
    assert states.requires_grad
    with pytest.raises(ValueError, match="memory_states must come from a frozen memory"):
        model(**batch, memory_states=states)


# --------------------------------------------------------------------------- 4: saving, loading, heads


@pytest.fixture
def general(tmp_path):
    """A saved general encoder."""
    make_bert().save_pretrained(tmp_path / "general")
    return str(tmp_path / "general")


def test_checkpoint_names_no_needless_folder(general, tmp_path):
    for options, expected in (({}, None), ({"memory_tokenizer": "own"}, general), ({"save_memory": False}, general)):
        GMapForTokenClassification.from_backbones(make_bert(), general, **options).save_pretrained(tmp_path / "joined")
        config = (tmp_path / "joined" / "config.json").read_text()
        assert json.loads(config)["memory_name_or_path"] == expected
        assert (str(tmp_path) in config) == (expected is not None)


def test_memory_has_no_rows_for_entries_that_the_encoder_got_since(general):
    make_bert_tokenizer().save_pretrained(general)
    domain = AutoModelForMaskedLM.from_pretrained(general)
    assert GMapModel.from_backbones(domain, general).config.memory_tokenizer == "same"
    domain.resize_token_embeddings(VOCAB_SIZE + 8)
    assert GMapModel.from_backbones(domain, general).config.memory_tokenizer == "own"
    with pytest.raises(ValueError, match="memory_tokenizer is 'own'"):
        GMapModel.from_backbones(domain, general, strategy="logits_fusion")


@pytest.mark.parametrize("head", [GMapModel, GMapForTokenClassification])
def test_checkpoint_that_refers_to_its_memory(head, general, tmp_path):
    model = head.from_backbones(make_bert(), general, save_memory=False)
    batch = make_batch(masked=False)
    model.save_pretrained(tmp_path / "small")
    with safe_open(tmp_path / "small" / "model.safetensors", "pt") as file:
        assert not any(key.startswith(("memory.", "model.memory.")) for key in file.keys())  # noqa: SIM118
    config = json.loads((tmp_path / "small" / "config.json").read_text())
    assert (config["memory_name_or_path"], config["memory_revision"]) == (general, None)
    loaded, info = head.from_pretrained(tmp_path / "small", output_loading_info=True)
    assert not any(info.values())
    assert torch.equal(loaded(**batch)[0], model(**batch)[0])
    assert not any(parameter.requires_grad for parameter in loaded.get_memory().parameters())
    loaded.config.save_memory = True
    loaded.save_pretrained(tmp_path / "whole")
    assert torch.equal(head.from_pretrained(tmp_path / "whole")(**batch)[0], model(**batch)[0])


def test_missing_memory(general, tmp_path):
    model = GMapModel.from_backbones(make_bert(), general, save_memory=False)
    model.save_pretrained(tmp_path / "small")
    for other in (make_bert(layers=3), make_bert()):  # another shape, and the same one trained further
        other.save_pretrained(general)
        with pytest.raises(ValueError, match="must contain the encoder it was built with"):
            GMapModel.from_pretrained(tmp_path / "small")
    shutil.rmtree(general)
    with pytest.raises(ValueError, match=r"general \(revision None\), the memory of this checkpoint, must be readable"):
        GMapModel.from_pretrained(tmp_path / "small")
    with pytest.raises(ValueError, match="must be saved whole"):
        VarMAEForTokenClassification.from_backbone(model)


@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_reference_to_a_memory_of_another_precision(dtype, general, tmp_path):
    model = GMapModel.from_backbones(make_bert(), general, save_memory=False, dtype=torch.float32)
    model.to(getattr(torch, dtype)).save_pretrained(tmp_path / "small")
    for wanted in (torch.float32, torch.bfloat16):
        memory = GMapModel.from_pretrained(tmp_path / "small", dtype=wanted).get_memory()
        parameter = memory.embeddings.word_embeddings.weight
        assert parameter.dtype == wanted
        torch.testing.assert_close(parameter.float(), model.memory.embeddings.word_embeddings.weight.float(), **CLOSE)


def test_reference_runs_no_code(general, tmp_path):
    model = GMapModel.from_backbones(make_bert(), general, save_memory=False)
    model.save_pretrained(tmp_path / "small")
    for file, keys in ((tmp_path / "small", ("memory_config",)), (tmp_path / "general", ())):
        config = json.loads((file / "config.json").read_text())
        nested = config
        for key in keys:
            nested = nested[key]
        nested["auto_map"] = {"AutoConfig": "evil.Config", "AutoModel": "evil.Model"}
        nested["trust_remote_code"] = True
        (file / "config.json").write_text(json.dumps(config))
    (tmp_path / "general" / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    loaded = AutoModel.from_pretrained(tmp_path / "small", trust_remote_code=True)
    assert not (tmp_path / "ran").exists()
    batch = make_batch(masked=False)
    assert torch.equal(loaded(**batch)[0], model(**batch)[0])


def test_as_backbone_of_another_method(tmp_path):
    inner = make_gmap(head=GMapModel)
    outer = VarMAEForTokenClassification.from_backbone(inner, residual=True, batch_norm=False)
    batch = make_batch(masked=False)
    assert torch.equal(outer.model(**batch).last_hidden_state, inner(**batch).last_hidden_state)
    outer.save_pretrained(tmp_path)
    loaded = VarMAEForTokenClassification.from_pretrained(tmp_path).train()
    assert not loaded.model.backbone.memory.training
    assert not any(parameter.requires_grad for parameter in loaded.model.backbone.memory.parameters())


# ----------------------------------------------------------- 6-8, 10: padding, evaluation, compilation


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("fusion", ["memory", "cross", "gate"])
def test_padding_of_a_memory_with_its_own_tokenizer(family, fusion, attention):
    model = make_gmap(family, fusion=fusion, memory_tokenizer="own")
    model.set_attn_implementation(attention)
    batch = make_batch(masked=False)
    memory = make_batch(length=17, masked=False)  # the last three tokens of the first example are padding
    memory = {f"memory_{key}": value for key, value in memory.items()}
    padded_memory = model(batch["input_ids"][:1, :9], **{key: value[:1] for key, value in memory.items()}).logits
    padded = model(**batch, **memory).logits
    alone = model(batch["input_ids"][:1, :9], memory_input_ids=memory["memory_input_ids"][:1, :14]).logits
    torch.testing.assert_close(padded[:1, :9], alone, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(padded_memory, alone, rtol=1e-4, atol=1e-4)
    shorter = model(batch["input_ids"][:1, :9], memory_input_ids=memory["memory_input_ids"][:1, :13]).logits
    assert (shorter - alone).abs().max() > 1e-3


def test_place_of_a_memory_with_its_own_tokenizer():
    model = make_gmap("modernbert", head=GMapModel, memory_tokenizer="own")
    states, ids = torch.zeros(2, 6, 1, 1), torch.zeros(2, 5)
    memory_mask = torch.tensor([[1, 1, 1, 1, 1, 1], [0, 0, 0, 1, 1, 1]]).bool()
    mask = torch.tensor([[1, 1, 1, 0, 0], [0, 1, 1, 1, 1]])
    places = model.place_memory(states, memory_mask, ids, mask, None)
    torch.testing.assert_close(places[0], torch.tensor([0.0, 0.4, 0.8, 1.2, 1.6, 2.0]))
    torch.testing.assert_close(places[1, 3:], torch.tensor([1.0, 2.5, 4.0]))


@pytest.mark.compiled
def test_compiled_gate():
    batch = make_batch(masked=False)
    nothing = torch.zeros_like(batch["input_ids"])
    check_compiled(make_gmap(fusion="gate"), batch, memory_attention_mask=nothing)


def test_hidden_states_also_on_a_second_call_and_in_a_copy():
    model = make_gmap()
    batch = make_batch(masked=False)
    with torch.no_grad():
        first = model(**batch, output_hidden_states=True).hidden_states
        second = model(**batch, output_hidden_states=True, return_dict=False)[1]
        assert len(first) == 3
        assert all(map(torch.equal, first, second))
        assert torch.equal(copy.deepcopy(model)(**batch).logits, model(**batch).logits)


# ------------------------------------------------------------------ encoders that differ, states from outside


def test_memory_states_from_outside(family):
    model = make_gmap(family)
    batch = make_batch(masked=False)
    with torch.no_grad():
        states = model.model.encode_memory(**batch)
        model.get_memory().register_forward_hook(lambda *_: pytest.fail("the memory encoder was run"))
        given = model(**batch, memory_states=states).logits
        model.get_memory()._forward_hooks.clear()
        assert torch.equal(given, model(**batch).logits)


def test_memory_of_another_width_depth_and_tokenizer():
    memory = make_bert(layers=3, width=16, vocab_size=50)
    model = GMapForSequenceClassification.from_backbones(make_bert(), memory, memory_projection=True, num_labels=3)
    assert model.config.memory_tokenizer == "own"
    assert model.config.plan_memory() == [(1, [1, 2]), (2, [3])]
    added = sum(p.numel() for n, p in model.named_parameters() if "memory_projection" in n)
    assert added == 16 * 32 + 32
    batch = make_batch(masked=False)
    ids = torch.randint(5, 50, (4, 7))
    logits = model(**batch, memory_input_ids=ids).logits
    other = model(**batch, memory_input_ids=ids.roll(1, 0)).logits
    assert (logits - other).abs().max() > 1e-4
    with pytest.raises(ValueError, match="must be given, because the memory encoder has a tokenizer of its own"):
        model(**batch)


def test_deberta_as_memory():
    stock, memory = make_masked_lm("bert"), make_masked_lm("deberta-v2")
    model = GMapForMaskedLM.from_backbones(stock, memory)
    batch = make_batch(masked=False)
    assert (model(**batch).logits - stock(**batch).logits).abs().max() > 1e-2


def test_token_types_reach_the_memory():
    model = make_gmap()
    batch = make_batch(masked=False)
    types = torch.ones_like(batch["input_ids"])
    given = model.model.encode_memory(batch["input_ids"], token_type_ids=types)
    assert not torch.equal(given, model.model.encode_memory(batch["input_ids"]))
    plain = make_gmap("distilbert").model  # has none
    expected = plain.encode_memory(batch["input_ids"])
    assert torch.equal(plain.encode_memory(batch["input_ids"], token_type_ids=types), expected)


def test_tokenizers_are_compared(general, tmp_path):
    tokenizer = make_bert_tokenizer()
    tokenizer.save_pretrained(general)
    for name, sentences in (("same", None), ("other", ["quite different words"])):
        folder = str(tmp_path / name)
        make_bert().save_pretrained(folder)
        (tokenizer if sentences is None else make_bert_tokenizer(sentences)).save_pretrained(folder)
        model = GMapModel.from_backbones(folder, general)
        assert model.config.memory_tokenizer == ("same" if sentences is None else "own"), name
    tokenizers = [make() for make in MAKERS.values()]
    assert [[read_same_ids(a, b) for b in tokenizers] for a in tokenizers] == torch.eye(5).bool().tolist()
    cased = make_bert_tokenizer()
    cased.backend_tokenizer.normalizer = None
    assert not read_same_ids(tokenizer, cased)


def test_tokenizers_of_the_revisions_are_compared(general, tmp_path, monkeypatch):
    make_bert().save_pretrained(tmp_path / "domain")
    names = str(tmp_path / "domain"), general
    tokenizers = {"v1": make_bert_tokenizer(), "main": make_bert_tokenizer(["quite different words"])}
    monkeypatch.setattr(AutoTokenizer, "from_pretrained", lambda name, revision, **options: tokenizers[revision])
    for revisions, expected in ((("v1", "v1"), "same"), (("v1", None), "own"), ((None, "v1"), "own")):
        options = {"memory_revision": revisions[1]} | ({"revision": revisions[0]} if revisions[0] else {})
        model = GMapModel.from_backbones(*names, **options)  # folders have one revision, tokenizers here have two
        assert (model.config.memory_tokenizer, model.config.memory_revision) == (expected, revisions[1])


def test_memory_without_a_tokenizer_is_reported(general, tmp_path, caplog):
    make_bert().save_pretrained(tmp_path / "domain")
    model = GMapModel.from_backbones(str(tmp_path / "domain"), general)
    assert model.config.memory_tokenizer == "same"
    assert "has no tokenizer, so" in caplog.text


def test_signature_names_what_the_memory_reads():
    for head in METHODS["gmap"].get_heads().values():
        names = list(signature(head.forward).parameters)
        assert {"memory_input_ids", "memory_attention_mask", "memory_token_type_ids", "memory_states"} < set(names)
        assert names[-1] == "kwargs"
        assert [name for name in names if "label" in name] == (["labels"] if "labels" in names else [])


# ------------------------------------------------------------------------------------------- baselines


@pytest.mark.parametrize("strategy", ["logits_fusion", "ensemble"])
@pytest.mark.parametrize("head", ["sequence", "multi-label", "regression", "token", "answer"])
def test_baselines_join_two_heads(strategy, head, tmp_path):
    classes = {"token": GMapForTokenClassification, "answer": GMapForQuestionAnswering}
    problem = {"multi-label": "multi_label_classification", "regression": "regression"}.get(head)
    options = {"strategy": strategy, "num_labels": 1 if head == "regression" else 3, "problem_type": problem}
    domain, general = make_bert(), make_bert(width=16)
    model = classes.get(head, GMapForSequenceClassification).from_backbones(domain, general, **options)
    batch = make_batch(masked=False)
    heads = model.qa_outputs if head == "answer" else model.classifier
    one = heads.domain_head(domain.base_model(**batch).last_hidden_state)
    other = heads.memory_head(general.base_model(**batch).last_hidden_state)
    output = model(**batch)
    actual = torch.stack(output[:2], dim=-1) if head == "answer" else output[0]
    if strategy == "logits_fusion" or head == "regression":
        expected = one + other
    elif head == "multi-label":
        probability = (one.sigmoid() + other.sigmoid()) / 2
        expected = (probability / (1 - probability)).log()
    else:
        dim = 1 if head == "answer" else -1
        if head == "answer":  # an answer is none of the padding
            padding = batch["attention_mask"][..., None] == 0
            one, other = one.masked_fill(padding, -math.inf), other.masked_fill(padding, -math.inf)
        actual, expected = actual.softmax(dim), (one.softmax(dim) + other.softmax(dim)) / 2
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert model.config.freeze_memory is (strategy == "logits_fusion")
    loaded = reload(model, tmp_path)
    assert torch.equal(loaded(**batch)[0], output[0])


def test_ensemble_knows_its_problem_from_the_first_batch():
    for labels, count in ((torch.rand(4), 1), (torch.randint(0, 2, (4, 3)).float(), 3)):
        fresh = make_gmap(head=GMapForSequenceClassification, strategy="ensemble", num_labels=count).eval()
        batch = make_batch(masked=False)
        first, second = fresh(**batch, labels=labels), fresh(**batch, labels=labels)
        assert torch.equal(first.logits, second.logits) and torch.equal(first.loss, second.loss)
        if count == 1:
            states = fresh.model(**batch).last_hidden_state.chunk(2, dim=-1)
            heads = (fresh.classifier.domain_head, fresh.classifier.memory_head)
            expected = sum(head(part) for head, part in zip(heads, states, strict=True))
            torch.testing.assert_close(first.logits, expected)


def test_answers_of_an_ensemble_leave_padding_out():
    model = make_gmap(head=GMapForQuestionAnswering, strategy="ensemble").eval()
    batch = make_batch(masked=False)
    length = int(batch["attention_mask"][0].sum())
    assert length < batch["input_ids"].shape[1]
    together = model(**batch)
    alone = model(**{name: value[:1, :length] for name, value in batch.items()})
    for name in ("start_logits", "end_logits"):
        torch.testing.assert_close(together[name][0, :length], alone[name][0], rtol=1e-4, atol=1e-5)
        assert together[name].softmax(-1)[0, length:].max() == 0


def test_choices_of_an_ensemble_have_the_mean_probability_of_its_parts():
    model = make_gmap(head=GMapForMultipleChoice, strategy="ensemble").eval()
    batch = make_batch(masked=False)
    logits = model(**{name: value.unflatten(0, (2, 2)) for name, value in batch.items()}).logits
    states = model.model(**batch).last_hidden_state.chunk(2, dim=-1)
    heads = (model.classifier.domain_head, model.classifier.memory_head)
    parts = [head(part).view(2, 2).softmax(-1) for head, part in zip(heads, states, strict=True)]
    torch.testing.assert_close(logits.softmax(-1), sum(parts) / 2)


# ------------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"strategy": "double"}, "strategy must be one of single_layer, .*but is 'double'"),
        ({"fusion": "add"}, "fusion must be one of memory, cross, gate, but is 'add'"),
        ({"memory_source": "both"}, "memory_source must be one of outputs, inputs, but is 'both'"),
        ({"memory_layers": [1, 3]}, r"ascending layers from 1 to 2, but is \[1, 3\]"),
        ({"memory_layers": [0, 2]}, r"ascending layers from 1 to 2, but is \[0, 2\]"),
        ({"memory_layers": [2, 1]}, r"ascending layers from 1 to 2, but is \[2, 1\]"),
        ({"memory_layers": 2}, "memory_layers must be a list of layer numbers, but is 2"),
        ({"memory_layers": ["1", "2"]}, r"must be a list of layer numbers, but is \['1', '2'\]"),
        ({"memory_layers": [2]}, r"must be 2 to 2 layers for chunk_gated.* but is \[2\]. With one layer use gated"),
        ({"strategy": "gated", "memory_layers": [1, 2]}, r"must be one layer for gated, but is \[1, 2\]. Name one"),
        ({"memory_projection": True}, "must be False for a domain encoder 32 wide and a memory 32 wide, but is True"),
        ({"save_memory": False}, "needs memory_name_or_path and a frozen memory.* but they are None and"),
        (
            {"save_memory": False, "memory_name_or_path": "bert", "freeze_memory": False},
            r"a frozen memory.* but they are bert and freeze_memory=False",
        ),
        ({"strategy": "ensemble", "memory_layers": [1]}, "and no memory_layers or"),
        ({"strategy": "logits_fusion", "memory_tokenizer": "own"}, "needs one tokenizer"),
    ],
)
def test_wrong_option(options, message):
    with pytest.raises(ValueError, match=message):
        GMapConfig(backbone_config=make_config("bert"), memory_config=make_config("bert"), **options)


def test_encoders_of_different_width():
    with pytest.raises(
        ValueError, match="must be True for a domain encoder 32 wide and a memory 16 wide, but is False"
    ):
        GMapModel.from_backbones(make_bert(), make_bert(width=16))


def test_encoders_without_two_chunks():
    with pytest.raises(ValueError, match=r"the domain encoder has 2 and the memory 1. Use gated"):
        GMapModel.from_backbones(make_bert(), make_bert(layers=1))
    assert GMapModel.from_backbones(make_bert(), make_bert(layers=1), strategy="gated").config.memory_layers == [2]


def test_memory_of_a_gmap():
    with pytest.raises(ValueError, match="must not be a G-MAP"):
        GMapModel.from_backbones(make_gmap(head=GMapModel), make_bert())
    composed = VarMAEForTokenClassification.from_backbone(make_gmap(head=GMapModel))
    with pytest.raises(ValueError, match="must not be a G-MAP"):
        GMapModel.from_backbones(composed, make_bert())


def test_unknown_family():
    with pytest.raises(ValueError, match=r"key and value projections, but a FNetLayer has none\. Use another family"):
        GMapModel.from_backbones(make_family("fnet"), make_bert(), strategy="gated")


def test_wrong_override_of_a_checkpoint(tmp_path):
    make_gmap(head=GMapModel).save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="fusion must be one of memory, cross, gate, but is 'add'"):
        GMapModel.from_pretrained(tmp_path, fusion="add")
    assert GMapModel.from_pretrained(tmp_path, fusion="gate").config.fusion == "gate"


def test_attention_that_would_skip_the_memory():
    model = make_gmap()
    batch = make_batch(masked=False)
    for implementation in ("flash_attention_2", "flex_attention"):
        with pytest.raises(ValueError, match=f"needs sdpa or eager attention, because {implementation} would"):
            model.set_attn_implementation(implementation)
    config = copy.deepcopy(model.config)
    config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="flash_attention_2 would skip the memory"):
        GMapForMaskedLM(config)
    before = model(**batch).logits
    model.set_attn_implementation("eager")
    torch.testing.assert_close(model(**batch).logits, before, rtol=1e-4, atol=1e-4)
    model.get_backbone().set_attn_implementation("sdpa")
    with pytest.raises(ValueError, match=r"must use eager attention .* switched to sdpa. Call set_attn"):
        model(**batch)


def test_what_a_gmap_refuses():
    with pytest.raises(ValueError, match=r"Use from_backbones\(domain=..., memory=...\)"):
        GMapModel.from_backbone(make_bert())
    with pytest.raises(ValueError, match="ensemble is for task heads"):
        GMapForMaskedLM.from_backbones(make_bert(), make_bert(), strategy="ensemble")
    with pytest.raises(ValueError, match=r"has no option memory_layer. Correct"):
        GMapModel.from_backbones(make_bert(), make_bert(), memory_layer=3)
    model = make_gmap()
    batch = make_batch(masked=False)
    with pytest.raises(
        ValueError, match=r"memory_states must be \[batch, memory_length, 2, 32\] .*but are \[4, 12, 3, 32"
    ):
        model(**batch, memory_states=torch.zeros(4, 12, 3, 32))
    prepared = batch["attention_mask"].bool()[:, None, None].expand(4, 1, 12, 12)
    with pytest.raises(ValueError, match=r"must be \[batch, memory_length\], but is \[4, 1, 12, 12\]"):
        model(batch["input_ids"], prepared)
    given = model(batch["input_ids"], prepared, memory_attention_mask=batch["attention_mask"]).logits
    torch.testing.assert_close(given[1:], model(**batch).logits[1:])
    embeds = model.get_input_embeddings()(batch["input_ids"])
    with pytest.raises(ValueError, match="must be given, because the memory encoder has no input_ids"):
        model(inputs_embeds=embeds)
    given = model(inputs_embeds=embeds, memory_input_ids=batch["input_ids"]).logits
    torch.testing.assert_close(given, model(batch["input_ids"]).logits)


def test_default_configuration_is_a_small_valid_model():
    assert GMapConfig(backbone_config=DistilBertConfig(), memory_config=DistilBertConfig()).memory_layers == [3, 6]
    model = GMapForSequenceClassification(GMapConfig())
    assert model(torch.tensor([[1, 2, 3]])).logits.shape == (1, 2)


def test_positions_are_those_of_the_memory_too():
    """Text that is padded on the left has the states of the same text alone."""
    model = make_gmap(dropout=0.0, head=GMapModel).eval()
    ids, padding = torch.randint(5, VOCAB_SIZE, (1, 10)), torch.zeros(1, 4, dtype=torch.long)
    mask = torch.cat([padding, torch.ones_like(ids)], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    padded = model(torch.cat([padding, ids], 1), mask, position_ids=positions).last_hidden_state[:, 4:]
    torch.testing.assert_close(padded, model(ids).last_hidden_state, rtol=0, atol=1e-5)


@pytest.mark.parametrize("problem", ["multi_label_classification", "regression"])
def test_ensemble_of_tokens_forgets_the_problem_of_a_classification(problem, tmp_path):
    options = {"strategy": "ensemble", "num_labels": 3, "problem_type": problem}
    make_gmap(head=GMapForSequenceClassification, **options).save_pretrained(tmp_path)
    batch = make_batch(masked=False)
    logits = GMapForTokenClassification.from_pretrained(tmp_path)(**batch).logits
    torch.testing.assert_close(logits.exp().sum(-1), torch.ones(logits.shape[:2]))
