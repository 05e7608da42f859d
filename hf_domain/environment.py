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
    return {
        "versions": {"python": platform.python_version(), **{package: find_version(package) for package in PACKAGES}},
        "hardware": {
            "machine": platform.machine(),
            "cpu_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
            "accelerators": [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())],
        },
        "commit": find_commit(),
        "code": digest_code(),
    }


# A process computes with the code that it imported, whatever is committed or installed meanwhile.
@cache
def find_version(package: str) -> str:
    """Return the version of an installed package; raise PackageNotFoundError if there is none."""
    if package == "hf-domain":  # a copy may run that is not installed
        return importlib.import_module("hf_domain").__version__
    return version(package)


@cache
def find_commit() -> str | None:
    """Return the commit of the package's code; None if it lies outside a checkout."""
    command = ["git", "rev-parse", "HEAD"]
    try:
        run = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    except OSError:  # git is not installed
        return None
    return run.stdout.strip() or None


@cache
def digest_code() -> str:
    """Return a digest of the package's code, which may change between releases while the version does not."""
    sources = {}
    for name in ("hf_domain", "hf_domain.modeling", "hf_domain.tokenization", "hf_domain.examples"):
        folder = Path(importlib.import_module(name).__path__[0])  # an editable install has four of them
        # The app in examples/explore_app is in no wheel: it has no __init__.py.
        for file in (file for file in folder.rglob("*.py") if (file.parent / "__init__.py").is_file()):
            sources[f"{name.replace('.', '/')}/{file.relative_to(folder).as_posix()}"] = file.read_bytes()
    return hashlib.sha256(b"".join(name.encode() + sources[name] for name in sorted(sources))).hexdigest()
