"""What every script checks before it starts."""

import pytest
from script_runs import run_script, save_tiny_bert
from tiny_tokenizers import SENTENCES
from transformers import TrainerCallback, TrainingArguments
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from hf_domain.examples import run_mlm
from hf_domain.training.run import start_run


def test_a_process_trains_on_one_gpu(tmp_path):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    assert arguments.n_gpu <= 1
    arguments._n_gpu = 4
    with pytest.raises(ValueError, match=r"sees 4. Start a process for each GPU with torchrun --nproc_per_node 4"):
        start_run(arguments)


@pytest.mark.parametrize("has_bf16", [True, False])
def test_slow_bfloat16_is_reported(tmp_path, monkeypatch, caplog, has_bf16):
    monkeypatch.setattr(
        "torch.cpu.get_capabilities", lambda: {"avx512_f": True, "avx512_bf16": has_bf16}, raising=False
    )
    with caplog.at_level("WARNING", logger="hf_domain"):
        start_run(TrainingArguments(str(tmp_path), use_cpu=True, bf16=True))
        assert ("three times slower" in caplog.text) is not has_bf16


@pytest.mark.parametrize("tracker", ["tensorboard", "trackio", "wandb"])
def test_a_tracker_gets_the_losses_and_scores(tmp_path, monkeypatch, tracker):
    """`--report_to` reaches the integrations of transformers, which a stub replaces here."""
    logged = []

    class Tracker(TrainerCallback):
        def on_log(self, args, state, control, logs=None, **kwargs):
            logged.append(dict(logs))

    monkeypatch.setitem(INTEGRATION_TO_CALLBACK, tracker, Tracker)
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 40), encoding="utf-8")
    flags = {"model_name_or_path": save_tiny_bert(tmp_path / "encoder", SENTENCES), "method": "varmae"}
    flags |= {"train_file": tmp_path / "corpus.txt", "max_seq_length": 16, "max_steps": 2, "logging_steps": 1}
    run_script(run_mlm.main, monkeypatch, tmp_path / "out", **flags, do_train=True, do_eval=True, report_to=tracker)
    steps = [logs for logs in logged if "loss" in logs]
    assert len(steps) == 2 and all("masked_kl" in logs for logs in steps)  # also the losses of a method
    assert any("eval_loss" in logs for logs in logged) and any("train_loss" in logs for logs in logged)
