"""Check that weights, gradients, losses and scores are finite, so that a run with a NaN stops and saves nothing."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch.nn.utils import get_total_norm
from transformers import TrainerCallback


def check_weights(model: torch.nn.Module, name: str, advice: str = "Use another checkpoint.") -> None:
    """Raise a ValueError unless every weight and every saved buffer of a model is finite.

    Args:
        name: Name of the model in the error.
        advice: Last sentence of the error: what to do.
    """
    for tensor_name, tensor in model.state_dict().items():
        if tensor.is_floating_point() and not (finite := torch.isfinite(tensor)).all():
            raise ValueError(
                f"all weights must be finite, but {tensor_name} of {name} is nan or inf in "
                f"{int((~finite).sum()):,} of {tensor.numel():,} places. {advice}"
            )


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Raise a ValueError unless every number among the metrics is finite."""
    for name, value in metrics.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(
                f"every metric must be a finite number, but {name} is {value}. Check the labels and the weights, or "
                "choose another metric."
            )


def check_predictions(predictions: Any) -> None:
    """Raise a ValueError unless all logits are finite: the argmax of nan is label 0, which looks like an answer.

    Args:
        predictions: Array or tuple of arrays, as Trainer returns them.
    """
    for logits in predictions if isinstance(predictions, tuple) else (predictions,):
        if (
            isinstance(logits, np.ndarray)
            and np.issubdtype(logits.dtype, np.floating)
            and not np.isfinite(logits).all()
        ):
            raise ValueError(
                f"all predictions must be finite, but {int((~np.isfinite(logits)).sum()):,} of {logits.size:,} logits "
                "are nan or infinite. Predict in float32, or train again at a lower learning rate."
            )


class NonFiniteStop(TrainerCallback):
    """Stops training before nan or inf reaches the weights or a checkpoint.

    Trainer itself would continue: it clips gradients by a norm of nan, and its `logging_nan_inf_filter` hides the loss.
    The filter stays on for evaluation, where a batch without masked tokens has the loss 0 / 0.
    """

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: Any = None, optimizer: Any = None, **kwargs: Any
    ) -> None:
        """Check the gradients, which are not finite if the loss is not."""
        norm = get_total_norm([weight.grad for weight in model.parameters() if weight.grad is not None])
        if torch.isfinite(norm):
            return
        # In float16, gradients overflow if the loss scale is too high. The scaler then skips the step and halves the
        # scale. It starts at 65,536 and falls below 1 only if no scale helps.
        scaler = getattr(optimizer, "scaler", None)
        if scaler is not None and scaler.get_scale() >= 1:
            return
        raise ValueError(
            f"loss and gradients must be finite, but at step {state.global_step + 1} the norm of the gradients is "
            f"{norm.item()}. Lower the learning rate, which is {args.learning_rate:g}, or look for extreme values in "
            "the data."
        )

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Check the logged loss."""
        check_metrics({"loss": (logs or {}).get("loss")})

    def on_evaluate(self, args: Any, state: Any, control: Any, metrics: Any = None, **kwargs: Any) -> None:
        """Check the scores of an evaluation during training, which may select the best checkpoint."""
        check_metrics(metrics or {})

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Check the weights before they are saved: finite gradients times a high rate can overflow."""
        if control.should_save:
            self._check(args, model)

    on_epoch_end = on_step_end

    def on_train_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs: Any) -> None:
        """Check the final weights."""
        self._check(args, model)

    def _check(self, args: Any, model: Any) -> None:
        check_weights(model, "the trained model", f"Lower the learning rate, which is {args.learning_rate:g}.")
