"""Tiny tokenizers and encoders, built in process: no test needs the network or a file outside the repository."""

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
