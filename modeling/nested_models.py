"""Models of ours inside one another: how to find their classes, and which code a checkpoint carries.

transformers copies the files that `from .file import name` lines in a model's file lead to. Such lines for every method
would put the code of all methods into every repository. Therefore this module imports a method by the name of its file,
and a checkpoint gets import lines only for the methods that it nests.
"""

import importlib
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from transformers.dynamic_module_utils import get_relative_import_files

NESTED_CODE = (
    "\n\n# The models nested in this checkpoint: transformers copies the files that these lines name. They never run.\n"
)


def find_config_class(model_type: str) -> Any:
    """Return the configuration class of a method, or None for a stock encoder."""
    # The type may come from a downloaded config.json; only an identifier can be part of a module's name.
    if not model_type.isidentifier() or find_spec(f".configuration_{model_type}", __package__) is None:
        return None
    module = importlib.import_module(f".configuration_{model_type}", __package__)
    return next((each for each in vars(module).values() if getattr(each, "model_type", None) == model_type), None)


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
    if lines:
        # A checkpoint that was loaded from the Hub already has these lines.
        code = here.read_text(encoding="utf-8").partition(NESTED_CODE)[0]
        block = f"{NESTED_CODE}from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n{''.join(lines)}"
        Path(folder, here.name).write_text(code + block, encoding="utf-8")
