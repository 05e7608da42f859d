"""What leaves this machine: every address that a process looks up or connects to is an event of the interpreter."""

import os
import sys

import forked_python

WATCH = """
import sys
def watch(event, arguments):
    if event in ("socket.connect", "socket.getaddrinfo"):
        print("network:", event, arguments[-2:])
sys.addaudithook(watch)
"""
WORK = """
from hf_domain.data.corpora import load_corpus
print(load_corpus("text.txt", validation_split_percentage=0))
from transformers import AutoConfig
try:
    AutoConfig.from_pretrained("nobody/nothing")
except OSError:
    print("not found")
"""


def run(code, folder, **environment):
    (folder / "text.txt").write_text("one text\nand another\n")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("HF_")} | environment
    environment |= {"HF_HOME": str(folder / "home"), "HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_ETAG_TIMEOUT": "1"}
    command = [sys.executable, "-c", WATCH + code]
    return forked_python.run(command, cwd=folder, env=environment)


def test_offline_switch_sends_nothing(tmp_path):
    quiet = run(WORK, tmp_path, HF_DOMAIN_OFFLINE="1")
    assert "num_rows: 2" in quiet.stdout and "not found" in quiet.stdout
    assert "network:" not in quiet.stdout


def test_local_files_are_counted_nowhere(tmp_path):
    code = WORK.partition("from transformers")[0]
    assert "network:" not in run(code, tmp_path).stdout


def test_switch_that_comes_too_late(tmp_path):
    late = run("import huggingface_hub, hf_domain", tmp_path, HF_DOMAIN_OFFLINE="1")
    assert late.returncode != 0 and "Import hf_domain first" in late.stderr
    fine = run("import huggingface_hub, hf_domain", tmp_path, HF_DOMAIN_OFFLINE="1", HF_HUB_OFFLINE="1")
    assert fine.returncode == 0, fine.stderr
