"""Make our classes known to transformers' Auto classes and to peft, without slow imports.

Configurations are registered when transformers' `AutoConfig` is imported, and the adapter when peft is. Models are
registered when the first of our configurations is created: every Auto class creates or gets one before it looks for a
model. So `import hf_domain` imports neither transformers nor torch, and the command answers `--help` at once.
"""

import importlib
import sys
from collections.abc import Callable
from functools import cache
from importlib.abc import MetaPathFinder
from typing import Any

from hf_domain.methods import OWN_TYPES
from hf_domain.methods.lora_targets import LORA_TARGETS


def register_on_import() -> None:
    """Register every configuration, model and adapter once their libraries are imported; `import hf_domain` does it."""
    for module, register in (
        ("transformers.models.auto.configuration_auto", register_configs),
        ("peft", register_adapters),
    ):
        if module in sys.modules:
            register()
        else:
            sys.meta_path.insert(0, CallAfterImport(module, register))


def register_configs() -> None:
    """Register the configurations with `AutoConfig`."""
    from transformers import AutoConfig

    from hf_domain.modeling.configuration_backbone import BackboneConfig
    from hf_domain.modeling.nested_models import find_config_class

    for model_type in OWN_TYPES:
        if config_class := find_config_class(model_type):  # another package registers its own
            AutoConfig.register(model_type, config_class, exist_ok=True)
    BackboneConfig.prepare_models = staticmethod(register_models)  # type: ignore[method-assign]


@cache
def register_models() -> None:
    """Register the models with the Auto classes, once."""
    import transformers

    from hf_domain.modeling.nested_models import find_model_class

    for base_class in filter(None, map(find_model_class, OWN_TYPES)):
        module = importlib.import_module(base_class.__module__)
        for auto_class, path in base_class.auto_classes.items():
            if auto_class != "AutoConfig":
                model_class = getattr(module, path.rpartition(".")[2])
                getattr(transformers, auto_class).register(base_class.config_class, model_class, exist_ok=True)


def register_adapters() -> None:
    """Register our adapter with peft, and the default `target_modules` of a `LoraConfig` on our models."""
    from peft.utils import TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING

    TRANSFORMERS_MODELS_TO_LORA_TARGET_MODULES_MAPPING.update(dict.fromkeys(OWN_TYPES, LORA_TARGETS))
    importlib.import_module("hf_domain.methods.exbert.adapter")  # registers itself


class CallAfterImport(MetaPathFinder):
    """Calls a function once a module is imported; the other finders find the module."""

    def __init__(self, name: str, function: Callable[[], None]):
        self.name, self.function = name, function

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec that the others find for the module; looking for it alone calls nothing."""
        if name != self.name:
            return None
        others = (each.find_spec(name, path, target) for each in sys.meta_path if not isinstance(each, CallAfterImport))
        spec = next(filter(None, others), None)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            loader.exec_module = self.wrap(loader.exec_module)
        return spec

    def wrap(self, execute: Callable[[Any], None]) -> Callable[[Any], None]:
        """Return what executes the module and then calls the function."""

        def execute_and_call(module: Any) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.function()

        return execute_and_call
