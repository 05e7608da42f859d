"""What every script checks before it starts."""

import pytest
from transformers import TrainingArguments

from hf_domain.training.runs import start_run


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
