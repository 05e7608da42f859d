"""What a device allows: training in bfloat16, and compiled steps."""

import logging
from typing import Any

import torch
from transformers import TrainingArguments

logger = logging.getLogger(__name__)

# The capability of NVIDIA's Ampere, the first to compute in bfloat16.
CAPABILITY = (8, 0)
# Passes after which a compilation has paid. It takes a minute or two and saves some 15 ms of launches in each pass,
# both in proportion to the layers. Our estimate: an H100 works 22 of the 58 ms that a step of BERT base takes.
PASSES_TO_COMPILE = 5_000


def emulates_bfloat16() -> bool:
    """Return whether the CPU emulates bfloat16: training then takes about three times as long as in float32."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()  # torch 2.6 cannot tell
    return bool(capabilities) and not any(value for name, value in capabilities.items() if "bf16" in name)


def warn_of_slow_bfloat16(training_args: TrainingArguments) -> None:
    """Warn if the CPU emulates bfloat16."""
    if training_args.bf16 and training_args.device.type == "cpu" and emulates_bfloat16():
        logger.warning("this CPU has no bfloat16 instructions: --bf16 is about three times slower than float32 here")


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
