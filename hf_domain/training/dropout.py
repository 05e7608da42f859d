"""Train without dropout, which costs time and learns less where a text is read once."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def remove_dropout(model: nn.Module) -> Iterator[None]:
    """Let a model train without dropout; its config keeps the rates, and the model has them again afterwards.

    Dropout hinders masked LM on text that is read once, on this loss and on later tasks (Liu et al. 2025,
    arXiv:2505.24788).
    """
    rates: list[tuple[Any, str, float]] = [
        (module, name, value)
        for module in model.modules()
        for name, value in vars(module).items()
        if ("drop" in name or name == "p") and isinstance(value, float)
    ]
    for module, name, _ in rates:
        setattr(module, name, 0.0)
    try:
        yield
    finally:
        for module, name, value in rates:
            setattr(module, name, value)
