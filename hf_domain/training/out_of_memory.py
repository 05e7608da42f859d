"""Train with smaller batches where the memory does not hold them."""

import copy
import logging
from collections.abc import Callable
from typing import TypeVar

from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from transformers import TrainingArguments, set_seed

from hf_domain.training.run_folder import find_checkpoint

logger = logging.getLogger(__name__)

Trained = TypeVar("Trained")


def fit_to_memory(train: Callable[[TrainingArguments], Trained], args: TrainingArguments) -> Trained:
    """Train, and after an out-of-memory error again with smaller batches of which as many more make a step.

    The effective batch stays, and so does what is trained. Trainer's own `auto_find_batch_size` takes a tenth off the
    batch and accumulates as before, which is another training.

    Args:
        train: Trains from the newest checkpoint, or from the start.
        args: The arguments of the first attempt.
    """
    args.auto_find_batch_size = False
    while True:
        before = find_checkpoint(str(args.output_dir))
        try:
            return train(copy.copy(args))
        except RuntimeError as error:
            if not should_reduce_batch_size(error) or not can_halve(args):
                raise
        clear_device_cache(garbage_collection=True)
        batch = args.per_device_train_batch_size
        parts = next(count for count in range(2, batch + 1) if batch % count == 0)
        args.per_device_train_batch_size = batch // parts
        args.gradient_accumulation_steps *= parts
        args.per_device_eval_batch_size = max(1, args.per_device_eval_batch_size // 2)
        if (newest := find_checkpoint(str(args.output_dir))) != before:  # else the run's own choice stays
            args.resume_from_checkpoint = newest
        logger.warning(
            f"The memory does not hold batches of {batch}. Training starts again with batches of {batch // parts} and "
            f"--gradient_accumulation_steps {args.gradient_accumulation_steps}: as many examples a step as before."
        )
        set_seed(args.seed)  # of the new weights, which the first attempt drew


def can_halve(args: TrainingArguments) -> bool:
    """Return whether a batch can be split, and say what else to do where it cannot."""
    if args.per_device_train_batch_size > 1 and args.world_size == 1:
        return True
    advice = "Add --gradient_checkpointing true, or use a shorter --max_seq_length."
    if args.per_device_train_batch_size > 1:  # the other processes wait for this one
        advice = "Halve --per_device_train_batch_size and double --gradient_accumulation_steps."
    logger.error(f"The memory does not hold batches of {args.per_device_train_batch_size}. {advice}")
    return False
