"""What the stock Trainer needs beside it: fast and exact masked-LM loss, logged auxiliary losses, loadable pushes."""

import json
import re
import shutil
import time
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from peft import PeftModel
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from transformers.dynamic_module_utils import custom_object_save
from transformers.modeling_outputs import MaskedLMOutput

from hf_domain.modeling.backbone import BackbonePreTrainedModel
from hf_domain.modeling.heads import EncoderPassthrough, NumItems, compute_masked_lm_loss
from hf_domain.settings import has_type


def parse_overrides(overrides: str | None) -> dict[str, Any]:
    """Parse `name=value,name=value`; a value is read as JSON where it is JSON, lists included, else as a string.

    Raises:
        ValueError: A part is not of the form name=value, or a name stands there twice.
    """
    options: dict[str, Any] = {}
    for part in re.split(r",(?![^\[]*\])", overrides) if overrides else []:  # a comma inside brackets is the list's
        name, separator, value = part.partition("=")
        if not (name and separator):
            raise ValueError(f"overrides have the form name=value,name=value, got {part!r}")
        if name.strip() in options:
            raise ValueError(f"overrides must name an option once, but {name.strip()} stands there twice")
        try:
            options[name.strip()] = json.loads({"True": "true", "False": "false", "None": "null"}.get(value, value))
        except json.JSONDecodeError:
            options[name.strip()] = value
    return options


def check_overrides(overrides: dict[str, Any], config_class: Any) -> None:
    """Raise unless the values have the types that a config declares: a wrong one fails much later, or never.

    Raises:
        ValueError: A value is of another type.
    """
    types = {item.name: item.type for item in fields(config_class) if not isinstance(item.type, str)}
    for name, value in overrides.items():
        if name in types and not has_type(value, types[name]):
            kind = getattr(types[name], "__name__", types[name])
            raise ValueError(f"--config_overrides: {name} must be of the type {kind}, but is {value!r}")


def autocast_as_trained(training_args: TrainingArguments) -> torch.autocast:
    """Return the precision that Trainer trains in, for what is computed before it: a cache then costs what it saves.

    Args:
        training_args: With bf16, fp16 or neither.

    Returns:
        A context.
    """
    dtype = torch.float16 if training_args.fp16 else torch.bfloat16
    return torch.autocast(training_args.device.type, dtype, enabled=training_args.fp16 or training_args.bf16)


def check_tokenizer_fits(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel) -> None:
    """Check that every id of `tokenizer` has a row in the embedding tables of `model`.

    Raises:
        ValueError: It has more entries than the tables have rows.
    """
    base: Any = model.get_base_model() if isinstance(model, PeftModel) else model  # the config beside it is older
    rows = base.config.vocab_size  # an exBERT has two tables
    if len(tokenizer) > rows:
        raise ValueError(
            f"the tokenizer has {len(tokenizer)} entries but the embedding table of the model has {rows} rows; "
            "use the tokenizer the model was trained with, or expand the model together with the tokenizer"
        )


def normalize_stock_loss(model: PreTrainedModel) -> PreTrainedModel:
    """Make Trainer divide the loss of a stock model by the accumulation steps.

    Most stock heads accept `num_items_in_batch` and ignore it; Trainer believes them and does not divide, so that
    batch 2 x 4 trains with four times the loss and gradient of batch 8 x 1. Our own models are returned as they are.
    """
    if not isinstance(model, BackbonePreTrainedModel):
        setattr(model, "accepts_loss_kwargs", False)  # noqa: B010  torch types attributes of a module as tensors
    return model


def decode_labeled_rows_only(model: PreTrainedModel) -> PreTrainedModel:
    """Make a stock masked LM project only labeled positions to the vocabulary while training.

    The same loss in less time and memory, summed and divided by `num_items_in_batch`, which stock heads ignore. The
    instance's `forward` is replaced; its class and weights are not, so it saves and loads as before.

    Args:
        model: A stock `...ForMaskedLM`. Ours do this by themselves and are returned as they are.

    Returns:
        `model`. In training with labels its output is the loss alone; in evaluation it is unchanged.
    """
    if isinstance(model, BackbonePreTrainedModel):
        return model
    forward = model.forward
    encoder = model.base_model_prefix

    def decode(hidden_states: torch.Tensor) -> torch.Tensor:
        # A shallow view made anew each time: a replaced decoder (a resized vocabulary, say) is seen at once.
        head = model.__class__.__new__(model.__class__)
        head.__dict__ = {**model.__dict__, "_modules": {**model._modules, encoder: EncoderPassthrough()}}
        return model.__class__.forward(head, hidden_states).logits

    def forward_labeled_rows(
        *args, labels: torch.Tensor | None = None, num_items_in_batch: NumItems = None, **kwargs
    ) -> MaskedLMOutput:
        if labels is None or not model.training:
            return forward(*args, labels=labels, **kwargs)
        kwargs["return_dict"] = True
        hidden_states = model.base_model(*args, **kwargs).last_hidden_state
        return MaskedLMOutput(loss=compute_masked_lm_loss(decode, hidden_states, labels, num_items_in_batch))

    # Trainer drops the dataset columns that forward does not name: its signature stays the stock one.
    forward_labeled_rows.__wrapped__ = forward  # type: ignore[attr-defined]
    model.forward = forward_labeled_rows
    setattr(model, "accepts_loss_kwargs", True)  # noqa: B010
    return model


class AuxiliaryLossCallback(TrainerCallback):
    """Logs the auxiliary outputs of a model (reconstruction losses, KL, ...) beside the loss.

    Whatever a model lists in `keys_to_ignore_at_inference` and returns as a scalar is averaged over the examples since
    the last log, or over an evaluation, where its name gets the prefix `eval_` and the examples of all processes count,
    as in `eval_loss`.
    """

    def __init__(self) -> None:
        self.sums: dict[bool, dict[str, torch.Tensor]] = {True: {}, False: {}}
        self.examples = {True: 0, False: 0}

    def collect(self, model: PreTrainedModel, args: Any, kwargs: dict[str, Any], output: Any) -> None:
        """Forward hook: add up the auxiliary outputs of one pass."""
        sums, examples = self.sums[model.training], len(kwargs["input_ids"])
        self.examples[model.training] += examples
        for name in getattr(model.config, "keys_to_ignore_at_inference", ()):
            value = output.get(name)
            if value is not None and value.dim() == 0:
                sums[name] = sums.get(name, 0.0) + value.detach().float() * examples

    def flush(self, training: bool) -> dict[str, float]:
        """Return the averages of training or evaluation passes and start again."""
        sums, examples = self.sums[training], self.examples[training]
        self.sums[training], self.examples[training] = {}, 0
        if not sums:
            return {}
        totals = torch.stack([*sums.values(), torch.full_like(next(iter(sums.values())), examples)])
        if not training and torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(totals)
        return dict(zip(sums, (totals[:-1] / totals[-1]).tolist(), strict=True))

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs,
    ) -> None:
        """Add the averages to the logged line and to trainer_state.json."""
        if logs is not None and "loss" in logs:
            averages = {name: round(value, 4) for name, value in self.flush(training=True).items()}
            logs.update(averages)
            state.log_history[-1].update(averages)

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs,
    ) -> None:
        """Add the averages to the metrics that evaluate() returns."""
        if metrics is not None:
            metrics.update({f"eval_{name}": value for name, value in self.flush(training=False).items()})


def log_auxiliary_losses(trainer: Trainer) -> None:
    """Log the auxiliary losses of the trainer's model; TensorBoard and the other reporters see them too."""
    model: Any = trainer.model
    if not getattr(model.config, "keys_to_ignore_at_inference", ()):  # stock encoders have none
        return
    callback = AuxiliaryLossCallback()
    model.register_forward_hook(callback.collect, with_kwargs=True)
    # In front: reporters read the line that this callback completes.
    trainer.callback_handler.callbacks.insert(0, callback)


class PushCodeCallback(TrainerCallback):
    """Copies the model's code into the folder before every push.

    Trainer's `hub_strategy="every_save"` and "checkpoint" copy known file names only: the commits in between would name
    code that is not there.
    """

    def on_push_begin(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel | None = None,
        **kwargs,
    ) -> None:
        """Save the code beside the weights that are about to be pushed."""
        if not isinstance(model, BackbonePreTrainedModel):
            return
        with TemporaryDirectory() as folder:
            custom_object_save(model, folder)
            for file in Path(folder).iterdir():
                copy = Path(str(args.output_dir), file.name)
                # An earlier push may still be reading: what is there already is not cut off to be written again.
                if not (copy.is_file() and copy.read_bytes() == file.read_bytes()):
                    shutil.copy(file, copy)


class StepTimer(TrainerCallback):
    """Measures how many steps a second training makes once it runs.

    Trainer's own figure counts what the first steps do once: loading kernels, filling caches. Of a few steps they are
    most, and what is planned from it takes another time.
    """

    def __init__(self, warm_up: int = 5):
        """Leave out the first steps.

        Args:
            warm_up: How many. Our choice: kernels are loaded and chosen within two or three.
        """
        self.warm_up, self.steps = warm_up, 0
        self.started = self.ended = 0.0

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Count, and note when the warm-up is over."""
        self.steps += 1
        if self.steps == self.warm_up:
            self.started = self._read_clock()

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs) -> None:
        """Note when the last step is over."""
        self.ended = self._read_clock()

    def _read_clock(self) -> float:
        if torch.cuda.is_available():
            torch.cuda.synchronize()  # steps are queued faster than they are made
        return time.perf_counter()

    def compute(self) -> float | None:
        """Return steps a second after the warm-up; None where there were none."""
        if self.steps <= self.warm_up:
            return None
        return (self.steps - self.warm_up) / (self.ended - self.started)
