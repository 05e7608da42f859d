"""The layers of VarMAE: perceptrons, the mean network with its batch normalization, and the KL divergence."""

import math
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from .configuration_varmae import VarMAEConfig

# Added to a variance by the batch normalization (torch's default).
EPSILON = 1e-5


class ZeroLinear(nn.Linear):
    """A linear layer that starts at zero, so that a residual branch adds nothing at first."""


class LogVarianceLinear(nn.Linear):
    """The last layer of a variance network; its outputs start near `config.log_variance_init`."""


class Perceptron(nn.Module):
    """A network with one hidden layer, `[..., hidden_size]` to `[..., hidden_size]` (section 2.2)."""

    def __init__(self, config: VarMAEConfig, linear_class: type[nn.Linear] = nn.Linear):
        super().__init__()
        width = config.latent_intermediate_size or config.hidden_size
        self.dense = nn.Linear(config.hidden_size, width)
        self.activation = ACT2FN[config.latent_activation]
        self.out_proj = linear_class(width, config.hidden_size)

    def forward(self, hidden_states: torch.Tensor) -> torch.Tensor:
        """Apply the network to the last dimension."""
        return self.out_proj(self.activation(self.dense(hidden_states)))


class SumOverProcesses(torch.autograd.Function):
    """The sum of a tensor over all processes, with the summed gradient. torch's own function is deprecated."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a copy of `tensor` over all processes."""
        total = tensor.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Sum the gradients of all processes."""
        return SumOverProcesses.forward(context, gradient)


def sum_over_processes(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of a tensor over all processes that train together."""
    return SumOverProcesses.apply(tensor) if count_processes() > 1 else tensor


def count_processes() -> int:
    """Return the number of processes that train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


class MeanNetwork(nn.Module):
    """f_mu and the batch normalization of its output.

    The normalization has a fixed scale and a learned shift. The mean of mu^2 over the data is therefore at least
    `norm_scale`^2 in each dimension, and the KL cannot vanish. Batch statistics cover all processes. They are used in
    pre-training only: elsewhere they would make a prediction depend on its neighbors in the batch, so fine-tuning and
    inference use the running statistics. The running statistics of an untrained network never change, because a peft
    adapter does not store them.
    """

    running_mean: torch.Tensor
    running_var: torch.Tensor
    num_batches_tracked: torch.Tensor

    def __init__(self, config: VarMAEConfig):
        super().__init__()
        self.perceptron = Perceptron(config, ZeroLinear if config.residual else nn.Linear)
        self.residual = config.residual
        self.batch_norm = config.batch_norm
        if config.batch_norm:
            self.scale = config.norm_scale
            self.momentum = config.norm_momentum
            self.shift = nn.Parameter(torch.zeros(config.hidden_size))
            self.register_buffer("running_mean", torch.zeros(config.hidden_size))
            self.register_buffer("running_var", torch.ones(config.hidden_size))
            self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(
        self,
        context: torch.Tensor,
        use_batch_statistics: bool = False,
        normalize: bool = True,
        counted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the means.

        Args:
            context: `[..., hidden_size]`; with batch statistics `[tokens, hidden_size]`.
            use_batch_statistics: Normalize by this batch and update the running statistics, if the network is trained
                and the batch has at least two tokens. Otherwise the running statistics are used.
            normalize: False returns the means before the normalization.
            counted: `[tokens]`, bool, the tokens whose statistics count; None counts all.
        """
        mean = self.perceptron(context)
        if self.residual:
            mean = context + mean
        if not self.batch_norm:
            return mean
        if not normalize:
            # The unused shift gets a gradient of zero: a parameter without one stops training on several processes.
            return mean + 0 * self.shift
        is_alone = counted is None and count_processes() == 1
        if not (use_batch_statistics and self.shift.requires_grad) or (is_alone and len(mean) < 2):
            normalized = F.batch_norm(mean.flatten(0, -2), self.running_mean, self.running_var, eps=EPSILON)
        elif is_alone:
            normalized = self.normalize_alone(mean)
        else:
            normalized = self.normalize_counted(mean, counted)
        return (self.scale * normalized + self.shift).view_as(mean)

    def normalize_alone(self, mean: torch.Tensor) -> torch.Tensor:
        """Normalize `[tokens, hidden_size]` by its own statistics, and track them."""
        center, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        # A momentum of 1 writes this batch's statistics into the two buffers.
        normalized = F.batch_norm(mean, center, variance, training=True, momentum=1.0, eps=EPSILON)
        self.track(center, variance)
        return normalized

    def normalize_counted(self, mean: torch.Tensor, counted: torch.Tensor | None) -> torch.Tensor:
        """Normalize `[tokens, hidden_size]` by the statistics of the counted tokens of all processes, and track them.

        If these are fewer than two, the running statistics take their place; asking the device would wait for it.
        """
        share = mean.new_ones(len(mean), dtype=torch.float) if counted is None else counted.float()
        sums = torch.cat([share @ mean.float(), share.sum()[None]])
        sums = sum_over_processes(sums)
        count = sums[-1]
        center = sums[:-1] / count.clamp(min=1)
        variance = sum_over_processes(share @ (mean.float() - center).square()) / count.clamp(min=1)
        is_enough = count >= 2
        self.track(center, variance * count / (count - 1).clamp(min=1), is_enough)
        center = torch.where(is_enough, center, self.running_mean)
        variance = torch.where(is_enough, variance, self.running_var)
        return ((mean.float() - center) * (variance + EPSILON).rsqrt()).to(mean.dtype)

    @torch.no_grad()
    def track(self, center: torch.Tensor, variance: torch.Tensor, is_enough: torch.Tensor | int = 1) -> None:
        """Average a batch's statistics into the running ones, unless `is_enough` is false or 0.

        The first batches weigh equally. A new mean network has variances of 1e-4 and less; with a fixed momentum, a
        running variance that starts at 1 would keep predictions small for a hundred batches.
        """
        self.num_batches_tracked += is_enough
        momentum = (1 / self.num_batches_tracked.clamp(min=1)).clamp(min=self.momentum) * is_enough
        momentum = momentum.to(self.running_mean.dtype)
        self.running_mean.lerp_(center.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)

    @torch.no_grad()
    def fold_inverse_into(self, layer: nn.Linear) -> None:
        """Change `layer`, which reads the means, so that it returns what it returned for the unnormalized states.

        A layer without bias cannot add the states' center back, so the learned shift does.
        """
        deviation = (self.running_var + EPSILON).sqrt()
        if layer.bias is None:
            self.shift.copy_(self.scale * self.running_mean / deviation)
        else:
            layer.bias.add_(layer.weight @ self.running_mean)
        layer.weight.mul_(deviation / self.scale)

    @property
    def enough_batches(self) -> int:
        """Number of batches after which all are weighted by the momentum."""
        return math.ceil(1 / max(self.momentum, 1e-6))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args) -> None:
        """Load as torch does; statistics saved without a number of batches count as those of many."""
        name = f"{prefix}num_batches_tracked"
        if f"{prefix}running_mean" in state_dict and name not in state_dict:
            state_dict[name] = torch.tensor(self.enough_batches)
        super()._load_from_state_dict(state_dict, prefix, *args)


def compute_kl(mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
    """Return the KL of N(mean, exp(log_variance)) from N(0, 1) in each dimension (Eq. 5), in nats, float32."""
    mean, log_variance = mean.float(), log_variance.float()
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp())
