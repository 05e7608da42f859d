"""Masked-LM losses of several models on several corpora, and the report of them."""

import json
import sys

import pytest
import torch
from datasets import Dataset
from tiny_models import make_config
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from torch.nn import functional as F
from transformers import AutoModelForMaskedLM

from hf_domain import GMapForMaskedLM, VarMAEForMaskedLM
from hf_domain.data.masking import DataCollatorForTokenMask
from hf_domain.examples.report_forgetting import main
from hf_domain.training.forgetting import compare_losses, measure_masked_lm_loss

TOKENIZER = make_bert_tokenizer()


def make_model():
    config = make_config("bert")
    config.vocab_size = len(TOKENIZER)
    return AutoModelForMaskedLM.from_config(config)


def make_examples(sentences=SENTENCES):
    return Dataset.from_dict({"input_ids": TOKENIZER(sentences)["input_ids"]})


@pytest.mark.parametrize("batch_size", [1, 5])
def test_loss_is_the_mean_over_masked_tokens(batch_size):
    model, examples = make_model().train(), make_examples()
    collator = DataCollatorForTokenMask(TOKENIZER, mlm_probability=0.3, seed=3)
    measured = measure_masked_lm_loss(model, examples, collator, batch_size=batch_size)
    losses = []
    for start in range(0, 5, batch_size):
        batch = collator([examples[row] for row in range(start, start + batch_size)])
        with torch.no_grad():
            logits = model.eval()(batch["input_ids"], batch["attention_mask"]).logits
        labeled = batch["labels"] != -100
        losses += F.cross_entropy(logits[labeled], batch["labels"][labeled], reduction="none").tolist()
    assert measured["masked_tokens"] == len(losses) > 5
    assert measured["loss"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)


def test_models_are_compared_on_the_same_masks():
    model = make_model()
    models = {
        "model": model,
        "again": model,
        "gmap": GMapForMaskedLM.from_backbones(model, model),
        "varmae": VarMAEForMaskedLM.from_backbone(model, residual=True, batch_norm=False),
    }
    corpora = {"all": make_examples(), "few": make_examples(SENTENCES[:2])}
    losses = compare_losses(models.items(), corpora, TOKENIZER, mlm_probability=0.5)
    assert list(losses) == list(models) and list(losses["model"]) == ["all", "few"]
    assert losses["model"] == losses["again"]
    assert losses["model"]["all"] != losses["model"]["few"]
    assert losses["gmap"]["all"]["loss"] != losses["model"]["all"]["loss"]
    # A fresh residual VarMAE is its encoder; its KL is no part of this loss.
    assert losses["varmae"]["all"]["loss"] == pytest.approx(losses["model"]["all"]["loss"], rel=1e-4)


def test_text_without_a_masked_token():
    collator = DataCollatorForTokenMask(TOKENIZER, mlm_probability=0.15)
    with pytest.raises(ValueError, match="must have a masked token, but its 1 examples have none"):
        measure_masked_lm_loss(make_model(), make_examples([""]), collator)


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    general, domain = make_model(), make_model()
    models = {"general": general, "domain": domain, "gmap": GMapForMaskedLM.from_backbones(domain, general)}
    for name, model in models.items():
        model.save_pretrained(tmp_path / name)
        TOKENIZER.save_pretrained(tmp_path / name)
    for name, sentences in (("wiki", SENTENCES[:3]), ("cs", SENTENCES[2:])):
        (tmp_path / f"{name}.txt").write_text("\n".join(sentences * 20), encoding="utf-8")

    def call(models=tuple(models), **flags):
        argv = ["report_forgetting.py", "--models", *(f"{name}={tmp_path / name}" for name in models)]
        argv += ["--corpora", *(f"{name}={tmp_path / name}.txt" for name in ("wiki", "cs"))]
        argv += ["--output_dir", str(tmp_path / "report"), "--use_cpu", "--max_seq_length", "16"]
        for name, value in flags.items():
            argv += [f"--{name}", str(value)]
        monkeypatch.setattr(sys, "argv", argv)
        main()
        return json.loads((tmp_path / "report" / "forgetting.json").read_text())

    return call


def test_report(run, tmp_path):
    report = run(max_samples=7)
    assert list(report["losses"]) == ["general", "domain", "gmap"]
    losses = {corpus["loss"] for by_corpus in report["losses"].values() for corpus in by_corpus.values()}
    assert len(losses) == 6
    assert report["settings"]["max_samples"] == 7 and report["versions"]["torch"]
    assert (tmp_path / "report" / "forgetting.png").read_bytes()[:4] == b"\x89PNG"
    assert run(max_samples=7)["losses"] == report["losses"]


def test_models_with_other_tokenizers_are_not_compared(run, tmp_path):
    make_bert_tokenizer(SENTENCES[:3]).save_pretrained(tmp_path / "domain")
    with pytest.raises(ValueError, match="must have the same tokenizer"):
        run()
    with pytest.raises(ValueError, match=r"--corpora must be name=value pairs, but has text\.txt"):
        run(corpora="text.txt")
    assert not (tmp_path / "report").exists()


def test_reports_of_other_text_stay_and_leftovers_of_a_kill_go(run, tmp_path):
    report = tmp_path / "report" / "forgetting.json"
    report.parent.mkdir()
    (report.parent / "forgetting.json.1a.unfinished").touch()
    run(["general"])
    assert sorted(file.name for file in report.parent.iterdir()) == ["forgetting.json", "forgetting.png"]
    before = json.dumps({"settings": {"corpora": ["law=law.txt"]}})
    report.write_text(before)
    with pytest.raises(FileExistsError, match=r"report of other --corpora, but .*json is of law=law.txt\. Name"):
        run(["general"])
    assert report.read_text() == before
