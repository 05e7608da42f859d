"""The weight average of models."""

import pytest
import torch
from tiny_models import make_masked_lm

from hf_domain import VarMAEForMaskedLM
from hf_domain.averaging import average_models


def test_average_is_the_mean_of_every_weight(family):
    torch.manual_seed(0)
    models = [make_masked_lm(family) for _ in range(2)]
    for parameter in models[1].parameters():
        torch.nn.init.normal_(parameter)
    first, second = ({name: p.clone() for name, p in model.named_parameters()} for model in models)
    averaged = average_models(models, [1, 3])
    for name, parameter in averaged.named_parameters():
        torch.testing.assert_close(parameter, 0.25 * first[name] + 0.75 * second[name])
    if (embedding := averaged.get_output_embeddings()) is not None and averaged.config.tie_word_embeddings:
        assert embedding.weight is averaged.get_input_embeddings().weight


def test_statistics_of_batch_normalization_are_averaged():
    models = [VarMAEForMaskedLM.from_backbone(make_masked_lm("bert")) for _ in range(2)]
    for number, model in enumerate(models):
        for buffer in model.buffers():
            if buffer.is_floating_point():
                buffer.fill_(number + 1)
    names = [name for name, buffer in models[0].named_buffers() if "running_" in name and (buffer == 1).all()]
    averaged = dict(average_models(models).named_buffers())
    assert names and all((averaged[name] == 1.5).all() for name in names)


def test_what_has_no_average():
    bert, roberta = make_masked_lm("bert"), make_masked_lm("roberta")
    with pytest.raises(ValueError, match="must have the same parameters"):
        average_models([bert, roberta])
    with pytest.raises(ValueError, match="needs at least two models, and for each a finite weight"):
        average_models([bert])
    for weights in ([1.0], [float("nan"), 1.0], [float("inf"), 1.0], [-1.0, 3.0]):
        with pytest.raises(ValueError, match="needs at least two models, and for each a finite weight"):
            average_models([bert, bert], weights)
    larger = make_masked_lm("bert")
    larger.resize_token_embeddings(larger.config.vocab_size + 8)
    with pytest.raises(ValueError, match="same vocabulary and head"):
        average_models([bert, larger])
