"""Published recipes of continued pre-training, as tables of defaults for the flags of masked LM.

What the user sets wins over a recipe. docs/guides/adapt.md names the source of each value.
"""

import math
from dataclasses import fields
from typing import Any

from transformers import TrainingArguments
from transformers.trainer_utils import SchedulerType
from transformers.utils import is_flash_attn_2_available

TRAINING_RECIPES: dict[str, dict[str, Any]] = {
    "modernbert": {
        "lr_scheduler_type": SchedulerType.WARMUP_STABLE_DECAY.value,
        "warmup_steps": 0.0,
        "mlm_probability": 0.3,
        "decay_mlm_probability": 0.15,
        "document_boundaries": True,
        "max_seq_length": 1024,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-6,
        # Theirs is 1e-5 of a weight in each step, which AdamW multiplies by the rate: 1e-5 / 3e-4.
        "weight_decay": 0.033,
    }
}
# The share of the steps in which the rate decays, and how, where a schedule with a decay does not say so.
DECAY = 0.1
DECAY_OPTIONS = {"decay_type": "1-sqrt", "min_lr_ratio": 1e-3}


def list_defaults(recipe: str | None) -> dict[str, Any]:
    """Return the defaults of a recipe, with those that depend on this machine; none without a recipe."""
    if recipe is None:
        return {}
    return TRAINING_RECIPES[recipe] | {
        "attn_implementation": "flash_attention_2" if is_flash_attn_2_available() else None
    }


def pick_defaults(defaults: dict[str, Any], kind: type) -> dict[str, Any]:
    """Return the defaults that are fields of a dataclass of arguments."""
    return {item.name: defaults[item.name] for item in fields(kind) if item.name in defaults}


def find_decay(args: TrainingArguments, num_steps: int, is_whole: bool = False) -> int | None:
    """Return the first step in which the learning rate decays; None if the schedule has no such phase.

    Args:
        args: `lr_scheduler_kwargs` is completed if it does not say how long the decay is.
        num_steps: Steps of the training.
        is_whole: Whether the rate decays from the first step on.
    """
    if args.lr_scheduler_type != SchedulerType.WARMUP_STABLE_DECAY:
        return None
    options: Any = args.lr_scheduler_kwargs or {}
    if is_whole or "num_decay_steps" not in options:
        length = num_steps if is_whole else math.ceil(DECAY * num_steps)
        options = args.lr_scheduler_kwargs = DECAY_OPTIONS | options | {"num_decay_steps": length}
    if (stable := options.get("num_stable_steps")) is not None:
        return args.get_warmup_steps(num_steps) + stable
    return max(0, num_steps - options["num_decay_steps"])
