"""A learning rate of its own for what a method adds beside its encoder: these weights are new, the encoder is not."""

from typing import Any

from torch import nn
from transformers import PreTrainedModel, Trainer

from hf_domain.methods import find_methods
from hf_domain.modeling.backbone import BackbonePreTrainedModel
from hf_domain.training.arguments import ModelArguments


def list_added_weights(model: PreTrainedModel) -> list[nn.Parameter]:
    """Return the trainable weights that a method adds beside its encoders; none of a stock model."""
    base: Any = model.base_model
    if not isinstance(base, BackbonePreTrainedModel):
        return []
    added = [part for part in base.children() if not isinstance(part, PreTrainedModel)]
    return [weight for part in added for weight in part.parameters() if weight.requires_grad]


def choose_method_rate(model: PreTrainedModel, args: ModelArguments) -> None:
    """Let `run_training` train what the method adds at `--method_learning_rate`, or else at least at the method's rate.

    Raises:
        ValueError: A rate is given, and the model has no such weights.
    """
    if args.method_learning_rate is not None and not list_added_weights(model):
        raise ValueError(
            f"--method_learning_rate trains what a method adds beside its encoder, but a {type(model).__name__} has "
            "nothing that trains there. Leave it out, or use --method rada or gmap."
        )
    least = 0.0
    if args.start == "recommended":
        least = max([row.learning_rate or 0.0 for row in find_methods(model.config.model_type)], default=0.0)
    setattr(model, "method_rates", (args.method_learning_rate, least))  # noqa: B010  torch types attributes as tensors


def use_method_rate(trainer: Trainer) -> None:
    """Give the trainer's optimizer groups for what the method adds, if that has another rate than the rest."""
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
