"""What a colleague does with a published folder, in a process that cannot import this package."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import make_batch, make_masked_lm
from tiny_tokenizers import make_bert_tokenizer
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification
from without_package import run_without_package

from hf_domain import (
    ExBertForMaskedLM,
    GMapForMaskedLM,
    RadaForMaskedLM,
    VarMAEForMaskedLM,
    VarMAEForQuestionAnswering,
    VarMAEForSequenceClassification,
    VarMAEForTokenClassification,
)

MODELING = Path(__file__).parent.parent.parent / "modeling"
SHARED = {"backbone.py", "configuration_backbone.py", "heads.py", "nested_models.py"}


def make_model(methods):
    """Nest methods, the innermost first, around a tiny BERT."""
    model = make_masked_lm("bert")
    for method in methods.split():
        if method == "gmap":
            model = GMapForMaskedLM.from_backbones(model, make_masked_lm("bert"), memory_tokenizer="same")
        else:
            classes = {"varmae": VarMAEForMaskedLM, "exbert": ExBertForMaskedLM, "rada": RadaForMaskedLM}
            model = classes[method].from_backbone(model)
    return model.eval()


def save_inputs(tmp_path):
    batch = make_batch(masked=False)
    save_file(batch, tmp_path / "batch.safetensors")
    return batch


METHODS = ["varmae", "exbert", "gmap", "rada", "exbert gmap", "varmae rada", "rada varmae"]


@pytest.mark.parametrize("methods", METHODS)
def test_checkpoint_carries_the_code_of_its_own_methods_alone(methods, tmp_path):
    make_model(methods).save_pretrained(tmp_path)
    own = {file.name for method in methods.split() for file in MODELING.glob(f"*_{method}.py")}
    assert {file.name for file in tmp_path.glob("*.py")} == own | SHARED


def test_nested_methods_load_through_a_cache_with_other_code(tmp_path):
    # All folders have one name, and so one folder in the cache of remote modules.
    names = {"varmae": "a", "rada": "b", "varmae rada": "c", "exbert gmap": "d"}
    models = {f"{folder}/model": make_model(methods) for methods, folder in names.items()}
    for folder, model in models.items():
        model.save_pretrained(tmp_path / folder)
    batch = save_inputs(tmp_path)
    code = f"""
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM
batch, outputs = load_file("batch.safetensors"), {{}}
for folder in {list(models)}:
    for name in (folder, f"again/{{folder}}"):
        model = AutoModelForMaskedLM.from_pretrained(name, trust_remote_code=True).eval()
        model.save_pretrained(f"again/{{name}}")
        with torch.no_grad():
            outputs[name] = model(**batch).logits
save_file(outputs, "outputs.safetensors")
"""
    for _ in range(2):  # the second process finds the code of the first
        result = run_without_package(code, tmp_path)
        assert result.returncode == 0, result.stderr[-2000:]
        outputs = load_file(tmp_path / "outputs.safetensors")
        for name, model in models.items():
            expected = model(**batch).logits
            assert torch.equal(outputs[name], expected)
            assert torch.equal(outputs[f"again/{name}"], expected)
    for name in models:
        first, again = (
            {file.name: file.read_text() for file in folder.glob("*.py")}
            for folder in (tmp_path / name, tmp_path / "again" / "again" / name)
        )
        assert first == again


def test_with_the_package_no_trust_is_needed(tmp_path):
    model = VarMAEForSequenceClassification.from_backbone(make_masked_lm("bert"), num_labels=3).eval()
    model.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path)
    assert isinstance(loaded, VarMAEForSequenceClassification)
    assert isinstance(AutoModel.from_pretrained(tmp_path, trust_remote_code=True), type(model.model))
    assert isinstance(AutoModelForMaskedLM.from_pretrained(tmp_path), VarMAEForMaskedLM)


@pytest.mark.parametrize(
    ("task", "head"),
    [
        ("fill-mask", VarMAEForMaskedLM),
        pytest.param("text-classification", VarMAEForSequenceClassification, marks=pytest.mark.commands),
        pytest.param("token-classification", VarMAEForTokenClassification, marks=pytest.mark.commands),
    ],
)
def test_pipelines_without_the_package(task, head, tmp_path):
    tokenizer = make_bert_tokenizer()
    head.from_backbone(make_masked_lm("bert"), num_labels=2).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    code = f"""
import json
from transformers import pipeline
answer = pipeline({task!r}, "model", trust_remote_code=True)("domain text is [MASK] .")
json.dump(len(answer), open("answer.json", "w"))
"""
    result = run_without_package(code, tmp_path)
    assert result.returncode == 0, result.stderr[-2000:]
    assert json.loads((tmp_path / "answer.json").read_text()) > 0


def test_folder_holds_safetensors_and_code_only(tmp_path):
    VarMAEForQuestionAnswering.from_backbone(make_masked_lm("bert")).save_pretrained(tmp_path)
    suffixes = {file.suffix for file in tmp_path.iterdir()}
    assert suffixes == {".json", ".py", ".safetensors"}
    auto_map = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    assert set(auto_map) == {"AutoConfig", "AutoModel"} | {
        f"AutoModelFor{head}"
        for head in ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
    }


def test_saved_model_shows_no_path_of_its_encoders(tmp_path):
    make_masked_lm("bert").save_pretrained(tmp_path / "home_of_someone")
    encoder = AutoModelForMaskedLM.from_pretrained(tmp_path / "home_of_someone")
    nested = RadaForMaskedLM.from_backbone(VarMAEForMaskedLM.from_backbone(encoder))
    for name, model in (
        ("nested", nested),
        ("gmap", GMapForMaskedLM.from_backbones(nested, encoder, memory_name_or_path=None)),
    ):
        model.save_pretrained(tmp_path / name)
        config = json.loads((tmp_path / name / "config.json").read_text())
        assert config["backbone_config"]["backbone_config"]["model_type"] in ("bert", "varmae")
        assert "home_of_someone" not in json.dumps(config)


def test_pickled_weights_are_refused(tmp_path):
    encoder = make_masked_lm("bert")
    encoder.save_pretrained(tmp_path / "memory")
    memory = AutoModelForMaskedLM.from_pretrained(tmp_path / "memory")
    VarMAEForMaskedLM.from_backbone(encoder).save_pretrained(tmp_path / "model")
    GMapForMaskedLM.from_backbones(encoder, memory, save_memory=False).save_pretrained(tmp_path / "gmap")
    for folder in (tmp_path / "memory", tmp_path / "model"):
        weights = folder / "model.safetensors"
        torch.save(load_file(weights), folder / "pytorch_model.bin")
        weights.unlink()
    with pytest.raises(OSError, match=r"no file named model.safetensors"):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    with pytest.raises(
        ValueError, match=r"the memory of .* must be readable, but is not: .*no file named model.safetensors"
    ):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "gmap")
