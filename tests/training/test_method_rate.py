"""The learning rate of what a method adds beside its encoder."""

from types import SimpleNamespace

import pytest
import torch
from method_models import make_exbert, make_gmap, make_rada, make_varmae
from tiny_models import make_batch, make_masked_lm
from transformers import BertConfig, BertForMaskedLM, Trainer, TrainingArguments

from hf_domain.methods import METHODS
from hf_domain.methods.lora import add_lora
from hf_domain.training.method_rate import (
    choose_method_rate,
    choose_pretraining_rate,
    list_added_weights,
    use_method_rate,
)

ADDED = {
    "rada": (make_rada, {"passage_encoder": "frozen"}, "model.interface."),
    "gmap": (make_gmap, {"starts_as_encoder": True, "fusion": "gate"}, ("model.memory_", "model.head_gates.")),
    "varmae": (make_varmae, {}, "model.mean_network."),
}


def make_args(rate=None, start="recommended"):
    return SimpleNamespace(method_learning_rate=rate, start=start)


@pytest.mark.parametrize("method", ADDED)
def test_what_a_method_adds(method):
    make, options, prefix = ADDED[method]
    model = make(**options)
    names = {id(weight): name for name, weight in model.named_parameters()}
    found = {names[id(weight)] for weight in list_added_weights(model)}
    assert found == {name for name in names.values() if name.startswith(prefix)}
    assert not list_added_weights(make_masked_lm("bert")) and not list_added_weights(make_exbert())


@pytest.mark.parametrize(
    ("args", "rate", "expected"),
    [
        (make_args(), 5e-5, None),
        (make_args(), 3e-3, 3e-3),
        (make_args(1e-5), 2e-3, 1e-5),
        (make_args(start="paper"), 5e-5, 5e-5),
        (make_args(2e-2, "paper"), 5e-5, 2e-2),
    ],
)
@pytest.mark.parametrize(("make", "least"), [(make_rada, 1e-3), (make_gmap, 2e-3)])
def test_groups_of_the_optimizer(make, least, args, rate, expected, tmp_path):
    """Every trainable weight is in one group; those added have their own rate, and biases and norms do not decay."""
    model, expected = make(), expected or least
    choose_method_rate(model, args)
    training_args = TrainingArguments(tmp_path, learning_rate=rate, weight_decay=0.1, use_cpu=True, report_to="none")
    trainer = Trainer(model, training_args)
    use_method_rate(trainer)
    added = {id(weight) for weight in list_added_weights(model)}
    decayed = set(trainer.get_decay_parameter_names(model))
    trainer.create_optimizer_and_scheduler(10)
    found = {
        id(weight): (group["lr"], group["weight_decay"])
        for group in trainer.optimizer.param_groups
        for weight in group["params"]
    }
    assert found == {
        id(weight): (expected if id(weight) in added else rate, 0.1 if name in decayed else 0.0)
        for name, weight in model.named_parameters()
        if weight.requires_grad
    }
    assert sum(len(group["params"]) for group in trainer.optimizer.param_groups) == len(found)


def test_a_run_trains_at_both_rates(tmp_path):
    model = make_varmae(dropout=0.0)
    choose_method_rate(model, make_args(1e-9))
    before = [weight.detach().clone() for weight in list_added_weights(model)]
    rows = [{name: value[0] for name, value in make_batch().items()}] * 8
    trainer = Trainer(
        model, TrainingArguments(tmp_path, max_steps=2, use_cpu=True, report_to="none"), train_dataset=rows
    )
    use_method_rate(trainer)
    trainer.train()
    moved = max((weight - old).abs().max() for weight, old in zip(list_added_weights(model), before, strict=True))
    assert 0 < moved < 1e-7


def test_a_stock_model_adds_nothing(tmp_path):
    model = make_masked_lm("bert")
    choose_method_rate(model, make_args())
    trainer = Trainer(model, TrainingArguments(tmp_path, use_cpu=True, report_to="none"))
    use_method_rate(trainer)
    assert trainer.optimizer_cls_and_kwargs is None
    with pytest.raises(ValueError, match="a BertForMaskedLM has none"):
        choose_method_rate(model, make_args(1e-3))


def test_the_rate_of_masked_lm_falls_with_the_size_of_the_encoder():
    sizes = [(256, 4), (384, 6), (768, 12), (768, 24), (1024, 24), (32, 2)]
    with torch.device("meta"):
        models = [
            BertForMaskedLM(
                BertConfig(hidden_size=width, num_hidden_layers=depth, num_attention_heads=4, vocab_size=99)
            )
            for width, depth in sizes
        ]
    rates = [choose_pretraining_rate(model, METHODS["dapt"]) for model in models]
    assert rates == pytest.approx([5.196e-4, 2.828e-4, 1e-4, 7.071e-5, 5.303e-5, 1e-3], rel=1e-3)


def test_few_weights_beside_a_frozen_encoder_bear_a_higher_rate(caplog):
    """An exBERT that trains its base as well does not."""
    caplog.set_level("INFO", "hf_domain")
    frozen = choose_pretraining_rate(make_exbert(), METHODS["exbert"])
    assert "times 3.5 because exBERT trains only" in caplog.text
    whole = choose_pretraining_rate(make_exbert(freeze_backbone=False), METHODS["exbert"])
    lora = choose_pretraining_rate(add_lora(make_masked_lm("bert")), METHODS["lora"])
    assert frozen == lora == pytest.approx(3.5 * whole)
    assert choose_pretraining_rate(make_varmae(), METHODS["varmae"]) == whole
