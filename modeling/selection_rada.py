"""The interface of RADA: scores passages, chooses one, and adds its words to the states of the input (section 3.3).

An exact factorization makes reading cheap. Eqs. 5-8 sum q_i . k_j over i first, so they need only the mean query.
Multiplied by the transpose of W^K, it scores the passage's states as they are, and only their weighted sum is
multiplied by W^V: no passage is projected. The score of a passage needs one vector of it, the mean of its states.
Without gradients, a passage is therefore chosen first, and only its states are encoded or read.
"""

import logging
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers.modeling_outputs import BaseModelOutput

logger = logging.getLogger(__name__)


@dataclass
class PassageReading:
    """What was read for each input of a batch, detached; None if the model read no passages.

    Args:
        selected_passages: `[batch]`, index of the chosen passage among the input's; -1 if it has none.
        passage_weights: `[batch, passages]`, beta; sums to 1, or to 0 without passages.
        word_weights: `[batch, num_heads, passage_length]`, over the words of the chosen passage; sums to 1, or to 0.
    """

    selected_passages: torch.Tensor | None = None
    passage_weights: torch.Tensor | None = None
    word_weights: torch.Tensor | None = None


@dataclass
class RadaModelOutput(PassageReading, BaseModelOutput):
    """Output of `RadaModel` and `RetrievalInterface`."""


def average_states(states: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Average over real tokens.

    Args:
        states: `[..., length, hidden_size]`.
        mask: `[..., length]`, bool.

    Returns:
        `[..., hidden_size]`, float32; zeros if no token is real.
    """
    mask = mask.unsqueeze(-2).float()
    return (mask @ states.float()).squeeze(-2) / mask.sum(dim=-1).clamp(min=1)


def sample_gumbel(like: torch.Tensor) -> torch.Tensor:
    """Sample from Gumbel(0, 1) in the shape of `like` (Eq. 10), as -log of an exponential sample, which is finite.

    Eq. 11 is infinite if the uniform sample is 0 or 1.
    """
    return -torch.empty_like(like).exponential_().clamp(min=torch.finfo(like.dtype).tiny).log()


def read_matrix(linear: nn.Module) -> torch.Tensor:
    """Return the matrix `[out, in]` of a linear map without bias, float32.

    A peft adapter keeps its own matrix next to the original one; applying it to the unit vectors gives both together.
    """
    weight: Any = linear.weight
    if type(linear) is not nn.Linear:
        weight = linear(torch.eye(weight.shape[1], dtype=weight.dtype, device=weight.device)).T
    return weight.float()


class RetrievalInterface(nn.Module):
    """The RA-interface (section 3.3): scoring, selection and fusion on the states of any encoder.

    Computes in float32. The matrices have no biases, as printed; a bias in W^K would cancel.

    Args:
        hidden_size: Width of the states.
        num_heads: Number of weights that each word gets.
        scores: See `RadaConfig`, as for the other arguments.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        scores: str = "pooled",
        selection: str = "gumbel",
        temperature: float = 1.0,
        final_temperature: float | None = None,
        final_noise: float = 1.0,
        prior_scale_init: float | None = None,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.scores = scores
        self.selection = selection
        self.first_temperature = temperature
        self.final_temperature = temperature if final_temperature is None else final_temperature
        self.final_noise = final_noise
        self.prior_scale_init = prior_scale_init
        self.anneal(0.0)
        self.needs_annealing = (self.final_temperature, final_noise) != (temperature, 1.0)
        self.query = nn.Linear(hidden_size, hidden_size, bias=False)
        self.key = nn.Linear(hidden_size, hidden_size, bias=False)
        self.value = nn.Linear(hidden_size, hidden_size, bias=False)
        self.output = nn.Linear(hidden_size, hidden_size, bias=False)
        self.norm = nn.LayerNorm(hidden_size)
        if scores in ("pooled", "logsumexp"):
            # The printed sum over both lengths is so large that noise and gradient vanish next to it. The mean is so
            # small in a new interface (passages differ by 0.001) that fine-tuning could end before it outgrows the
            # noise.
            self.scale = nn.Parameter(torch.full((1,), hidden_size**0.5))
        if prior_scale_init is not None:
            self.prior_scale = nn.Parameter(torch.full((1,), prior_scale_init))

    def anneal(self, progress: float) -> None:
        """Set the temperature and the noise of the next steps; evaluation has the final temperature and no noise.

        Args:
            progress: Share of the training that is done, from 0 to 1.
        """
        self.needs_annealing = False
        self.temperature = self.first_temperature ** (1 - progress) * self.final_temperature**progress
        self.noise = 1 - progress + progress * self.final_noise

    def forward(
        self,
        hidden_states: torch.Tensor,
        passage_states: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        passage_attention_mask: torch.Tensor | None = None,
        passage_index: torch.Tensor | None = None,
        passage_scores: torch.Tensor | None = None,
    ) -> RadaModelOutput:
        """Read a passage for each input.

        Args:
            hidden_states: `[batch, length, hidden_size]`.
            passage_states: `[batch, passages, passage_length, hidden_size]`, or `[rows, passage_length, hidden_size]`
                with `passage_index`.
            attention_mask: `[batch, length]`, 0 at padding.
            passage_attention_mask: `passage_states` without its last dimension; a passage of only padding counts as
                none.
            passage_index: `[batch, passages]`, the row of each passage; -1 for none.
            passage_scores: `[batch, passages]`, the retrieval's, above 0; needed with a prior.

        Returns:
            `last_hidden_state` `[batch, length, hidden_size]`, exactly `hidden_states` for an input without passages;
            and what was read.
        """
        mask = passage_attention_mask
        mask = passage_states.new_ones(passage_states.shape[:-1]) if mask is None else mask
        if passage_index is not None:
            rows = passage_index.clamp(min=0)
            passage_states, mask = passage_states[rows], mask[rows] * (passage_index >= 0).unsqueeze(-1)
        mask = mask.bool()
        available = mask.any(dim=-1)
        with torch.autocast(hidden_states.device.type, enabled=False):
            hidden, states = hidden_states.float(), passage_states.float()
            word_scores, logits = self.score(hidden, states, get_mask(hidden, attention_mask), mask)
            choice, passage_weights = self.choose(self.add_prior(logits, passage_scores), available)
            word_weights = self.weigh_words(word_scores, mask)
            contexts = word_weights.transpose(1, 2) @ states  # [batch, passages, heads, hidden_size]
            values = torch.einsum("bkhd,hed->bkhe", contexts, self.split_heads(self.value)).flatten(2)
            fused = choice.unsqueeze(1) @ values  # [batch, 1, hidden_size]
            norm = self.norm
            read = F.layer_norm(
                hidden + F.linear(fused, read_matrix(self.output)),
                norm.normalized_shape,
                norm.weight.float(),
                norm.bias.float(),
                norm.eps,
            )
        has_passage = available.any(dim=-1)
        selected = choice.detach().argmax(dim=-1)
        index = selected[:, None, None, None].expand(-1, self.num_heads, 1, mask.shape[-1])
        selected_weights = word_weights.detach().gather(2, index).squeeze(2)
        return RadaModelOutput(
            last_hidden_state=torch.where(has_passage[:, None, None], read.to(hidden_states.dtype), hidden_states),
            selected_passages=selected.masked_fill(~has_passage, -1),
            passage_weights=passage_weights.detach(),
            word_weights=selected_weights,
        )

    def split_heads(self, linear: nn.Module) -> torch.Tensor:
        """Return the matrix of a projection as `[heads, head_size, hidden_size]`, float32."""
        return read_matrix(linear).unflatten(0, (self.num_heads, -1))

    def project_query(self, hidden_states: torch.Tensor, token_mask: torch.Tensor) -> torch.Tensor:
        """Return each head's mean query, multiplied by the transpose of W^K and divided by sqrt(d).

        Its product with a passage's state is the mean of q_i . k_j / sqrt(d) over the positions i.

        Args:
            hidden_states: `[batch, length, hidden_size]`.
            token_mask: `[batch, length]`, bool.

        Returns:
            `[batch, heads, hidden_size]`, float32.
        """
        query = torch.einsum("bd,hed->bhe", average_states(hidden_states, token_mask), self.split_heads(self.query))
        return torch.einsum("bhe,hed->bhd", query, self.split_heads(self.key)) / query.shape[-1] ** 0.5

    def score(
        self, hidden_states: torch.Tensor, states: torch.Tensor, token_mask: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score words and passages (Eqs. 4-8).

        Args:
            hidden_states: `[batch, length, hidden_size]`.
            states: `[batch, passages, passage_length, hidden_size]`.
            token_mask: `[batch, length]`, bool.
            mask: `[batch, passages, passage_length]`, bool.

        Returns:
            Scores of words `[batch, heads, passages, passage_length]`, undefined at padding, and of passages
            `[batch, passages]`. With "joint" both are logarithms of the attention.
        """
        if self.scores == "joint":
            return self.score_jointly(hidden_states, states, token_mask, mask)
        query = self.project_query(hidden_states, token_mask)
        if self.scores == "literal":
            query = query * token_mask.sum(dim=-1)[:, None, None]
        word_scores = (query @ states.flatten(1, 2).transpose(1, 2)).unflatten(-1, states.shape[1:3])
        if self.scores == "literal":
            return word_scores, word_scores.masked_fill(~mask.unsqueeze(1), 0.0).sum(dim=(1, 3))
        if self.scores == "logsumexp":
            lowest = torch.finfo(word_scores.dtype).min
            scaled = (self.scale.float() * word_scores).masked_fill(~mask.unsqueeze(1), lowest)
            # Of the mean, so that a long passage does not lead by its length.
            return word_scores, (scaled.logsumexp(dim=-1) - mask.sum(dim=-1).clamp(min=1).log().unsqueeze(1)).sum(dim=1)
        return word_scores, self.score_passages(query, average_states(states, mask))

    def score_passages(self, query: torch.Tensor, passage_vectors: torch.Tensor) -> torch.Tensor:
        """Score passages by their mean states: the mean over their words, summed over heads, times the scale.

        Args:
            query: See `project_query`.
            passage_vectors: `[batch, passages, hidden_size]`, see `average_states`.

        Returns:
            `[batch, passages]`.
        """
        return self.scale.float() * (passage_vectors @ query.sum(dim=1).unsqueeze(-1)).squeeze(-1)

    def score_jointly(
        self, hidden_states: torch.Tensor, states: torch.Tensor, token_mask: torch.Tensor, mask: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Score by a softmax over all words of all passages at each position; see `score`.

        Computes in logarithms, so that a passage without attention gets a very small weight instead of 0 / 0.
        """
        query = torch.einsum("bld,hed->bhle", hidden_states, self.split_heads(self.query))
        keys = torch.einsum("bkpd,hed->bhkpe", states, self.split_heads(self.key)).flatten(2, 3)
        scores = query @ keys.transpose(-1, -2) / query.shape[-1] ** 0.5  # [batch, heads, length, words]
        lowest = torch.finfo(scores.dtype).min
        words = mask.flatten(1)[:, None]
        attention = scores.masked_fill(~words[:, None], lowest).log_softmax(dim=-1)
        length = token_mask.sum(dim=-1).clamp(min=1)[:, None, None]
        attention = attention.masked_fill(~token_mask[:, None, :, None], lowest).logsumexp(dim=2) - length.log()
        attention = attention.masked_fill(~words, lowest).unflatten(-1, mask.shape[1:])
        return attention, attention.transpose(1, 2).flatten(2).logsumexp(dim=-1) - math.log(self.num_heads)

    def add_prior(self, logits: torch.Tensor, passage_scores: torch.Tensor | None) -> torch.Tensor:
        """Add the logarithm of the retrieval's scores, by its scale, if there is a prior.

        Args:
            logits: `[batch, passages]`.
            passage_scores: `[batch, passages]`; any where there is no passage.

        Raises:
            ValueError: There are no scores for a prior.
        """
        if self.prior_scale_init is None:
            return logits
        if passage_scores is None:
            raise ValueError(
                "passage_scores must be given to a RADA with prior_scale_init, with its passages, but are missing. "
                "Keep the column that add_passages makes."
            )
        scores = passage_scores.float().clamp(min=torch.finfo(torch.float).tiny)
        return logits + self.prior_scale.float() * scores.log()

    def choose(self, logits: torch.Tensor, available: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose passages (Eqs. 9-11).

        Args:
            logits: `[batch, passages]`.
            available: `[batch, passages]`, bool.

        Returns:
            The weights of the passages' values, and beta, both `[batch, passages]`. The former are one-hot unless
            `selection` is "all"; with "gumbel" their gradient is beta's.
        """
        if self.training and self.needs_annealing and not torch.compiler.is_compiling():
            self.needs_annealing = False
            logger.warning(
                "final_temperature and final_noise have no effect in training unless a callback calls `anneal`. Pass "
                "callbacks=[Annealing()] of hf_domain.training.callbacks to Trainer."
            )
        if self.selection == "gumbel" and self.training:
            # As printed: one sample for all passages, which the softmax cancels.
            logits = logits + self.noise * sample_gumbel(logits[:, :1] if self.scores == "literal" else logits)
        temperature = self.temperature if self.training else self.final_temperature
        logits = (logits / temperature).masked_fill(~available, torch.finfo(logits.dtype).min)
        weights = logits.softmax(dim=-1) * available
        if self.selection == "all":
            return weights, weights
        choice = torch.zeros_like(weights).scatter(1, logits.argmax(dim=-1, keepdim=True), 1.0)
        if self.selection == "gumbel":
            choice = choice + (weights - weights.detach())  # the difference is exactly 0
        return choice, weights

    def weigh_words(self, word_scores: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """Normalize the scores of words within each passage (Eq. 12).

        Args:
            word_scores: `[batch, heads, passages, passage_length]`.
            mask: `[batch, passages, passage_length]`, bool.

        Returns:
            `[batch, heads, passages, passage_length]`; zeros at padding.
        """
        mask = mask.unsqueeze(1)
        if self.scores == "literal":
            word_scores = word_scores.masked_fill(~mask, 0.0)
            totals = word_scores.sum(dim=-1, keepdim=True)
            return word_scores / totals.masked_fill(~mask.any(dim=-1, keepdim=True), 1.0)
        lowest = torch.finfo(word_scores.dtype).min
        return word_scores.masked_fill(~mask, lowest).softmax(dim=-1).masked_fill(~mask, 0.0)

    def select(
        self,
        hidden_states: torch.Tensor,
        passage_vectors: torch.Tensor,
        available: torch.Tensor,
        attention_mask: torch.Tensor | None = None,
        passage_scores: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Choose a passage by the passages' mean states; needs `scores="pooled"`.

        Args:
            hidden_states: `[batch, length, hidden_size]`.
            passage_vectors: `[batch, passages, hidden_size]`, see `average_states`.
            available: `[batch, passages]`, bool.
            attention_mask: `[batch, length]`, 0 at padding.
            passage_scores: As in `forward`.

        Returns:
            The index of the chosen passage `[batch]` (arbitrary if none is available) and beta `[batch, passages]`.
        """
        with torch.autocast(hidden_states.device.type, enabled=False):
            query = self.project_query(hidden_states, get_mask(hidden_states, attention_mask))
            logits = self.score_passages(query, passage_vectors.float())
            choice, weights = self.choose(self.add_prior(logits, passage_scores), available)
        return choice.argmax(dim=-1), weights


def get_mask(states: torch.Tensor, attention_mask: torch.Tensor | None) -> torch.Tensor:
    """Return a bool mask of the real tokens; without `attention_mask` all are real."""
    if attention_mask is None:
        return torch.ones(states.shape[:-1], dtype=torch.bool, device=states.device)
    return attention_mask.bool()


def add_zero_gradients(states: torch.Tensor, module: nn.Module) -> torch.Tensor:
    """Return `states` unchanged, in a graph that gives every trainable parameter of `module` at least a zero gradient.

    Otherwise processes that train together would wait forever for a missing gradient: a batch without passages uses no
    weight of the interface, and selection="top1" never uses the scale.
    """
    zeros: Any = [0 * parameter.flatten()[0] for parameter in module.parameters() if parameter.requires_grad]
    return states + sum(zeros).to(states.dtype) if zeros else states
