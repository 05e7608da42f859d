"""Real launchers: torchrun restarts a run whose processes are killed; accelerate starts one from our configuration."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from script_runs import read_losses
from tiny_models import make_masked_lm
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

pytestmark = pytest.mark.distributed
EXAMPLES = Path(__file__).parents[2] / "examples"
# Dies at the checkpoint of step 4: first process 1, once process 0 has written everything but the other's random state;
# then process 0, before it has written the trainer state.
DYING = """
import os, signal, time
from pathlib import Path
from transformers import Trainer
from hf_domain.examples import run_mlm

save, rank, start = Trainer._save_rng_state, int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])

def die(trainer, folder):
    if trainer.state.global_step == 4 and rank == 1 and start == 0:
        while not Path(folder, "trainer_state.json").is_file():
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGKILL)
    if trainer.state.global_step == 4 and rank == 0 and start == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    save(trainer, folder)

Trainer._save_rng_state = die
run_mlm.main()
"""


@pytest.fixture
def options(tmp_path):
    """Return the flags of a masked LM run with dropout, whose steps therefore depend on random states."""
    torch.manual_seed(0)
    make_masked_lm("bert").save_pretrained(tmp_path / "encoder")
    make_bert_tokenizer().save_pretrained(tmp_path / "encoder")
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 40), encoding="utf-8")
    flags = {"model_name_or_path": tmp_path / "encoder", "train_file": tmp_path / "corpus.txt", "max_seq_length": 16}
    flags |= {"per_device_train_batch_size": 4, "max_steps": 6, "save_steps": 2, "logging_steps": 1}
    flags |= {"cache_dir": tmp_path / "cache", "report_to": "none", "ddp_backend": "gloo"}
    return [*(str(part) for name, value in flags.items() for part in (f"--{name}", value)), "--do_train", "--use_cpu"]


def launch(command, folder):
    """Run a command that starts two processes; returns what they print."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    environment["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # as docs/guides/scale.md says
    command = [sys.executable, "-m", *(port if part == "PORT" else str(part) for part in command)]
    command += ["--output_dir", str(folder)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900, check=False)
    assert run.returncode == 0, (run.stdout + run.stderr)[-8000:]
    return run.stdout + run.stderr


def test_killed_workers_restart_from_the_newest_whole_checkpoint(tmp_path, options):
    (tmp_path / "dying.py").write_text(DYING)
    torchrun = ["torch.distributed.run", "--standalone", "--nproc_per_node", 2]
    launch([*torchrun, EXAMPLES / "run_mlm.py", *options], tmp_path / "whole")
    printed = launch([*torchrun, "--max-restarts", 2, tmp_path / "dying.py", *options], tmp_path / "killed")
    # Both times step 4 has a checkpoint, and it is not whole.
    assert re.findall(r"Resuming from \S+/(\S+)", printed) == ["checkpoint-2"] * 2
    assert len(read_losses(tmp_path / "killed")) == 6
    assert read_losses(tmp_path / "killed") == read_losses(tmp_path / "whole")
    expected, found = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "killed"))
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


def test_accelerate_launches_our_configuration(tmp_path, options):
    """On a CPU, where the script itself chooses Gloo; the launcher starts the processes in the same way."""
    accelerate = ["accelerate.commands.launch", "--config_file", EXAMPLES / "accelerate" / "ddp.yaml"]
    launch([*accelerate, "--main_process_port", "PORT", EXAMPLES / "run_mlm.py", *options], tmp_path / "run")
    record = json.loads((tmp_path / "run" / "_run.json").read_text())
    assert record["finished"] and record["options"]["num_processes"] == 2
    assert len(read_losses(tmp_path / "run")) == 6


def test_a_recipe_resumes_under_accelerate(tmp_path, options):
    """In the middle of its decay, bit for bit."""
    accelerate = ["accelerate.commands.launch", "--config_file", EXAMPLES / "accelerate" / "ddp.yaml"]
    command = [*accelerate, "--main_process_port", "PORT", EXAMPLES / "run_mlm.py", *options, "--recipe", "modernbert"]
    command += ["--lr_scheduler_kwargs", '{"num_decay_steps": 3}']
    launch(command, tmp_path / "whole")
    launch([*command, "--resume_from_checkpoint", tmp_path / "whole" / "checkpoint-4"], tmp_path / "parts")
    assert read_losses(tmp_path / "parts") == read_losses(tmp_path / "whole")
    expected, found = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())
