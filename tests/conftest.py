"""No test needs the network or a file from elsewhere; every test starts from the same seed."""

import atexit
import gc
import os
import shutil
import tempfile
from collections import Counter

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Code of checkpoints is copied there before it is run, and files are prepared there: each process of pytest has folders
# of its own, and nothing else of this machine is in them.
os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp()
os.environ["HF_DATASETS_CACHE"] = tempfile.mkdtemp()

import pytest
from tiny_models import FAMILIES
from transformers import set_seed

for name in ("HF_MODULES_CACHE", "HF_DATASETS_CACHE"):
    atexit.register(shutil.rmtree, os.environ[name], ignore_errors=True)


# Helpers that fork processes from a server, whose imports take seconds in each process of pytest that starts one.
FORKING = ("forked_python", "run_without_package", "get_context", "run_two", "start_workers", "faults")
FORKING += ("assert_loads_elsewhere",)


def pytest_collection_modifyitems(items):
    """Put the files whose tests fork first: then one process of pytest runs them all, and others take from its end."""
    items.sort(key=lambda item: not any(name in vars(item.module) for name in FORKING))


def pytest_collection_finish():
    """Leave all that is imported out of later garbage collections: walking it took a fifth or more of their time."""
    gc.collect()
    gc.freeze()


def pytest_terminal_summary(terminalreporter):
    """Count what became of bad inputs. Here, because parallel runs ignore a hook in a conftest of their folder."""
    reports = [report for group in ("passed", "failed") for report in terminalreporter.getreports(group)]
    counted = Counter(kind for report in reports if (kind := dict(report.user_properties).get("outcome")))
    if counted:
        total = ", ".join(f"{kind} {count}" for kind, count in counted.most_common())
        terminalreporter.write_line(f"bad inputs: {total}; {counted.total()} in all")


@pytest.fixture(autouse=True)
def _seed():
    set_seed(0)


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    """Each of the seven supported families."""
    return request.param
