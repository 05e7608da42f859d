"""The options of `TrainingArguments` that functions of Python pass on."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import fields
from difflib import get_close_matches
from typing import Any

from transformers import TrainingArguments

# The functions set these themselves; the last two exclude training.
SET = (
    *("output_dir", "do_train", "do_eval", "do_predict", "learning_rate", "seed", "local_rank"),
    *("bf16_full_eval", "fp16_full_eval"),
)
# Names of `TrainingArguments`, or of other packages, for what an argument of the functions says.
MEANT = {"per_device_train_batch_size": "batch_size", "budget": "num_tokens", "max_length": "max_seq_length"}


def check_names(function: Callable[..., Any], given: Mapping[str, Any], meant: Mapping[str, str]) -> None:
    """Raise a TypeError unless all options are fields of `TrainingArguments` that the function does not set itself.

    Args:
        meant: Arguments of the function by names that mean them, besides `MEANT`.
    """
    meant, own = {**MEANT, **meant}, [*inspect.signature(function).parameters][:-1]
    known = {item.name for item in fields(TrainingArguments) if item.init} - {*SET, *own, *meant}
    for name in given:
        if name not in known:
            near = [meant[name]] if meant.get(name) in own else get_close_matches(name, [*own, *sorted(known)], n=1)
            raise TypeError(
                f"an option of {function.__name__} must be one of its arguments or a field of TrainingArguments that "
                f"it does not set, but is {name}. {f'Did you mean {near[0]}?' if near else 'Leave it out.'}"
            )
