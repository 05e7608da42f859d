"""Files of an output folder: what it may hold, and writing a file as a whole or not at all."""

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig


def check_output_dir(output_dir: str | Path, config: PreTrainedConfig) -> None:
    """Raise if a folder, or a checkpoint in it, holds another model than the one that is to be trained.

    Args:
        output_dir: Where the run will write; need not exist.
        config: Of the model that is to be trained, its labels set.

    Raises:
        ValueError: A config.json in the folder has another model type, backbone or other labels.
    """
    ours = _describe(config.to_dict())
    for file in sorted([*Path(output_dir).glob("config.json"), *Path(output_dir).glob("checkpoint-*/config.json")]):
        theirs = _describe(json.loads(file.read_text(encoding="utf-8")))
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
    with write_whole(file) as unfinished:
        unfinished.write_text(text, encoding="utf-8")


@contextmanager
def write_whole(file: str | Path) -> Iterator[Path]:
    """Give a path to write to, which takes the place of a file once it is written.

    Args:
        file: Replaced if it exists, and left as it is where writing fails.
    """
    # Of this writer alone: two that write the same file at once would move each other's away.
    unfinished = Path(f"{file}.{uuid.uuid4().hex}.unfinished")
    try:
        yield unfinished
        os.replace(unfinished, file)
    finally:
        unfinished.unlink(missing_ok=True)


def _describe(config: dict[str, Any]) -> dict[str, Any]:
    """What tells models apart; a config leaves out the labels that every config has by default."""
    return {
        "model_type": config.get("model_type"),
        "backbone": (config.get("backbone_config") or {}).get("model_type"),
        "labels": list((config.get("id2label") or {0: "LABEL_0", 1: "LABEL_1"}).values()),
    }
