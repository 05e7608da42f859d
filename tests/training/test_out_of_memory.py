"""Batches that fit into the memory of a device, whose errors are made up here."""

import json

import pytest
import torch
from safetensors.torch import load_file
from script_runs import call_main, run_script, save_tiny_bert
from tiny_tokenizers import SENTENCES

import hf_domain
from hf_domain.examples import run_distill, run_mlm
from hf_domain.training.masked_lm_trainer import MaskedLMTrainer

OPTIONS = {"max_seq_length": 16, "num_tokens": 16 * 8 * 4, "learning_rate": 1e-2, "use_cpu": True, "disable_tqdm": True}


@pytest.fixture
def encoder(tmp_path):
    return save_tiny_bert(tmp_path / "encoder", SENTENCES)


@pytest.fixture
def memory(monkeypatch):
    """A GPU's memory, which holds this many examples from this step on."""
    memory, step = {"examples": 8, "from": 0}, MaskedLMTrainer.training_step

    def run(trainer, model, inputs, *args, **kwargs):
        if trainer.state.global_step >= memory["from"] and len(inputs["input_ids"]) > memory["examples"]:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return step(trainer, model, inputs, *args, **kwargs)

    monkeypatch.setattr(MaskedLMTrainer, "training_step", run)
    return memory


@pytest.mark.parametrize(("batch_size", "parts"), [(8, 4), (9, 3)])
def test_a_batch_that_is_too_large_is_accumulated(encoder, tmp_path, memory, caplog, batch_size, parts):
    """The weights are those of a run that was told the smaller batches."""
    options = OPTIONS | {"num_tokens": 16 * batch_size * 4}
    hf_domain.adapt(
        *(encoder, SENTENCES * 40), output_dir=tmp_path / "told", batch_size=batch_size // parts,
        gradient_accumulation_steps=parts, **options,
    )  # fmt: skip
    memory["examples"] = 3
    hf_domain.adapt(encoder, SENTENCES * 40, output_dir=tmp_path / "found", batch_size=batch_size, **options)
    assert f"--gradient_accumulation_steps {parts}" in caplog.text
    told, found = (load_file(tmp_path / name / "model.safetensors") for name in ("told", "found"))
    assert all(torch.equal(told[name], found[name]) for name in told)


def test_smaller_batches_begin_at_the_newest_checkpoint(encoder, tmp_path, memory, monkeypatch):
    memory |= {"examples": 4, "from": 3}
    started, train = [], MaskedLMTrainer.train

    def note(trainer, resume_from_checkpoint=None, **options):
        started.append(resume_from_checkpoint and resume_from_checkpoint.rpartition("-")[2])
        return train(trainer, resume_from_checkpoint=resume_from_checkpoint, **options)

    monkeypatch.setattr(MaskedLMTrainer, "train", note)
    options = OPTIONS | {"batch_size": 8, "save_strategy": "steps", "save_steps": 2}
    hf_domain.adapt(encoder, SENTENCES * 40, output_dir=tmp_path / "adapted", **options)
    assert started == [None, "2"]


def test_smaller_batches_begin_where_the_run_was_told_to(encoder, tmp_path, memory, monkeypatch):
    """Not at a newer checkpoint that the run left aside."""
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 40), encoding="utf-8")
    flags = {"model_name_or_path": encoder, "train_file": tmp_path / "corpus.txt", "do_train": True, "max_steps": 4}
    flags |= {"max_seq_length": 16, "save_strategy": "steps", "save_steps": 1}
    run_script(run_mlm.main, monkeypatch, tmp_path / "adapted", **flags)
    started, train = [], MaskedLMTrainer.train

    def note(trainer, resume_from_checkpoint=None, **options):
        started.append(resume_from_checkpoint and resume_from_checkpoint.rpartition("-")[2])
        memory["examples"] = 4
        return train(trainer, resume_from_checkpoint=resume_from_checkpoint, **options)

    monkeypatch.setattr(MaskedLMTrainer, "train", note)
    flags["resume_from_checkpoint"] = tmp_path / "adapted" / "checkpoint-1"
    run_script(run_mlm.main, monkeypatch, tmp_path / "adapted", **flags)
    assert len(started) > 1 and {*started} == {"1"}


def test_an_evaluation_takes_smaller_batches_without_another_training(encoder, tmp_path, monkeypatch):
    step, trainings, train = MaskedLMTrainer.prediction_step, [], MaskedLMTrainer.train

    def predict(trainer, model, inputs, *args, **kwargs):
        if trainings and len(inputs["input_ids"]) > 3:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return step(trainer, model, inputs, *args, **kwargs)

    def note(trainer, *args, **kwargs):
        result = train(trainer, *args, **kwargs)
        trainings.append(result)
        return result

    monkeypatch.setattr(MaskedLMTrainer, "prediction_step", predict)
    monkeypatch.setattr(MaskedLMTrainer, "train", note)
    hf_domain.adapt(encoder, SENTENCES * 40, output_dir=tmp_path / "adapted", batch_size=8, **OPTIONS)
    assert len(trainings) == 1
    assert json.loads((tmp_path / "adapted" / "all_results.json").read_text())["eval_loss"] > 0


def test_no_batch_is_left_to_halve(encoder, tmp_path, memory, caplog):
    memory["examples"] = 0
    with pytest.raises(torch.OutOfMemoryError):
        hf_domain.adapt(encoder, SENTENCES * 40, output_dir=tmp_path / "adapted", batch_size=2, **OPTIONS)
    assert "--gradient_checkpointing" in caplog.text


def test_masked_lm_of_a_distillation_is_accumulated_too(encoder, tmp_path, memory, monkeypatch, caplog):
    memory["examples"] = 4
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 20), encoding="utf-8")
    options = {"model_name_or_path": encoder, "strategy": "from_scratch", "train_file": tmp_path / "corpus.txt"}
    options |= {"num_hidden_layers": 1, "student_steps": 2, "max_seq_length": 16, "save_strategy": "no"}
    options |= {"per_device_train_batch_size": 8, "use_cpu": True, "output_dir": tmp_path / "students"}
    call_main(run_distill.main, monkeypatch, **options)
    assert "batches of 4 and --gradient_accumulation_steps 2" in caplog.text
    assert list(tmp_path.glob("students/from_scratch/adapted/*.safetensors"))
