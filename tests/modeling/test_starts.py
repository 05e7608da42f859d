"""Positive control of the recommended starts: on a domain of new facts they soon leave the frozen encoder behind.

The language: sentences of pairs, a word and what belongs to it; one of them is masked. The encoder has learned which
belongs to which. In the domain a third of the words have other companions.
"""

import copy

import pytest
import torch
from tiny_models import make_config
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM, set_seed

from hf_domain import ExBertForMaskedLM, VarMAEForMaskedLM
from hf_domain.methods import METHODS

NUM_WORDS, MASK = 40, 4
CLASSES = {"varmae": VarMAEForMaskedLM, "exbert": ExBertForMaskedLM}


def make_companions(generator):
    """The companion of each word of the general language, and of the domain."""
    general = torch.randperm(NUM_WORDS, generator=generator)
    domain = general.clone()
    domain[:14] = general[:14].roll(1)
    return general, domain


def make_batch(companions, generator, size=32):
    words = torch.randint(NUM_WORDS, (size, 5), generator=generator)
    ids = torch.stack([5 + words, 5 + NUM_WORDS + companions[words]], dim=2).flatten(1)
    masked = torch.arange(10) == torch.randint(10, (size, 1), generator=generator)
    return {"input_ids": ids.masked_fill(masked, MASK), "labels": ids.masked_fill(~masked, -100)}


def fit(model, companions, steps, rate):
    generator = torch.Generator().manual_seed(1)
    optimizer = torch.optim.Adam([weight for weight in model.parameters() if weight.requires_grad], lr=rate)
    model.train()
    for _ in range(steps):
        optimizer.zero_grad()
        model(**make_batch(companions, generator)).loss.backward()
        optimizer.step()
    return model.eval()


@torch.no_grad()
def measure(model, companions):
    batch = make_batch(companions, torch.Generator().manual_seed(2), size=512)
    logits = model.eval()(input_ids=batch["input_ids"]).logits
    return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten()).item()


@pytest.fixture(scope="module")
def language():
    set_seed(0)
    general, domain = make_companions(torch.Generator().manual_seed(0))
    encoder = AutoModelForMaskedLM.from_config(make_config("bert", dropout=0.0))
    return fit(encoder, general, 400, 3e-3), general, domain


@pytest.mark.parametrize("method", CLASSES)
def test_a_domain_is_learned_from_the_recommended_start(method, language):
    encoder, general, domain = language
    expected = measure(encoder, domain)
    assert measure(encoder, general) + 0.5 < expected
    losses = {}
    for start, options in (("recommended", METHODS[method].start), ("paper", {})):
        set_seed(0)
        options = {name: value for name, value in options.items() if name != "extension_init"}
        model = CLASSES[method].from_backbone(copy.deepcopy(encoder), **options)
        if start == "recommended" and METHODS[method].prepare is not None:
            generator = torch.Generator().manual_seed(3)
            METHODS[method].prepare(model, [make_batch(domain, generator) for _ in range(10)])
        losses[start] = [measure(fit(model, domain, steps, 1e-3), domain) for steps in (0, 40)]
    before, after = losses["recommended"]
    assert before == pytest.approx(expected, abs=0.05)
    assert losses["paper"][0] > expected + 0.2
    assert after < expected - 0.1
    assert after < losses["paper"][1] - 0.1
