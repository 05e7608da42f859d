"""What every script checks before it starts, and from where a killed run goes on."""

import pytest
from transformers import TrainingArguments

from hf_domain.runs import find_checkpoint, start_run


def test_a_process_trains_on_one_gpu(tmp_path):
    arguments = TrainingArguments(str(tmp_path), use_cpu=True)
    assert arguments.n_gpu <= 1
    arguments._n_gpu = 4
    with pytest.raises(ValueError, match=r"got 4: start one for each by torchrun --nproc_per_node 4"):
        start_run(arguments)


def test_newest_checkpoint_that_is_whole(tmp_path):
    assert find_checkpoint(tmp_path / "nothing") is None
    for number, state in ((2, "{}"), (10, "{}"), (20, '{"epoch": '), (30, None)):
        folder = tmp_path / f"checkpoint-{number}"
        folder.mkdir()
        if state is not None:
            (folder / "trainer_state.json").write_text(state)
    (tmp_path / "checkpoint-best").mkdir()
    assert find_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
