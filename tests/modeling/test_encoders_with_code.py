"""Models around an encoder whose code comes with it: they run, train, and carry this code in their folder."""

import json
import shutil

import pytest
import torch
from remote_encoder import CODE, CONFIGURATION, MODELING, write_remote_encoder
from safetensors.torch import load_file, save_file
from tiny_models import make_batch, make_masked_lm
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM
from without_package import run_without_package

from hf_domain import (
    ExBertForMaskedLM,
    GMapForMaskedLM,
    GMapForTokenClassification,
    RadaForMaskedLM,
    VarMAEForMaskedLM,
    VarMAEForSequenceClassification,
)

TRUST = {"trust_remote_code": True}
FILES = {"configuration_own.py", "modeling_own.py"}
# Each starts at its encoder, so that its first loss is that of the encoder.
BUILDERS = {
    "varmae": lambda folder: VarMAEForMaskedLM.from_backbone(folder, residual=True, batch_norm=False, **TRUST),
    "exbert": lambda folder: ExBertForMaskedLM.from_backbone(folder, side_init="base", gate_bias_init=30.0, **TRUST),
    "gmap": lambda folder: GMapForMaskedLM.from_backbones(folder, folder, starts_as_encoder=True, **TRUST),
    "rada": lambda folder: RadaForMaskedLM.from_backbone(folder, **TRUST),
    "rada over varmae": lambda folder: RadaForMaskedLM.from_backbone(BUILDERS["varmae"](folder)),
}
LOAD = """
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM
batch, outputs = load_file("batch.safetensors"), {}
model = AutoModelForMaskedLM.from_pretrained("model", trust_remote_code=True).eval()
model.save_pretrained("again")
outputs["logits"] = model(**batch).logits
outputs["again"] = AutoModelForMaskedLM.from_pretrained("again", trust_remote_code=True).eval()(**batch).logits
outputs["states"] = AutoModel.from_pretrained("model", trust_remote_code=True).eval()(**batch).last_hidden_state
assert "attribute_map" not in vars(model.config.backbone_config)
save_file({name: value.detach().contiguous() for name, value in outputs.items()}, "outputs.safetensors")
"""
REFUSED = """
from transformers import AutoModel
try:
    AutoModel.from_pretrained("model", trust_remote_code=False)
except ValueError as error:
    assert "trust_remote_code=True" in str(error), error
else:
    raise AssertionError("code ran")
"""


@pytest.fixture
def encoder(tmp_path):
    return str(write_remote_encoder(tmp_path / "encoder"))


def make_inputs(tmp_path):
    batch = make_batch(masked=False)
    inputs = {name: batch[name] for name in ("input_ids", "attention_mask")}
    save_file(inputs, tmp_path / "batch.safetensors")
    return inputs


@pytest.mark.parametrize("method", BUILDERS)
def test_checkpoint_loads_with_the_code_that_it_carries(method, encoder, tmp_path):
    """Without a network, without this package, and after the encoder's folder is gone; also with the package."""
    batch = {name: value for name, value in make_batch().items() if name != "token_type_ids"}
    with torch.no_grad():
        expected = AutoModelForMaskedLM.from_pretrained(encoder, **TRUST).eval()(**batch)
        model = BUILDERS[method](encoder).eval()
        torch.testing.assert_close(model(**batch).logits, expected.logits, rtol=1e-5, atol=1e-5)
    if "varmae" not in method:  # whose loss has other terms
        torch.testing.assert_close(model(**batch).loss, expected.loss, rtol=1e-5, atol=1e-5)
    optimizer = torch.optim.SGD([weight for weight in model.parameters() if weight.requires_grad], lr=0.1)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    for _ in range(2):
        model.train()(**batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    assert any(not torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.eval().save_pretrained(tmp_path / "model")
    shutil.rmtree(encoder)

    assert {file.name for file in (tmp_path / "model").glob("*.py")} >= FILES
    assert "auto_map" not in json.loads((tmp_path / "model" / "config.json").read_text())["backbone_config"]
    inputs = make_inputs(tmp_path)
    run_without_package(LOAD, tmp_path).check_returncode()
    outputs = load_file(tmp_path / "outputs.safetensors")
    with torch.no_grad():
        logits, states = model(**inputs).logits, model.model(**inputs).last_hidden_state
        assert torch.equal(outputs["logits"], logits) and torch.equal(outputs["again"], logits)
        assert torch.equal(outputs["states"], states)
        for model_class, folder in ((type(model), "model"), (AutoModelForMaskedLM, "model"), (type(model), "again")):
            loaded = model_class.from_pretrained(tmp_path / folder, hidden_size=32, **TRUST).eval()
            assert isinstance(loaded, type(model)) and torch.equal(loaded(**inputs).logits, logits)
    for name in sorted(FILES):
        assert (tmp_path / "again" / name).read_text() == (tmp_path / "model" / name).read_text()
    first, again = (json.loads((tmp_path / name / "config.json").read_text()) for name in ("model", "again"))
    assert first["auto_map"] == again["auto_map"] and first["backbone_config"].keys() == again["backbone_config"].keys()


@pytest.mark.parametrize("method", ["varmae", "rada over varmae"])
def test_no_code_runs_unless_the_caller_trusts_it(method, encoder, tmp_path, monkeypatch):
    model = BUILDERS[method](encoder)
    model.save_pretrained(tmp_path / "model")
    spy = f"open({str(tmp_path / 'ran')!r}, 'w').close()\n"
    for name in FILES:
        code = (tmp_path / "model" / name).read_text()
        (tmp_path / "model" / name).write_text(spy + code)
    (tmp_path / "configuration_own.py").write_text(spy)
    monkeypatch.chdir(tmp_path)
    for model_class in (AutoModel, AutoModelForMaskedLM, type(model)):
        for options in ({}, {"trust_remote_code": False}):
            with pytest.raises(ValueError, match=r"must be trusted .* argument `trust_remote_code=True`"):
                model_class.from_pretrained("model", **options)
    config = AutoConfig.from_pretrained("model", **TRUST)
    assert config.hidden_size == config.width == 32  # fields need no code
    with pytest.raises(ValueError, match="must be trusted"):
        AutoModel.from_config(config)
    run_without_package(REFUSED, tmp_path).check_returncode()
    assert not (tmp_path / "ran").exists()
    AutoModel.from_pretrained("model", **TRUST)
    assert (tmp_path / "ran").exists()


def test_overrides_reach_the_encoder(encoder, tmp_path):
    VarMAEForMaskedLM.from_backbone(encoder, **TRUST).save_pretrained(tmp_path / "model")
    for model_class in (VarMAEForMaskedLM, AutoModelForMaskedLM):
        options = {"dtype": torch.bfloat16, "attn_implementation": "eager", "chunk_size_feed_forward": 2, **TRUST}
        model = model_class.from_pretrained(tmp_path / "model", **options, num_attention_heads=2)
        inner = model.get_backbone()
        assert inner.config.num_attention_heads == model.config.num_attention_heads == 2
        assert (inner.dtype, inner.config._attn_implementation) == (torch.bfloat16, "eager")
        model = model_class.from_pretrained(tmp_path / "model", backbone_config={"num_attention_heads": 8}, **TRUST)
        assert model.config.backbone_config.num_attention_heads == 8 and model.config.width == 32


def test_heads_of_tasks_and_two_encoders(encoder, tmp_path):
    """A memory of transformers, and a domain encoder and memory that come with their code from two folders."""
    batch = make_inputs(tmp_path)
    make_masked_lm("bert").save_pretrained(tmp_path / "bert")
    shutil.copytree(encoder, tmp_path / "other")
    options = {"num_labels": 3, "memory_tokenizer": "same", **TRUST}
    for memory in (tmp_path / "bert", tmp_path / "other"):
        model = GMapForTokenClassification.from_backbones(encoder, str(memory), **options).eval()
        model.save_pretrained(tmp_path / "tagger")
        loaded = GMapForTokenClassification.from_pretrained(tmp_path / "tagger", **TRUST).eval()
        assert torch.equal(loaded(**batch).logits, model(**batch).logits)
    BUILDERS["varmae"](encoder).save_pretrained(tmp_path / "varmae")
    model = VarMAEForSequenceClassification.from_pretrained(tmp_path / "varmae", num_labels=3, **TRUST)
    assert model(**batch).logits.shape == (4, 3)


CALL = "attend(self, *states, attention_mask, scaling=self.scaling, **kwargs)"
DIRECT = "nn.functional.scaled_dot_product_attention(*states, attention_mask).transpose(1, 2), None"


@pytest.mark.parametrize(
    ("method", "old", "new", "message"),
    [
        ("gmap", CALL, DIRECT, "must pass what it is called with to transformers' attention interface"),
        ("gmap", "mask, **kwargs))", "mask))", "must pass what it is called with to transformers' attention interface"),
        ("gmap", "self.key", "self.other", "must have key and value projections"),
        (
            "exbert",
            "self, hidden_states, attention_mask=None, **kw",
            "self, hidden_states, **kw",
            "take attention_mask",
        ),
        ("exbert", "nn.ModuleList(OwnLayer(config) for", "nn.Sequential(*[OwnLayer(config) for", "a list of layers"),
        (
            "varmae",
            ", **kwargs):\n        states = self.embeddings",
            "):\n        states = self.embeddings",
            "stops with",
        ),
    ],
)
def test_what_cannot_work_is_refused(method, old, new, message, tmp_path):
    assert old in MODELING
    code = MODELING.replace(old, new)
    if "Sequential" in new:
        code = code.replace("range(config.num_hidden_layers))", "range(config.num_hidden_layers)])")
    with pytest.raises(ValueError, match=message) as caught:
        BUILDERS[method](str(write_remote_encoder(tmp_path / "encoder", code)))
    assert str(caught.value).count("\n") == 0


def test_code_that_a_folder_cannot_carry_is_refused(encoder, tmp_path):
    other = write_remote_encoder(tmp_path / "other", MODELING + "\nCHANGED = True\n")
    with pytest.raises(ValueError, match=r"names of their own, .*other code also has .*modeling_own\.py"):
        GMapForMaskedLM.from_backbones(encoder, str(other), **TRUST)
    for old, new in (("configuration_own", "heads"), ("modeling_own", "backbone")):
        folder = write_remote_encoder(tmp_path / new, MODELING.replace(f".{old}", f".{new}"))
        (folder / f"{old}.py").rename(folder / f"{new}.py")
        code = {name: each.replace(f"{old}.", f"{new}.") for name, each in CODE.items()}
        (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": code}))
        with pytest.raises(ValueError, match=rf"other code also has {new}\.py"):
            VarMAEForMaskedLM.from_backbone(str(folder), **TRUST)


STOCK = """
from transformers import BertForMaskedLM, BertModel


class OwnModel(BertModel):
    pass


class OwnForMaskedLM(BertForMaskedLM):
    pass
"""


def test_names_of_transformers(tmp_path):
    """A configuration may have a type of transformers; an encoder without a configuration class is refused."""
    make_masked_lm("bert").save_pretrained(tmp_path / "bert")
    folder = write_remote_encoder(tmp_path / "encoder", configuration=CONFIGURATION.replace('"own"', '"bert"'))
    (folder / "config.json").write_text(json.dumps({"model_type": "bert", "auto_map": CODE}))
    model, batch = RadaForMaskedLM.from_backbone(str(folder), **TRUST).eval(), make_inputs(tmp_path)
    model.save_pretrained(tmp_path / "model")
    with pytest.raises(ValueError, match="must be trusted"):
        AutoModelForMaskedLM.from_pretrained(tmp_path / "model")
    loaded = AutoModelForMaskedLM.from_pretrained(tmp_path / "model", **TRUST).eval()
    assert torch.equal(loaded(**batch).logits, model(**batch).logits)
    with pytest.raises(ValueError, match="other code also has bert"):
        GMapForMaskedLM.from_backbones(str(folder), str(tmp_path / "bert"), memory_tokenizer="same", **TRUST)

    config = json.loads((tmp_path / "bert" / "config.json").read_text())
    code = {name: each for name, each in CODE.items() if name != "AutoConfig"}
    (tmp_path / "bert" / "config.json").write_text(json.dumps(config | {"auto_map": code}))
    (tmp_path / "bert" / "modeling_own.py").write_text(STOCK)
    nameless = write_remote_encoder(tmp_path / "nameless", configuration=CONFIGURATION.replace('"own"', '""'))
    for place, found in (
        (tmp_path / "bert", "a BertConfig of the type 'bert'"),
        (nameless, "a OwnConfig of the type ''"),
    ):
        with pytest.raises(ValueError, match=f"its own configuration class with a model_type, .* {found}"):
            RadaForMaskedLM.from_backbone(str(place), **TRUST)
