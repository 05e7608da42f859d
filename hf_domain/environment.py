"""Describe the versions, hardware and code of a run, for its JSON file."""

import hashlib
import importlib
import os
import platform
import subprocess
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

PACKAGES = ("hf-domain", "transformers", "tokenizers", "peft", "datasets", "accelerate", "torch")


def describe_environment() -> dict[str, Any]:
    """Return what reproducing a number needs: versions, hardware, code digest, and the commit if any."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        ).stdout.strip()
    except OSError:  # git is not installed
        commit = ""
    return {
        "versions": {"python": platform.python_version(), **{package: version(package) for package in PACKAGES}},
        "hardware": {
            "machine": platform.machine(),
            "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
        "commit": commit or None,
        "code": digest_code(),
    }


@cache
def digest_code() -> str:
    """Return a digest of the package's code, which may change between releases while the version does not."""
    sources = {}
    for name in ("hf_domain", "hf_domain.modeling", "hf_domain.tokenization", "hf_domain.examples"):
        folder = Path(importlib.import_module(name).__path__[0])
        for file in folder.rglob("*.py"):
            sources[f"{name.replace('.', '/')}/{file.relative_to(folder).as_posix()}"] = file.read_bytes()
    return hashlib.sha256(b"".join(name.encode() + sources[name] for name in sorted(sources))).hexdigest()
