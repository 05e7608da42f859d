"""Choose the learning rate of masked LM, and train the weights that a method adds to its encoder at their own."""

import logging
import math
from typing import Any

from torch import nn
from transformers import PreTrainedModel, Trainer

from hf_domain.methods import Method, find_methods
from hf_domain.modeling.backbone import BackbonePreTrainedModel, get_native_config
from hf_domain.training.arguments import ModelArguments

logger = logging.getLogger(__name__)

HIGHEST_RATE = 1e-3  # our choice: an encoder of 4 layers and width 256 is worse there than at half of it


def choose_pretraining_rate(model: PreTrainedModel, method: Method) -> float:
    """Return the default learning rate of masked LM, and log why.

    It is 1e-4 for BERT base, and falls with the width and with the root of the depth: 5.3e-5 for BERT large, 2.8e-4 for
    a MiniLM of 6 layers. A method that trains less than half of the weights takes `rate_factor` times as much.
    results/NOTES.md has the measurements.
    """
    config = get_native_config(model.config)
    width, depth = getattr(config, "hidden_size", 768), getattr(config, "num_hidden_layers", 12)  # else as BERT base
    rate = min(1e-4 * 768 / width * math.sqrt(12 / depth), HIGHEST_RATE)
    reason = f"for {depth} layers of width {width}"
    trained, count = (
        sum(weight.numel() for weight in model.parameters() if weight.requires_grad or is_all)
        for is_all in (False, True)
    )
    if trained < count / 2 and method.rate_factor != 1:
        rate *= method.rate_factor
        reason += f", times {method.rate_factor:g} because {method.title} trains only {trained:,} of {count:,} weights"
    logger.info(f"The learning rate is {rate:.2g}, chosen {reason}. Set another with --learning_rate.")
    return rate


def list_added_weights(model: PreTrainedModel) -> list[nn.Parameter]:
    """Return the trainable weights that a method adds to its encoders; none for a stock model."""
    base: Any = model.base_model
    if not isinstance(base, BackbonePreTrainedModel):
        return []
    added = [part for part in base.children() if not isinstance(part, PreTrainedModel)]
    return [weight for part in added for weight in part.parameters() if weight.requires_grad]


def choose_method_rate(model: PreTrainedModel, args: ModelArguments) -> None:
    """Choose the learning rate of the added weights: `--method_learning_rate`, or else at least the method's default.

    Raises:
        ValueError: A rate is given, but the model has no added weights that train.
    """
    if args.method_learning_rate is not None and not list_added_weights(model):
        raise ValueError(
            f"--method_learning_rate needs a model with trainable weights beside its encoder, but a "
            f"{type(model).__name__} has none. Leave the flag out, or use --method rada or gmap."
        )
    least = 0.0
    if args.start == "recommended":
        least = max([row.learning_rate or 0.0 for row in find_methods(model.config.model_type)], default=0.0)
    setattr(model, "method_rates", (args.method_learning_rate, least))  # noqa: B010  torch types attributes as tensors


def use_method_rate(trainer: Trainer) -> None:
    """Give the added weights their own optimizer groups, if their learning rate differs from the encoder's."""
    model: Any = trainer.model
    if "method_rates" not in model.__dict__:
        return
    rate, least = model.__dict__.pop("method_rates")
    if rate is None:
        rate = max(least, trainer.args.learning_rate)
    added = {id(weight) for weight in list_added_weights(model)}
    if rate == trainer.args.learning_rate or not added:
        return
    optimizer_class, options = Trainer.get_optimizer_cls_and_kwargs(trainer.args, model)
    decayed = set(trainer.get_decay_parameter_names(model))
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, weight in model.named_parameters():
        if weight.requires_grad:
            groups.setdefault((id(weight) in added, name in decayed), []).append(weight)
    options["params"] = [
        {"params": weights, "weight_decay": trainer.args.weight_decay if decays else 0.0}
        | ({"lr": rate} if is_added else {})
        for (is_added, decays), weights in sorted(groups.items(), key=lambda group: group[0])
    ]
    trainer.optimizer_cls_and_kwargs = optimizer_class, options
