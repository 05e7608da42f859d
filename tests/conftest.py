"""No test needs the network or a file from elsewhere; every test starts from the same seed."""

import atexit
import gc
import os
import shutil
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# Code of checkpoints is copied there before it is run: each process of pytest has a folder of its own, and no other
# checkpoint of this machine is in it.
os.environ["HF_MODULES_CACHE"] = tempfile.mkdtemp()

import pytest
from tiny_models import FAMILIES
from transformers import set_seed

atexit.register(shutil.rmtree, os.environ["HF_MODULES_CACHE"], ignore_errors=True)


def pytest_collection_finish():
    """Leave all that is imported out of later garbage collections: walking it took a fifth or more of their time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed():
    set_seed(0)


@pytest.fixture(params=FAMILIES)
def family(request) -> str:
    """Each of the seven supported families."""
    return request.param
