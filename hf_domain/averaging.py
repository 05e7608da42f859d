"""Average the weights of models: the usual remedy against forgetting, without training."""

import math
from collections.abc import Sequence
from itertools import chain

import torch
from transformers import PreTrainedModel

from hf_domain.checks import check_weights


@torch.no_grad()
def average_models(models: Sequence[PreTrainedModel], weights: Sequence[float] | None = None) -> PreTrainedModel:
    """Average models of one architecture, such as an encoder before and after DAPT.

    Args:
        models: Two or more models with the same parameters and buffers (VarMAE's batch normalization has buffers).
        weights: Weight of each model, divided by their sum; default equal.

    Returns:
        The first model, with averaged parameters and buffers.

    Raises:
        ValueError: The models have different parameters or contain nan, or the weights do not fit.
    """
    weights = [1.0] * len(models) if weights is None else weights
    if len(models) < 2 or len(weights) != len(models) or not (min(weights) >= 0 and 0 < sum(weights) < math.inf):
        raise ValueError(
            "an average needs at least two models, and for each a finite weight of at least 0, not all 0, but there "
            f"are {len(models)} models and the weights {list(weights)}. Give other weights."
        )
    for number, model in enumerate(models, start=1):
        check_weights(model, f"model {number}")
    shares = [weight / sum(weights) for weight in weights]
    states = [
        {
            name: tensor
            for name, tensor in chain(model.named_parameters(), model.named_buffers())
            if tensor.is_floating_point()
        }
        for model in models
    ]
    for state in states[1:]:
        for name in states[0].keys() | state.keys():
            sizes = [None if name not in one else list(one[name].shape) for one in (states[0], state)]
            if sizes[0] != sizes[1]:
                raise ValueError(
                    f"the models of an average must have the same parameters, but {name} is {sizes[0]} in the "
                    f"first and {sizes[1]} in another. Average models with the same vocabulary and head."
                )
    for name, tensor in states[0].items():
        tensor.copy_(torch.stack([share * state[name] for share, state in zip(shares, states, strict=True)]).sum(0))
    return models[0]
