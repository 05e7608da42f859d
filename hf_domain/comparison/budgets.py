"""Count the tokens and steps of pre-training."""

import math
from collections.abc import Mapping
from typing import Any


def count_tokens(flags: Mapping[str, Any]) -> int:
    """Return the number of tokens in one step of pre-training."""
    accumulated = int(flags.get("gradient_accumulation_steps", 1))
    return int(flags["per_device_train_batch_size"]) * int(flags["max_seq_length"]) * accumulated


def count_steps(tokens: int, flags: Mapping[str, Any], name: str) -> int:
    """Return the number of steps of pre-training that read this many tokens.

    Args:
        tokens: The budget.
        flags: The flags of the training.
        name: The name of the training, for errors.

    Raises:
        ValueError: One step reads more tokens.
    """
    if tokens < (of_step := count_tokens(flags)):
        raise ValueError(
            f"budget: tokens must be at least those of one step, {of_step} with the batch and the length of "
            f"{name}, but is {tokens}. Raise the budget, or lower per_device_train_batch_size."
        )
    return math.ceil(tokens / of_step)
