"""examples/run_mlm.py as a user runs it."""

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from peft import PeftModel
from safetensors.torch import load_file
from script_runs import read_losses, run_script
from tiny_models import make_config
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_domain.examples import run_mlm
from hf_domain.tokenization import VocabularyDelta, WordCounts, count_shard, expand_vocabulary
from hf_domain.training.masked_lm_corpus import mix_examples


def save_encoder(folder):
    """Save a tiny BERT and its tokenizer."""
    tokenizer, config = make_bert_tokenizer(), make_config("bert")
    config.vocab_size = len(tokenizer)
    AutoModelForMaskedLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def encoder(tmp_path):
    return save_encoder(tmp_path / "encoder")


@pytest.fixture
def corpus(tmp_path):
    """A corpus of 200 lines."""
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 40), encoding="utf-8")
    return tmp_path / "corpus.txt"


@pytest.fixture
def run(monkeypatch, tmp_path, encoder, corpus):
    """Run the script with these options; returns its all_results.json."""
    defaults = {"model_name_or_path": encoder, "train_file": corpus, "do_train": True, "do_eval": True}
    defaults |= {"max_seq_length": 16, "per_device_train_batch_size": 8, "max_steps": 4, "learning_rate": 1e-3}
    defaults |= {"logging_steps": 1, "save_strategy": "steps"}

    def run(output="output", **options):
        given = {name: value for name, value in (defaults | options).items() if value is not None}
        return run_script(run_mlm.main, monkeypatch, tmp_path / output, **given)

    return run


@pytest.mark.parametrize("method", ["dapt", "varmae"])
def test_trains_and_evaluates(run, method, tmp_path, encoder):
    results = run(method=method)
    assert results["perplexity"] > 1
    assert results["train_samples"] > 0
    folder = tmp_path / "output"
    assert {"README.md", "model.safetensors", "tokenizer.json", "train_results.json"} <= {
        f.name for f in folder.iterdir()
    }
    before, after = load_file(encoder / "model.safetensors"), load_file(folder / "model.safetensors")
    prefix = {"dapt": "", "varmae": "model.backbone."}[method]
    name = {"dapt": "bert.", "varmae": ""}[method] + "encoder.layer.0.output.dense.weight"
    unchanged = torch.equal(before["bert.encoder.layer.0.output.dense.weight"], after[prefix + name])
    assert unchanged is (method == "varmae")
    model = AutoModelForMaskedLM.from_pretrained(folder)
    assert model.config.model_type == {"dapt": "bert", "varmae": "varmae"}[method]
    if method == "varmae":
        assert model.config.special_token_ids == [0, 2, 3]
        assert {"eval_masked_kl", "eval_active_latent_share"} <= results.keys()


def test_options_of_a_method_and_training_on(run, tmp_path):
    run(method="varmae", config_overrides="kl_weight=3.5,unmasked_ratio=0.5")
    config = json.loads((tmp_path / "output" / "config.json").read_text())
    assert (config["kl_weight"], config["unmasked_ratio"]) == (3.5, 0.5)
    run("further", method="varmae", model_name_or_path=tmp_path / "output")
    assert json.loads((tmp_path / "further" / "config.json").read_text())["kl_weight"] == 3.5


def test_starts(run, tmp_path):
    """The recommended start is measured on the text once; the paper's, and what a user sets, are left alone."""

    def read(folder):
        weights = load_file(tmp_path / folder / "model.safetensors")
        config = json.loads((tmp_path / folder / "config.json").read_text())
        return config, weights["model.mean_network.num_batches_tracked"].item()

    run(method="varmae")
    config, count = read("output")
    assert (config["residual"], config["log_variance_init"], count) == (True, -4.0, 10 + 4)
    assert config["kl_weight"] == config["unmasked_kl_weight"] == 1.0
    run("further", method="varmae", model_name_or_path=tmp_path / "output")
    assert read("further")[1] == 10 + 4 + 4
    run("paper", method="varmae", start="paper")
    config, count = read("paper")
    assert (config["residual"], config["log_variance_init"], count) == (False, 0.0, 4)
    run("own", method="varmae", config_overrides="residual=false")
    config, count = read("own")
    assert (config["residual"], config["log_variance_init"], count) == (False, -4.0, 4)


@pytest.mark.parametrize("method", ["exbert", "exbert_adapter"])
def test_starts_of_exbert(run, method, tmp_path):
    def read(folder):
        config = json.loads((tmp_path / folder / "config.json").read_text())
        return config["side_init"], config["gate_bias_init"]

    run(method=method)
    assert read("output") == ("base", 3.0)
    run("paper", method=method, start="paper")
    assert read("paper") == ("normal", 0.0)
    run("own", method=method, config_overrides="gate_bias_init=6")
    assert read("own") == ("base", 6.0)


@pytest.fixture
def general(tmp_path):
    """A second encoder with the tokenizer of the first."""
    return save_encoder(tmp_path / "general")


def test_memory(run, tmp_path, encoder, general):
    results = run(method="gmap", memory_name_or_path=general, config_overrides="strategy=gated")
    assert results["perplexity"] > 1
    before, after = load_file(general / "model.safetensors"), load_file(tmp_path / "output" / "model.safetensors")
    name = "encoder.layer.0.output.dense.weight"
    assert torch.equal(after[f"model.memory.{name}"], before[f"bert.{name}"])
    domain = load_file(encoder / "model.safetensors")[f"bert.{name}"]
    assert not torch.equal(after[f"model.backbone.{name}"], domain)
    config = json.loads((tmp_path / "output" / "config.json").read_text())
    assert (config["model_type"], config["strategy"], config["memory_layers"]) == ("gmap", "gated", [2])
    shutil.rmtree(general)  # the checkpoint holds its memory
    run("further", method="gmap", model_name_or_path=tmp_path / "output")
    further = load_file(tmp_path / "further" / "model.safetensors")
    assert torch.equal(further[f"model.memory.{name}"], before[f"bert.{name}"])


@pytest.fixture
def expanded(tmp_path, encoder):
    """A folder with the tokenizer of the encoder, expanded by words of the corpus, and the delta."""
    counts = WordCounts.load(make_counts(tmp_path / "counts.parquet", encoder))
    tokenizer, delta, _ = expand_vocabulary(
        AutoTokenizer.from_pretrained(encoder), counts, size=140, step=20, min_frequency=1, progress=False
    )
    tokenizer.save_pretrained(tmp_path / "expanded")
    delta.save(tmp_path / "expanded")
    return tmp_path / "expanded"


def make_counts(path, encoder):
    count_shard(SENTENCES, AutoTokenizer.from_pretrained(encoder).backend_tokenizer).save(path)
    return path


@pytest.mark.parametrize("method", ["dapt", "varmae", "exbert", "exbert_adapter"])
def test_expanded_vocabulary(run, method, expanded, encoder, tmp_path):
    delta = VocabularyDelta.load(expanded)
    assert delta.pieces
    run(method=method, expanded_vocabulary=expanded)
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "output")
    assert model.config.vocab_size == delta.new_size == len(AutoTokenizer.from_pretrained(tmp_path / "output"))
    if method == "varmae":  # its embeddings are frozen: the new rows are still the means of their pieces
        table = model.get_input_embeddings().weight
        row, pieces = delta.old_size, next(iter(delta.pieces.values()))
        torch.testing.assert_close(table[row], table[pieces].mean(0))


def test_vocabulary_is_expanded_once(run, expanded, tmp_path):
    """A second time would set the rows that were trained back to the means of their pieces."""
    run("first", expanded_vocabulary=expanded)
    again = {"model_name_or_path": tmp_path / "first", "tokenizer_name": None}
    with pytest.raises(ValueError, match=r"a vocabulary must be expanded only once.*Leave out --expanded_vocabulary"):
        run("second", expanded_vocabulary=expanded, **again)
    assert run("third", **again)["eval_loss"] > 0


def test_lora_trains_new_rows_and_ends_as_an_ordinary_model(run, expanded, encoder, tmp_path):
    run(method="lora", expanded_vocabulary=expanded, learning_rate=1e-2)
    delta = VocabularyDelta.load(expanded)
    before, after = (load_file(folder / "model.safetensors") for folder in (Path(encoder), tmp_path / "output"))
    table = "bert.embeddings.word_embeddings.weight"
    assert before.keys() == after.keys()
    assert torch.equal(after[table][: delta.old_size], before[table])
    for row, pieces in enumerate(delta.pieces.values(), delta.old_size):
        assert not torch.equal(after[table][row], before[table][pieces].mean(0))
    name = "bert.encoder.layer.0.attention.self.query"
    change = after[f"{name}.weight"] - before[f"{name}.weight"]
    assert 0 < torch.linalg.matrix_rank(change) <= 16
    assert torch.equal(after[f"{name}.bias"], before[f"{name}.bias"])
    assert not list((tmp_path / "output").glob("adapter_*"))
    assert type(AutoModelForMaskedLM.from_pretrained(tmp_path / "output")).__name__ == "BertForMaskedLM"


def test_exbert_as_an_adapter_is_exbert(run, expanded, encoder, tmp_path):
    config = json.loads((encoder / "config.json").read_text())
    # The frozen base of an exBERT runs without dropout, that under an adapter as peft does, with it.
    dropout = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    (encoder / "config.json").write_text(json.dumps(config | dropout))
    options = {"expanded_vocabulary": expanded, "config_overrides": "gate_bias_init=3,extension_init=pieces"}
    trained = [run(method, method=method, **options) for method in ("exbert", "exbert_adapter")]
    own, adapted = (load_file(tmp_path / name / "model.safetensors") for name in ("exbert", "exbert_adapter"))
    assert own.keys() == adapted.keys()
    assert {name.split(".")[1] for name in own} >= {"backbone"} and any(".side." in name for name in own)
    # Softmax ignores a bias of the keys: its gradient is rounding noise, which Adam turns into whole steps.
    without_gradient = [name for name in own if re.search(r"\.side\..*key.*bias$", name)]
    assert without_gradient
    for name in own.keys() - without_gradient:
        torch.testing.assert_close(adapted[name], own[name], rtol=1e-4, atol=1e-5, msg=name)
    assert trained[1]["eval_loss"] == pytest.approx(trained[0]["eval_loss"], rel=1e-4)
    folder = tmp_path / "exbert_adapter"
    assert {file.name for file in (folder / "adapter").iterdir()} >= {
        "adapter_config.json",
        "adapter_model.safetensors",
    }
    assert not list(folder.glob("adapter_*"))
    adapter = PeftModel.from_pretrained(AutoModelForMaskedLM.from_pretrained(encoder), folder / "adapter").eval()
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    ids = torch.arange(5, model.config.vocab_size)[None, -20:]
    with torch.no_grad():
        torch.testing.assert_close(adapter(ids).logits, model(ids).logits, rtol=1e-4, atol=1e-5)


def test_exbert_without_new_words_says_so(run, expanded, tmp_path, caplog):
    said = "exBERT adds no words without --expanded_vocabulary"
    run("words", method="exbert", expanded_vocabulary=expanded, max_steps=1)
    run("further", method="exbert", model_name_or_path=tmp_path / "words", tokenizer_name=None, max_steps=1)
    assert said not in caplog.text
    run("alone", method="exbert", max_steps=1)
    assert said in caplog.text


def test_two_stages_of_exbert(run, expanded, encoder, tmp_path):
    base = load_file(encoder / "model.safetensors")["bert.encoder.layer.0.intermediate.dense.weight"]
    run("first", method="exbert", expanded_vocabulary=expanded)
    options = {"method": "exbert", "model_name_or_path": tmp_path / "first"}
    run("second", config_overrides="freeze_backbone=false", **options)
    name = "model.backbone.encoder.layer.0.intermediate.dense.weight"
    first, second = (load_file(tmp_path / stage / "model.safetensors") for stage in ("first", "second"))
    assert torch.equal(first[name], base)
    assert not torch.equal(second[name], base)
    assert first.keys() == second.keys()
    with pytest.raises(ValueError, match="Leave out --expanded_vocabulary"):
        run("third", expanded_vocabulary=expanded, **options)


@pytest.mark.parametrize("method", ["dapt", "varmae", "exbert", "exbert_adapter"])
def test_killed_run_resumes_to_the_same_losses(run, method, tmp_path):
    run("whole", method=method, max_steps=6, save_steps=3)
    run("parts", method=method, max_steps=6, save_steps=3, resume_from_checkpoint=tmp_path / "whole" / "checkpoint-3")
    whole, parts = read_losses(tmp_path / "whole"), read_losses(tmp_path / "parts")
    assert whole == parts
    assert len(whole) == 6
    cards = [(tmp_path / name / "README.md").read_text(encoding="utf-8") for name in ("whole", "parts")]
    assert ["| seconds since it was resumed |" in card for card in cards] == [False, True]


@pytest.mark.parametrize("options", [{"whole_word_mask": True}, {"line_by_line": True}, {"streaming": True}])
def test_ways_to_cut_and_mask(run, options):
    if "streaming" in options:
        options = {**options, "do_eval": None}
    assert run(**options)["train_loss"] > 0


def test_replay_mixes_other_text_in(run, tmp_path, corpus):
    """Every text of the corpus stays; the other's examples are the share of all."""
    (tmp_path / "general.txt").write_text("\n".join(reversed(SENTENCES * 10)), encoding="utf-8")
    alone = run(output="alone", line_by_line=True)
    mixed = run(output="mixed", line_by_line=True, mix=f"{tmp_path / 'general.txt'}:0.2")
    assert mixed["train_samples"] == pytest.approx(alone["train_samples"] / 0.8, abs=1)
    assert mixed["eval_samples"] == alone["eval_samples"]
    run(output="stream", do_eval=None, streaming=True, mix=f"{tmp_path / 'general.txt'}:0.2")
    for wrong in ("general.txt", "general.txt:2", ":0.1"):
        with pytest.raises(ValueError, match="a file and its share of all examples"):
            run(output="wrong", mix=wrong)


def test_share_of_the_replay():
    examples, others = (Dataset.from_dict({"number": [*range(first, last)]}) for first, last in ((0, 90), (100, 103)))
    mixed = mix_examples(examples, others, 0.1)["number"][:]
    assert sorted(mixed)[:90] == [*range(90)]
    assert len(mixed) == 100 and {*sorted(mixed)[90:]} == {100, 101, 102}  # too few of them are repeated
    assert {*mixed[:50]} & {100, 101, 102}  # `--max_train_samples` keeps the first
    streams = [each.to_iterable_dataset() for each in (examples, others)]
    assert {*range(90)} <= {row["number"] for row in mix_examples(*streams, 0.1)}
    for each, none in ((examples, others.select([])), (streams[0], streams[1].filter(lambda row: False))):
        with pytest.raises(ValueError, match="--mix must name text that fills a block"):
            mix_examples(each, none, 0.1)


@pytest.mark.parametrize("options", [{}, {"streaming": True, "do_eval": None}])
def test_text_that_the_tokenizer_does_not_know(run, tmp_path, caplog, options):
    unknown = "\u0416\u0443\u043a"
    (tmp_path / "unknown.txt").write_text(f"{unknown} " * 9_000, encoding="utf-8")
    with pytest.raises(ValueError, match=r"must know the text, but every token of train is \[UNK\]"):
        run(train_file=tmp_path / "unknown.txt", validation_file=tmp_path / "corpus.txt", **options)
    assert not (tmp_path / "output" / "config.json").exists()
    (tmp_path / "partly.txt").write_text(f"{SENTENCES[0]}{f' {unknown}' * 4}\n" * 99, encoding="utf-8")
    run(train_file=tmp_path / "partly.txt", validation_file=tmp_path / "corpus.txt", **options)
    (warning,) = [line for line in caplog.messages if "[UNK]" in line]
    assert re.match(r"[12]\d% of the tokens of train are \[UNK\]", warning)


def test_a_causal_stage(run, tmp_path):
    run(output="causal", objective="clm")
    results = run(output="masked", model_name_or_path=tmp_path / "causal")
    assert results["perplexity"] > 1
    with pytest.raises(ValueError, match="--objective clm needs --method dapt or lora"):
        run(output="wrong", objective="clm", method="varmae")


def test_bfloat16(run):
    assert run(bf16=True)["train_loss"] > 0


def test_what_is_read_late_is_missed_before_the_corpus_is_tokenized(run, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "hf_domain.training.masked_lm_corpus.tokenize_corpus", lambda *_, **__: pytest.fail("tokenized")
    )
    missing = tmp_path / "missing.txt"
    for options, match in (
        ({"general_validation_file": missing}, "must match .*missing.txt, but none does"),
        ({"mix": f"{missing}:0.1"}, "must match .*missing.txt, but none does"),
        ({"validation_split_percentage": 0}, "--do_eval needs text that is held out, .* is 0. Add"),
    ):
        with pytest.raises((ValueError, FileNotFoundError), match=match):
            run(**options)
        assert not (tmp_path / "output" / "model.safetensors").exists()
