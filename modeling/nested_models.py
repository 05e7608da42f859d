"""Models inside one another: how to find their classes, and which code a checkpoint carries.

transformers copies the files that `from .file import name` lines in a model's file lead to. Such lines for every method
would put the code of all methods into every repository. Therefore this module imports a method by the name of its file,
and a checkpoint gets import lines only for the methods that it nests.

An encoder that is not part of transformers comes with its own code, which a checkpoint of ours carries, too. The top
level of `auto_map` names its classes by the encoder's type: `{"own.AutoModel": "modeling_own.OwnModel"}`.
"""

import importlib
import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import transformers
from transformers.dynamic_module_utils import (
    custom_object_save,
    get_class_from_dynamic_module,
    get_relative_import_files,
)

NESTED_CODE = (
    "\n\n# The models nested in this checkpoint: transformers copies the files that these lines name. They never run.\n"
)


def find_config_class(model_type: str) -> Any:
    """Return the configuration class of a method, or None for a stock encoder."""
    # The type may come from a downloaded config.json; only an identifier can be part of a module's name.
    if not model_type.isidentifier() or find_spec(f".configuration_{model_type}", __package__) is None:
        return None
    module = importlib.import_module(f".configuration_{model_type}", __package__)
    found = (each for each in vars(module).values() if getattr(each, "model_type", None) == model_type)
    # A file of an encoder's own code can have such a name, too.
    return next((each for each in found if "backbone_config" in each.sub_configs), None)


def find_model_class(model_type: str) -> Any:
    """Return the class of a method's model without a head, or None for a stock encoder."""
    config_class = find_config_class(model_type)
    if config_class is None:
        return None
    module = importlib.import_module(f".modeling_{model_type}", __package__)
    return getattr(module, config_class.__name__.removesuffix("Config") + "Model")


def list_nested_types(config: Any) -> set[str]:
    """Return the types of our models inside a model, at every depth."""
    inner = [getattr(config, name) for name in config.sub_configs]
    own = [each for each in inner if find_config_class(each.model_type)]
    return {each.model_type for each in own}.union(*map(list_nested_types, own))


def load_encoder_code(config: Any, auto_map: dict[str, str], name: str, **hub_options) -> None:
    """Give each configuration of `leave_unloaded` inside another the class that it was saved from, in place.

    This runs the code of the checkpoint `name`, whose `auto_map` is given, so call it only if the user trusts it.
    """
    for field in config.sub_configs:
        inner = getattr(config, field)
        if hasattr(inner, "is_unloaded"):
            code: dict[str, Any] = {
                key.rpartition(".")[2]: get_class_from_dynamic_module(reference, name, **hub_options)
                for key, reference in auto_map.items()
                if key.rpartition(".")[0] == inner.model_type
            }
            config_class = code.pop("AutoConfig")
            for auto_class, model_class in code.items():
                getattr(transformers, auto_class).register(config_class, model_class, exist_ok=True)
            saved = {key: value for key, value in inner.to_dict().items() if key != "attribute_map"}
            setattr(config, field, config_class.from_dict(saved))
            getattr(config, field)._attn_implementation = inner._attn_implementation
        elif find_config_class(inner.model_type) is not None:
            load_encoder_code(inner, auto_map, name, **hub_options)


def comes_with_code(model_or_config: Any) -> bool:
    """Return whether transformers loaded the class of an encoder from a checkpoint."""
    return type(model_or_config).__module__.startswith("transformers_modules.")


def list_encoders(config: Any) -> list[Any]:
    """Return the configurations of the encoders inside any nesting of our models."""
    if find_config_class(config.model_type) is None:
        return [config]
    return [each for field in config.sub_configs for each in list_encoders(getattr(config, field))]


def list_encoder_code(config: Any) -> dict[str, type]:
    """Return the classes that come with the encoders inside a model, by their keys in `auto_map`.

    Raises:
        ValueError: A checkpoint cannot carry them, because one name stands for several things.
    """
    models: dict[str, Any] = {"AutoModel": transformers.MODEL_MAPPING}
    models["AutoModelForMaskedLM"] = transformers.MODEL_FOR_MASKED_LM_MAPPING
    files = {file.name: file for file in Path(__file__).parent.glob("*.py")}
    classes, encoders = dict[str, type](), list_encoders(config)
    types = [{each.model_type for each in encoders if comes_with_code(each) is foreign} for foreign in (True, False)]
    clashes = set.intersection(*types)
    for encoder in filter(comes_with_code, encoders):
        found = {auto: mapping[type(encoder)] for auto, mapping in models.items() if type(encoder) in mapping}
        for auto, each in {"AutoConfig": type(encoder), **found}.items():
            key, origin = f"{encoder.model_type}.{auto}", str(sys.modules[each.__module__].__file__)
            if name_class(classes.setdefault(key, each)) != name_class(each):
                clashes.add(key)
            for file in map(Path, [origin, *get_relative_import_files(origin)]):
                if files.setdefault(file.name, file).read_bytes() != file.read_bytes():
                    clashes.add(file.name)
    if clashes:
        raise ValueError(
            "the code of an encoder must have types and files with names of their own, because a checkpoint is one "
            f"folder, but other code also has {', '.join(sorted(clashes))}. Rename them in the encoder's folder."
        )
    return classes


def name_class(given_class: type) -> str:
    """Return how `auto_map` names a class: its file and its name."""
    return f"{given_class.__module__.rpartition('.')[2]}.{given_class.__name__}"


def save_nested_code(config: Any, folder: str | os.PathLike) -> None:
    """Save the code of the methods nested in a model, next to the code that transformers saves."""
    here, lines = Path(__file__), []
    for model_type in sorted(list_nested_types(config) - {config.model_type}):
        model_class = find_model_class(model_type)
        for name, class_name in (
            ("configuration", model_class.config_class.__name__),
            ("modeling", model_class.__name__),
        ):
            file = here.with_name(f"{name}_{model_type}.py")
            lines.append(f"    from .{file.stem} import {class_name}\n")
            for copied in (file, *map(Path, get_relative_import_files(file))):
                shutil.copyfile(copied, Path(folder, copied.name))
    for encoder_class in list_encoder_code(config).values():
        custom_object_save(encoder_class, folder)
    if lines:
        # A checkpoint that was loaded from the Hub already has these lines.
        code = here.read_text(encoding="utf-8").partition(NESTED_CODE)[0]
        block = f"{NESTED_CODE}from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n{''.join(lines)}"
        Path(folder, here.name).write_text(code + block, encoding="utf-8")
