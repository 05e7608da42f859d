"""A new head starts by the states that it reads: the same for every method and for stock encoders."""

import itertools
import random

import pytest
import torch
from script_runs import run_script, save_tiny_bert, write_jsonl
from tiny_models import FAMILIES, make_batch, make_config, make_masked_lm
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    BertForSequenceClassification,
)

import hf_domain
from hf_domain.examples import run_classification
from hf_domain.tasks.heads import list_head_weights, start_head

HEADS = {
    "SequenceClassification": AutoModelForSequenceClassification,
    "TokenClassification": AutoModelForTokenClassification,
    "QuestionAnswering": AutoModelForQuestionAnswering,
}
WORDS = {"biology": ["cell", "gene"], "law": ["court", "judge"]}


def load_stock(family, head, folder):
    """A stock model with a new head, and the names of its new weights."""
    make_masked_lm(family, dropout=0.0).save_pretrained(folder)
    model, info = HEADS[head].from_pretrained(folder, output_loading_info=True)
    return model, {name for name in info["missing_keys"] if name in list_head_weights(model)}


def build_own(method, head):
    options = {"memory_config": make_config("bert")} if method == "GMap" else {}
    config = getattr(hf_domain, f"{method}Config")(backbone_config=make_config("bert"), **options)
    model = getattr(hf_domain, f"{method}For{head}")(config)
    return model, list_head_weights(model)


def measure_outputs(model, weights, batch):
    """The standard deviation of what each new layer puts out, over the weights that could have been drawn."""
    found = {}

    def keep(layer, inputs, output):
        states = inputs[0]
        if states.shape[:-1] == batch["attention_mask"].shape:
            states = states[batch["attention_mask"].bool()]
        found[layer] = layer.weight.std() * states.norm(dim=-1).square().mean().sqrt()

    layers = [model.get_submodule(name.removesuffix(".weight")) for name in weights]
    hooks = [layer.register_forward_hook(keep) for layer in layers]
    with torch.no_grad():
        model.eval()(**batch)
    for hook in hooks:
        hook.remove()
    return [found[layer].item() for layer in layers]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", [*FAMILIES, "VarMAE", "ExBert", "GMap", "Rada"])
def test_outputs_of_a_new_head_start_with_one_spread(family, head, tmp_path):
    model, weights = load_stock(family, head, tmp_path) if family in FAMILIES else build_own(family, head)
    assert weights
    batch = make_batch(masked=False)
    untouched = {name: each.clone() for name, each in model.named_parameters() if name not in weights}
    start_head(model, weights, batch)
    for spread in measure_outputs(model, weights, batch):
        assert spread == pytest.approx(0.5, rel=0.25)  # of the 64 numbers of a matrix
    for name, each in model.named_parameters():
        if name in untouched and name.removesuffix("bias") + "weight" not in weights:
            assert torch.equal(each, untouched[name]), name


@pytest.mark.parametrize("factor", [0.01, 100.0])
def test_start_does_not_depend_on_the_norm_of_the_states(factor, tmp_path):
    model, weights = load_stock("bert", "SequenceClassification", tmp_path)
    batch = make_batch(masked=False)

    def start():
        torch.manual_seed(0)
        start_head(model, weights, batch)
        return model(**batch).logits

    expected = start()
    norm = model.bert.encoder.layer[-1].output.LayerNorm
    with torch.no_grad():
        norm.weight.mul_(factor)
        norm.bias.mul_(factor)
    torch.testing.assert_close(start(), expected, rtol=1e-3, atol=1e-5)


def test_a_chosen_spread_is_taken(tmp_path):
    model, weights = load_stock("bert", "SequenceClassification", tmp_path)
    model.config.head_initializer_range = 0.9
    start_head(model, weights, make_batch(masked=False))
    assert model.bert.pooler.dense.weight.std().item() == pytest.approx(0.9, rel=0.1)
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).head_initializer_range == 0.9


@pytest.fixture
def train(tmp_path, monkeypatch):
    """Fine-tune on two kinds of text, with one label of three in four rows; returns the results."""
    rng = random.Random(0)
    labels = ["biology", "biology", "biology", "law"] * 16
    rows = [{"text": " ".join(rng.choices(WORDS[label], k=5)), "label": label} for label in labels]
    files = [write_jsonl(tmp_path / f"{split}.jsonl", rows) for split in ("train", "test")]
    save_tiny_bert(tmp_path / "model", [" ".join(itertools.chain(*WORDS.values()))])
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "model")
    with torch.no_grad():  # states as small as those of encoders made for sentence embeddings
        norm = model.bert.encoder.layer[-1].output.LayerNorm
        norm.weight.mul_(0.05)
    model.bert.save_pretrained(tmp_path / "model")

    def call(source="model", **flags):
        options = {"model_name_or_path": str(tmp_path / source), "train_file": files[0], "test_file": files[1]}
        options |= {"do_train": True, "do_predict": True, "learning_rate": 1e-3, "max_seq_length": 16}
        options |= {"per_device_train_batch_size": 8, "num_train_epochs": 3}
        return run_script(run_classification.main, monkeypatch, tmp_path / "output", **(options | flags))

    return call


def test_a_new_head_learns_where_a_small_one_does_not(train):
    assert train()["predict_macro_f1"] > 0.9
    assert train(head_initializer_range=0.001)["predict_beats_baseline"] is False


def test_a_trained_head_is_trained_further(train, tmp_path):
    train()
    before = BertForSequenceClassification.from_pretrained(tmp_path / "output")
    before.save_pretrained(tmp_path / "trained")
    for file in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / "trained" / file).write_bytes((tmp_path / "model" / file).read_bytes())
    train("trained", learning_rate=1e-9, num_train_epochs=1)
    after = BertForSequenceClassification.from_pretrained(tmp_path / "output")
    for name in ("bert.pooler.dense", "classifier"):
        old, new = (model.get_submodule(name) for model in (before, after))
        assert isinstance(old, nn.Linear)
        torch.testing.assert_close(new.weight, old.weight, rtol=0, atol=1e-6)


def test_a_bad_spread_is_refused(train):
    with pytest.raises(ValueError, match=r"--head_initializer_range must be above 0, but is -1\.0"):
        train(head_initializer_range=-1)
