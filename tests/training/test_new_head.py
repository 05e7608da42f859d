"""Encoders that were saved without their masked-LM head, as those of sentence embeddings are."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from script_runs import run_script, save_tiny_bert
from tiny_models import make_config
from tiny_tokenizers import SENTENCES
from transformers import AutoModelForMaskedLM, BertForMaskedLM, BertModel

import hf_domain
from hf_domain.examples import run_mlm
from hf_domain.training.masked_lm_trainer import start_new_head
from hf_domain.training.pretraining import mark_new_head
from hf_domain.training.sentence_modules import keep_sentence_modules

MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]
POOLING = {"word_embedding_dimension": 32, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}


@pytest.fixture
def encoder(tmp_path):
    """A folder of sentence-transformers: a BERT without a head, mean pooling and normalization."""
    folder = tmp_path / "encoder"
    save_tiny_bert(folder, SENTENCES)
    BertModel.from_pretrained(folder, add_pooling_layer=False).save_pretrained(folder)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 48, "do_lower_case": false}')
    for module in MODULES[1:]:
        (folder / module["path"]).mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(POOLING))
    return folder


@pytest.fixture
def run(monkeypatch, tmp_path, encoder):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 40), encoding="utf-8")

    def run(name, **options):
        flags = {"model_name_or_path": encoder, "train_file": tmp_path / "corpus.txt", "max_seq_length": 16}
        flags |= {"do_train": True, "max_steps": 10, "logging_steps": 1, "learning_rate": 1e-2, "save_steps": 1}
        flags["warmup_steps"] = 0  # the first step moves weights, too
        return run_script(run_mlm.main, monkeypatch, tmp_path / name, **flags | {"save_strategy": "steps"} | options)

    return run


@pytest.mark.parametrize(("options", "alone"), [({}, 1), ({"head_first_steps": 3}, 3), ({"head_first_steps": 0}, 0)])
def test_only_the_head_trains_first(run, encoder, tmp_path, options, alone, caplog):
    caplog.set_level("INFO", "hf_domain")
    run("output", **options)
    start = {name: weight for name, weight in load_file(encoder / "model.safetensors").items()}
    for step in range(1, 5):
        weights = load_file(tmp_path / "output" / f"checkpoint-{step}" / "model.safetensors")
        moved = [name for name in start if not torch.equal(weights[f"bert.{name}"], start[name])]
        assert bool(moved) is (step > alone)
    heads = [load_file(tmp_path / "output" / f"checkpoint-{step}" / "model.safetensors") for step in (1, 2)]
    name = "cls.predictions.transform.dense.weight"
    assert not torch.equal(heads[0][name], heads[1][name])
    assert caplog.text.count("has no masked-LM head") == 1 and "must have all weights" not in caplog.text


def test_the_decay_of_a_trunk_trains_the_encoder_from_its_first_step(run, tmp_path):
    run("trunk", max_steps=4, lr_scheduler_type="constant")
    run("decay", max_steps=4, resume_decay_from=tmp_path / "trunk" / "checkpoint-4", head_first_steps=4)
    trunk, decay = (
        load_file(tmp_path / name / "model.safetensors") for name in ("trunk/checkpoint-4", "decay/checkpoint-1")
    )
    assert any(not torch.equal(trunk[name], decay[name]) for name in trunk if name.startswith("bert."))


def test_a_head_of_its_own_rows_trains_first_with_those_of_new_words():
    model = BertForMaskedLM(make_config("bert", tie_word_embeddings=False))
    mark_new_head(model, {name for name, _ in model.named_parameters() if name.startswith("cls.")})
    model.resize_token_embeddings(model.config.vocab_size + 3)
    added = []
    trainer = SimpleNamespace(model=model, train_dataset=[], trunk=None, add_callback=added.append)
    trainer.args = SimpleNamespace(resume_from_checkpoint="checkpoint-1")
    start_new_head(trainer, None)
    decoder = model.get_output_embeddings()
    assert {id(decoder.weight), id(decoder.bias)} <= added[0].head


def test_the_head_starts_at_the_frequencies_of_the_tokens(encoder, tmp_path):
    """And at the loss of a model that knows them alone; the decoder is the embedding table."""
    options = {"output_dir": tmp_path / "output", "num_tokens": 1, "learning_rate": 1e-12, "batch_size": 1}
    model, tokenizer = hf_domain.adapt(encoder, SENTENCES * 40, max_seq_length=16, **options)
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    log = model.get_output_embeddings().bias.exp()
    assert log.sum().item() == pytest.approx(1, rel=1e-4)
    frequent, rare = tokenizer.convert_tokens_to_ids([".", "[MASK]"])
    assert log[frequent] > 50 * log[rare]


def test_a_killed_run_keeps_the_head_it_trains(run, tmp_path):
    run("whole")
    run("parts", resume_from_checkpoint=tmp_path / "whole" / "checkpoint-1")
    whole, parts = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(parts[name], whole[name]) for name in whole)


def test_it_is_still_a_sentence_encoder(run, tmp_path):
    sentence_transformers = pytest.importorskip("sentence_transformers")
    run("output")
    model = sentence_transformers.SentenceTransformer(str(tmp_path / "output"), device="cpu")
    found = model.encode(SENTENCES[0], convert_to_tensor=True)
    trained = AutoModelForMaskedLM.from_pretrained(tmp_path / "output").eval()
    with torch.no_grad():
        states = trained.bert(**model.tokenizer(SENTENCES[0], return_tensors="pt")).last_hidden_state[0]
    torch.testing.assert_close(found, torch.nn.functional.normalize(states.mean(0), dim=0), rtol=1e-4, atol=1e-5)
    assert model.max_seq_length == 48 and math.isclose(found.norm().item(), 1, rel_tol=1e-5)


def test_no_module_is_written_outside_the_folder(tmp_path):
    source, output = tmp_path / "source", tmp_path / "runs" / "output"
    for folder in (source / "1_Pooling", tmp_path / "secret", output):
        folder.mkdir(parents=True)
    for folder in (source / "1_Pooling", tmp_path / "secret"):
        (folder / "config.json").write_text("{}")
    paths = ["", "1_Pooling", "../secret", str(tmp_path / "secret"), ".."]
    (source / "modules.json").write_text(json.dumps([{"path": path} for path in paths]))
    options = {"trust_remote_code": False}
    keep_sentence_modules(SimpleNamespace(model_name_or_path=str(source), hub_options=options), output)
    written = {path.relative_to(tmp_path / "runs").as_posix() for path in (tmp_path / "runs").rglob("*.json")}
    assert written == {"output/modules.json", "output/1_Pooling/config.json"}
