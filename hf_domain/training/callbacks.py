"""Trainer callbacks: auxiliary losses, annealing, masks of each epoch, pushes that load, and the speed of training."""

import logging
import shutil
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformers import (
    PreTrainedModel,
    Trainer,
    TrainerCallback,
)
from transformers.dynamic_module_utils import custom_object_save

from hf_domain.modeling.backbone import BackbonePreTrainedModel
from hf_domain.modeling.nested_models import save_nested_code

logger = logging.getLogger(__name__)


class AuxiliaryLossCallback(TrainerCallback):
    """Logs the auxiliary outputs of a model (reconstruction losses, KL, ...) beside the loss.

    Each scalar output named in `keys_to_ignore_at_inference` is averaged over the examples since the last log. An
    evaluation averages over the examples of all processes, as for `eval_loss`, and adds the prefix `eval_`.
    """

    def __init__(self) -> None:
        self.sums: dict[bool, dict[str, torch.Tensor]] = {True: {}, False: {}}
        self.examples = {True: 0, False: 0}

    def collect(self, model: PreTrainedModel, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Add up the auxiliary outputs of one pass; a forward hook."""
        sums, examples = self.sums[model.training], len(kwargs["input_ids"])
        self.examples[model.training] += examples
        for name in getattr(model.config, "keys_to_ignore_at_inference", ()):
            value = output.get(name)
            if value is not None and value.dim() == 0:
                sums[name] = sums.get(name, 0.0) + value.detach().float() * examples

    def flush(self, training: bool) -> dict[str, float]:
        """Return the averages of training or evaluation passes, and reset them."""
        sums, examples = self.sums[training], self.examples[training]
        self.sums[training], self.examples[training] = {}, 0
        if not sums:
            return {}
        totals = torch.stack([*sums.values(), torch.full_like(next(iter(sums.values())), examples)])
        if not training and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(totals)
        return dict(zip(sums, (totals[:-1] / totals[-1]).tolist(), strict=True))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget the passes that prepared the start."""
        self.flush(training=True)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add the averages to the logged line and to trainer_state.json."""
        if logs is not None and "loss" in logs:
            averages = {name: round(value, 4) for name, value in self.flush(training=True).items()}
            logs.update(averages)
            state.log_history[-1].update(averages)

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Add the averages to the metrics that evaluate() returns."""
        if metrics is not None:
            metrics.update({f"eval_{name}": value for name, value in self.flush(training=False).items()})


def log_auxiliary_losses(trainer: Trainer) -> None:
    """Log the auxiliary losses of the trainer's model, also to TensorBoard and other reporters."""
    model: Any = trainer.model
    if not getattr(model.config, "keys_to_ignore_at_inference", ()):  # stock encoders have none
        return
    callback = AuxiliaryLossCallback()
    model.register_forward_hook(callback.collect, with_kwargs=True)
    # First in the list, because reporters read the line that this callback completes.
    trainer.callback_handler.callbacks.insert(0, callback)


def has_schedule(model: torch.nn.Module) -> bool:
    """Return whether `Annealing` changes a model while it trains."""
    return any(hasattr(module, "anneal") for module in model.modules())


class Annealing(TrainerCallback):
    """Calls `anneal(progress)` of each module that has it, before every step."""

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Pass on the share of finished steps, which a resumed run counts from its checkpoint."""
        for module in () if model is None else model.modules():
            anneal: Any = getattr(module, "anneal", None)
            if isinstance(module, BackbonePreTrainedModel) and anneal is not None:
                anneal(state.global_step / state.max_steps)


class MaskRenewal(TrainerCallback):
    """Tells a collator of data/masking.py or data/causal.py the epoch, so that each epoch has other masks.

    A stream counts as one epoch: when it starts again, a batch of the same examples has the same masks.

    Args:
        collator: Has `epoch`.
    """

    def __init__(self, collator: Any):
        self.collator = collator

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the number of the epoch, which a resumed run reads from its checkpoint."""
        self.collator.epoch = int(state.epoch or 0)


class PushCodeCallback(TrainerCallback):
    """Copies the model's code into the folder before every push.

    With `hub_strategy="every_save"` or "checkpoint", Trainer pushes only files of known names. The configs of commits
    during training would then name missing code.
    """

    def on_push_begin(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Save the code beside the weights."""
        if not isinstance(model, BackbonePreTrainedModel):
            return
        with TemporaryDirectory() as folder:
            custom_object_save(model, folder)
            save_nested_code(model.config, folder)
            for file in Path(folder).iterdir():
                copy = Path(str(args.output_dir), file.name)
                # An earlier push may still read the file: do not truncate it if its content is right.
                if not (copy.is_file() and copy.read_bytes() == file.read_bytes()):
                    shutil.copy(file, copy)


class StepTimer(TrainerCallback):
    """Measures the steps per second of a training after its warm-up.

    Trainer's own figure includes one-time work of the first steps, such as loading kernels and filling caches. In a
    short run this is most of the time, so a forecast from it would be wrong.
    """

    def __init__(self, warm_up: int = 5):
        """Leave out the first steps.

        Args:
            warm_up: Number of steps to leave out. Our choice: kernels are loaded and chosen within two or three.
        """
        self.warm_up, self.steps = warm_up, 0
        self.started = self.ended = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Count the step, and note the time at the end of the warm-up."""
        self.steps += 1
        if self.steps == self.warm_up:
            self.started = self._read_clock()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Note the time after the last step."""
        self.ended = self._read_clock()

    def _read_clock(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # steps are queued faster than they run
        return time.perf_counter()

    def compute(self) -> float | None:
        """Return the steps per second after the warm-up; None if there are none."""
        if self.steps <= self.warm_up:
            return None
        return (self.steps - self.warm_up) / (self.ended - self.started)
