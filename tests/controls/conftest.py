"""A fine-tuning command on the demo's encoder, with the flags that the command has by default."""

import importlib

import pytest
from script_runs import DEMO_ENCODER, run_script, write_jsonl
from transformers import AutoTokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(DEMO_ENCODER)


@pytest.fixture(scope="module")
def words(tokenizer):
    """Words that are one token each, in a fixed order."""
    return sorted(word for word in tokenizer.get_vocab() if word.isalpha() and word.isascii() and len(word) >= 5)


@pytest.fixture
def classify(tmp_path, monkeypatch):
    """Train and return the accuracy on the test rows."""

    def run(train, test, **flags):
        main = importlib.import_module("hf_domain.examples.run_classification").main
        files = {"train": train, "test": test}
        flags = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", rows) for split, rows in files.items()} | {
            "model_name_or_path": str(DEMO_ENCODER),
            "do_train": True,
            "do_predict": True,
            "max_seq_length": 32,
            **flags,
        }
        return run_script(main, monkeypatch, tmp_path / "output", **flags)["predict_accuracy"]

    return run
