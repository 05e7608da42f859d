"""Choose on validation data how a classifier's outputs become predictions, and save it with the model."""

import logging
from typing import Any

import numpy as np
from transformers import Trainer

from hf_domain.checks import check_predictions
from hf_domain.tasks.classification import choose_thresholds
from hf_domain.training.vote import set_vote

logger = logging.getLogger(__name__)


def choose_on_validation(trainer: Trainer) -> None:
    """Choose the weight of a vote, see `set_vote`, then the thresholds of the probabilities with it."""
    set_vote(trainer)
    set_thresholds(trainer)


def set_thresholds(trainer: Trainer) -> None:
    """Choose the thresholds of a trained classifier on its validation set, if examples have several labels.

    They go into `config.label_thresholds`, one probability per label, which `hf-domain predict` reads. Without a
    validation set, every threshold is one half.
    """
    model: Any = trainer.model
    config = model.config
    if config.problem_type != "multi_label_classification":
        return
    config.label_thresholds = None
    if trainer.eval_dataset is None:
        return
    output = trainer.predict(trainer.eval_dataset)  # type: ignore[arg-type]
    check_predictions(output.predictions)
    logits = output.predictions[0] if isinstance(output.predictions, tuple) else output.predictions
    config.label_thresholds = choose_thresholds(logits, np.asarray(output.label_ids))
    told = [f"{config.id2label[number]} {value:.2f}" for number, value in enumerate(config.label_thresholds)]
    logger.info(f"Thresholds chosen on the validation set: {', '.join(told)}")
