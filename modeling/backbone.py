"""What every model of this package is built from: an encoder inside, and what loading and saving need.

A model of ours holds an encoder of transformers (or another model of ours) as `backbone` and adds to it without
copying any of its code. The heads are in heads.py.
"""

from dataclasses import fields
from typing import Any, Self

import torch
from torch import nn
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer

from .configuration_backbone import BackboneConfig, has_encoder_field
from .nested_models import find_model_class


def build_backbone(config: Any) -> PreTrainedModel:
    """Build the encoder that `config` describes, with fresh weights and without a pooler.

    Checkpoints with a masked-LM head have no pooler: it would be random, and none of our heads reads it.
    """
    own_class = find_model_class(config.model_type)
    if own_class is not None:
        if not getattr(config, "save_memory", True):
            raise ValueError("save_memory=False leaves out a memory that only G-MAP itself finds again; save it whole")
        return own_class(config)
    backbone = AutoModel.from_config(config)
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None
    return backbone


def get_native_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the configuration of the stock encoder at the core of nested models of ours."""
    while hasattr(config, "backbone_config"):
        config = config.backbone_config
    return config


def get_module_name(root: nn.Module, module: nn.Module) -> str:
    """Return the dotted name of `module` inside `root`."""
    return next(name for name, candidate in root.named_modules() if candidate is module)


def find_encoder(model: Any) -> PreTrainedModel:
    """Return the stock encoder at the core of nested models of ours."""
    while isinstance(model, BackbonePreTrainedModel):
        model = model.base_model.backbone
    return model.base_model


def find_layers(model: nn.Module) -> nn.ModuleList:
    """Return the layers of an encoder of any family.

    Raises:
        ValueError: It has no list of layers.
    """
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and all(isinstance(layer, GradientCheckpointingLayer) for layer in module):
            return module
    raise ValueError(f"an encoder is a list of layers; a {type(model).__name__} has none. Take another family")


def train_top_layers(model: Any, num_layers: int) -> None:
    """Let a model with a task head train its encoder's top layers alone, and all that stands above the encoder.

    Loading makes everything trainable again.

    Args:
        model: A stock encoder or one of ours, with a head.
        num_layers: How many layers.

    Raises:
        ValueError: The encoder does not have so many.
    """
    encoder = find_encoder(model)
    layers = find_layers(encoder)
    if not 1 <= num_layers <= len(layers):
        raise ValueError(f"num_layers must lie between 1 and {len(layers)}, got {num_layers}")
    encoder.requires_grad_(False)
    above = [*layers[-num_layers:], getattr(encoder, "pooler", None)]
    for module in above:
        if module is not None:
            module.requires_grad_(True)


def needs_gradient(module: nn.Module) -> bool:
    """Return whether any of the parameters of `module` is trained.

    The configuration says what a method freezes; an adapter of peft is trained inside it all the same.
    """
    return any(parameter.requires_grad for parameter in module.parameters())


def load_matching_weights(
    module: nn.Module, state_dict: dict[str, torch.Tensor], what: str, added_modules: tuple[str, ...] = ()
) -> None:
    """Load `state_dict` into `module`; keys of a pooler or of buffers may be left over, a parameter may not be missing.

    Args:
        module: What is filled.
        state_dict: Weights of a checkpoint.
        what: Names `module` in the error.
        added_modules: Names of modules inside `module` that the checkpoint does not know; they keep their weights.

    Raises:
        ValueError: A parameter of `module` is not in `state_dict`; names it.
    """
    missing = module.load_state_dict(state_dict, strict=False).missing_keys
    parameters = dict(module.named_parameters(remove_duplicate=False))
    if lost := [key for key in missing if key in parameters and set(added_modules).isdisjoint(key.split("."))]:
        raise ValueError(f"{what} has no weights for {', '.join(lost[:5])}; it must be of the configured architecture")


class HeadLinear(nn.Linear):
    """A layer of a task head: new, it begins with the spread `config.head_initializer_range`.

    Where that is None, its outputs begin with a standard deviation of `OUTPUT_SPREAD`, if its inputs have one of 1 as
    those of a LayerNorm have. The scripts measure the inputs instead (hf_domain/training/new_heads.py).
    """

    OUTPUT_SPREAD = 0.5


class BackbonePreTrainedModel(PreTrainedModel):
    """Base of every model of this package.

    Class attributes a method sets: `config_class`, `base_class` (the model without a head), `added_modules` (names of
    what it adds inside the encoder or the LM head) and `auto_classes`, the whole `auto_map` of a repository:
    transformers would record only the head that was saved, and `AutoModel` would then refuse the repository of a
    masked LM.
    """

    config_class: type[BackboneConfig]
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _supports_attention_backend = True
    base_class: type[PreTrainedModel]
    added_modules: tuple[str, ...] = ()
    auto_classes: dict[str, str] = {}

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, HeadLinear):
            spread = self.config.head_initializer_range
            init.normal_(module.weight, std=spread or HeadLinear.OUTPUT_SPREAD / module.in_features**0.5)

    @classmethod
    def from_backbone(
        cls,
        backbone: str | PreTrainedModel,
        *,
        revision: str | None = None,
        token: str | None = None,
        cache_dir: str | None = None,
        dtype: torch.dtype | str = torch.float32,
        trust_remote_code: bool = False,
        **options: Any,
    ) -> Self:
        """Build this model from any pretrained encoder; a masked-LM head is taken over as well.

        Args:
            backbone: Name or folder of a checkpoint, or a loaded model (with or without a masked-LM head), whose
                weights are copied.
            revision: Branch, tag or commit on the Hub.
            token: Hub token.
            cache_dir: Where downloads are kept.
            dtype: Type of the weights when `backbone` is a name. float32 is our choice: transformers would keep the
                checkpoint's own type, and a bfloat16 checkpoint then trains in bfloat16.
            trust_remote_code: Whether code of the backbone's repository may run; never read from a configuration.
            options: Fields of the configuration of this model and of its encoder (`hidden_dropout_prob`), and
                `attn_implementation`.

        Raises:
            ValueError: An option is not a field of the configuration, or the encoder cannot be a backbone.
        """
        hub_options: Any = {"revision": revision or "main", "token": token, "cache_dir": cache_dir}
        hub_options["trust_remote_code"] = trust_remote_code
        allowed = {field.name for field in fields(cls.config_class)} | {"num_labels", "attn_implementation"}
        unknown = sorted(options.keys() - allowed)
        if unknown:
            given: Any = backbone
            is_name = isinstance(given, str)
            encoder_config = AutoConfig.from_pretrained(given, **hub_options) if is_name else given.config
            unknown = [name for name in unknown if not has_encoder_field(encoder_config, name)]
        if unknown:
            own = sorted(set(cls.config_class.__annotations__))
            raise ValueError(
                f"{cls.config_class.__name__} has no option {', '.join(unknown)}; its own are {', '.join(own)}"
            )
        if isinstance(backbone, str):
            source = AutoModelForMaskedLM.from_pretrained(backbone, dtype=dtype, **hub_options)
        else:
            source = backbone
        encoder = source.base_model
        model = cls(cls.config_class(backbone_config=encoder.config, **options)).to(source.dtype)
        load_matching_weights(model.get_backbone(), encoder.state_dict(), "the backbone", cls.added_modules)
        model.load_lm_head(source)
        model.tie_weights()
        return model.eval()

    @classmethod
    def from_pretrained(cls, *args, **kwargs) -> Any:
        """Load as transformers does, and freeze again what the method freezes: loading makes all of it trainable.

        Weights are safetensors: our models were never saved as pickles, which run code when they are read.
        """
        output = super().from_pretrained(*args, **{"use_safetensors": True, **kwargs})
        for module in (output[0] if isinstance(output, tuple) else output).modules():
            if isinstance(module, BackbonePreTrainedModel):  # also where it is the backbone of another
                module.freeze_parameters()
        return output

    def load_lm_head(self, source: PreTrainedModel) -> None:
        """Take over what the head of an encoder has learned; only a masked LM has such a head."""

    def freeze_parameters(self) -> None:
        """Turn off the gradients of what the method leaves as it is; nothing by default."""

    def get_backbone(self) -> PreTrainedModel:
        """Return the encoder, from the model itself or from a head over it."""
        model: Any = self.base_model
        return model.backbone

    def encode(
        self,
        input_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
        token_type_ids: torch.Tensor | None = None,
        position_ids: torch.Tensor | None = None,
        inputs_embeds: torch.Tensor | None = None,
        **kwargs,
    ) -> Any:
        """Run the encoder alone and return its output, with what the call or the configuration asks for.

        Args:
            input_ids: `[batch, length]`.
            attention_mask: `[batch, length]`, 0 at padding.
            token_type_ids: `[batch, length]`, for families that have them.
            position_ids: `[batch, length]`.
            inputs_embeds: `[batch, length, hidden_size]` instead of `input_ids`.
            kwargs: Go to the encoder.
        """
        for name in ("output_hidden_states", "output_attentions"):
            if getattr(self.config, name):
                kwargs.setdefault(name, getattr(self.config, name))  # the encoder reads a configuration of its own
        names = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
        values = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        kwargs |= dict(zip(names, values, strict=True))
        kwargs["return_dict"] = True
        # A family without token types would hand a None on to its attention function.
        return self.get_backbone()(**{name: value for name, value in kwargs.items() if value is not None})

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding table of the encoder."""
        return self.get_backbone().get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding table of the encoder."""
        self.get_backbone().set_input_embeddings(value)

    def resize_token_embeddings(self, *args, **kwargs) -> Any:
        """Resize as transformers does, or as the backbone does: the table of an exBERT grows by its extension."""
        backbone = self.get_backbone()
        if isinstance(backbone, BackbonePreTrainedModel) and self.get_output_embeddings() is None:
            return backbone.resize_token_embeddings(*args, **kwargs)
        return super().resize_token_embeddings(*args, **kwargs)

    def build_output(self, output_class: Any, outputs: Any, **fields: Any) -> Any:
        """Return the output of a head; a method whose model gives more hands it on here.

        Args:
            output_class: Class of the output.
            outputs: What the model gave.
            fields: `loss`, and the logits.
        """
        return output_class(**fields, hidden_states=outputs.hidden_states, attentions=outputs.attentions)

    def save_pretrained(self, *args, **kwargs) -> None:
        """Save as transformers does, with an `auto_map` that names every head."""
        if self.is_remote_code():
            self.config.auto_map = dict(self.auto_classes)
        super().save_pretrained(*args, **kwargs)
