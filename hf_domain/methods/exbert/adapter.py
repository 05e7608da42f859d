"""exBERT as a peft adapter: a domain in a small file, an unchanged base, and several domains on one base.

    base = AutoModelForMaskedLM.from_pretrained("bert-base-uncased")
    config = ExBertAdapterConfig.from_vocabulary(delta, base.config.vocab_size, modules_to_save=list_head_modules(base))
    model = get_peft_model(base, config)

It supports Trainer, saving, several adapters, switching, disabling, unloading and `modules_to_save`. Run
`import hf_domain` before loading an adapter; otherwise peft does not know its type and raises `KeyError: 'EXBERT'`.
"""

import copy
import os
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, Self

import peft
import torch
from peft import PeftConfig
from peft.tuners.tuners_utils import BaseTuner, BaseTunerLayer
from peft.utils import PeftType, register_peft_method
from torch import nn
from torch.nn import functional as F
from transformers import PreTrainedModel

from hf_domain.methods.exbert.card import write_adapter_card
from hf_domain.modeling.backbone import find_encoder, find_layers, get_module_name, get_native_config, normalizes_first
from hf_domain.modeling.configuration_exbert import ExBertConfig
from hf_domain.modeling.layers_exbert import (
    ExtendedEmbedding,
    ExtendedLayer,
    ExtensionTable,
    SideLayer,
    VocabularyDelta,
    check_extension_start,
    extend,
    initialize_added,
    read_extension_vocabulary,
    restore,
)

# Fields of the base that an adapter records, to detect another base when it is loaded.
BASE_FIELDS = ("model_type", "hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
# Fields that an adapter shares with `ExBertConfig`.
OPTIONS = (
    "extension_vocab_size",
    "base_vocab_size",
    "extension_size",
    "extension_hidden_size",
    "extension_intermediate_size",
    "side_init",
    "gate_bias_init",
)


def add_peft_type(name: str) -> None:
    """Add a member to peft's enumeration of methods, which registering requires; a second call does nothing."""
    if name in PeftType.__members__:
        return
    member: Any = str.__new__(PeftType, name)
    member._name_ = member._value_ = name
    member._sort_order_ = len(PeftType.__members__)
    type.__setattr__(PeftType, name, member)
    PeftType._member_names_.append(name)
    PeftType._member_map_[name] = PeftType._value2member_map_[name] = member


@dataclass
class ExBertAdapterConfig(PeftConfig):
    """Configuration of exBERT as an adapter; fields and defaults are those of `ExBertConfig`.

    Args:
        extension_vocab_size: Entries of the extension vocabulary; 0 has none.
        base_vocab_size: Ids below it belong to the base; None takes all rows of the base's table.
        extension_size: A size of the paper, in percent of the base's layers, scaled to the width of the base.
        extension_hidden_size: Overrides it; 0 has no side modules.
        extension_intermediate_size: Overrides it.
        side_init: "normal" draws the side modules (the paper), "base" cuts them out of the base's layers.
        gate_bias_init: Initial bias of the gates; 0 is the paper's, 6 starts with 99.8 % of the base.
        modules_to_save: Further modules to train and save. The paper trains the LM head's transform, and fine-tuning
            needs its classifier: `list_head_modules(model)` names them.
        target_modules: Set from the base.
        base_shape: Set from the base, to detect another one.

    Raises:
        ImportError: The installed peft is too old.
    """

    extension_vocab_size: int = 0
    base_vocab_size: int | None = None
    extension_size: float = 33.2
    extension_hidden_size: int | None = None
    extension_intermediate_size: int | None = None
    side_init: Literal["normal", "base"] = "normal"
    gate_bias_init: float = 0.0
    modules_to_save: list[str] | None = None
    target_modules: list[str] | None = None
    base_shape: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        self.peft_type = PeftType["EXBERT"]
        if not hasattr(BaseTuner, "_remove_adapter_name_from_key"):
            raise ImportError(
                f"an exBERT adapter needs peft 0.21 or newer, but finds {peft.__version__}. Upgrade peft."
            )

    @classmethod
    def from_vocabulary(
        cls, vocabulary: VocabularyDelta | Mapping[int, list[int]], base_vocab_size: int, **options: Any
    ) -> Self:
        """Build the configuration for an extension vocabulary, given as to `ExBertModel.from_backbone`.

        Args:
            vocabulary: A `VocabularyDelta`, or a mapping of each new id to the old ids that spelled it.
            base_vocab_size: Rows of the base's table (`model.config.vocab_size`), which may be padded.
            options: Further fields.

        Raises:
            ValueError: The extension vocabulary does not start where the base's ends.
        """
        start, pieces = read_extension_vocabulary(vocabulary)
        check_extension_start(start, base_vocab_size)
        return cls(extension_vocab_size=len(pieces), base_vocab_size=start, **options)

    def get_options(self) -> dict[str, Any]:
        """Return the fields that `ExBertConfig` has too."""
        return {name: getattr(self, name) for name in OPTIONS}

    def build_exbert_config(self, model: PreTrainedModel) -> ExBertConfig:
        """Return the configuration of an exBERT with the same extension around `model`."""
        return ExBertConfig(backbone_config=find_encoder(model).config, **self.get_options())

    def save_pretrained(self, save_directory: str, **kwargs) -> None:
        """Save as peft does, with a card that says how to load the adapter."""
        super().save_pretrained(save_directory, **kwargs)
        write_adapter_card(save_directory, self.base_model_name_or_path or "", Path(save_directory).resolve().name)


# ------------------------------------------------------------------------- parts beside the base


class ExBertAdapterLayer(nn.Module, BaseTunerLayer):
    """The adapters of one module of the base, by adapter name; one of them is active."""

    adapter_layer_names = ("exbert_adapters",)

    def __init__(self, base: nn.Module):
        super().__init__()
        self.exbert_adapters = nn.ModuleDict()
        # Registered as a submodule, the base's module would be saved with the adapter. A tuple hides it.
        self.base_weights = (next(base.parameters()),)

    def get_base_layer(self) -> Any:
        """Return the base's module with a weight; peft moves adapters to its device and type."""
        return SimpleNamespace(weight=self.base_weights[0])

    def set_adapter(self, adapter_names: str | list[str], *args, **kwargs) -> None:
        """Switch adapters, as every layer of peft does.

        Raises:
            ValueError: More than one name is given.
        """
        if not isinstance(adapter_names, str) and len(adapter_names) > 1:
            raise ValueError(
                "one exBERT adapter must be active at a time, because ids beyond the base's mean different words "
                f"in each, but these are to be: {', '.join(adapter_names)}. Call set_adapter with one name."
            )
        super().set_adapter(adapter_names, *args, **kwargs)

    def get_active(self) -> Any:
        """Return the active adapter's part; None if adapters are disabled or it has no part here."""
        if self.disable_adapters:
            return None
        return next((self.exbert_adapters[name] for name in self.active_adapters if name in self.exbert_adapters), None)


class SideAdapters(ExBertAdapterLayer):
    """The child `side` of a layer of the base."""

    def forward(
        self, hidden_states: torch.Tensor, attention_mask: torch.Tensor | None, base_output: torch.Tensor
    ) -> torch.Tensor:
        """Mix as `SideLayer` does, in the type of the adapter's weights; return `base_output` without an adapter."""
        side = self.get_active()
        if side is None:
            return base_output
        dtype = side.gate.weight.dtype
        return side(hidden_states.to(dtype), attention_mask, base_output.to(dtype)).to(base_output.dtype)


class TableAdapters(ExBertAdapterLayer):
    """The child `extension` of the base's embedding table."""

    @property
    def weight(self) -> torch.Tensor:
        """The table of the active adapter; empty without one."""
        table = self.get_active()
        return self.base_weights[0][:0] if table is None else table.weight

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """Look up rows in the active adapter's table."""
        return self.get_active()(indices)


class DecoderBias(nn.Module):
    """Biases of the decoder: a change of the base's, and the extension's own. The tables serve as its weights.

    The paper trains the base's biases with or without an extension vocabulary.
    """

    def __init__(self, base_vocab_size: int, extension_vocab_size: int):
        super().__init__()
        self.base_bias = nn.Parameter(torch.zeros(base_vocab_size))
        # An empty one would never get a gradient, which stops training on several processes.
        self.extension_bias = nn.Parameter(torch.zeros(extension_vocab_size)) if extension_vocab_size else None

    def __len__(self) -> int:
        return len(self.base_bias) + (0 if self.extension_bias is None else len(self.extension_bias))


class DecoderAdapters(ExBertAdapterLayer):
    """The child `adapters` of the base's decoder. It keeps `vocab_size` in the base's configuration up to date.

    Stock heads reshape their logits by that number.
    """

    def __init__(self, base: nn.Module, model: PreTrainedModel):
        super().__init__(base)
        self.tables: tuple[Any, ...] = (model.get_input_embeddings(),)
        self.base_config = model.config
        self.base_rows = base.out_features

    def forward(self, hidden_states: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Return the base's `logits`, `[..., base rows]`, followed by the extension's."""
        bias = self.get_active()
        if bias is None:
            return logits
        dtype = hidden_states.dtype
        base = logits[..., : len(bias.base_bias)] + bias.base_bias.to(dtype)
        if bias.extension_bias is None:
            return base
        weight = self.tables[0].extension.weight.to(dtype)
        return torch.cat([base, F.linear(hidden_states, weight, bias.extension_bias.to(dtype))], dim=-1)

    def update_vocab_size(self) -> None:
        """Write the current number of logits into the configuration."""
        bias = self.get_active()
        self.base_config.vocab_size = self.base_rows if bias is None else len(bias)

    def set_adapter(self, *args, **kwargs) -> None:
        """Switch adapters, as every layer of peft does."""
        super().set_adapter(*args, **kwargs)
        self.update_vocab_size()

    def enable_adapters(self, enabled: bool) -> None:
        """Switch adapters on or off, as every layer of peft does."""
        super().enable_adapters(enabled)
        self.update_vocab_size()


class AdaptedDecoder(nn.Linear):
    """Mixed into the class of the base's decoder."""

    adapters: nn.Module

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Map `[..., in_features]` to the logits of the base and the active adapter."""
        return self.adapters(hidden_states, super().forward(hidden_states))


# --------------------------------------------------------------------------------------------- the tuner


class ExBertAdapterModel(BaseTuner):
    """Puts exBERT adapters beside the modules of a base; peft creates it for an `ExBertAdapterConfig`."""

    prefix = "exbert_"
    tuner_layer_cls = ExBertAdapterLayer
    target_module_mapping: dict[str, list[str]] = {}

    def _pre_injection_hook(self, model: nn.Module, config: PeftConfig, adapter_name: str) -> None:
        # peft compares `vocab_size` of this object with the base's. If they differ, it takes the base for resized and
        # saves the whole table. Therefore only the base's own copy follows the active adapter.
        self.config = model.config
        model.config = copy.deepcopy(model.config)

    def inject_adapter(self, model: nn.Module, adapter_name: str, *args, **kwargs) -> None:
        """Add an adapter, as every tuner does.

        Raises:
            ValueError: The adapter's name is part of a weight's name; peft drops such weights when it saves another.
        """
        with torch.device("meta"):
            side_names = SideLayer(ExBertConfig()).state_dict()
        names = [*model.state_dict(), *side_names, "side", "extension", "adapters.base_bias.extension_bias"]
        if adapter_name in {part for name in names for part in name.split(".")}:
            raise ValueError(
                f"the name of an adapter must not be that of a module of the model, but {adapter_name!r} is. "
                "Choose another name."
            )
        warn_of_idle_head(model, self.peft_config[adapter_name])
        super().inject_adapter(model, adapter_name, *args, **kwargs)

    @contextmanager
    def _enable_peft_forward_hooks(self, *args, **kwargs) -> Iterator[None]:
        if kwargs.get("adapter_names") is not None:
            raise ValueError(
                "one exBERT adapter must serve all rows of a batch, but adapter_names gives each row its own; run one "
                "batch for each adapter, after set_adapter"
            )
        yield

    def _prepare_adapter_config(self, peft_config: Any, model_config: dict) -> PeftConfig:
        check_base(peft_config, self.model)
        exbert_config = peft_config.build_exbert_config(self.model)
        peft_config.base_vocab_size = exbert_config.base_vocab_size
        targets: list[nn.Module] = []
        if exbert_config.extension_hidden_size:
            targets += find_layers(find_encoder(self.model))
        if exbert_config.extension_vocab_size:
            targets.append(self.model.get_input_embeddings())
        if (decoder := self.model.get_output_embeddings()) is not None:
            targets.append(decoder)
        peft_config.target_modules = [get_module_name(self.model, target) for target in targets]
        return peft_config

    def _check_tied_modules(self, model: nn.Module, peft_config: PeftConfig) -> None:
        """Skip peft's check: base tables are not trained, and the extension's decoder shares the extension's table."""

    @staticmethod
    def _check_target_module_exists(peft_config: Any, key: str) -> bool:
        return key in peft_config.target_modules

    def _create_and_replace(
        self,
        peft_config: Any,
        adapter_name: str,
        target: Any,
        target_name: str,
        parent: nn.Module,
        current_key: str,
        parameter_name: str | None = None,
    ) -> None:
        config: Any = peft_config.build_exbert_config(self.model)
        start = config.base_vocab_size
        part: nn.Module
        if target is self.model.get_input_embeddings():
            part = ExtensionTable(config.extension_vocab_size, target.embedding_dim)
            if not isinstance(target, ExtendedEmbedding):
                extend(target, ExtendedEmbedding, extension=TableAdapters(target), extension_start=start)
            adapters = target.extension
            if target.extension_start != start:
                raise ValueError(
                    f"adapters on one base must start their extension at the same id, but {adapter_name!r} starts at "
                    f"{start} and another adapter at {target.extension_start}. Use adapters of one vocabulary."
                )
        elif target is self.model.get_output_embeddings():
            if target.bias is None:
                raise ValueError("the base's decoder must have a bias, which an exBERT adapter changes, but has none")
            part = DecoderBias(start, config.extension_vocab_size)
            if not isinstance(target, AdaptedDecoder):
                extend(target, AdaptedDecoder, adapters=DecoderAdapters(target, self.model))
            adapters = target.adapters
        else:
            part = SideLayer(config, normalizes_first(find_encoder(self.model)))
            if not isinstance(getattr(target, "side", None), SideAdapters):
                extend(target, ExtendedLayer, side=SideAdapters(target))
            adapters = target.side
        for module in part.modules():
            PreTrainedModel._init_weights(self.model, module)
            initialize_added(module, config.initializer_range)
        if isinstance(part, SideLayer) and config.side_init == "base":
            part.cut_from_base(target)
        adapters.exbert_adapters[adapter_name] = part
        adapters._move_adapter_to_device_of_base_layer(adapter_name)

    def _check_merge_allowed(self) -> None:
        raise ValueError("an exBERT adapter cannot be merged, because its gates depend on the token. Use unload().")

    def _unload_and_optionally_merge(self, merge: bool = True, *args, **kwargs) -> Any:
        if merge:
            self._check_merge_allowed()
        for module in list(self.model.modules()):
            if isinstance(module, ExtendedLayer):
                restore(module, "side")
            elif isinstance(module, ExtendedEmbedding):
                restore(module, "extension", "extension_start")
            elif isinstance(module, AdaptedDecoder):
                restore(module, "adapters")
        self.model.config = self.config
        return super()._unload_and_optionally_merge(False, *args, **kwargs)

    def _replace_module(self, parent: nn.Module, child_name: str, new_module: nn.Module, child: nn.Module) -> None:
        # Called only by unloading, for `modules_to_save`; peft's own version would leave the trained module in the
        # base.
        setattr(parent, child_name, child.original_module)

    @classmethod
    def _remove_adapter_name_from_key(cls, key: str, adapter_name: str) -> str:
        # An adapter's parts are nested modules; peft looks for the name only at the end of the key.
        return key.replace(f".exbert_adapters.{adapter_name}.", ".exbert_adapters.", 1)


def check_base(config: ExBertAdapterConfig, model: PreTrainedModel) -> None:
    """Record the base of a new adapter; check that a loaded adapter is on the base it was trained on.

    Raises:
        ValueError: The base has another shape. Another name only warns, since the base may be a copy.
    """
    native = get_native_config(model.config)
    shape = {name: getattr(native, name) for name in BASE_FIELDS}
    shape["vocab_size"] = model.get_input_embeddings().num_embeddings
    name, trained_on = model.name_or_path, config.base_model_name_or_path
    if not config.base_shape:
        config.base_shape = shape
        return
    # AutoPeftModel resizes the base to the tokenizer beside the adapter; the extra rows are never used.
    expected = config.base_shape
    sizes = (expected["vocab_size"], (config.base_vocab_size or expected["vocab_size"]) + config.extension_vocab_size)
    if shape | {"vocab_size": 0} != expected | {"vocab_size": 0} or shape["vocab_size"] not in sizes:
        raise ValueError(
            f"an adapter must be loaded on the base it was trained on, {trained_on or 'a base'} with {expected}, but "
            f"is loaded on {name or 'a base'} with {shape}. Load that base."
        )
    if name and trained_on and os.path.basename(name) != os.path.basename(trained_on):
        warnings.warn(
            (
                f"this adapter was trained on {trained_on} but is loaded on {name}, which has the same shape; its "
                f"predictions are meaningless unless {name} is a copy"
            ),
            stacklevel=2,
        )


def list_head_modules(model: PreTrainedModel) -> list[str]:
    """List the modules between encoder and output: a classifier and its pooler, or the LM head without its decoder.

    For `modules_to_save`: stage 1 of the paper trains the LM head's transform, and fine-tuning trains its classifier.
    """
    apart = {model.base_model, model.get_output_embeddings()}

    def visit(module: nn.Module, name: str) -> list[str]:
        if apart.isdisjoint(module.modules()):
            return [name] if any(True for _ in module.parameters()) else []
        # A checkpoint of a masked LM has no pooler, so that of a classifier is new.
        children = [each for each in module.named_children() if module not in apart or each[0] == "pooler"]
        return [found for child_name, child in children for found in visit(child, f"{name}.{child_name}".lstrip("."))]

    return visit(model, "")


def warn_of_idle_head(model: Any, config: Any) -> None:
    """Warn if an adapter to be trained neither trains nor saves a task's head. A masked LM's decoder is its table."""
    if config.inference_mode or model.base_model is model or model.get_output_embeddings() is not None:
        return
    heads, saved = list_head_modules(model), config.modules_to_save or []
    if heads and not any(f".{name}." in f".{head}." for head in heads for name in saved):
        warnings.warn(
            (
                f"modules_to_save should name the head of the task ({', '.join(heads)}), but names "
                f"{', '.join(saved) or 'nothing'}: no head is trained or saved. Load the adapter with "
                "hf_domain.methods.exbert.convert.load_under_head, or set modules_to_save=list_head_modules(base)."
            ),
            stacklevel=2,
        )


add_peft_type("EXBERT")
if PeftType["EXBERT"] not in peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING:
    register_peft_method(name="exbert", config_cls=ExBertAdapterConfig, model_cls=ExBertAdapterModel)
