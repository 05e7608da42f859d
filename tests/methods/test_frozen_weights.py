import copy

import pytest
import torch
from method_models import METHODS, make_exbert, make_gmap, make_varmae
from tiny_models import make_masked_lm
from transformers import Trainer, TrainingArguments

from hf_domain import GMapForMaskedLM
from hf_domain.methods.frozen_weights import hold_frozen_weights
from hf_domain.methods.lora import add_lora
from hf_domain.methods.stock_models import decode_labeled_rows_only

MODELS = {
    "varmae": make_varmae,
    "exbert": make_exbert,
    "gmap": make_gmap,
    "lora": lambda: add_lora(decode_labeled_rows_only(make_masked_lm("bert"))),
}


@pytest.mark.parametrize("method", MODELS)
def test_frozen_layers_are_held_in_bfloat16_and_saved_as_they_were(method, tmp_path):
    model = MODELS[method]()
    args = TrainingArguments(str(tmp_path), bf16=True, use_cpu=True, report_to="none")
    trainer, plain = Trainer(model, args), copy.deepcopy(model)
    names = {name for name, _ in model.named_parameters()}
    before = {name: weights.clone() for name, weights in model.state_dict().items() if name in names}
    batch = METHODS["exbert" if method == "exbert" else "varmae"].make_batch()
    with hold_frozen_weights(trainer):
        types = {weights.dtype for weights in model.parameters() if not weights.requires_grad and weights.dim() == 2}
        assert torch.bfloat16 in types
        assert {weights.dtype for weights in model.parameters() if weights.requires_grad} == {torch.float32}
        assert model.dtype == torch.float32  # that of a saved config
        steps = []
        for each in (model, plain):
            torch.manual_seed(0)
            with torch.autocast("cpu", torch.bfloat16):
                loss = each.train()(**batch).loss
            loss.backward()
            steps.append((loss, [weights.grad for weights in each.parameters() if weights.requires_grad]))
        torch.testing.assert_close(*steps, rtol=0, atol=0)
        model.save_pretrained(tmp_path / "held")
        saved = model.state_dict()
    assert saved.keys() == model.state_dict().keys() >= before.keys()
    for state in (saved, model.state_dict()):
        assert all(torch.equal(state[name], weights) for name, weights in before.items())
    if method != "lora":  # whose adapter alone is saved
        loaded = type(model).from_pretrained(tmp_path / "held")
        assert loaded.dtype == torch.float32
        assert all(torch.equal(loaded.state_dict()[name], weights) for name, weights in before.items())
    args.bf16 = False
    with hold_frozen_weights(trainer):
        assert all(weights.dtype == torch.float32 for weights in model.parameters())


def test_a_checkpoint_refers_to_the_memory_as_it_was_loaded(tmp_path):
    make_masked_lm("bert").base_model.save_pretrained(tmp_path / "general")
    model = GMapForMaskedLM.from_backbones(make_masked_lm("bert"), str(tmp_path / "general"), save_memory=False)
    trainer = Trainer(model, TrainingArguments(str(tmp_path), bf16=True, use_cpu=True, report_to="none"))
    with hold_frozen_weights(trainer):
        model.save_pretrained(tmp_path / "held")
    before, loaded = (
        each.get_memory().state_dict() for each in (model, GMapForMaskedLM.from_pretrained(tmp_path / "held"))
    )
    assert all(torch.equal(loaded[name], weights) for name, weights in before.items())
