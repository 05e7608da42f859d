"""The layers of VarMAE: its perceptrons, the mean network with its batch normalization, and the KL divergence."""

import math
from typing import Any

import torch
from torch import distributed, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from .configuration_varmae import VarMAEConfig

# What the batch normalization adds to a variance (torch's default).
EPSILON = 1e-5


class ZeroLinear(nn.Linear):
    """A linear layer that starts at zero, so that a residual branch starts as nothing."""


class LogVarianceLinear(nn.Linear):
    """The last layer of a variance network, whose outputs start near `config.log_variance_init`."""


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
    """The sum of a tensor over all processes, whose gradient is the sum of theirs; torch's own is deprecated."""

    @staticmethod
    def forward(context: Any, tensor: torch.Tensor) -> torch.Tensor:
        """Add up a copy of `tensor`."""
        total = tensor.clone()
        distributed.all_reduce(total)
        return total

    @staticmethod
    def backward(context: Any, gradient: torch.Tensor) -> torch.Tensor:
        """Add up the gradients of all processes."""
        return SumOverProcesses.forward(context, gradient)


def count_processes() -> int:
    """Return the number of processes that train together."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


class MeanNetwork(nn.Module):
    """f_mu and the batch normalization of its output.

    The normalization has a fixed scale and a learned shift: the mean over the data of mu^2 in each dimension is then at
    least `norm_scale`^2, and the KL cannot vanish. Outside the pre-training objective it uses its running statistics,
    also while fine-tuning: batch statistics would make a prediction depend on its neighbors in the batch. Statistics
    are those of the batches of all processes together. Of a network that is not trained they stay as they are: an
    adapter of peft does not hold them.
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

    def forward(self, context: torch.Tensor, use_batch_statistics: bool = False) -> torch.Tensor:
        """Return the means.

        Args:
            context: `[..., hidden_size]`; `[tokens, hidden_size]`, real tokens only, for batch statistics.
            use_batch_statistics: Normalize by this batch and update the running statistics, if the network is trained.
                Needs two tokens or more; with fewer the running statistics are used.
        """
        mean = self.perceptron(context)
        if self.residual:
            mean = context + mean
        if not self.batch_norm:
            return mean
        normalized = None
        if use_batch_statistics and self.shift.requires_grad:
            normalized = self.normalize_together(mean) if count_processes() > 1 else self.normalize_alone(mean)
        if normalized is None:
            normalized = F.batch_norm(mean.flatten(0, -2), self.running_mean, self.running_var, eps=EPSILON)
        return (self.scale * normalized + self.shift).view_as(mean)

    def normalize_alone(self, mean: torch.Tensor) -> torch.Tensor | None:
        """Normalize `[tokens, hidden_size]` by its statistics and track them; None of fewer than two tokens."""
        if len(mean) < 2:
            return None
        center, variance = torch.zeros_like(self.running_mean), torch.zeros_like(self.running_var)
        # With a momentum of 1 it writes the statistics of this batch.
        normalized = F.batch_norm(mean, center, variance, training=True, momentum=1.0, eps=EPSILON)
        self.track(center, variance)
        return normalized

    def normalize_together(self, mean: torch.Tensor) -> torch.Tensor | None:
        """Normalize as `normalize_alone` does, by the statistics of the tokens of all processes."""
        count = SumOverProcesses.apply(mean.new_tensor(len(mean), dtype=torch.float))
        if count < 2:
            return None
        center = SumOverProcesses.apply(mean.float().sum(dim=0)) / count
        centered = mean.float() - center
        variance = SumOverProcesses.apply(centered.square().sum(dim=0)) / count
        self.track(center, variance * count / (count - 1))
        return (centered * (variance + EPSILON).rsqrt()).to(mean.dtype)

    @torch.no_grad()
    def track(self, center: torch.Tensor, variance: torch.Tensor) -> None:
        """Average the statistics of a batch into the running ones.

        The first batches have equal weights: a mean network starts with a variance of 1e-4 and less, and a running one
        that starts at 1 would keep predictions small for a hundred batches.
        """
        self.num_batches_tracked += 1
        momentum = (1 / self.num_batches_tracked).clamp(min=self.momentum).to(self.running_mean.dtype)
        self.running_mean.lerp_(center.to(self.running_mean.dtype), momentum)
        self.running_var.lerp_(variance.to(self.running_var.dtype), momentum)

    @torch.no_grad()
    def fold_inverse_into(self, layer: nn.Linear) -> None:
        """Let `layer`, which reads the means, give what it gave for the states before their normalization.

        A layer without bias cannot take the center of the states; the learned shift takes it.
        """
        deviation = (self.running_var + EPSILON).sqrt()
        if layer.bias is None:
            self.shift.copy_(self.scale * self.running_mean / deviation)
        else:
            layer.bias.add_(layer.weight @ self.running_mean)
        layer.weight.mul_(deviation / self.scale)

    @property
    def enough_batches(self) -> int:
        """Batches after which the weights of all batches are those of the momentum."""
        return math.ceil(1 / max(self.momentum, 1e-6))

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args) -> None:
        """Load as torch does; statistics that were saved without a number of batches are those of many."""
        name = f"{prefix}num_batches_tracked"
        if f"{prefix}running_mean" in state_dict and name not in state_dict:
            state_dict[name] = torch.tensor(self.enough_batches)
        super()._load_from_state_dict(state_dict, prefix, *args)


def compute_kl(mean: torch.Tensor, log_variance: torch.Tensor) -> torch.Tensor:
    """KL of N(mean, exp(log_variance)) from N(0, 1) in each dimension (Eq. 5), nats; float32."""
    mean, log_variance = mean.float(), log_variance.float()
    return -0.5 * (1 + log_variance - mean.square() - log_variance.exp())
