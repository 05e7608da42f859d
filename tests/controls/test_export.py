"""int8 of a trained encoder stays close to float32 on the default number of real texts, at the default bar."""

import gzip
import importlib.util

import pytest
import torch
from script_runs import DEMO_ENCODER
from transformers import AutoModelForMaskedLM, AutoTokenizer

from hf_domain.export import NUM_TEXTS, export_model

pytestmark = [
    pytest.mark.controls,
    pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")),
        reason="needs the extra onnx",
    ),
]


def test_int8_is_close_on_real_texts(tmp_path):
    tokenizer = AutoTokenizer.from_pretrained(DEMO_ENCODER)
    with gzip.open(DEMO_ENCODER.parent / "corpus.txt.gz", "rt", encoding="utf-8") as file:
        texts = [text for _, text in zip(range(NUM_TEXTS), file, strict=False)]
    model = AutoModelForMaskedLM.from_pretrained(DEMO_ENCODER, dtype=torch.float32)
    report = export_model(model, tokenizer, tmp_path, int8=True, texts=texts, max_seq_length=128)
    print(report.quantization)
    assert (report.quantization.num_texts, report.quantization.max_length) == (200, 128)
    assert report.quantization.cosines.keys() == {"last_hidden_state", "logits"}
    assert min(report.quantization.cosines.values()) >= 0.99
