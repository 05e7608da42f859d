"""The base class of every model of this package: it wraps an encoder, loads it, and saves it.

A model has an encoder of transformers (or another model of this package) as `backbone` and extends it without copying
its code. The heads are in heads.py.
"""

import copy
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, Self

import torch
import transformers
from torch import nn
from transformers import MODEL_MAPPING, AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedConfig, PreTrainedModel
from transformers import initialization as init

from .configuration_backbone import BackboneConfig, has_encoder_field
from .nested_models import comes_with_code, find_model_class, list_encoder_code, load_encoder_code, name_class

logger = logging.getLogger(__name__)

# Options of `from_pretrained`: where the files lie, and those that a configuration must not take from a model.
HUB_OPTIONS = {"cache_dir", "force_download", "local_files_only", "revision", "subfolder", "token"}
MODEL_OPTIONS = {"attn_implementation", "config", "dtype", "torch_dtype", "trust_remote_code"}


def build_backbone(config: Any) -> PreTrainedModel:
    """Build the encoder of `config` with fresh weights and without a pooler.

    A checkpoint with a masked-LM head has no pooler. A fresh one would be random, and no head here reads it.
    """
    own_class = find_model_class(config.model_type)
    if own_class is not None:
        if not getattr(config, "save_memory", True):
            raise ValueError("the backbone must be saved whole, but is a G-MAP with save_memory=False. Set it to True.")
        return own_class(config)
    if hasattr(config, "is_unloaded"):
        raise ValueError(
            f"the code that comes with the encoder ({config.model_type}) must be trusted before it runs, but is not. "
            "Read it, and pass the argument `trust_remote_code=True` to from_pretrained."
        )
    # Inside another model of ours, transformers leaves the encoder's own configuration with the type that was saved.
    backbone = AutoModel.from_config(config, dtype=torch.get_default_dtype())
    if getattr(backbone, "pooler", None) is not None:
        backbone.pooler = None
    return backbone


def register_encoder(source: PreTrainedModel) -> None:
    """Let `AutoModel` build the encoder of a model that comes with its own code, as it does after it has loaded one.

    Raises:
        ValueError: The code has no configuration class with a type, by which a checkpoint would name it.
    """
    encoder, config_class = find_encoder(source), type(source.config)
    if comes_with_code(source) and not (comes_with_code(source.config) and config_class.model_type):
        raise ValueError(
            "an encoder with its own code must have its own configuration class with a model_type, but a "
            f"{type(source).__name__} has a {config_class.__name__} of the type {config_class.model_type!r}. Add one."
        )
    if comes_with_code(encoder.config) and type(encoder.config) not in MODEL_MAPPING:
        AutoModel.register(type(encoder.config), type(encoder))


def get_native_config(config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the configuration of the stock encoder inside any nesting of our models."""
    while hasattr(config, "backbone_config"):
        config = config.backbone_config
    return config


def get_task(class_name: str) -> str:
    """Return the task in the name of a model's class, such as "TokenClassification"; "" for a model without a head."""
    return class_name.partition("For")[2]


def list_auto_classes(config_class: type[BackboneConfig]) -> dict[str, str]:
    """Return the whole `auto_map` of a method, whose classes begin as its configuration's name does."""
    prefix, model_type = config_class.__name__.removesuffix("Config"), config_class.model_type
    tasks = ("MaskedLM", "SequenceClassification", "TokenClassification", "QuestionAnswering", "MultipleChoice")
    place = f"modeling_{model_type}.{prefix}"
    heads = {f"AutoModelFor{task}": f"{place}For{task}" for task in tasks}
    return {"AutoConfig": f"configuration_{model_type}.{prefix}Config", "AutoModel": f"{place}Model", **heads}


def get_module_name(root: nn.Module, module: nn.Module) -> str:
    """Return the dotted name of `module` inside `root`."""
    return next(name for name, candidate in root.named_modules() if candidate is module)


def find_encoder(model: Any) -> PreTrainedModel:
    """Return the stock encoder inside any nesting of our models."""
    while isinstance(model, BackbonePreTrainedModel):
        model = model.base_model.backbone
    return model.base_model


def find_layers(model: nn.Module) -> nn.ModuleList:
    """Return the layers of an encoder of any family: the first list of modules with linear layers and a norm.

    Layers that share their weights (ALBERT) are one module.

    Raises:
        ValueError: The encoder has no list of layers.
    """
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) and is_layer(module[0]):
            return module
    raise ValueError(
        f"an encoder must have a list of layers, each with attention and feed-forward network, but a "
        f"{type(model).__name__} has none. Use another family."
    )


def is_layer(module: nn.Module) -> bool:
    """Return whether a module has what every layer of an encoder has: two linear layers or more, and a norm."""
    parts: list[Any] = [*module.modules()]
    has_norm = any(part.weight.dim() == 1 for part in parts if isinstance(getattr(part, "weight", None), nn.Parameter))
    return has_norm and sum(isinstance(part, nn.Linear) for part in parts) > 1


def normalizes_first(encoder: nn.Module) -> bool:
    """Return whether the layers of an encoder normalize their inputs, and not their outputs.

    The states are then sums that grow from layer to layer, and the encoder normalizes the last of them: it has a norm
    behind its layers. (A norm beside `rel_embeddings`, DeBERTa-v2's, is that of the positions.)
    """
    layers = find_layers(encoder)
    inside = {*layers.modules()}
    modules = [*encoder.named_modules()]
    behind = modules[[module for _, module in modules].index(layers) :]
    for name, module in behind:
        weight, parent = getattr(module, "weight", None), encoder.get_submodule(name.rpartition(".")[0])
        if module not in inside and isinstance(weight, nn.Parameter) and weight.dim() == 1:
            return not hasattr(parent, "rel_embeddings")
    return False


def train_top_layers(model: Any, num_layers: int) -> None:
    """Train the top layers of the encoder and everything above it; freeze the rest.

    `from_pretrained` undoes this: it makes every parameter trainable.

    Args:
        model: A stock encoder or one of ours, with a task head.
        num_layers: Between 1 and the number of the encoder's layers.

    Raises:
        ValueError: `num_layers` is outside this range.
    """
    encoder = find_encoder(model)
    layers = find_layers(encoder)
    if not 1 <= num_layers <= len(layers):
        raise ValueError(
            f"num_layers must lie between 1 and {len(layers)}, the encoder's layers, but is {num_layers}. Name a layer "
            "that the encoder has."
        )
    encoder.requires_grad_(False)
    above = [*layers[-num_layers:], *(getattr(encoder, name, None) for name in ("final_norm", "pooler"))]
    for module in above:
        if module is not None:
            module.requires_grad_(True)


def needs_gradient(module: nn.Module) -> bool:
    """Return whether any parameter of `module` is trained.

    The configuration cannot answer this: a peft adapter trains inside a module that the method freezes.
    """
    return any(parameter.requires_grad for parameter in module.parameters())


def read_without_waiting(tensor: torch.Tensor) -> Any:
    """Return the values of a tensor on the CPU as an array; None if reading them would wait or break a compiled graph.

    A GPU works behind the host, which would stand idle until all earlier kernels have run.
    """
    if tensor.device.type != "cpu" or torch.compiler.is_compiling():
        return None
    return tensor.numpy()


def load_matching_weights(
    module: nn.Module, state_dict: dict[str, torch.Tensor], what: str, added_modules: tuple[str, ...] = ()
) -> None:
    """Load `state_dict` into `module` and raise if a parameter is missing.

    Superfluous keys, such as those of a pooler, are ignored. So are missing buffers.

    Args:
        what: The name of `module` in the error.
        added_modules: Names of modules inside `module` that the checkpoint cannot have; they keep their weights.

    Raises:
        ValueError: `state_dict` lacks a parameter of `module`.
    """
    missing = module.load_state_dict(state_dict, strict=False).missing_keys
    parameters = dict(module.named_parameters(remove_duplicate=False))
    if lost := [key for key in missing if key in parameters and set(added_modules).isdisjoint(key.split("."))]:
        raise ValueError(
            f"{what} must have all weights of the configured architecture, but lacks {', '.join(lost[:5])}. Use a "
            "checkpoint of this architecture."
        )


def read_head(model: Any) -> dict[str, torch.Tensor]:
    """Return the weights of the head of a task by name, in their order, with those of a pooler that it reads."""
    if model.base_model is model:
        return {}
    encoder = f"{model.base_model_prefix}."
    weights = model.state_dict().items()
    return {name: each for name, each in weights if not name.startswith(encoder) or ".pooler." in name}


@contextmanager
def explain_family(model_class: type, source: PreTrainedModel) -> Iterator[None]:
    """Turn what the code of an unsupported family stops with into one sentence.

    Raises:
        ValueError: It stops.
    """
    try:
        yield
    except (AttributeError, LookupError, NotImplementedError, RuntimeError, StopIteration, TypeError) as error:
        raise ValueError(
            f"a {model_class.__name__} must run around its encoder, but around a {type(source).__name__} it stops with "
            f"{type(error).__name__}: {error}. Use another family."
        ) from error


class HeadLinear(nn.Linear):
    """A layer of a task head, drawn with the standard deviation `config.head_initializer_range`.

    If that is None, the layer's outputs start with a standard deviation of `OUTPUT_SPREAD`, assuming inputs with one of
    1, as a LayerNorm gives. The scripts measure the inputs instead (hf_domain/tasks/heads.py).
    """

    OUTPUT_SPREAD = 0.5


class BackbonePreTrainedModel(PreTrainedModel):
    """Base of every model of this package.

    A method sets four class attributes: `config_class`; `base_class`, the model without a head; `added_modules`, the
    names of what it adds inside the encoder or the LM head; and `auto_classes`, the whole `auto_map` of a repository.
    transformers would record only the class that was saved, and `AutoModel` would refuse a masked LM's repository.
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
        """Build this model from a pretrained encoder, with the encoder's head if this model has one.

        The labels and the problem type of a fine-tuned encoder come along, unless `options` set others. A task head
        starts at random if the encoder has another one; a warning says so.

        Args:
            backbone: Name or folder of a checkpoint, or a loaded model (with any head or none), whose weights are
                copied.
            revision: Branch, tag or commit on the Hub.
            token: Hub token.
            cache_dir: Folder for downloads.
            dtype: Type of the weights when `backbone` is a name. float32 is our choice: transformers would keep the
                checkpoint's type, and a bfloat16 checkpoint would then train in bfloat16.
            trust_remote_code: Whether code of the backbone's repository may run; never read from a configuration.
            options: Fields of this model's configuration or of the encoder's (`hidden_dropout_prob`), and
                `attn_implementation`.

        Raises:
            ValueError: An option is not a field of the configuration, the encoder cannot be a backbone, or an untied
                decoder would be tied.
        """
        hub_options: Any = {"revision": revision or "main", "token": token, "cache_dir": cache_dir}
        hub_options["trust_remote_code"] = trust_remote_code
        is_name = isinstance(backbone, str)
        source: Any = backbone
        given: Any = AutoConfig.from_pretrained(source, **hub_options) if is_name else source.config
        allowed = {field.name for field in fields(cls.config_class)} | {"num_labels", "attn_implementation"}
        if unknown := sorted(name for name in options.keys() - allowed if not has_encoder_field(given, name)):
            own = sorted(set(cls.config_class.__annotations__))
            raise ValueError(
                f"options must be of {cls.config_class.__name__} ({', '.join(own)}), but it has no option "
                f"{', '.join(unknown)}. Correct the name, or set fields of the encoder in its own config."
            )
        if is_name:
            has_head = get_task(cls.__name__) in map(get_task, given.architectures or ["ForMaskedLM"])
            auto_class: Any = AutoModelForMaskedLM
            if has_head and cls.base_class is not cls:
                auto_class = getattr(transformers, f"AutoModelFor{get_task(cls.__name__)}")
            source = auto_class.from_pretrained(backbone, dtype=dtype, **hub_options)
        with explain_family(cls, source):
            decoder: Any = source.get_output_embeddings()
            is_untied = decoder is not None and decoder.weight is not source.get_input_embeddings().weight
        # Tying would overwrite the embeddings with the decoder.
        if is_untied and options.setdefault("tie_word_embeddings", False):
            raise ValueError(
                f"tie_word_embeddings must be False, because the decoder of this {type(source).__name__} does not "
                "share the embedding table, but is True. Leave it out."
            )
        encoder = source.base_model
        register_encoder(source)
        if encoder.config.is_encoder_decoder or encoder.config.get_text_config() is not encoder.config:
            raise ValueError(
                f"the backbone of a {cls.__name__} must be an encoder of text alone, but a {type(encoder).__name__} is "
                "more. Use another family."
            )
        cls.check_is_new(encoder.config)
        if options.keys().isdisjoint({"num_labels", "id2label"}):
            labels = ("id2label", "label2id", "problem_type")
            options = {name: getattr(source.config, name) for name in labels} | options
        with explain_family(cls, source):
            config = cls.config_class(backbone_config=encoder.config, **options)
            list_encoder_code(config)  # raises if no checkpoint could carry it
            model = cls(config).to(source.dtype)
        load_matching_weights(model.get_backbone(), encoder.state_dict(), "the backbone", cls.added_modules)
        model.load_head(source)
        model.tie_weights()
        with explain_family(cls, source):
            model.run_on_a_few_tokens()
        return model

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args, **kwargs) -> Any:
        """Load as transformers does, then freeze what the method freezes, since loading makes everything trainable.

        Code of the encoder that comes with the checkpoint runs only with `trust_remote_code=True`.

        Only safetensors are read. A pickle can run code, and none of our models was ever saved as one.
        """
        if kwargs.get("trust_remote_code"):
            kwargs = cls.add_encoder_code(pretrained_model_name_or_path, kwargs)
        output = super().from_pretrained(pretrained_model_name_or_path, *args, **{"use_safetensors": True, **kwargs})
        for module in (output[0] if isinstance(output, tuple) else output).modules():
            if isinstance(module, BackbonePreTrainedModel):  # also a backbone inside another model
                module.freeze_parameters()
        return output

    @classmethod
    def add_encoder_code(cls, name: Any, options: dict[str, Any]) -> dict[str, Any]:
        """Return the options of a trusting `from_pretrained`, with a config whose encoders have their own classes."""
        hub_options = {key: options[key] for key in HUB_OPTIONS & options.keys()}
        config = options.get("config")
        if not isinstance(config, PreTrainedConfig):
            kept = {key: options.pop(key) for key in MODEL_OPTIONS & options.keys()}
            config, options = cls.config_class.from_pretrained(config or name, return_unused_kwargs=True, **options)
            options |= kept | hub_options
        config = copy.deepcopy(config)
        load_encoder_code(config, getattr(config, "auto_map", None) or {}, name, **hub_options)
        return options | {"config": config}

    @classmethod
    def check_is_new(cls, config: Any) -> None:
        """Raise if the encoder has this method already: the new part would read in place of the trained one.

        Raises:
            ValueError: It has.
        """
        while hasattr(config, "backbone_config"):
            if config.model_type == cls.config_class.model_type:
                raise ValueError(
                    f"the backbone of {cls.__name__} must not have its method already, but it is of the type "
                    f"{config.model_type}, or has such a model inside. Load the checkpoint by "
                    f"{cls.__name__}.from_pretrained, which keeps what it learned."
                )
            config = config.backbone_config

    @torch.no_grad()
    def run_on_a_few_tokens(self) -> None:
        """Run a new model and its LM head: whether a family fits shows in what its code does."""
        self.eval()
        ids = torch.zeros(1, 4, dtype=torch.long, device=self.device)
        config: Any = self.config
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        if getattr(config, "memory_tokenizer", None) == "own":
            inputs["memory_input_ids"] = ids
        states = self.base_model(**inputs).last_hidden_state
        if (decode := getattr(self, "decode", None)) is not None:
            decode(states.flatten(0, 1))

    @torch.no_grad()
    def load_head(self, source: PreTrainedModel) -> None:
        """Copy the task head of `source` if it has the same labels and shapes, or warn that this one is random."""
        if self.base_model is self:
            return
        own = read_head(self)
        found = read_head(source) if get_task(type(source).__name__) == get_task(type(self).__name__) else {}
        fits = [each.shape for each in own.values()] == [each.shape for each in found.values()]
        if fits and self.config.id2label == source.config.id2label:
            for weight, trained in zip(own.values(), found.values(), strict=True):
                weight.copy_(trained)
            own = {}
        if own:
            parts = ", ".join(dict.fromkeys(name.rpartition(".")[0] for name in own))
            logger.warning(
                f"{parts} of the {type(self).__name__} start at random, because a {type(source).__name__} has no head "
                "of these shapes and labels"
            )
        self.new_weights = frozenset(own)  # the scripts start these from the states that they read

    def freeze_parameters(self) -> None:
        """Freeze what the method does not train. The default freezes nothing."""

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
        """Run the encoder and return its output.

        Args:
            input_ids: `[batch, length]`.
            attention_mask: `[batch, length]`, 0 at padding.
            token_type_ids: `[batch, length]`, for families that have them.
            position_ids: `[batch, length]`.
            inputs_embeds: `[batch, length, hidden_size]` instead of `input_ids`.
            kwargs: Passed to the encoder. `output_hidden_states` and `output_attentions` default to the configuration.
        """
        for name in ("output_hidden_states", "output_attentions"):
            if getattr(self.config, name):
                kwargs.setdefault(name, getattr(self.config, name))  # the encoder reads only its own configuration
        names = ("input_ids", "attention_mask", "token_type_ids", "position_ids", "inputs_embeds")
        values = (input_ids, attention_mask, token_type_ids, position_ids, inputs_embeds)
        kwargs |= dict(zip(names, values, strict=True))
        kwargs["return_dict"] = True
        # Leave out None: a family without token types would pass it on to its attention function.
        return self.get_backbone()(**{name: value for name, value in kwargs.items() if value is not None})

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding table of the encoder."""
        return self.get_backbone().get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the embedding table of the encoder."""
        self.get_backbone().set_input_embeddings(value)

    def resize_token_embeddings(self, *args, **kwargs) -> Any:
        """Resize as transformers does, or as the backbone does if it is one of ours: an exBERT grows its extension."""
        backbone = self.get_backbone()
        before: Any = self.get_input_embeddings()
        old_size, followers = before.num_embeddings, [*self.modules()]
        if isinstance(backbone, BackbonePreTrainedModel) and self.get_output_embeddings() is None:
            table: Any = backbone.resize_token_embeddings(*args, **kwargs)
            inner = {*backbone.modules()}  # these have followed already
            followers = [module for module in followers if module not in inner]
        else:
            table = super().resize_token_embeddings(*args, **kwargs)
        if table.num_embeddings != old_size:
            for module in followers:
                if isinstance(module, BackbonePreTrainedModel):  # also where it is the backbone of another
                    module.follow_resized_table(table, old_size)
        return table

    def follow_resized_table(self, table: nn.Module, old_size: int) -> None:
        """Resize what else reads the ids of the encoder; nothing by default."""

    def build_output(self, output_class: Any, outputs: Any, **fields: Any) -> Any:
        """Build the output of a head. A method whose model returns more fields overrides this to keep them.

        Args:
            fields: `loss`, and the logits.
        """
        return output_class(**fields, hidden_states=outputs.hidden_states, attentions=outputs.attentions)

    def save_pretrained(self, *args, **kwargs) -> None:
        """Save as transformers does, with an `auto_map` that names every head."""
        if self.is_remote_code():
            code = {key: name_class(each) for key, each in list_encoder_code(self.config).items()}
            self.config.auto_map = {**self.auto_classes, **code}
        super().save_pretrained(*args, **kwargs)
