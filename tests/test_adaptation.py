"""An encoder is adapted in Python, to data of any form, and is what the command makes."""

import json
import math

import pandas as pd
import pytest
import torch
from script_runs import save_tiny_bert
from tiny_tokenizers import SENTENCES
from transformers import AutoModelForMaskedLM, AutoTokenizer

import hf_domain

OPTIONS = {"num_tokens": 16 * 8 * 30, "max_seq_length": 16, "batch_size": 8, "use_cpu": True, "disable_tqdm": True}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")


@pytest.fixture
def encoder(tmp_path):
    return save_tiny_bert(tmp_path / "encoder", SENTENCES)


def read_results(folder):
    return json.loads((folder / "all_results.json").read_text())


@pytest.mark.parametrize("method", ["dapt", "lora", "varmae", "exbert", "exbert_adapter"])
def test_the_model_comes_back_and_is_saved(encoder, method, tmp_path):
    table = pd.DataFrame({"text": SENTENCES * 40})
    model, tokenizer = hf_domain.adapt(encoder, table, method, output_dir=tmp_path / "adapted", **OPTIONS)
    results = read_results(tmp_path / "adapted")
    assert math.isfinite(results["eval_loss"]) and results["learning_rate"] in (3e-4, 1e-3)
    assert not model.training
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "adapted").eval()
    batch = AutoTokenizer.from_pretrained(tmp_path / "adapted")(SENTENCES, padding=True, return_tensors="pt")
    assert batch["input_ids"].equal(tokenizer(SENTENCES, padding=True, return_tensors="pt")["input_ids"])
    with torch.no_grad():
        torch.testing.assert_close(loaded(**batch).logits, model(**batch).logits, rtol=0, atol=1e-5)


def test_the_card_says_what_was_measured(encoder, tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 40))
    for name, corpus in (("texts", SENTENCES * 40), ("file", tmp_path / "corpus.txt")):
        hf_domain.adapt(encoder, corpus, output_dir=tmp_path / name, **OPTIONS)
        results, card = read_results(tmp_path / name), (tmp_path / name / "README.md").read_text()
        assert f"| before the first step | {results['start_loss']:.4f} |" in card
        assert f"| after training | {results['eval_loss']:.4f} |" in card
        assert "hf_domain.adapt('encoder', corpus, 'dapt', num_tokens=3_840, ...)" in card
        assert "190 documents" in card and str(tmp_path) not in card
        assert ("corpus.txt (" in card and "sha256" in card) == (name == "file")


def test_adaptation_learns_the_domain(encoder, tmp_path):
    for name, tokens in (("short", 1), ("long", 16 * 8 * 200)):
        options = {**OPTIONS, "num_tokens": tokens}
        hf_domain.adapt(encoder, SENTENCES * 40, output_dir=tmp_path / name, learning_rate=3e-3, **options)
    assert read_results(tmp_path / "long")["eval_loss"] < read_results(tmp_path / "short")["eval_loss"] - 0.5


def test_a_memory_is_read(encoder, tmp_path):
    general = save_tiny_bert(tmp_path / "general", SENTENCES)
    model, _ = hf_domain.adapt(
        encoder, iter(SENTENCES * 40), "gmap", output_dir=tmp_path / "adapted", memory=str(general), **OPTIONS
    )
    assert type(model).__name__ == "GMapForMaskedLM"


def test_what_cannot_be_adapted_is_refused(encoder, tmp_path):
    with pytest.raises(ValueError, match=r"method must be one of dapt, lora, .*, but is rada"):
        hf_domain.adapt(encoder, SENTENCES, "rada", output_dir=tmp_path / "adapted")
    with pytest.raises(FileExistsError, match="is not empty"):
        hf_domain.adapt(encoder, SENTENCES, output_dir=encoder)
    with pytest.raises(TypeError, match="item 0 is 7"):
        hf_domain.adapt(encoder, [7], output_dir=tmp_path / "adapted", **OPTIONS)
