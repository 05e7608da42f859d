"""What a run leaves in its output folder."""

import json
import os
from pathlib import Path

from transformers import PreTrainedConfig


def check_output_dir(output_dir: str | Path, config: PreTrainedConfig) -> None:
    """Raise if a folder, or a checkpoint in it, holds another model than the one that is to be trained.

    Args:
        output_dir: Where the run will write; need not exist.
        config: Of the model that is to be trained, its labels set.

    Raises:
        ValueError: A config.json in the folder has another model type or other labels.
    """
    for file in sorted(Path(output_dir).glob("config.json")) + sorted(
        Path(output_dir).glob("checkpoint-*/config.json")
    ):
        saved = json.loads(file.read_text(encoding="utf-8"))
        # A config leaves out what its class has as default.
        saved_labels = saved.get("id2label", PreTrainedConfig().id2label)
        ours = {"model_type": config.model_type, "labels": list((config.id2label or {}).values())}
        theirs = {"model_type": saved.get("model_type"), "labels": list(saved_labels.values())}
        for name in ours:
            if ours[name] != theirs[name]:
                raise ValueError(
                    f"an output folder holds one model; {file} has {name} {theirs[name]}, this run {ours[name]}. "
                    "Name another output_dir or remove that model."
                )


def write_text(file: str | Path, text: str) -> None:
    """Write a file as a whole or not at all.

    Args:
        file: Where to; replaced if it exists.
        text: What.
    """
    unfinished = Path(f"{file}.unfinished")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, file)
