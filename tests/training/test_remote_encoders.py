"""Encoders whose code comes with them: trained with --trust_remote_code, and loaded from their own folder."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from script_runs import run_script
from tiny_models import make_batch
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from without_package import run_without_package

from hf_domain.examples import run_mlm

CONFIGURATION = """
from transformers import PreTrainedConfig


class OwnConfig(PreTrainedConfig):
    model_type = "own"

    vocab_size: int = 120
    hidden_size: int = 32
    num_hidden_layers: int = 2
    num_attention_heads: int = 4
    intermediate_size: int = 64
    max_position_embeddings: int = 64
    pad_token_id: int = 0
    initializer_range: float = 0.2
    tie_word_embeddings: bool = True
"""
MODELING = """
import torch
from torch import nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput

from .configuration_own import OwnConfig


class OwnLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        width = config.hidden_size
        self.heads = config.num_attention_heads
        self.norm, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, config.intermediate_size), nn.Linear(config.intermediate_size, width)

    def forward(self, hidden_states, attention_mask=None):
        normed = self.norm(hidden_states)
        parts = (self.query, self.key, self.value)
        states = [part(normed).unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts]
        context = scaled_dot_product_attention(*states, attn_mask=attention_mask)
        hidden_states = hidden_states + self.out(context.transpose(1, 2).flatten(2))
        return hidden_states + self.down(nn.functional.gelu(self.up(self.norm_2(hidden_states))))


class OwnPreTrainedModel(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "own"
    _supports_sdpa = True


class OwnModel(OwnPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.positions = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.layers = nn.ModuleList(OwnLayer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings

    def set_input_embeddings(self, value):
        self.embeddings = value

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, **kwargs):
        states = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        states = states + self.positions.weight[: states.shape[1]]
        mask = None if attention_mask is None else attention_mask[:, None, None, :].bool()
        for layer in self.layers:
            states = layer(states, attention_mask=mask)
        return BaseModelOutput(last_hidden_state=states)


class OwnForMaskedLM(OwnPreTrainedModel):
    _tied_weights_keys = {"decoder.weight": "own.embeddings.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.own = OwnModel(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.post_init()

    def get_output_embeddings(self):
        return self.decoder

    def set_output_embeddings(self, value):
        self.decoder = value

    def forward(self, input_ids=None, attention_mask=None, labels=None, inputs_embeds=None, **kwargs):
        states = self.own(input_ids, attention_mask, inputs_embeds=inputs_embeds).last_hidden_state
        logits = self.decoder(states)
        loss = None if labels is None else cross_entropy(logits.flatten(0, 1), labels.flatten())
        return MaskedLMOutput(loss=loss, logits=logits)
"""
CODE = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForMaskedLM": "modeling_own.OwnForMaskedLM"}
LOAD = """
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM
model = AutoModelForMaskedLM.from_pretrained("output", trust_remote_code=True).eval()
save_file({"logits": model(**load_file("batch.safetensors")).logits.detach()}, "logits.safetensors")
"""


@pytest.fixture
def encoder(tmp_path, monkeypatch):
    """A folder with a configuration and code, and no weights: each is new."""
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "encoder"
    folder.mkdir()
    (folder / "configuration_own.py").write_text(CONFIGURATION)
    (folder / "modeling_own.py").write_text(MODELING)
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": CODE}))
    make_bert_tokenizer().save_pretrained(folder)
    torch.manual_seed(0)
    shapes = {"own.embeddings.weight": (120, 32), "own.positions.weight": (64, 32), "decoder.bias": (120,)}
    for layer in ("own.layers.0", "own.layers.1"):
        shapes |= {f"{layer}.{name}.weight": (32, 32) for name in ("query", "key", "value", "out")}
        shapes |= {f"{layer}.up.weight": (64, 32), f"{layer}.down.weight": (32, 64), f"{layer}.up.bias": (64,)}
        shapes |= {f"{layer}.{name}.bias": (32,) for name in ("query", "key", "value", "out", "down")}
        shapes |= {f"{layer}.{name}": (32,) for name in ("norm.weight", "norm.bias", "norm_2.weight", "norm_2.bias")}
    weights = {name: 0.2 * torch.randn(shape) for name, shape in shapes.items()}
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def run(monkeypatch, tmp_path, encoder):
    (tmp_path / "corpus.txt").write_text("\n".join(SENTENCES * 30), encoding="utf-8")

    def run(**options):
        flags = {"model_name_or_path": encoder, "train_file": tmp_path / "corpus.txt", "max_seq_length": 16}
        flags |= {"max_steps": 3, "do_train": True, "learning_rate": 1e-3}
        return run_script(run_mlm.main, monkeypatch, tmp_path / "output", **flags | options)

    return run


@pytest.mark.parametrize("method", ["dapt", "lora"])
def test_the_folder_loads_with_its_own_code(run, method, encoder, tmp_path, caplog):
    """Without a network, without this package, and after the encoder's folder is gone."""
    run(method=method, trust_remote_code=True)
    assert "must have all weights" not in caplog.text
    batch = make_batch(masked=False)
    save_file({name: batch[name] for name in ("input_ids", "attention_mask")}, tmp_path / "batch.safetensors")
    encoder.rename(tmp_path / "elsewhere")
    run_without_package(LOAD, tmp_path)
    weights = load_file(tmp_path / "output" / "model.safetensors")
    start = load_file(tmp_path / "elsewhere" / "model.safetensors")
    assert not torch.equal(weights["own.layers.0.query.weight"], start["own.layers.0.query.weight"])
    code = {}
    exec(MODELING.replace("from .configuration_own import OwnConfig", CONFIGURATION), code)
    model = code["OwnForMaskedLM"](code["OwnConfig"]()).eval()
    model.load_state_dict(weights, strict=False)
    expected = model(**load_file(tmp_path / "batch.safetensors")).logits
    torch.testing.assert_close(load_file(tmp_path / "logits.safetensors")["logits"], expected, rtol=1e-5, atol=1e-5)


def test_code_needs_trust_and_a_method_that_carries_it(run):
    with pytest.raises(ValueError, match="trust_remote_code"):
        run()
    with pytest.raises(ValueError, match=r"the code of own comes with .*/encoder\. Use --method dapt or lora\."):
        run(method="varmae", trust_remote_code=True)
