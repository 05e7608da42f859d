"""What a run chooses on a GPU: its type and compilation. Here the GPU is made up."""

import logging

import pytest
import torch
from script_runs import save_tiny_bert
from tiny_tokenizers import SENTENCES
from torch._dynamo.utils import counters

import hf_domain
from hf_domain.training import device
from hf_domain.training.arguments import PretrainerArguments, ScriptParser
from hf_domain.training.masked_lm_trainer import MaskedLMTrainer

OPTIONS = {"max_seq_length": 16, "num_tokens": 16 * 8 * 4, "learning_rate": 1e-2, "use_cpu": True, "disable_tqdm": True}


@pytest.fixture
def encoder(tmp_path):
    return save_tiny_bert(tmp_path / "encoder", SENTENCES)


@pytest.fixture
def gpu(monkeypatch):
    """A GPU that computes on the CPU."""
    monkeypatch.setattr(device, "is_fast_in_bfloat16", lambda use_cpu=False: True)
    monkeypatch.setattr("hf_domain.training.arguments.is_fast_in_bfloat16", lambda use_cpu=False: True)


def parse(folder, *flags):
    (args,) = ScriptParser([PretrainerArguments]).parse_args_into_dataclasses([f"--output_dir={folder}", *flags])
    return args


@pytest.mark.parametrize(("capability", "is_fast"), [((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_ampere_and_later_compute_in_bfloat16(monkeypatch, capability, is_fast):
    assert not device.is_fast_in_bfloat16()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    assert device.is_fast_in_bfloat16() is is_fast
    assert not device.is_fast_in_bfloat16(use_cpu=True)


def test_a_flag_wins_over_the_choice(tmp_path, gpu):
    assert parse(tmp_path, "--use_cpu").bf16
    assert parse(tmp_path, "--use_cpu", "--bf16").bf16
    assert not parse(tmp_path, "--use_cpu", "--bf16", "False").bf16
    assert not parse(tmp_path, "--use_cpu", "--fp16").bf16
    assert parse(tmp_path, "--use_cpu").may_compile
    for flags in (["--torch_compile", "False"], ["--torch_compile"], ["--torch_compile_backend", "eager"]):
        args = parse(tmp_path, "--use_cpu", *flags)
        assert not args.may_compile and args.torch_compile is ("False" not in flags)


def test_without_a_gpu_nothing_is_chosen(tmp_path):
    args = parse(tmp_path)
    assert args.bf16 is False and args.torch_compile is False


def test_long_trainings_of_equal_shapes_compile(encoder, tmp_path, gpu, monkeypatch, caplog):
    """Its steps are two, of two batches each."""
    compiled = []
    monkeypatch.setattr(device, "can_compile", lambda place: True)
    monkeypatch.setattr("hf_domain.training.pretraining.evaluate_start", lambda *_: None)
    monkeypatch.setattr(MaskedLMTrainer, "train", lambda trainer, **_: compiled.append(trainer.args) or stop())
    options = OPTIONS | {"num_tokens": 16 * 8 * 2 * 2, "batch_size": 8, "gradient_accumulation_steps": 2}

    def stop():
        raise KeyboardInterrupt

    def adapt(name, passes, **more):
        monkeypatch.setattr(device, "PASSES_TO_COMPILE", passes)
        with pytest.raises(KeyboardInterrupt), caplog.at_level(logging.INFO):
            hf_domain.adapt(encoder, SENTENCES * 40, output_dir=tmp_path / name, **options, **more)
        return compiled[-1].torch_compile

    assert adapt("long", 4) and "pays over 4 passes" in caplog.text
    assert not adapt("short", 5)
    assert not adapt("refused", 4, torch_compile=False)


def test_training_alone_is_compiled(encoder, tmp_path):
    """One graph for all batches but the last of an epoch; evaluations before and after have none."""
    torch._dynamo.reset()
    counters.clear()
    options = OPTIONS | {"num_tokens": 16 * 8 * 40, "batch_size": 8, "torch_compile_backend": "eager"}
    hf_domain.adapt(encoder, SENTENCES * 40, output_dir=tmp_path / "adapted", **options)
    assert 1 <= counters["stats"]["unique_graphs"] <= 2
    assert not counters["graph_break"]


def test_what_cannot_be_compiled_is_trained_without(monkeypatch, caplog):
    def fail(function):
        raise RuntimeError("Failed to find C compiler\nand more")

    monkeypatch.setattr(torch, "compile", fail)
    with caplog.at_level(logging.INFO):
        assert not device.can_compile(torch.device("cpu"))
    assert "find C compiler" in caplog.text
