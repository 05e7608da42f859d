"""The tests that transformers runs over each of its models, over ours: ModelTesterMixin and ConfigTester."""

import unittest
from contextlib import nullcontext

import pytest
import torch
from transformers import BertConfig
from transformers.models.auto import modeling_auto
from transformers_tests.test_configuration_common import ConfigTester
from transformers_tests.test_modeling_common import ModelTesterMixin

import hf_domain

# The mixin tells by these tables of names which head a class has, and so which labels it gets.
HEADS = {
    "Model": modeling_auto.MODEL_MAPPING_NAMES,
    "ForMaskedLM": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "ForSequenceClassification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "ForTokenClassification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
    "ForQuestionAnswering": modeling_auto.MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES,
}
for head, names in HEADS.items():
    names |= {prefix.lower(): prefix + head for prefix in ("VarMAE", "ExBert", "GMap", "Rada")}
SIZES = {"vocab_size": 99, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
SIZES |= {"intermediate_size": 37, "max_position_embeddings": 64}


class ModelTester:
    """What the mixin asks of a model: a small configuration and a batch."""

    batch_size, seq_length, is_training = 4, 7, True
    hidden_size, num_hidden_layers, num_attention_heads = 32, 2, 4

    def __init__(self, config_class, options):
        self.config_class, self.options = config_class, options

    def get_config(self):
        return self.config_class(backbone_config=BertConfig(**SIZES), **self.options)

    def prepare_config_and_inputs_for_common(self):
        input_ids = torch.randint(5, 99, (self.batch_size, self.seq_length))
        return self.get_config(), {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}


class ModelTests(ModelTesterMixin):
    """The tests of a method; `prefix` names its classes."""

    prefix = ""
    options = {}
    test_resize_embeddings = True

    def setUp(self):
        torch.manual_seed(0)
        self.model_tester = ModelTester(getattr(hf_domain, f"{self.prefix}Config"), self.options)

    @property
    def all_model_classes(self):
        return tuple(getattr(hf_domain, self.prefix + head) for head in HEADS)

    def subTest(self, *args, **kwargs):
        return nullcontext()  # a part that fails fails the test: the table of expected failures names tests


class TestVarMAE(ModelTests, unittest.TestCase):
    prefix = "VarMAE"


class TestExBert(ModelTests, unittest.TestCase):
    prefix = "ExBert"


class TestGMap(ModelTests, unittest.TestCase):
    prefix = "GMap"
    options = {"memory_config": BertConfig(**SIZES).to_dict()}


class TestRada(ModelTests, unittest.TestCase):
    prefix = "Rada"


CHECKS = sorted(name for name in dir(ConfigTester) if name.startswith(("create_and_test_", "check_")))


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("prefix", ["VarMAE", "ExBert", "GMap", "Rada"])
def test_config(prefix, check):
    parent = unittest.TestCase()
    parent.subTest = lambda *args, **kwargs: nullcontext()
    getattr(ConfigTester(parent, config_class=getattr(hf_domain, f"{prefix}Config")), check)()
