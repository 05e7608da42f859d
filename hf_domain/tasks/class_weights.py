"""Class weights: let rare labels count as much in the loss as frequent ones."""

import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

logger = logging.getLogger(__name__)


def compute_class_weights(labels: Any, num_labels: int) -> np.ndarray:
    """Return the weight of each label, as scikit-learn's `class_weight="balanced"` does.

    With one label per example, the weight is examples / (labels x examples with the label); its mean over the examples
    is 1. With several labels per example, it is the ratio of examples without the label to examples with it, and
    weighs the positive term. A label without examples gets 1.

    Args:
        labels: Label ids of the training data [examples], or 0 and 1 [examples, labels] for several labels.
    """
    values = np.asarray(labels, dtype=float)
    if values.ndim == 2:
        counts = values.sum(0)
        return np.where(counts > 0, (len(values) - counts) / np.maximum(counts, 1), 1.0)
    counts = np.bincount(values.astype(int), minlength=num_labels)
    return np.where(counts > 0, len(values) / ((counts > 0).sum() * np.maximum(counts, 1)), 1.0)


def make_weighted_loss(
    class_weights: str, problem_type: str, labels: Any, label_names: Sequence[str]
) -> Callable[..., torch.Tensor] | None:
    """Return a loss for `Trainer(compute_loss_func=...)` that weighs labels; None for `class_weights="none"`.

    Raises:
        ValueError: The task is a regression.
    """
    if class_weights == "none":
        return None
    if problem_type == "regression":
        raise ValueError(
            "--class_weights balanced needs labels that are classes, but the labels are numbers. Leave the flag out."
        )
    values = compute_class_weights(labels, len(label_names))
    told = ", ".join(f"{name} {value:.3g}" for name, value in zip(label_names, values, strict=True))
    logger.info(f"Class weights: {told}")

    def compute_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        logits = (outputs["logits"] if isinstance(outputs, dict) else outputs[0]).float()
        weights = torch.tensor(values, dtype=torch.float32, device=logits.device)
        if problem_type == "single_label_classification":
            total = F.cross_entropy(logits, labels.view(-1), weight=weights, reduction="sum")
        else:
            total = F.binary_cross_entropy_with_logits(logits, labels.float(), pos_weight=weights, reduction="sum")
        return total / (labels.numel() if num_items_in_batch is None else num_items_in_batch)

    return compute_loss
