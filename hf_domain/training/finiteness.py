"""Check that weights, gradients, losses and scores are finite: a run that became NaN stops and saves nothing."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.utils import get_total_norm
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments


def check_weights(model: torch.nn.Module, name: str, advice: str = "Use another checkpoint.") -> None:
    """Raise unless every weight and every saved buffer of a model is finite.

    Args:
        name: How the message calls the model.
        advice: What to do, in a sentence.

    Raises:
        ValueError: A tensor holds nan or inf; the message names the first.
    """
    for tensor_name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not (finite := torch.isfinite(tensor)).all():
            raise ValueError(
                f"all weights must be finite; {tensor_name} of {name} holds nan or inf in "
                f"{int((~finite).sum()):,} of {tensor.numel():,} places. {advice}"
            )


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Raise unless every number among metrics is finite.

    Raises:
        ValueError: A metric is nan or infinite.
    """
    for name, value in metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(
                f"every metric must be a finite number; {name} is {value}. Check the labels and the weights, or choose "
                "another metric."
            )


def check_predictions(predictions: Any) -> None:
    """Raise unless all logits are finite. The argmax over several nan is the first, which looks like an answer.

    Args:
        predictions: An array or a tuple of arrays, as Trainer returns them.

    Raises:
        ValueError: A logit is nan or infinite.
    """
    for logits in predictions if isinstance(predictions, tuple) else (predictions,):
        if (
            isinstance(logits, np.ndarray)
            and np.issubdtype(logits.dtype, np.floating)
            and not np.isfinite(logits).all()
        ):
            raise ValueError(
                f"all predictions must be finite; {int((~np.isfinite(logits)).sum()):,} of {logits.size:,} logits are "
                "nan or infinite. Predict in float32, or train again at a lower learning rate."
            )


class NonFiniteStop(TrainerCallback):
    """Stops training before an optimizer step would write nan or inf into the weights, and before they are saved.

    Trainer alone would continue: it clips gradients by a norm of nan, and its `logging_nan_inf_filter` logs the mean of
    the other losses instead. The filter stays on for evaluation, where a batch without masked tokens has the
    loss 0 / 0.
    """

    def on_pre_optimizer_step(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel | None = None,
        optimizer: Any = None,
        **kwargs,
    ) -> None:
        """Check the gradients; a loss that is not finite gives none that are."""
        assert model is not None
        norm = get_total_norm([weight.grad for weight in model.parameters() if weight.grad is not None])
        if torch.isfinite(norm):
            return
        # In float16, gradients of a loss that is scaled too high overflow; the step is skipped and the scale is halved.
        # From 65,536 it falls below 1 only if no scale helps.
        scaler = getattr(optimizer, "scaler", None)
        if scaler is not None and scaler.get_scale() >= 1:
            return
        raise ValueError(
            f"loss and gradients must be finite; at step {state.global_step + 1} the norm of the gradients is "
            f"{norm.item()}. Lower the learning rate, which is {args.learning_rate:g}, or look for extreme values in "
            "the data."
        )

    def on_log(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        logs: dict[str, Any] | None = None,
        **kwargs,
    ) -> None:
        """Check the logged loss."""
        check_metrics({"loss": (logs or {}).get("loss")})

    def on_evaluate(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        metrics: dict[str, float] | None = None,
        **kwargs,
    ) -> None:
        """Check the scores of an evaluation during training, which may choose the best checkpoint."""
        check_metrics(metrics or {})

    def on_step_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel | None = None,
        **kwargs,
    ) -> None:
        """Check the weights before they are saved: finite gradients times a huge rate can overflow."""
        if control.should_save and model is not None:
            self._check(args, model)

    def on_epoch_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel | None = None,
        **kwargs,
    ) -> None:
        """Check the weights that are about to be saved."""
        if control.should_save and model is not None:
            self._check(args, model)

    def on_train_end(
        self,
        args: TrainingArguments,
        state: TrainerState,
        control: TrainerControl,
        model: PreTrainedModel | None = None,
        **kwargs,
    ) -> None:
        """Check the weights that training ends with."""
        assert model is not None
        self._check(args, model)

    def _check(self, args: TrainingArguments, model: PreTrainedModel) -> None:
        check_weights(model, "the trained model", f"Lower the learning rate, which is {args.learning_rate:g}.")
