"""The proofs hold for a stock encoder, and notice each fault that they are for."""

import pytest
import torch
from datasets import Dataset
from tiny_models import make_batch, make_masked_lm
from transformers import BertForMaskedLM

from hf_domain.testing import (
    check_accumulation,
    check_activation_checkpointing,
    check_evaluation,
    check_padding,
    check_saved_and_loaded,
    check_training,
)


class Unmasked(BertForMaskedLM):
    def forward(self, *args, attention_mask=None, **kwargs):
        return super().forward(*args, **kwargs)


class Noisy(BertForMaskedLM):
    def forward(self, *args, **kwargs):
        output = super().forward(*args, **kwargs)
        output.logits = output.logits + torch.rand_like(output.logits)
        return output


class Summed(BertForMaskedLM):
    def forward(self, input_ids=None, attention_mask=None, labels=None, num_items_in_batch=None, **kwargs):
        return super().forward(input_ids, attention_mask, labels=labels)


@pytest.fixture
def model():
    return make_masked_lm("bert", 0.0).eval()


def make_rows():
    batch = make_batch(8)
    return Dataset.from_dict({name: value.tolist() for name, value in batch.items()})


def test_a_stock_encoder_passes(model, tmp_path):
    batch = make_batch()
    check_padding(model, batch)
    check_saved_and_loaded(model, batch, tmp_path / "saved")
    check_activation_checkpointing(model, batch)
    check_evaluation(make_masked_lm("bert", 0.1), batch)
    model.get_input_embeddings().weight.requires_grad_(False)
    check_training(model, make_rows(), tmp_path, lambda name: "word_embeddings" in name, "position_embeddings")


def test_faults_are_noticed(model, tmp_path):
    batch = make_batch()
    with pytest.raises(AssertionError):
        check_padding(Unmasked(model.config).eval(), batch)
    with pytest.raises(AssertionError):
        check_evaluation(Noisy(model.config), batch)
    with pytest.raises(AssertionError):
        check_evaluation(model, batch)  # training has no noise
    with pytest.raises(AssertionError):
        check_saved_and_loaded(Noisy(model.config), batch, tmp_path / "saved")
    with pytest.raises(AssertionError):
        check_activation_checkpointing(make_masked_lm("bert", 0.5), batch)
    with pytest.raises(AssertionError):
        check_training(model, make_rows(), tmp_path, lambda name: "word_embeddings" in name)
    with pytest.raises(AssertionError):
        check_accumulation(Summed(model.config), make_rows(), tmp_path)
