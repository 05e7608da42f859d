"""The tests that peft runs over its methods: LoRA and prompts on our models, our adapter on a stock one."""

from inspect import getsource, signature

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig
from peft_tests.testing_common import PeftCommonTester
from peft_tests.testing_utils import set_init_weights_false
from tiny_models import VOCAB_SIZE, make_config
from transformers import AutoModel, AutoModelForMaskedLM, set_seed

from hf_domain import (
    ExBertAdapterConfig,
    ExBertForMaskedLM,
    GMapForMaskedLM,
    RadaForMaskedLM,
    VarMAEForMaskedLM,
)

BASES = {
    "stock": lambda stock: stock,
    # Its means are as large as the encoder's states: those of a fresh module stay below the tolerances.
    "varmae": lambda stock: VarMAEForMaskedLM.from_backbone(stock, residual=True, batch_norm=False),
    "exbert": ExBertForMaskedLM.from_backbone,
    "gmap": lambda stock: GMapForMaskedLM.from_backbones(stock, stock),
    "rada": RadaForMaskedLM.from_backbone,
}
# Of the encoder alone: the frozen memory and the interface, unused without passages, have modules of the same names.
OTHERS = r".*(memory|interface).*"
LORA = (
    LoraConfig,
    {"target_modules": ["query", "value"], "exclude_modules": OTHERS, "task_type": "FEATURE_EXTRACTION"},
)
PROMPT = (PromptTuningConfig, {"num_virtual_tokens": 4, "task_type": "FEATURE_EXTRACTION"})
ADAPTER = {"extension_vocab_size": 4, "base_vocab_size": VOCAB_SIZE, "extension_hidden_size": 16}
CASES = {f"{name}-{title}": (name, *method) for title, method in (("lora", LORA), ("prompt", PROMPT)) for name in BASES}
CASES |= {"adapter": ("stock", ExBertAdapterConfig, ADAPTER)}
del CASES["stock-lora"], CASES["stock-prompt"]
# Tests whose point is an adapter that does something begin with one that is not the identity.
CHANGED = ("merge", "safetensors", "unload", "save_pretrained", "weighted", "disable", "mixed", "conversion")
TESTS = sorted(
    name
    for name in dir(PeftCommonTester)
    if name.startswith("_test_")
    and ".generate(" not in getsource(getattr(PeftCommonTester, name))  # which no encoder does
    and list(signature(getattr(PeftCommonTester, name)).parameters)[1:4] == ["model_id", "config_cls", "config_kwargs"]
)
OPTIONS = {"_test_add_adapter_no_autocast_adapter_dtype": {"dtype": torch.bfloat16}}


@pytest.fixture(scope="session")
def bases(tmp_path_factory):
    """A folder for each model, in whose name peft's tests look for no family."""
    set_seed(0)
    config = make_config("bert", dropout=0.0)
    config.initializer_range = 0.02  # rounding stays below the tolerance of peft's tests
    stock = AutoModelForMaskedLM.from_config(config)
    folders = {name: tmp_path_factory.mktemp("bases") / name for name in BASES}
    for name, build in BASES.items():
        build(stock).save_pretrained(folders[name])
    return folders


class TestPeft(PeftCommonTester):
    transformers_class = AutoModel
    memory = False

    def prepare_inputs_for_testing(self):
        input_ids = torch.tensor([[5, 6, 7], [8, 9, 10]])
        inputs = {"input_ids": input_ids, "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 1]])}
        if self.memory:  # which reads ids also where the encoder reads a prompt in front of embeddings
            inputs |= {f"memory_{name}": value for name, value in inputs.items()}
        return inputs

    @pytest.mark.parametrize("case", CASES)
    @pytest.mark.parametrize("test", TESTS)
    def test(self, test, case, bases):
        set_seed(0)
        name, config_class, options = CASES[case]
        self.memory = name == "gmap"
        if case == "adapter":
            self.transformers_class = AutoModelForMaskedLM
        elif any(word in test for word in CHANGED):
            options = set_init_weights_false(config_class, options)
        further = OPTIONS.get(test, {})
        if "test_name" in signature(getattr(self, test)).parameters:
            further = {"test_name": test}
        getattr(self, test)(model_id=str(bases[name]), config_cls=config_class, config_kwargs=dict(options), **further)
