"""Exports equal their models at two shapes, with and without quantization; what reads more than text is refused."""

import importlib.util
import json
import sys

import pytest
import torch
from tiny_models import make_config, make_masked_lm
from tiny_tokenizers import make_bert_tokenizer
from transformers import (
    AutoModel,
    AutoModelForQuestionAnswering,
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
)
from hf_domain.distillation.students import pick_layers
from hf_domain.examples import run_export
from hf_domain.export import check_exportable, check_exporters, export_model, make_inputs, measure_difference

# torch renames parts of its trees while transformers' exporters still use the old names.
pytestmark = pytest.mark.filterwarnings("ignore:.*treespec:FutureWarning")
needs_exporters = pytest.mark.skipif(
    importlib.util.find_spec("transformers.exporters") is None, reason="this transformers has no exporters"
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
    from transformers.exporters import ExportedModel

    return ExportedModel.from_pretrained(folder)


WRAPPERS = {"roberta": VarMAEForMaskedLM, "distilbert": ExBertForMaskedLM, "modernbert": ExBertForMaskedLM}


@needs_exporters
def test_every_family_exports_with_dynamo(family, tokenizer, tmp_path):
    model = make_shallow(family)
    if family in WRAPPERS:
        model = WRAPPERS[family].from_backbone(model)
    if family in ("distilbert", "modernbert"):  # their tokenizers give no token types
        tokenizer.model_input_names = ["input_ids", "attention_mask"]
    report = export_model(model, tokenizer, tmp_path, export_format="dynamo")
    assert max(report.differences.values()) < 1e-5
    assert report.differences.keys() == {"1 x 7", "3 x 40"}


@needs_exporters
@needs_onnx
@pytest.mark.parametrize(
    "make",
    [
        lambda: VarMAEForSequenceClassification.from_backbone(make_shallow("modernbert"), num_labels=3),
        lambda: ExBertForQuestionAnswering.from_backbone(make_shallow("deberta-v2")),
    ],
    ids=["varmae-classification", "exbert-question-answering"],
)
def test_onnx_of_our_heads(make, tokenizer, tmp_path):
    model = make()
    tokenizer.model_input_names = ["input_ids", "attention_mask"]
    report = export_model(model, tokenizer, tmp_path)
    assert max(report.differences.values()) < 1e-5
    # The saved program, loaded again and run at a third shape, still equals the model.
    inputs = make_inputs(model, tokenizer, (5, 11))
    assert measure_difference(model, load(tmp_path), inputs) < 1e-5
    assert json.loads((tmp_path / "export_report.json").read_text())["parameters"] == model.num_parameters()
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == tokenizer.get_vocab()


@needs_exporters
@needs_onnx
def test_int8_is_smaller_and_close(tokenizer, tmp_path):
    config = make_config("bert")
    config.hidden_size, config.intermediate_size, config.num_hidden_layers = 64, 256, 1
    model = AutoModelForTokenClassification.from_config(config)
    exact = export_model(model, tokenizer, tmp_path / "float")
    report = export_model(model, tokenizer, tmp_path / "int8", int8=True)
    assert report.int8
    assert report.file_bytes < 0.5 * exact.file_bytes
    assert min(report.differences.values()) > 100 * max(exact.differences.values())
    inputs = make_inputs(model, tokenizer, (4, 9))
    with torch.no_grad():
        similarity = torch.cosine_similarity(
            load(tmp_path / "int8")(**inputs).logits.flatten(), model(**inputs).logits.flatten(), dim=0
        )
    assert similarity > 0.98


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
    with pytest.raises(ValueError, match="must give finite values"):
        export_model(model, tokenizer, tmp_path / "output", export_format="dynamo")
    assert not (tmp_path / "output").exists()


@needs_exporters
def test_one_folder_holds_one_program(tokenizer, tmp_path):
    """The report tells of what lies beside it; a model may have been saved with more outputs than a program has."""
    model = AutoModelForQuestionAnswering.from_config(make_config("bert"))
    model.config.output_hidden_states = True
    (tmp_path / "model.onnx").write_bytes(b"of an export before")
    report = export_model(model, tokenizer, tmp_path, export_format="dynamo")
    assert [file.name for file in tmp_path.glob("model.*")] == ["model.pt2"]
    assert report.file_bytes == (tmp_path / "model.pt2").stat().st_size


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


def test_stock_models_pass(family):
    check_exportable(make_masked_lm(family))


def test_required_input_of_a_stock_model_is_refused():
    class NeedsImage(BertModel):
        def forward(self, input_ids, pixel_values):
            return super().forward(input_ids)

    with pytest.raises(ValueError, match="NeedsImage also reads pixel_values"):
        check_exportable(NeedsImage(make_config("bert")))


def test_missing_packages_are_named(monkeypatch, tokenizer, tmp_path):
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name.startswith("onnx") else name)
    with pytest.raises(ValueError, match=r"needs onnx, onnxruntime, onnxscript\. Run pip install hf-domain\[onnx\]"):
        check_exporters("onnx")
    check_exporters("dynamo")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="this release lacks"):
        check_exporters("dynamo")
    monkeypatch.setattr(importlib.util, "find_spec", found)
    with pytest.raises(ValueError, match="must be 'onnx' or 'dynamo', but is 'tflite'"):
        check_exporters("tflite")


@needs_exporters
def test_int8_is_for_onnx(tokenizer, tmp_path):
    with pytest.raises(ValueError, match=r"needs export_format='onnx', but export_format is 'dynamo'"):
        export_model(make_masked_lm("bert"), tokenizer, tmp_path, export_format="dynamo", int8=True)


# ------------------------------------------------------------------------------------------------- the script


def test_untrained_weights_are_not_exported(tmp_path):
    make_shallow("bert").save_pretrained(tmp_path)
    assert run_export.load_trained(AutoModel, str(tmp_path)).pooler is None
    with pytest.raises(ValueError, match="has no weights of classifier"):
        run_export.load_trained(AutoModelForTokenClassification, str(tmp_path))


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

    exported = run("output", "--export_format", "dynamo")
    assert f"{model.num_parameters():,} parameters" in capsys.readouterr().out
    inputs = make_inputs(model, tokenizer, (2, 5))
    torch.testing.assert_close(exported(**inputs).logits, model(**inputs).logits)
    states = run("encoder", "--export_format", "dynamo", "--head", "encoder")(**inputs).last_hidden_state
    torch.testing.assert_close(states, model.model(**inputs).last_hidden_state)
    with pytest.raises(ValueError, match=r"has no weights of .*qa_outputs.*name another --head"):
        run("questions", "--export_format", "dynamo", "--head", "question_answering")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"architectures": ["VarMAEForDancing"]}))
    with pytest.raises(ValueError, match="saved as VarMAEForDancing, which cannot be exported"):
        run("dancing", "--export_format", "dynamo")
