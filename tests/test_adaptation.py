"""An encoder is adapted in Python, to data of any form, and is what the command makes."""

import hashlib
import inspect
import json
import math
import re
from pathlib import Path

import pandas as pd
import pytest
import torch
from datasets import Dataset, DatasetDict
from script_runs import save_tiny_bert
from tiny_tokenizers import SENTENCES
from transformers import AutoModelForMaskedLM, AutoTokenizer, Trainer

import hf_domain
from hf_domain.training.calls import describe_call

OPTIONS = {"num_tokens": 16 * 8 * 30, "max_seq_length": 16, "batch_size": 8, "use_cpu": True, "disable_tqdm": True}


@pytest.fixture
def encoder(tmp_path):
    return save_tiny_bert(tmp_path / "encoder", SENTENCES)


def read_results(folder):
    return json.loads((folder / "all_results.json").read_text())


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("method", ["dapt", "lora", "varmae", "exbert", "exbert_adapter"])
def test_the_model_comes_back_and_is_saved(encoder, method, bf16, tmp_path):
    table, options = pd.DataFrame({"text": SENTENCES * 40}), OPTIONS | {"bf16": bf16}
    model, tokenizer = hf_domain.adapt(encoder, table, method, output_dir=tmp_path / "adapted", **options)
    results = read_results(tmp_path / "adapted")
    assert math.isfinite(results["eval_loss"]) and 0 < results["learning_rate"] <= 3.5e-3
    assert not model.training
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "adapted").eval()
    batch = AutoTokenizer.from_pretrained(tmp_path / "adapted")(SENTENCES, padding=True, return_tensors="pt")
    assert batch["input_ids"].equal(tokenizer(SENTENCES, padding=True, return_tensors="pt")["input_ids"])
    with torch.no_grad():
        torch.testing.assert_close(loaded(**batch).logits, model(**batch).logits, rtol=0, atol=1e-5)


def test_an_unfinished_adapter_is_not_pushed(encoder, tmp_path, monkeypatch):
    """Loading such a commit would apply the adapter to the weights beside it."""
    pushed = {}
    for name in ("init_hf_repo", "_finish_current_push"):
        monkeypatch.setattr(Trainer, name, lambda trainer: None)
    monkeypatch.setattr(Trainer, "_push_from_checkpoint", lambda trainer, folder: pushed[method].append(folder))
    monkeypatch.setattr("hf_domain.training.run.push_run", lambda trainer, name: pushed[method].append("finished"))
    options = OPTIONS | {"push_to_hub": True, "save_strategy": "steps", "save_steps": 10}
    for method in ("exbert_adapter", "dapt"):
        pushed[method] = []
        hf_domain.adapt(encoder, SENTENCES * 40, method, output_dir=tmp_path / method, **options)
    assert pushed["exbert_adapter"] == ["finished"]
    assert len(pushed["dapt"]) == 4 and pushed["dapt"][-1] == "finished"


def test_the_card_says_what_was_measured(encoder, tmp_path):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 40))
    for name, corpus in (("texts", SENTENCES * 40), ("file", tmp_path / "corpus.txt")):
        hf_domain.adapt(encoder, corpus, output_dir=tmp_path / name, **OPTIONS)
        results, card = read_results(tmp_path / name), (tmp_path / name / "README.md").read_text()
        assert f"| before the first step | {results['start_loss']:.4f} |" in card
        assert f"| after training | {results['eval_loss']:.4f} |" in card
        shown = "'corpus.txt'" if name == "file" else "corpus"
        assert (
            f"hf_domain.adapt('encoder', {shown}, output_dir='{name}', num_tokens=3_840, batch_size=8, "
            "max_seq_length=16, use_cpu=True, disable_tqdm=True)\n```"
        ) in card
        assert "190 documents" in card and str(tmp_path) not in card
        assert ("corpus.txt (" in card and ", sha256 " in card) == (name == "file")


def test_the_card_identifies_data_of_any_form(encoder, tmp_path):
    """The same texts have the same digest; of a stream the card says how much was read."""
    texts = SENTENCES * 40
    table = Dataset.from_dict({"text": texts})
    forms = {
        "list": texts,
        "table": pd.DataFrame({"text": texts}),
        "generator": (text for text in texts),
        "splits": DatasetDict(train=table, validation=table.select(range(40))),
        "other": ["another text", *texts[1:]],
    }
    digests = {}
    for name, corpus in forms.items():
        options = OPTIONS | {"num_tokens": 16 * 8, "validation_data": None if name == "splits" else texts[:40]}
        hf_domain.adapt(encoder, corpus, output_dir=tmp_path / name, **options)
        card = (tmp_path / name / "README.md").read_text()
        (digests[name],) = re.findall(r"Corpus:\*\* data \(200 documents, .*, sha256 of the texts (\w{64})\)", card)
    lines = "".join(f"{json.dumps(text)}\n" for text in texts)
    assert digests.pop("other") not in digests.values()
    assert {*digests.values()} == {hashlib.sha256(lines.encode()).hexdigest()}

    hf_domain.adapt(encoder, table.to_iterable_dataset(), output_dir=tmp_path / "stream", **options)
    assert "- **Corpus:** a stream (8 examples read)\n" in (tmp_path / "stream" / "README.md").read_text()


def test_the_call_on_a_card_has_every_argument_but_secrets():
    given = inspect.signature(hf_domain.fine_tune).bind("encoder", {"train": []}, output_dir=Path("out"), method="rada")
    given.apply_defaults()
    given.arguments["training_options"] = {"max_steps": 2000, "hub_token": "hf_secret", "report_to": "none"}
    given.arguments |= {"datastore": "passages", "learning_rate": (1e-4, 1e-3)}
    assert describe_call(hf_domain.fine_tune, given.arguments) == (
        "hf_domain.fine_tune('encoder', task, output_dir='out', method='rada', datastore='passages', "
        "learning_rate=[0.0001, 0.001], max_steps=2_000, report_to='none')"
    )


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


def test_passages_are_read(encoder, tmp_path):
    pytest.importorskip("tantivy")
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    hf_domain.build_datastore(SENTENCES, tmp_path / "datastore", tokenizer, max_length=32)
    options = OPTIONS | {"datastore": tmp_path / "datastore", "num_passages": 2, "num_tokens": 16 * 8 * 4}
    model, _ = hf_domain.adapt(encoder, SENTENCES * 40, "rada", output_dir=tmp_path / "adapted", **options)
    assert type(model).__name__ == "RadaForMaskedLM" and model.config.passage_encoder == "frozen"
    assert any(weight.any() for weight in model.model.interface.output.parameters())  # zeros before the first step
    assert "| passages | 2 |" in (tmp_path / "adapted" / "README.md").read_text()
    with pytest.raises(ValueError, match="method rada needs a datastore, but none is given"):
        hf_domain.adapt(encoder, SENTENCES * 40, "rada", output_dir=tmp_path / "other", **OPTIONS)


def test_unknown_options_name_what_was_meant(encoder, tmp_path):
    for function in (hf_domain.adapt, hf_domain.fine_tune):
        for given, meant in (("learning_rat", "learning_rate"), ("warmup_step", "warmup_steps")):
            with pytest.raises(TypeError, match=f"but is {given}. Did you mean {meant}"):
                function(encoder, SENTENCES, output_dir=tmp_path / "adapted", **{given: 1})
        with pytest.raises(TypeError, match=r"per_device_train_batch_size. Did you mean batch_size"):
            function(encoder, SENTENCES, output_dir=tmp_path / "adapted", per_device_train_batch_size=1)
    for given in ("budget", "max_steps", "num_train_epochs"):
        with pytest.raises(TypeError, match=f"option of adapt must be .*, but is {given}. Did you mean num_tokens"):
            hf_domain.adapt(encoder, SENTENCES, output_dir=tmp_path / "adapted", **{given: 1000})
    assert not (tmp_path / "adapted").exists()


def test_what_cannot_be_adapted_is_refused(encoder, tmp_path):
    with pytest.raises(ValueError, match=r"method must be one of dapt, lora, .*, but is tapt"):
        hf_domain.adapt(encoder, SENTENCES, "tapt", output_dir=tmp_path / "adapted")
    with pytest.raises(ValueError, match=r"must be an identifier of the Hub, such as apache-2[.]0, but is 'CC-BY'"):
        hf_domain.adapt(encoder, SENTENCES, output_dir=tmp_path / "adapted", data_license="CC-BY")
    with pytest.raises(FileExistsError, match="is not empty"):
        hf_domain.adapt(encoder, SENTENCES, output_dir=encoder)
    with pytest.raises(TypeError, match="item 0 is 7"):
        hf_domain.adapt(encoder, [7], output_dir=tmp_path / "adapted", **OPTIONS)


def test_accumulated_batches_count_as_tokens(encoder, tmp_path):
    options = OPTIONS | {"num_tokens": 16 * 8 * 4 * 2}
    hf_domain.adapt(encoder, SENTENCES * 40, output_dir=tmp_path / "a", gradient_accumulation_steps=4, **options)
    assert json.loads((tmp_path / "a" / "trainer_state.json").read_text())["global_step"] == 2


def test_a_loss_of_its_own_is_not_replaced(encoder, tmp_path):
    with pytest.raises(ValueError, match=r"but varmae has a loss of its own"):
        hf_domain.adapt(
            encoder, SENTENCES * 40, "varmae", output_dir=tmp_path / "a", label_smoothing_factor=0.1, **OPTIONS
        )


def test_text_that_fills_no_block_for_validation_is_evaluated(encoder, tmp_path, caplog):
    """A twentieth of 45 short lines is shorter than a block."""
    options = OPTIONS | {"max_seq_length": 64, "num_tokens": 64, "batch_size": 1, "output_dir": tmp_path / "adapted"}
    hf_domain.adapt(encoder, ["the hidden words"] * 45, general_validation_data=["other words"], **options)
    results = read_results(tmp_path / "adapted")
    assert math.isfinite(results["eval_loss"]) and math.isfinite(results["general_loss"])
    assert "The validation text fills no block of 64 tokens, so that each of its 2 documents" in caplog.text
    assert "The general text fills no block of 64 tokens" in caplog.text


def test_the_rate_follows_from_the_size_of_the_encoder(tmp_path):
    encoder = save_tiny_bert(tmp_path / "encoder", SENTENCES, hidden_size=256)
    hf_domain.adapt(encoder, SENTENCES * 8, output_dir=tmp_path / "adapted", **OPTIONS)
    rate = read_results(tmp_path / "adapted")["learning_rate"]
    assert rate == pytest.approx(1e-4 * 768 / 256 * math.sqrt(12 / 2))
