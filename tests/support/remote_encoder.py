"""A tiny encoder whose code comes with it, in a folder as on the Hub."""

import json

import torch
from safetensors.torch import save_file
from tiny_tokenizers import make_bert_tokenizer

CONFIGURATION = """
from transformers import PreTrainedConfig


class OwnConfig(PreTrainedConfig):
    model_type = "own"
    attribute_map = {"hidden_size": "width"}

    vocab_size: int = 120
    width: int = 32
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
from torch.nn.functional import cross_entropy
from transformers import PreTrainedModel
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutput, MaskedLMOutput
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_own import OwnConfig


class OwnAttention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config, self.is_causal, self.scaling = config, False, (config.width // config.num_attention_heads) ** -0.5
        self.query, self.key, self.value, self.out = (nn.Linear(config.width, config.width) for _ in range(4))

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        heads = self.config.num_attention_heads
        parts = (self.query, self.key, self.value)
        states = [part(hidden_states).unflatten(-1, (heads, -1)).transpose(1, 2) for part in parts]
        attend = ALL_ATTENTION_FUNCTIONS.get_interface(self.config._attn_implementation, None)
        context, _ = attend(self, *states, attention_mask, scaling=self.scaling, **kwargs)
        return self.out(context.flatten(2))


class OwnLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attention = OwnAttention(config)
        self.norm, self.norm_2 = nn.LayerNorm(config.width), nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, config.intermediate_size)
        self.down = nn.Linear(config.intermediate_size, config.width)

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        attended = self.norm(hidden_states + self.attention(hidden_states, attention_mask, **kwargs))
        return self.norm_2(attended + self.down(nn.functional.gelu(self.up(attended))))


class OwnPreTrainedModel(PreTrainedModel):
    config_class = OwnConfig
    base_model_prefix = "own"
    _supports_sdpa = True
    _supports_attention_backend = True


class OwnModel(OwnPreTrainedModel):
    def __init__(self, config):
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.width, padding_idx=config.pad_token_id)
        self.positions = nn.Embedding(config.max_position_embeddings, config.width)
        self.layers = nn.ModuleList(OwnLayer(config) for _ in range(config.num_hidden_layers))
        self.post_init()

    def get_input_embeddings(self):
        return self.embeddings

    def set_input_embeddings(self, value):
        self.embeddings = value

    def forward(self, input_ids=None, attention_mask=None, inputs_embeds=None, output_hidden_states=False, **kwargs):
        states = self.embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        states = states + self.positions.weight[: states.shape[1]]
        mask = create_bidirectional_mask(config=self.config, inputs_embeds=states, attention_mask=attention_mask)
        kwargs.pop("return_dict", None)
        everything = [states]
        for layer in self.layers:
            everything.append(layer(everything[-1], attention_mask=mask, **kwargs))
        hidden_states = tuple(everything) if output_hidden_states else None
        return BaseModelOutput(last_hidden_state=everything[-1], hidden_states=hidden_states)


class OwnForMaskedLM(OwnPreTrainedModel):
    _tied_weights_keys = {"decoder.weight": "own.embeddings.weight"}

    def __init__(self, config):
        super().__init__(config)
        self.own = OwnModel(config)
        self.decoder = nn.Linear(config.width, config.vocab_size)
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
CODE = {
    "AutoConfig": "configuration_own.OwnConfig",
    "AutoModel": "modeling_own.OwnModel",
    "AutoModelForMaskedLM": "modeling_own.OwnForMaskedLM",
}


def write_remote_encoder(folder, modeling=MODELING, configuration=CONFIGURATION):
    """Write configuration, code, weights and tokenizer; no code runs."""
    folder.mkdir()
    # transformers finds a model by its configuration's class, which is another one for other text.
    (folder / "configuration_own.py").write_text(f"# {folder}\n{configuration}")
    (folder / "modeling_own.py").write_text(modeling)
    (folder / "config.json").write_text(json.dumps({"model_type": "own", "auto_map": CODE}))
    make_bert_tokenizer().save_pretrained(folder)
    torch.manual_seed(0)
    shapes = {"own.embeddings.weight": (120, 32), "own.positions.weight": (64, 32), "decoder.bias": (120,)}
    for layer in ("own.layers.0", "own.layers.1"):
        attention = [f"{layer}.attention.{name}" for name in ("query", "key", "value", "out")]
        shapes |= {f"{name}.weight": (32, 32) for name in attention} | {f"{name}.bias": (32,) for name in attention}
        shapes |= {f"{layer}.up.weight": (64, 32), f"{layer}.down.weight": (32, 64), f"{layer}.up.bias": (64,)}
        shapes |= {f"{layer}.{name}": (32,) for name in ("down.bias", "norm.bias", "norm_2.bias")}
    weights = {name: 0.2 * torch.randn(shape) for name, shape in shapes.items()}
    ones = {f"own.layers.{layer}.{name}.weight": torch.ones(32) for layer in (0, 1) for name in ("norm", "norm_2")}
    save_file(weights | ones, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
