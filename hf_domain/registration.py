"""Make our classes known to transformers' Auto classes, and our adapter to peft."""

import importlib

from hf_domain.methods import OWN_TYPES


def register_classes() -> None:
    """Register every configuration, model and adapter; `import hf_domain` does it."""
    import transformers

    from hf_domain.modeling.nested_models import find_model_class

    for model_type in OWN_TYPES:
        base_class = find_model_class(model_type)
        module = importlib.import_module(base_class.__module__)
        transformers.AutoConfig.register(model_type, base_class.config_class, exist_ok=True)
        for auto_class, path in base_class.auto_classes.items():
            if auto_class != "AutoConfig":
                model_class = getattr(module, path.rpartition(".")[2])
                getattr(transformers, auto_class).register(base_class.config_class, model_class, exist_ok=True)
    importlib.import_module("hf_domain.exbert.adapter")  # registers the adapter with peft
    importlib.import_module("hf_domain.lora")  # gives peft the default targets of our models
