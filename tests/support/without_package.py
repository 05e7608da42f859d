"""Processes that cannot import this package."""

import os
import sys

import forked_python

BLOCKED = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == "hf_domain":
            raise ImportError("hf_domain is blocked in this process")
sys.meta_path.insert(0, Block())
"""


def run_without_package(code, tmp_path):
    """Run `code` where the package cannot be imported, with an empty cache of remote modules."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": str(tmp_path / "modules"), "PYTHONPATH": ""}
    command = [sys.executable, "-c", BLOCKED + code]
    return forked_python.run(command, cwd=tmp_path, env=environment, has_libraries=True)
