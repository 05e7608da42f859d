"""Make our classes known to transformers' Auto classes, and our adapter to peft."""

import importlib

from hf_domain.methods import OWN_TYPES


def register_classes() -> None:
    """Register every configuration, model and adapter; `import hf_domain` does it."""
    import transformers

    for model_type in OWN_TYPES:
        module = importlib.import_module(f"hf_domain.modeling.modeling_{model_type}")
        config_class = next(each for each in vars(module).values() if getattr(each, "model_type", None) == model_type)
        transformers.AutoConfig.register(model_type, config_class, exist_ok=True)
        base_class = getattr(module, f"{config_class.__name__.removesuffix('Config')}Model")
        for auto_class, path in base_class.auto_classes.items():
            if auto_class != "AutoConfig":
                model_class = getattr(module, path.rpartition(".")[2])
                getattr(transformers, auto_class).register(config_class, model_class, exist_ok=True)
    importlib.import_module("hf_domain.exbert.adapter")  # registers the adapter with peft
    importlib.import_module("hf_domain.lora")  # gives peft the default targets of our models
