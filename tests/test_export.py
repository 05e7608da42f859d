"""Exports equal their models, and loaders find them; what reads more than text is refused."""

import importlib.util
import json
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
import torch
from packaging.version import Version
from script_runs import call_main
from tiny_models import FAMILIES, make_config, make_masked_lm
from tiny_tokenizers import make_bert_tokenizer
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertModel,
)

from hf_domain import (
    ExBertForMaskedLM,
    ExBertForQuestionAnswering,
    GMapForSequenceClassification,
    RadaForTokenClassification,
    RadaModel,
    VarMAEForMaskedLM,
    VarMAEForSequenceClassification,
    VarMAEForTokenClassification,
    export,
    extras,
)
from hf_domain.examples import run_export
from hf_domain.export import EXPORTING, check_exportable, check_exporters, export_model, make_inputs, measure_difference
from hf_domain.methods.adalm.students import pick_layers

ROOT = Path(__file__).parents[1]
# torch renames parts of its trees while transformers' exporters still use the old names.
pytestmark = pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning")
needs_exporters = pytest.mark.skipif(
    Version(version("transformers")) < EXPORTING, reason=f"exports need transformers {EXPORTING}"
)
needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxruntime", "onnxscript")),
    reason="needs the extra onnx",
)


@pytest.fixture(autouse=True)
def tokenizer():
    """A tokenizer with at most as many entries as the tiny models have rows."""
    return make_bert_tokenizer(["text of the domain"])


def make_shallow(family):
    """A masked LM of one layer: exports take seconds for each."""
    return pick_layers(make_masked_lm(family), [1])


def load(file):
    """What onnxruntime makes of a file: no more is needed to serve it."""
    from onnxruntime import InferenceSession

    session = InferenceSession(file)
    names = [output.name for output in session.get_outputs()]
    return lambda **inputs: dict(
        zip(names, map(torch.tensor, session.run(None, {k: v.numpy() for k, v in inputs.items()})), strict=True)
    )


WRAPPERS = {"roberta": VarMAEForMaskedLM, "distilbert": ExBertForMaskedLM, "modernbert": ExBertForMaskedLM}


@needs_exporters
@needs_onnx
@pytest.mark.parametrize(  # test_script exports a VarMAE
    "family", [pytest.param(name, marks=[pytest.mark.compiled] * (name != "distilbert")) for name in FAMILIES]
)
def test_every_family_is_exported(family, tokenizer, tmp_path):
    model = make_shallow(family)
    if family in WRAPPERS:
        model = WRAPPERS[family].from_backbone(model)
    if family in ("distilbert", "modernbert"):  # their tokenizers give no token types
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    report = export_model(model, tokenizer, tmp_path)
    assert max(report["differences"].values()) < 1e-5
    assert report["differences"].keys() == {"1 x 7", "3 x 40", f"1 x {report['max_length']}"}
    assert report["max_length"] == (128 if "roberta" in family else 512)


@pytest.mark.compiled
@needs_exporters
@needs_onnx
@pytest.mark.parametrize(
    ("make", "family"),
    [
        pytest.param(
            lambda: VarMAEForSequenceClassification.from_backbone(make_shallow("modernbert"), num_labels=3),
            "modernbert",
            id="varmae-classification",
        ),
        pytest.param(
            lambda: ExBertForQuestionAnswering.from_backbone(make_shallow("deberta-v2")),
            "deberta-v2",
            id="exbert-question-answering",
        ),
    ],
)
def test_onnx_of_our_heads(make, family, tokenizer, tmp_path):
    model = make()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    report = export_model(model, tokenizer, tmp_path, max_seq_length=48)
    assert max(report["differences"].values()) < 1e-5
    # The saved program, loaded again and run at a third shape, still equals the model.
    inputs = make_inputs(model, tokenizer, (5, 11))
    assert measure_difference(model, load(tmp_path / "onnx" / "model.onnx"), inputs) < 1e-5
    assert json.loads((tmp_path / "export_report.json").read_text())["parameters"] == model.num_parameters()
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert (loaded.model_max_length, tokenizer.model_max_length) == (48, 512)
    # Loaders know the encoder's type, not ours, and want the labels.
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.model_type == family
    assert config.architectures[0].endswith(type(model).__name__[type(model).__name__.index("For") :])
    assert config.id2label == model.config.id2label


@pytest.mark.compiled
@needs_exporters
@needs_onnx
def test_a_model_too_large_for_one_file(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "ONE_FILE", 1000)
    model = make_shallow("bert")
    report = export_model(model, tokenizer, tmp_path, max_seq_length=24)
    assert report["file_bytes"].keys() == {"onnx/model.onnx", "onnx/model.onnx_data"}
    inputs = make_inputs(model, tokenizer, (2, 9))
    assert measure_difference(model, load(tmp_path / "onnx" / "model.onnx"), inputs) < 1e-5


@pytest.mark.parametrize("change", [0.5, float("nan")])
@needs_exporters
@needs_onnx
def test_wrong_export_is_not_written(tokenizer, tmp_path, monkeypatch, change):
    from transformers.exporters import OnnxExporter

    def export(self, model, *options):
        """Stand for a program that computes something else."""
        return lambda **inputs: {name: output + change for name, output in model(**inputs).items()}

    monkeypatch.setattr(OnnxExporter, "export", export)
    model = AutoModelForQuestionAnswering.from_config(make_config("bert"))
    with pytest.raises(ValueError, match=rf"must compute the model's outputs, but they differ by .*{change}"):
        export_model(model, tokenizer, tmp_path / "output")
    assert not (tmp_path / "output").exists()


def test_difference_sees_real_positions_alone(tokenizer):
    model = make_masked_lm("bert")
    inputs = make_inputs(model, tokenizer, (2, 10))

    def change(position):
        def run(**kwargs):
            output = model(**kwargs)
            output.logits = output.logits.clone()
            output.logits[1, position] += 1
            return output

        return run

    assert measure_difference(model, change(-1), inputs) == 0
    assert measure_difference(model, change(0), inputs) == pytest.approx(1, abs=1e-5)


# ------------------------------------------------------------------------------------------------ what is refused


def test_memory_and_passages_are_refused():
    domain, memory = make_masked_lm("bert"), make_masked_lm("bert")
    with pytest.raises(ValueError, match=r"text alone, but GMap\w+ also reads .*memory_input_ids.* distill it"):
        check_exportable(GMapForSequenceClassification.from_backbones(domain=domain, memory=memory))
    with pytest.raises(ValueError, match=r"text alone, but Rada\w+ also reads passage_input_ids.* distill it"):
        check_exportable(RadaForTokenClassification.from_backbone(make_masked_lm("bert")))
    # A head of another method around a RADA reads passages too.
    model = VarMAEForTokenClassification.from_backbone(make_masked_lm("bert"))
    check_exportable(model)
    model.model.backbone = RadaModel.from_backbone(make_masked_lm("bert"))
    with pytest.raises(ValueError, match="RadaModel also reads passage_input_ids"):
        check_exportable(model)


def test_a_model_that_needs_more_than_its_text_is_refused():
    model = AutoModelForSequenceClassification.from_config(make_config("bert"))
    model.config.appended_passage_length = 24
    with pytest.raises(ValueError, match=r"with a passage appended to each text. Serve it with hf-domain predict"):
        check_exportable(model)
    model.config.appended_passage_length, model.config.nearest_vote = None, {"count": 5, "weight": 0.4}
    with pytest.raises(ValueError, match=r"with a vote of the nearest texts. Serve it with hf-domain predict"):
        check_exportable(model)
    model.config.nearest_vote = None
    check_exportable(model)


def test_what_decides_predictions_is_exported():
    model = VarMAEForTokenClassification.from_backbone(make_masked_lm("bert"))
    model.config.label_thresholds, model.config.version_2_with_negative = [0.1, 0.2], True
    config = export.make_loader_config(model)
    assert config.model_type == "bert"
    assert (config.label_thresholds, config.version_2_with_negative) == ([0.1, 0.2], True)
    assert not hasattr(config, "null_score_diff_threshold")


def test_stock_models_pass(family):
    check_exportable(make_masked_lm(family))


def test_required_input_of_a_stock_model_is_refused():
    class NeedsImage(BertModel):
        def forward(self, input_ids, pixel_values):
            return super().forward(input_ids)

    with pytest.raises(ValueError, match="NeedsImage also reads pixel_values"):
        check_exportable(NeedsImage(make_config("bert")))


def test_missing_packages_are_named(monkeypatch, tokenizer, tmp_path):
    monkeypatch.setattr(export, "EXPORTING", Version("5"))
    monkeypatch.setattr(extras, "find_spec", lambda name: None if name.startswith("onnx") else name)
    with pytest.raises(ModuleNotFoundError, match=r"needs onnx, onnxruntime, onnxscript, which is not installed"):
        check_exporters()
    monkeypatch.setattr(export, "EXPORTING", Version("99"))
    with pytest.raises(ValueError, match="needs transformers 99 or newer, but this is 5"):
        check_exporters()


@needs_exporters
@needs_onnx
def test_options_are_checked(tokenizer, tmp_path):
    model = make_masked_lm("bert")
    with pytest.raises(ValueError, match=r"must have float32 weights, but has torch\.float16\. Load it"):
        export_model(make_masked_lm("bert").half(), tokenizer, tmp_path)
    with pytest.raises(ValueError, match=r"max_seq_length must be at most 512, .* but is 513"):
        export_model(model, tokenizer, tmp_path, max_seq_length=513)


# ------------------------------------------------------------------------------------------------- the script


def test_untrained_weights_are_not_exported(tmp_path):
    make_shallow("bert").save_pretrained(tmp_path)
    make_bert_tokenizer().save_pretrained(tmp_path)
    assert export.load_trained(str(tmp_path), head="encoder")[0].pooler is None
    with pytest.raises(ValueError, match="has no weights for classifier"):
        export.load_trained(str(tmp_path), head="token_classification")


@needs_exporters
@needs_onnx
@pytest.mark.commands
def test_script(tmp_path, monkeypatch, tokenizer, capsys):
    model = VarMAEForSequenceClassification.from_backbone(make_shallow("bert"), num_labels=3)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")

    def run(output, **flags):
        flags |= {"model_name_or_path": tmp_path / "model", "output_dir": tmp_path / output}
        call_main(run_export.main, monkeypatch, **flags)
        return load(tmp_path / output / "onnx" / "model.onnx")

    exported = run("output", max_seq_length=64)
    assert f"{model.num_parameters():,} parameters" in capsys.readouterr().out
    inputs = make_inputs(model, tokenizer, (2, 5))
    torch.testing.assert_close(exported(**inputs)["logits"], model(**inputs).logits)
    states = run("encoder", head="encoder")(**inputs)["last_hidden_state"]
    torch.testing.assert_close(states, model.model(**inputs).last_hidden_state)
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"architectures": ["VarMAEForDancing"]}))
    with pytest.raises(ValueError, match="must have a known head, but was saved as VarMAEForDancing"):
        run("dancing")


@pytest.mark.commands
@needs_exporters
@needs_onnx
def test_int8_as_the_guide_makes_it(tmp_path, monkeypatch, tokenizer):
    """It is smaller and close, and the same on processors with and without VNNI; the next export deletes it."""
    import onnx

    config = make_config("bert")
    config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_labels = 64, 256, 1, 4
    config.output_hidden_states = True  # saved so, although a program has no such output
    model = AutoModelForSequenceClassification.from_config(config)
    monkeypatch.chdir(tmp_path)
    float32, int8 = Path("classifier-onnx/onnx/model.onnx"), Path("classifier-onnx/onnx/model_quantized.onnx")
    int8.parent.mkdir(parents=True)
    int8.write_bytes(b"made from an export before")
    report = export_model(model, tokenizer, "classifier-onnx")
    assert not int8.exists() and report["file_bytes"] == {"onnx/model.onnx": float32.stat().st_size}

    guide = (ROOT / "docs" / "guides" / "distill_and_export.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", guide, re.MULTILINE | re.DOTALL)
    (code,) = (block for block in blocks if "OnnxRuntimeQuantizer" in block)
    exec(compile(code, "the guide", "exec"), {})
    assert int8.stat().st_size < 0.5 * float32.stat().st_size
    inputs = make_inputs(model, tokenizer, (3, 24))
    outputs = [load(file)(**inputs) for file in (int8, float32)]
    assert outputs[0].keys() == outputs[1].keys() == {"logits"}
    ours, theirs = (output["logits"].flatten() for output in outputs)
    assert 0.99 < torch.cosine_similarity(ours, theirs, dim=0) < 0.999999
    # Processors without VNNI add two products of an activation (at most 255) and a weight in 16 bits, and cut the rest.
    graph = onnx.load(int8).graph
    arrays = {array.name: onnx.numpy_helper.to_array(array) for array in graph.initializer}
    matrices = [arrays[node.input[1]] for node in graph.node if node.op_type == "MatMulInteger"]
    assert len(matrices) >= 6  # query, key, value, output, two layers of the feed-forward
    assert all(2 * 255 * abs(matrix.astype(int)).max() < 2**15 for matrix in matrices)


# ------------------------------------------------------------------------------------------------- transformers.js

JAVASCRIPT = Path(__file__).parent / "javascript"


@needs_exporters
@needs_onnx
@pytest.mark.skipif(
    shutil.which("node") is None or not (JAVASCRIPT / "node_modules" / "@huggingface" / "transformers").exists(),
    reason="node or transformers.js is missing: make test-javascript",
)
def test_pipelines_of_transformers_js(tmp_path):
    """Exports of a trained encoder, of its masked LM and of one of our heads."""
    folder = ROOT / "examples" / "quickstart_data" / "encoder"
    encoder, masked_lm = (cls.from_pretrained(folder, dtype="float32") for cls in (AutoModel, AutoModelForMaskedLM))
    encoder.pooler = None
    classifier = VarMAEForSequenceClassification.from_backbone(masked_lm, num_labels=3).eval()
    classifier.config.id2label = {0: "method", 1: "result", 2: "other"}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "The results are shown in [MASK] 2."
    tasks = {"fill-mask": masked_lm, "text-classification": classifier, "feature-extraction": encoder}
    requests = []
    for task, model in tasks.items():
        export_model(model, tokenizer, tmp_path / task, max_seq_length=64)
        requests.append({"name": task, "task": task, "dtype": "fp32", "text": text})
    command = ["node", str(JAVASCRIPT / "run_pipelines.js"), f"{tmp_path}/"]
    run = subprocess.run(
        command, input=json.dumps(requests), capture_output=True, text=True, check=True, cwd=JAVASCRIPT
    )
    words, labels, pooled = json.loads(run.stdout)

    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        masked = masked_lm(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id].softmax(-1)[0]
        expected = classifier(**inputs).logits.softmax(-1)[0].tolist()
        states = encoder(**inputs).last_hidden_state.mean(1)[0]
    assert words[0]["token"] == masked.argmax()
    assert [word["score"] for word in words] == pytest.approx(
        [masked[word["token"]].item() for word in words], abs=1e-4
    )
    scores = {row["label"]: row["score"] for row in labels}
    assert scores == pytest.approx(dict(zip(("method", "result", "other"), expected, strict=True)), abs=1e-4)
    assert torch.cosine_similarity(torch.tensor(pooled[0]), states, dim=0) > 0.99999
