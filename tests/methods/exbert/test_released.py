"""Checkpoints of the released code, against its equations written out from the weights by their released names."""

import math

import pytest
import torch
from tiny_models import make_batch, make_config
from torch.nn import functional as F

from hf_domain.methods.exbert.released import convert_released_checkpoint

WIDTH, INNER, INTERMEDIATE, OLD, NEW = 32, 20, 28, 120, 10


def make_released_state_dict(vocabulary=True, side=True):
    """A state dict with the names and shapes of the released code: base 32 wide, side modules 20."""
    shapes = {
        "bert.embeddings.word_embeddings.weight": (OLD, WIDTH),
        "bert.embeddings.position_embeddings.weight": (512, WIDTH),
        "bert.embeddings.token_type_embeddings.weight": (2, WIDTH),
        "bert.embeddings.LayerNorm.weight": (WIDTH,),
        "bert.embeddings.LayerNorm.bias": (WIDTH,),
        "bert.pooler.dense.weight": (WIDTH, WIDTH),
        "cls.predictions.transform.dense.weight": (WIDTH, WIDTH),
        "cls.predictions.transform.dense.bias": (WIDTH,),
        "cls.predictions.transform.LayerNorm.weight": (WIDTH,),
        "cls.predictions.transform.LayerNorm.bias": (WIDTH,),
        "cls.predictions.bias": (OLD,),
        "cls.seq_relationship.weight": (2, WIDTH),
    }
    for layer in ("bert.encoder.layer.0", "bert.encoder.layer.1"):
        for suffix, inner, intermediate in (("", WIDTH, 48), ("_ADD", INNER, INTERMEDIATE))[: 1 + side]:
            for name in ("query", "key", "value"):
                shapes[f"{layer}.attention{suffix}.self.{name}.weight"] = (inner, WIDTH)
                shapes[f"{layer}.attention{suffix}.self.{name}.bias"] = (inner,)
            for name, rows, columns in (
                (f"attention{suffix}.output", WIDTH, inner),
                (f"intermediate{suffix}", intermediate, WIDTH),
                (f"output{suffix}", WIDTH, intermediate),
            ):
                shapes |= {f"{layer}.{name}.dense.weight": (rows, columns), f"{layer}.{name}.dense.bias": (rows,)}
                if "output" in name:
                    shapes |= {f"{layer}.{name}.LayerNorm.{part}": (WIDTH,) for part in ("weight", "bias")}
        if side:
            shapes |= {f"{layer}.gate_ADD.weight": (1, WIDTH), f"{layer}.gate_ADD.bias": (1,)}
    if vocabulary:
        shapes["bert.embeddings.word_embeddings_ADD.weight"] = (NEW, WIDTH)
        shapes["cls.predictions.bias_ADD"] = (NEW,)
    weights = {name: 0.3 * torch.randn(shape) for name, shape in shapes.items()}
    if vocabulary:  # tied, but stored by the released code
        weights["cls.predictions.decoder_ADD.weight"] = weights["bert.embeddings.word_embeddings_ADD.weight"]
    weights["cls.predictions.decoder.weight"] = weights["bert.embeddings.word_embeddings.weight"]
    return weights


def compute_released_logits(weights, batch, legacy):
    """The released forward pass; with `legacy` its lookup, else the lookup it meant."""

    def linear(name, x):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def normalize(name, x):
        return F.layer_norm(x, (WIDTH,), weights[f"{name}.LayerNorm.weight"], weights[f"{name}.LayerNorm.bias"], 1e-12)

    def run_branch(layer, suffix, x):
        projected = [linear(f"{layer}.attention{suffix}.self.{name}", x) for name in ("query", "key", "value")]
        query, key, value = (states.unflatten(-1, (4, -1)).transpose(1, 2) for states in projected)
        scores = query @ key.transpose(2, 3) / math.sqrt(query.shape[-1])
        scores = scores + (1.0 - batch["attention_mask"][:, None, None, :].float()) * -10000.0
        context = (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)
        name = f"{layer}.attention{suffix}.output"
        attended = normalize(name, linear(f"{name}.dense", context) + x)
        fed = F.gelu(linear(f"{layer}.intermediate{suffix}.dense", attended))
        return normalize(f"{layer}.output{suffix}", linear(f"{layer}.output{suffix}.dense", fed) + attended)

    ids, types = batch["input_ids"], batch["token_type_ids"]
    words, new_words = (weights.get(f"bert.embeddings.word_embeddings{suffix}.weight") for suffix in ("", "_ADD"))
    if new_words is None:
        looked_up = words[ids]
    elif legacy:
        looked_up = words[torch.where(ids < OLD, ids, 0)] + new_words[torch.where(ids < OLD, 0, ids - OLD)]
        looked_up[ids == 0] = 0
    else:
        looked_up = torch.cat([words, new_words])[ids]
    type_vectors = weights["bert.embeddings.token_type_embeddings.weight"][types]
    if legacy:
        type_vectors[types == 0] = 0
    positions = weights["bert.embeddings.position_embeddings.weight"][: ids.shape[1]]
    states = normalize("bert.embeddings", looked_up + positions + type_vectors)
    for layer in ("bert.encoder.layer.0", "bert.encoder.layer.1"):
        base = run_branch(layer, "", states)
        if f"{layer}.gate_ADD.weight" in weights:
            gate = linear(f"{layer}.gate_ADD", states).sigmoid()
            base = gate * base + (1 - gate) * run_branch(layer, "_ADD", states)
        states = base
    name = "cls.predictions.transform"
    states = normalize(name, F.gelu(linear(f"{name}.dense", states)))
    logits = [states @ words.T + weights["cls.predictions.bias"]]
    if new_words is not None:
        logits.append(states @ new_words.T + weights["cls.predictions.bias_ADD"])
    return torch.cat(logits, dim=-1)


@pytest.mark.parametrize("legacy", [True, False])
@pytest.mark.parametrize(("vocabulary", "side"), [(True, True), (True, False), (False, True)])
def test_logits_are_those_of_the_released_code(vocabulary, side, legacy, tmp_path):
    weights = make_released_state_dict(vocabulary, side)
    batch = make_batch(masked=False)
    batch["input_ids"][:, 1] = 0  # [PAD]
    batch["token_type_ids"] = (torch.arange(12) > 6).long().expand(4, -1)
    if vocabulary:
        batch["input_ids"][:, 2:4] = torch.tensor([OLD, OLD + NEW - 1])
    model = convert_released_checkpoint(weights, make_config("bert"), legacy=legacy)
    assert model.config.extension_hidden_size == (INNER if side else 0)
    expected = compute_released_logits(weights, batch, legacy)
    model.save_pretrained(tmp_path)
    for candidate in (model, type(model).from_pretrained(tmp_path)):
        torch.testing.assert_close(candidate(**batch).logits, expected, rtol=1e-4, atol=1e-4)


def test_older_names_of_weights():
    weights = make_released_state_dict()
    older = {
        "module."
        + name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in weights.items()
    }
    one, other = (convert_released_checkpoint(source, make_config("bert")).state_dict() for source in (weights, older))
    assert all(torch.equal(value, other[key]) for key, value in one.items())


def test_other_checkpoints_are_refused():
    with pytest.raises(ValueError, match="must have an extension vocabulary or side modules"):
        convert_released_checkpoint(make_released_state_dict(False, False), make_config("bert"))
    weights = make_released_state_dict()
    del weights["bert.encoder.layer.1.gate_ADD.bias"]
    with pytest.raises(ValueError, match=r"the checkpoint must have all weights .* but lacks .*layer.1.side.gate.bias"):
        convert_released_checkpoint(weights, make_config("bert"))
