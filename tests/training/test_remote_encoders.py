"""Encoders whose code comes with them: trained with --trust_remote_code, and loaded from their own folder."""

import pytest
import torch
from remote_encoder import write_remote_encoder
from safetensors.torch import load_file, save_file
from script_runs import run_script, write_jsonl
from tiny_models import make_batch
from tiny_tokenizers import SENTENCES
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification
from without_package import run_without_package

from hf_domain import adapt, fine_tune, predict
from hf_domain.examples import run_classification, run_mlm

LOAD = """
from safetensors.torch import load_file, save_file
from transformers import {auto_class}
model = {auto_class}.from_pretrained({folder!r}, trust_remote_code=True).eval()
save_file({{"logits": model(**load_file("batch.safetensors")).logits.detach()}}, "logits.safetensors")
"""


@pytest.fixture
def encoder(tmp_path):
    return write_remote_encoder(tmp_path / "encoder")


@pytest.fixture
def run(monkeypatch, tmp_path, encoder):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 30), encoding="utf-8")

    def run(**options):
        flags = {"model_name_or_path": encoder, "train_file": tmp_path / "corpus.txt", "max_seq_length": 16}
        flags |= {"max_steps": 3, "do_train": True, "learning_rate": 1e-3}
        return run_script(run_mlm.main, monkeypatch, tmp_path / "output", **flags | options)

    return run


def check_logits(auto_class, folder, tmp_path):
    """Load a folder where neither the package nor the encoder is, and compare with the trained weights."""
    batch = make_batch(masked=False)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    save_file(inputs, tmp_path / "batch.safetensors")
    code = LOAD.format(auto_class=auto_class.__name__, folder=folder)
    run_without_package(code, tmp_path).check_returncode()
    model = auto_class.from_pretrained(tmp_path / folder, trust_remote_code=True).eval()
    expected = model(**inputs).logits
    torch.testing.assert_close(load_file(tmp_path / "logits.safetensors")["logits"], expected, rtol=1e-5, atol=1e-5)
    return model


@pytest.mark.parametrize("method", ["dapt", "lora", "varmae", "exbert", "gmap"])
def test_the_folder_loads_with_its_own_code(run, method, encoder, tmp_path, caplog):
    """Without a network, without this package, and after the encoder's folder is gone."""
    memory = {"memory_name_or_path": encoder} if method == "gmap" else {}
    run(method=method, trust_remote_code=True, **memory)
    assert "must have all weights" not in caplog.text
    encoder.rename(tmp_path / "elsewhere")
    check_logits(AutoModelForMaskedLM, "output", tmp_path)
    weights = load_file(tmp_path / "output" / "model.safetensors")
    start = load_file(tmp_path / "elsewhere" / "model.safetensors")
    (name,) = [each for each in weights if each.endswith("layers.0.attention.query.weight") and "memory" not in each]
    is_frozen = method in ("varmae", "exbert")
    assert torch.equal(weights[name], start["own.layers.0.attention.query.weight"]) is is_frozen
    assert "trust_remote_code=True" in (tmp_path / "output" / "README.md").read_text()


def test_training_goes_from_command_to_command(run, encoder, tmp_path, monkeypatch):
    """Masked LM twice, then a task, which gets a memory on the way."""
    run(method="varmae", trust_remote_code=True)
    (tmp_path / "output").rename(tmp_path / "varmae")
    with pytest.raises(ValueError, match="must be trusted"):
        run(model_name_or_path=tmp_path / "varmae", method="varmae")
    run(model_name_or_path=tmp_path / "varmae", method="varmae", trust_remote_code=True)
    rows = [{"text": text, "label": "short" if len(text) < 40 else "long"} for text in SENTENCES]
    flags = {"train_file": write_jsonl(tmp_path / "train.jsonl", rows * 4), "max_steps": 2, "do_train": True}
    flags |= {"validation_file": write_jsonl(tmp_path / "validation.jsonl", rows), "do_eval": True}
    flags |= {"model_name_or_path": tmp_path / "output", "trust_remote_code": True, "max_seq_length": 16}
    run_script(run_classification.main, monkeypatch, tmp_path / "task", **flags)
    check_logits(AutoModelForSequenceClassification, "task", tmp_path)
    flags |= {"model_name_or_path": encoder, "method": "gmap", "memory_name_or_path": encoder}
    run_script(run_classification.main, monkeypatch, tmp_path / "with_memory", **flags)
    model = check_logits(AutoModelForSequenceClassification, "with_memory", tmp_path)
    assert model.config.memory_config.width == 32


def test_code_needs_trust(run):
    with pytest.raises(ValueError, match="trust_remote_code"):
        run()


def test_python_runs_code_only_if_it_is_trusted(encoder, tmp_path):
    options, trust = {"num_tokens": 64, "batch_size": 2, "max_seq_length": 16}, {"trust_remote_code": True}
    with pytest.raises(ValueError, match="trust_remote_code"):
        adapt(encoder, SENTENCES * 30, output_dir=tmp_path / "refused", **options)
    model, tokenizer = adapt(encoder, SENTENCES * 30, "varmae", output_dir=tmp_path / "adapted", **options, **trust)
    rows = [{"text": text, "label": "short" if len(text) < 40 else "long"} for text in SENTENCES] * 4
    task = {"max_steps": 2, "max_seq_length": 16}
    with pytest.raises(ValueError, match="must be trusted"):
        fine_tune(tmp_path / "adapted", rows, output_dir=tmp_path / "refused", **task)
    for source, folder in ((model, "task"), (tmp_path / "adapted", "task_of_a_folder")):
        fine_tune(source, rows, tokenizer, output_dir=tmp_path / folder, **task, **trust)
        check_logits(AutoModelForSequenceClassification, folder, tmp_path)
        assert len(predict(str(tmp_path / folder), ["the cat"], **trust)) == 1
    with pytest.raises(ValueError, match=r"a class for AutoModelForSequenceClassification, but .* has none") as caught:
        fine_tune(encoder, rows, output_dir=tmp_path / "headless", **task, **trust)
    assert len(str(caught.value)) < 300
