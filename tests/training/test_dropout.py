import pytest
import torch
from method_models import make_exbert, make_gmap, make_varmae
from script_runs import read_losses, run_script
from tiny_models import FAMILIES, make_batch, make_masked_lm
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from transformers import AutoConfig

from hf_domain.examples import run_mlm
from hf_domain.training.dropout import remove_dropout

MODELS = {family: lambda family=family: make_masked_lm(family, dropout=0.5) for family in FAMILIES}
MODELS |= {
    "exbert": lambda: make_exbert("bert", dropout=0.5, backbone_dropout=True),
    "gmap": lambda: make_gmap("modernbert", dropout=0.5),
    "varmae": lambda: make_varmae("bert", dropout=0.5, backbone_dropout=True, batch_norm=False),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_in_training_what_it_computes_in_evaluation(name, monkeypatch):
    monkeypatch.setattr(torch, "randn_like", torch.zeros_like)  # the noise of a VarMAE is no dropout
    model, batch = MODELS[name](), make_batch(masked=False)
    expected = model.eval()(**batch).logits
    with remove_dropout(model):
        torch.testing.assert_close(model.train()(**batch).logits, expected)
    assert not torch.allclose(model(**batch).logits, expected, atol=1e-2)  # it has its own again


@pytest.mark.parametrize(
    ("options", "has_dropout"),
    [
        ({}, False),
        ({"dropout": True}, True),
        ({"method": "exbert"}, False),
        ({"method": "varmae", "config_overrides": "freeze_backbone=False"}, False),  # its statistics have none either
        ({"method": "exbert", "config_overrides": "backbone_dropout=True"}, True),
    ],
)
def test_the_command_trains_without_and_saves_the_rates(options, has_dropout, monkeypatch, tmp_path):
    """The same encoder with rates of zero tells whether any dropout was there."""
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 6), encoding="utf-8")
    losses = []
    for rate in (0.5, 0.0):
        torch.manual_seed(0)
        folder, tokenizer = tmp_path / f"encoder-{rate}", make_bert_tokenizer()
        model = make_masked_lm("bert", dropout=rate)
        model.resize_token_embeddings(len(tokenizer))
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        flags = {"model_name_or_path": folder, "train_file": tmp_path / "corpus.txt", "do_train": True, "max_steps": 2}
        flags |= {"max_seq_length": 16, "per_device_train_batch_size": 4, "logging_steps": 1, "learning_rate": 1e-3}
        run_script(run_mlm.main, monkeypatch, tmp_path / f"run-{rate}", **flags | options)
        losses.append(read_losses(tmp_path / f"run-{rate}"))
        config = AutoConfig.from_pretrained(tmp_path / f"run-{rate}")
        assert getattr(config, "backbone_config", config).hidden_dropout_prob == rate
    assert (losses[0] != pytest.approx(losses[1], rel=1e-4)) == has_dropout
