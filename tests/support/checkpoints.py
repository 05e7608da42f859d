"""Checkpoints as Trainer saves them, of a model with one weight."""

import torch
from safetensors.torch import save_file


def write_checkpoint(folder, state="{}"):
    folder.mkdir(parents=True, exist_ok=True)
    save_file({"weight": torch.zeros(1)}, folder / "model.safetensors")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
        torch.save({}, folder / name)
    if state is not None:
        (folder / "trainer_state.json").write_text(state)
    return folder
