"""`--export` of the fine-tuning scripts: the program is that of the trained model, or nothing begins."""

import importlib.util
from importlib.metadata import version

import pytest
import torch
from packaging.version import Version
from script_runs import run_script, save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_domain import export, extras
from hf_domain.examples import run_classification
from hf_domain.export import EXPORTING
from hf_domain.training import exporting

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning"),
    pytest.mark.skipif(Version(version("transformers")) < EXPORTING, reason=f"exports need transformers {EXPORTING}"),
    pytest.mark.skipif(
        any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")),
        reason="needs the extra onnx",
    ),
]


@pytest.fixture
def flags(tmp_path):
    rows = [{"text": SENTENCES[number % 5], "label": "ab"[number % 3 == 0]} for number in range(24)]
    files = {f"{split}_file": write_jsonl(tmp_path / f"{split}.jsonl", rows) for split in ("train", "validation")}
    options = {"do_train": True, "do_eval": True, "max_steps": 2, "max_seq_length": 16, "export": True}
    return {"model_name_or_path": save_tiny_bert(tmp_path / "encoder", SENTENCES), **options, **files}


@pytest.mark.commands
def test_the_trained_model_is_exported_once(flags, tmp_path, monkeypatch, capsys):
    """The next model in the folder removes the export."""
    from onnxruntime import InferenceSession

    folders, export_model = [], export.export_model
    monkeypatch.setattr(
        exporting, "export_model", lambda *args, **options: folders.append(args[2]) or export_model(*args, **options)
    )
    output = tmp_path / "output"
    run_script(run_classification.main, monkeypatch, output, **flags)
    assert folders == [output / "exported"]
    line, where, _ = capsys.readouterr().out.splitlines()[-3:]
    assert line.startswith("Export (ONNX, outputs within ") and line.endswith(f": {output / 'exported'}"), line
    assert where == f"Model and card: {output}"
    inputs = AutoTokenizer.from_pretrained(output)(SENTENCES[:2], padding=True, return_tensors="pt")
    with torch.no_grad():
        expected = AutoModelForSequenceClassification.from_pretrained(output)(**inputs).logits
    session = InferenceSession(output / "exported" / "onnx" / "model.onnx")
    (logits,) = session.run(["logits"], {name: tensor.numpy() for name, tensor in inputs.items()})
    torch.testing.assert_close(torch.tensor(logits), expected, atol=1e-4, rtol=0)

    del flags["export"]
    run_script(run_classification.main, monkeypatch, output, **flags)
    assert not [path for path in (output / "exported").rglob("*") if path.is_file()]


@pytest.mark.parametrize("missing", ["training", "package", "text", "passage"])
def test_what_cannot_be_exported_is_refused_before_training(flags, tmp_path, monkeypatch, missing):
    if missing == "training":
        del flags["do_train"]
        message = "--export needs --do_train"
    elif missing == "package":
        monkeypatch.setattr(extras, "find_spec", lambda name: None)
        message = "needs onnx, onnxruntime, onnxscript, which is not installed"
    elif missing == "passage":
        flags |= {"append_passage": True, "datastore": "anything"}
        message = "--export needs a model that reads text alone, but --append_passage appends a passage"
    else:
        flags |= {"method": "gmap", "memory_name_or_path": flags["model_name_or_path"]}
        message = "an exported model must read text alone, but GMapForSequenceClassification also reads memory"
    with pytest.raises((ValueError, ModuleNotFoundError), match=message):
        run_script(run_classification.main, monkeypatch, tmp_path / "output", **flags)
    assert not list((tmp_path / "output").glob("[!.]*"))
