"""Exports equal their models, int8 comes close to them, and loaders find both; what reads more than text is refused."""

import importlib.util
import json
import shutil
import subprocess
import sys
from collections import Counter
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pytest
import torch
from packaging.version import Version
from tiny_models import FAMILIES, make_config, make_masked_lm
from tiny_tokenizers import make_bert_tokenizer
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
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


def load(folder):
    """What transformers makes of a folder; it is ours, because a torch.export program runs code when it is loaded."""
    from transformers.exporters import ExportedModel

    return ExportedModel.from_pretrained(folder, trust_remote_code=True)


def load_onnx(file):
    """What onnxruntime makes of a file: no more is needed to serve it."""
    from onnxruntime import InferenceSession

    session = InferenceSession(file)
    names = [output.name for output in session.get_outputs()]
    return lambda **inputs: dict(
        zip(names, map(torch.tensor, session.run(None, {k: v.numpy() for k, v in inputs.items()})), strict=True)
    )


WRAPPERS = {"roberta": VarMAEForMaskedLM, "distilbert": ExBertForMaskedLM, "modernbert": ExBertForMaskedLM}


@needs_exporters
@pytest.mark.parametrize(  # test_script exports a VarMAE
    "family", [pytest.param(name, marks=[pytest.mark.compiled] * (name != "distilbert")) for name in FAMILIES]
)
def test_every_family_exports_with_dynamo(family, tokenizer, tmp_path):
    model = make_shallow(family)
    if family in WRAPPERS:
        model = WRAPPERS[family].from_backbone(model)
    if family in ("distilbert", "modernbert"):  # their tokenizers give no token types
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    report = export_model(model, tokenizer, tmp_path, export_format="dynamo")
    assert max(report.differences.values()) < 1e-5
    assert report.differences.keys() == {"1 x 7", "3 x 40", f"1 x {report.max_length}"}
    assert report.max_length == (128 if "roberta" in family else 512)


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
    report = export_model(model, tokenizer, tmp_path, int8=True, texts=TEXTS, min_cosine=0.5, max_seq_length=48)
    assert "last_hidden_state" in report.quantization.cosines
    assert max(report.differences.values()) < 1e-5
    # The saved program, loaded again and run at a third shape, still equals the model.
    inputs = make_inputs(model, tokenizer, (5, 11))
    assert measure_difference(model, load_onnx(tmp_path / "onnx" / "model.onnx"), inputs) < 1e-5
    assert json.loads((tmp_path / "export_report.json").read_text())["parameters"] == model.num_parameters()
    loaded = AutoTokenizer.from_pretrained(tmp_path)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert (loaded.model_max_length, tokenizer.model_max_length) == (48, 512)
    # Loaders know the encoder's type, not ours, and want the labels.
    config = AutoConfig.from_pretrained(tmp_path)
    assert config.model_type == family
    assert config.architectures[0].endswith(type(model).__name__[type(model).__name__.index("For") :])
    assert config.id2label == model.config.id2label


TEXTS = ["text of the domain", "domain text", "the domain of the text of the domain"]


def make_wide_model(auto_class=AutoModelForTokenClassification):
    """A model whose matrices outweigh the rest of its file."""
    config = make_config("bert")
    config.hidden_size, config.intermediate_size, config.num_hidden_layers, config.num_labels = 64, 256, 1, 4
    return auto_class.from_config(config)


@needs_exporters
@needs_onnx
def test_int8_is_smaller_and_close(tokenizer, tmp_path, caplog):
    import onnx

    model = make_wide_model()
    report = export_model(model, tokenizer, tmp_path, int8=True, texts=[*TEXTS, " "], max_seq_length=24)
    assert "compared with float32 on 200 texts, but there are only 3" in caplog.text
    files = {str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*") if file.is_file()}
    assert files >= {"onnx/model.onnx", "onnx/model_quantized.onnx", "config.json", "tokenizer.json"}
    assert not [file for file in files if file.startswith("onnx/") and file not in report.file_bytes]  # nothing beside
    assert report.file_bytes["onnx/model_quantized.onnx"] < 0.5 * report.file_bytes["onnx/model.onnx"]
    # What the report says of the file, computed from the file.
    quantized = load_onnx(tmp_path / "onnx" / "model_quantized.onnx")
    long = tokenizer(" ".join(TEXTS * 9), truncation=True, max_length=24)["input_ids"]
    assert len(long) == 24
    cosines, same = [], []
    for ids in [*(tokenizer(text)["input_ids"] for text in TEXTS), long]:
        inputs = {"input_ids": torch.tensor([ids]), "attention_mask": torch.ones(1, len(ids), dtype=torch.long)}
        inputs["token_type_ids"] = torch.zeros_like(inputs["input_ids"])
        outputs = quantized(**inputs)
        assert outputs.keys() == {"logits"}  # the states were compared and are not served
        with torch.no_grad():
            ours, theirs = outputs["logits"][0].numpy(), model(**inputs).logits[0].numpy()
        same += (ours.argmax(-1) == theirs.argmax(-1)).tolist()
        ours, theirs = (logits - logits.mean(-1, keepdims=True) for logits in (ours, theirs))
        cosines.append((ours * theirs).sum() / np.linalg.norm(ours) / np.linalg.norm(theirs))
    quantization = report.quantization
    assert (quantization.num_texts, quantization.max_length, quantization.scheme) == (4, 24, "channels")
    assert quantization.cosines.keys() == {"logits", "last_hidden_state"}
    assert quantization.cosines["logits"] == pytest.approx(min(cosines), abs=1e-5)
    assert quantization.same_predictions == pytest.approx(np.mean(same))
    assert 0.99 < min(cosines) < 0.99999
    assert not AutoConfig.from_pretrained(tmp_path).output_hidden_states
    # Processors without VNNI add two products of an activation (at most 255) and a weight in 16 bits, and cut the rest.
    graph = onnx.load(tmp_path / "onnx" / "model_quantized.onnx").graph
    arrays = {array.name: onnx.numpy_helper.to_array(array) for array in graph.initializer}
    matrices = [arrays[node.input[1]] for node in graph.node if node.op_type == "MatMulInteger"]
    assert len(matrices) == 7  # query, key, value, output, two layers of the feed-forward, the head
    for matrix in matrices:
        largest = np.abs(matrix.astype(int)).max()
        assert largest > 32 and 2 * 255 * largest < 2**15


@pytest.mark.compiled
@needs_exporters
@needs_onnx
def test_int8_that_is_not_close_enough(tokenizer, monkeypatch):
    """Another scheme is tried; if it is not close enough either, there is no program."""
    from transformers.exporters import OnnxConfig, OnnxExporter

    model, kept = make_wide_model(AutoModel).eval(), []
    model.pooler = None
    exported = OnnxExporter().export(model, make_inputs(model, tokenizer, (2, 9)), OnnxConfig(dynamic=True))

    def run(cosines, min_cosine=0.99):
        def compare(model, quantized, batches, mask_id):
            kept.append(Counter(node.op_type for node in quantized.program.graph))
            assert quantized(**batches[0]).last_hidden_state.shape == model(**batches[0]).last_hidden_state.shape
            return {"last_hidden_state": cosines[len(kept) - 1]}, None

        kept.clear()
        monkeypatch.setattr(export, "compare_outputs", compare)
        return export.quantize(model, tokenizer, exported, TEXTS, min_cosine)[1]

    tokenizer.model_max_length = 24
    assert run([0.9, 0.995]).scheme == "blocks"
    # Query, key, value, output, and two layers of the feed-forward.
    assert kept[0]["MatMulInteger"] == 6 and kept[1]["MatMulNBits"] == 6
    assert run([0.8], min_cosine=0.7).cosines == {"last_hidden_state": 0.8}
    with pytest.raises(ValueError, match=r"at least 0\.99 on each of 4 texts, but .* 0\.850; nothing .* --min_cosine"):
        run([0.8, 0.85])


def test_a_masked_lm_is_compared_at_masks(tokenizer):
    model = make_masked_lm("bert")

    def change(**inputs):
        logits = model(**inputs).logits.clone()
        logits[inputs["input_ids"] != tokenizer.mask_token_id] = 0
        return {"logits": logits, "hidden_states": model(**inputs, output_hidden_states=True).hidden_states}

    tokenizer.model_max_length = 20
    batches = list(export.read_inputs(model, tokenizer, TEXTS))
    assert batches[-1]["input_ids"].shape == (1, 20)
    assert (batches[-1]["input_ids"] == tokenizer.mask_token_id).sum() == 3
    cosines, same = export.compare_outputs(model, change, batches, tokenizer.mask_token_id)
    assert cosines == {"logits": pytest.approx(1)} and same == 1
    shifted = export.compare_outputs(model, lambda **inputs: {"logits": model(**inputs).logits + 100}, batches, None)
    assert shifted == ({"logits": pytest.approx(1)}, 1)


def test_values_of_a_regression_are_compared_over_texts(tokenizer):
    """One value has no direction: its cosine is 1 whatever it is, and it has no class that could be equal."""
    config = make_config("bert")
    config.num_labels, config.problem_type = 1, "regression"
    model = AutoModelForSequenceClassification.from_config(config).eval()
    batches = list(export.read_inputs(model, tokenizer, TEXTS))
    assert export.compare_outputs(model, model, batches, None) == ({"logits": pytest.approx(1)}, None)
    cosines, _ = export.compare_outputs(
        model, lambda **inputs: {"logits": 0 * model(**inputs).logits + 5}, batches, None
    )
    assert cosines["logits"] < 0.9


def test_several_labels_are_compared_one_by_one(tokenizer):
    config = make_config("bert")
    config.num_labels, config.problem_type = 3, "multi_label_classification"
    model = AutoModelForSequenceClassification.from_config(config).eval()
    batches = list(export.read_inputs(model, tokenizer, TEXTS))
    _, same = export.compare_outputs(model, lambda **inputs: {"logits": -model(**inputs).logits}, batches, None)
    assert same == 0
    # A common offset changes all probabilities, unlike those of classes.
    shifted, _ = export.compare_outputs(model, lambda **inputs: {"logits": model(**inputs).logits - 4}, batches, None)
    assert shifted["logits"] < 0.9
    config.label_thresholds = [1e-6] * 3  # every label is chosen, before and after
    _, same = export.compare_outputs(model, lambda **inputs: {"logits": -model(**inputs).logits}, batches, None)
    assert same == 1


@pytest.mark.compiled
@needs_exporters
@needs_onnx
def test_a_model_too_large_for_one_file(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "ONE_FILE", 1000)
    model = make_wide_model()
    report = export_model(model, tokenizer, tmp_path, max_seq_length=24)
    assert report.file_bytes.keys() == {"onnx/model.onnx", "onnx/model.onnx_data"}
    inputs = make_inputs(model, tokenizer, (2, 9))
    assert measure_difference(model, load_onnx(tmp_path / "onnx" / "model.onnx"), inputs) < 1e-5


@needs_exporters
def test_wrong_export_is_not_written(tokenizer, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_domain.export.measure_difference", lambda *args: 0.5)
    model = AutoModelForQuestionAnswering.from_config(make_config("bert"))
    with pytest.raises(ValueError, match=r"differs by up to 0\.5"):
        export_model(model, tokenizer, tmp_path / "output", export_format="dynamo")
    assert not (tmp_path / "output").exists()


@needs_exporters
def test_values_that_are_not_finite_are_refused(tokenizer, tmp_path):
    model = AutoModelForQuestionAnswering.from_config(make_config("bert"))
    torch.nn.init.constant_(model.qa_outputs.weight, float("nan"))
    with pytest.raises(ValueError, match="must be finite"):
        export_model(model, tokenizer, tmp_path / "output", export_format="dynamo")
    assert not (tmp_path / "output").exists()


@needs_exporters
def test_one_folder_holds_one_program(tokenizer, tmp_path):
    """The report tells of what lies beside it; a model may have been saved with more outputs than a program has."""
    model = AutoModelForQuestionAnswering.from_config(make_config("bert"))
    model.config.output_hidden_states = True
    (tmp_path / "onnx").mkdir()
    (tmp_path / "onnx" / "model_quantized.onnx").write_bytes(b"of an export before")
    report = export_model(model, tokenizer, tmp_path, export_format="dynamo", max_seq_length=24)
    assert [file.name for file in tmp_path.rglob("model*.*")] == ["model.pt2"]
    assert report.file_bytes == {"model.pt2": (tmp_path / "model.pt2").stat().st_size}


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
        check_exporters("onnx")
    check_exporters("dynamo")
    monkeypatch.setattr(export, "EXPORTING", Version("99"))
    with pytest.raises(ValueError, match="needs transformers 99 or newer, but this is 5"):
        check_exporters("dynamo")
    with pytest.raises(ValueError, match="must be 'onnx' or 'dynamo', but is 'tflite'"):
        check_exporters("tflite")


def test_enough_texts_are_no_warning(caplog):
    export.check_quantization(True, "onnx", TEXTS * 67, 0.99)
    assert not caplog.text
    export.check_quantization(True, "onnx", [*TEXTS * 66, " ", " "], 0.99)
    assert "but there are only 198" in caplog.text


@needs_exporters
def test_options_are_checked(tokenizer, tmp_path):
    model = make_masked_lm("bert")
    with pytest.raises(ValueError, match="min_cosine must be from 0 to 1, but is 2"):
        export_model(model, tokenizer, tmp_path, export_format="dynamo", min_cosine=2)
    with pytest.raises(ValueError, match=r"needs export_format='onnx', but export_format is 'dynamo'"):
        export_model(model, tokenizer, tmp_path, export_format="dynamo", int8=True, texts=TEXTS)
    with pytest.raises(ValueError, match="needs texts for a comparison with float32, but there are none"):
        export_model(model, tokenizer, tmp_path, int8=True, texts=[" "])
    with pytest.raises(ValueError, match=r"must have float32 weights, but has torch\.float16\. Load it"):
        export_model(make_masked_lm("bert").half(), tokenizer, tmp_path, export_format="dynamo")
    with pytest.raises(ValueError, match=r"max_seq_length must be from 3 .* to 512 .*, but is 513"):
        export_model(model, tokenizer, tmp_path, export_format="dynamo", max_seq_length=513)


# ------------------------------------------------------------------------------------------------- the script


def test_untrained_weights_are_not_exported(tmp_path):
    make_shallow("bert").save_pretrained(tmp_path)
    make_bert_tokenizer().save_pretrained(tmp_path)
    assert export.load_trained(str(tmp_path), head="encoder")[0].pooler is None
    with pytest.raises(ValueError, match="has no weights for classifier"):
        export.load_trained(str(tmp_path), head="token_classification")


@needs_exporters
def test_script(tmp_path, monkeypatch, tokenizer, capsys):
    model = VarMAEForSequenceClassification.from_backbone(make_shallow("bert"), num_labels=3)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")

    def run(output, *flags):
        arguments = ["--model_name_or_path", tmp_path / "model", "--output_dir", tmp_path / output, *flags]
        monkeypatch.setattr(sys, "argv", ["run_export.py", *map(str, arguments)])
        run_export.main()
        return load(tmp_path / output)

    exported = run("output", "--export_format", "dynamo", "--max_seq_length", 64)
    assert f"{model.num_parameters():,} parameters" in capsys.readouterr().out
    inputs = make_inputs(model, tokenizer, (2, 5))
    torch.testing.assert_close(exported(**inputs).logits, model(**inputs).logits)
    states = run("encoder", "--export_format", "dynamo", "--head", "encoder")(**inputs).last_hidden_state
    torch.testing.assert_close(states, model.model(**inputs).last_hidden_state)
    with pytest.raises(ValueError, match=r"has no weights for .*qa_outputs.*name another --head"):
        run("questions", "--export_format", "dynamo", "--head", "question_answering")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"architectures": ["VarMAEForDancing"]}))
    with pytest.raises(ValueError, match="must have a known head, but was saved as VarMAEForDancing"):
        run("dancing", "--export_format", "dynamo")


# ------------------------------------------------------------------------------------------------- transformers.js

JAVASCRIPT = Path(__file__).parent / "javascript"
DEMO = Path(__file__).parents[1] / "examples" / "quickstart_data"


@needs_exporters
@needs_onnx
@pytest.mark.skipif(
    shutil.which("node") is None or not (JAVASCRIPT / "node_modules" / "@huggingface" / "transformers").exists(),
    reason="node or transformers.js is missing: make test-javascript",
)
@pytest.mark.parametrize("scheme", export.SCHEMES)
def test_pipelines_of_transformers_js(scheme, tmp_path, monkeypatch):
    """Exports of a trained encoder, of its masked LM and of one of our heads, in float32 and int8."""
    monkeypatch.setattr(export, "SCHEMES", {scheme: export.SCHEMES[scheme]})
    folder = DEMO / "encoder"
    encoder, masked_lm = (cls.from_pretrained(folder, dtype="float32") for cls in (AutoModel, AutoModelForMaskedLM))
    encoder.pooler = None
    classifier = VarMAEForSequenceClassification.from_backbone(masked_lm, num_labels=3).eval()
    classifier.config.id2label = {0: "method", 1: "result", 2: "other"}
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "The results are shown in [MASK] 2."
    tasks = {"fill-mask": masked_lm, "text-classification": classifier, "feature-extraction": encoder}
    requests = []
    for task, model in tasks.items():
        texts = ["We propose a method that reads documents.", "The results show that it is better.", text]
        export_model(model, tokenizer, tmp_path / task, int8=True, texts=texts, min_cosine=0.9, max_seq_length=64)
        requests += [{"name": task, "task": task, "dtype": dtype, "text": text} for dtype in ("fp32", "q8")]
    command = ["node", str(JAVASCRIPT / "run_pipelines.js"), f"{tmp_path}/"]
    run = subprocess.run(
        command, input=json.dumps(requests), capture_output=True, text=True, check=True, cwd=JAVASCRIPT
    )
    answers = iter(json.loads(run.stdout))

    inputs = tokenizer(text, return_tensors="pt")
    with torch.no_grad():
        masked = masked_lm(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id].softmax(-1)[0]
        labels = classifier(**inputs).logits.softmax(-1)[0]
        states = encoder(**inputs).last_hidden_state.mean(1)[0]
    for tolerance, rank in ((1e-4, 1), (0.1, 3)):
        words = next(answers)
        assert words[0]["token"] in masked.topk(rank).indices
        assert [word["score"] for word in words] == pytest.approx(
            [masked[word["token"]].item() for word in words], abs=tolerance
        )
    for tolerance in (1e-4, 0.1):
        scores = {row["label"]: row["score"] for row in next(answers)}
        expected = {name: labels[number].item() for number, name in classifier.config.id2label.items()}
        assert scores == pytest.approx(expected, abs=tolerance)
    for least in (0.99999, 0.99):
        assert torch.cosine_similarity(torch.tensor(next(answers)[0]), states, dim=0) > least
