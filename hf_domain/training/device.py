"""What a GPU allows: training in bfloat16, compiled steps, and batches that fit its memory."""

import copy
import logging
from collections.abc import Callable
from typing import TypeVar

import torch
from accelerate.utils.memory import clear_device_cache, should_reduce_batch_size
from transformers import TrainingArguments, set_seed

from hf_domain.training.run_folder import find_checkpoint

logger = logging.getLogger(__name__)

# The capability of NVIDIA's Ampere, the first to compute in bfloat16.
CAPABILITY = (8, 0)
# Passes after which a compilation has paid. It takes a minute or two and saves some 15 ms of launches in each pass,
# both in proportion to the layers. Our estimate: an H100 works 22 of the 58 ms that a step of BERT base takes.
PASSES_TO_COMPILE = 5_000

Result = TypeVar("Result")


def is_fast_in_bfloat16(use_cpu: bool = False) -> bool:
    """Return whether this process trains on a GPU that computes in bfloat16."""
    return not use_cpu and torch.cuda.is_available() and torch.cuda.get_device_capability() >= CAPABILITY


def can_compile(device: torch.device) -> bool:
    """Return whether torch.compile works here: it needs Triton and a C compiler, which not every machine has."""
    try:
        torch.compile(torch.nn.functional.gelu)(torch.ones(8, device=device))
    except Exception as error:  # each backend has its own
        logger.info(f"Training is not compiled, because torch.compile fails here: {str(error).splitlines()[0]}")
        return False
    return True


def compile_if_it_pays(args: TrainingArguments, passes: int) -> None:
    """Let a training on a GPU compile its steps if there are enough of them.

    Args:
        args: Changed in place.
        passes: Forward passes of the training, all of equal shape.
    """
    is_alone = args.world_size == 1 and not args.deepspeed and not args.fsdp
    if passes < PASSES_TO_COMPILE or not is_alone or not is_fast_in_bfloat16(args.use_cpu):
        return
    if can_compile(args.device):
        args.torch_compile, args.torch_compile_backend = True, "inductor"
        logger.info(
            f"The first step is compiled, which takes a minute or two and pays over {passes:,} passes. "
            "--torch_compile False trains without."
        )


def fit_to_memory(train: Callable[[TrainingArguments], Result], args: TrainingArguments) -> Result:
    """Train, and after an out-of-memory error again with smaller batches of which as many more make a step.

    The effective batch stays, and so does what is trained. Trainer's own `auto_find_batch_size` takes a tenth off the
    batch and accumulates as before, which is another training.

    Args:
        train: Trains from the newest checkpoint, or from the start.
        args: The arguments of the first attempt.
    """
    args.auto_find_batch_size = False
    while True:
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
        args.resume_from_checkpoint = find_checkpoint(str(args.output_dir)) or args.resume_from_checkpoint
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
