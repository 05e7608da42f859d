"""What a run says of itself beside its metrics: one JSON file a run, which tables, plots and model cards read."""

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
    """Return versions, hardware, a digest of the code and, inside a checkout, the commit: to measure a number again."""
    try:
        commit = subprocess.run(
            ["git", "rev-parse", "HEAD"], cwd=Path(__file__).parent, capture_output=True, text=True, check=False
        ).stdout.strip()
    except OSError:  # there is no git here
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
    """Return a digest of the package's own code: between two releases the version says nothing of it."""
    sources = {}
    for name in ("hf_domain", "hf_domain.modeling", "hf_domain.tokenization", "hf_domain.examples"):
        folder = Path(importlib.import_module(name).__path__[0])
        for file in folder.rglob("*.py"):
            sources[f"{name.replace('.', '/')}/{file.relative_to(folder).as_posix()}"] = file.read_bytes()
    return hashlib.sha256(b"".join(name.encode() + sources[name] for name in sorted(sources))).hexdigest()
