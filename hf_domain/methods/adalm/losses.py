"""MiniLM's losses: relations among queries, keys and values of a teacher and a student."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch.utils.checkpoint import checkpoint

from hf_domain.methods.adalm.attention import AttentionStates

# The terms of each method.
RELATIONS = {"minilm": ("attention", "value"), "minilmv2": ("query", "key", "value")}


# Elements of a relation map computed at once, 8 MB; benchmarks/steps.py measures larger chunks.
CHUNK_ELEMENTS = 2**21


@dataclass(frozen=True)
class DistillationConfig:
    """What the student learns from the teacher.

    Args:
        method: "minilm" compares attention distributions and value relations, and needs equally many heads (AdaLM's
            choice). "minilmv2" compares query, key and value relations over `num_relation_heads`, for any heads.
        num_relation_heads: Heads into which MiniLMv2 splits the states of both models; must divide both widths. None
            is four times the teacher's heads: 48 for 12 and 64 for 16, as in the paper.
        teacher_layer: The layer that teaches, counted from 1; None is the last (MiniLM, and MiniLMv2 for 12 layers; it
            takes the 21st of 24). The student always learns with its last layer.

    Raises:
        ValueError: An option is out of range, or MiniLM gets relation heads.
    """

    method: Literal["minilm", "minilmv2"] = "minilm"
    num_relation_heads: int | None = None
    teacher_layer: int | None = None

    def __post_init__(self) -> None:
        if self.method not in ("minilm", "minilmv2"):
            raise ValueError(f"method must be 'minilm' or 'minilmv2', but is {self.method!r}")
        if self.method == "minilm" and self.num_relation_heads is not None:
            raise ValueError(
                "num_relation_heads must be None for MiniLM, which compares the attention heads themselves, but "
                f"is {self.num_relation_heads}. Use method='minilmv2'."
            )
        for name in ("num_relation_heads", "teacher_layer"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, but is {value}")


def compute_relation_loss(
    teacher_scores: torch.Tensor, student_scores: torch.Tensor, attention_mask: torch.Tensor
) -> torch.Tensor:
    """Return KL(teacher || student) of the distributions over the real positions.

    Args:
        teacher_scores: `[batch, heads, length, length]`, before the softmax; no gradient flows into them.
        student_scores: `[batch, heads, length, length]`.
        attention_mask: `[batch, length]`, 0 at padding.

    Returns:
        Mean over a sequence's heads and real positions, then over the sequences, in nats. Each sequence weighs the
        same, as in the paper, so that gradient accumulation over equal batches changes nothing.
    """
    padding = attention_mask[:, None, None, :] == 0
    lowest = torch.finfo(student_scores.dtype).min
    target = teacher_scores.detach().masked_fill(padding, lowest).log_softmax(dim=-1)
    log_probabilities = student_scores.masked_fill(padding, lowest).log_softmax(dim=-1)
    divergence = (target.exp() * (target - log_probabilities)).sum(dim=-1)
    weights = attention_mask / attention_mask.sum(dim=-1, keepdim=True).clamp(min=1)
    return (divergence.mean(dim=1) * weights).sum(dim=-1).mean()


def compute_distillation_losses(
    teacher: AttentionStates, student: AttentionStates, attention_mask: torch.Tensor, config: DistillationConfig
) -> dict[str, torch.Tensor]:
    """Compute the terms of the loss.

    In the local layers of ModernBERT a student attends to part of the text. The teacher's attention distribution is
    then restricted to the same part, because the student cannot weigh what it does not see. Value, query and key
    relations cover the whole text.

    The maps of a large batch are computed in blocks of sequences, and recomputed for the gradient. Kept for all
    sequences they would take more memory than the student's whole forward pass.

    Args:
        attention_mask: `[batch, length]`, 0 at padding.

    Returns:
        The terms by the names of `DistillationOutput`.
    """
    batch_size, length = attention_mask.shape
    num_heads = count_relation_heads(teacher.num_heads, config)
    names = [f"{relation}_loss" for relation in RELATIONS[config.method]]
    size = max(1, CHUNK_ELEMENTS // (num_heads * length * length))
    totals = []
    for start in range(0, batch_size, size):
        rows = slice(start, start + size)
        arguments = teacher.select(rows), student.select(rows), attention_mask[rows], config
        if size < batch_size and torch.is_grad_enabled():
            means = checkpoint(compute_terms, *arguments, use_reentrant=False)
        else:
            means = compute_terms(*arguments)
        totals.append(means * len(attention_mask[rows]))
    return dict(zip(names, torch.stack(totals).sum(dim=0) / batch_size, strict=True))


def compute_terms(
    teacher: AttentionStates, student: AttentionStates, attention_mask: torch.Tensor, config: DistillationConfig
) -> torch.Tensor:
    """Compute the terms of `compute_distillation_losses` for one block of sequences, in the order of `RELATIONS`."""
    num_heads = count_relation_heads(teacher.num_heads, config)
    terms = []
    for relation in RELATIONS[config.method]:
        with torch.no_grad():
            teacher_scores = teacher.compute_scores(relation, num_heads, student.visible)
        student_scores = student.compute_scores(relation, num_heads)
        terms.append(compute_relation_loss(teacher_scores, student_scores, attention_mask))
    return torch.stack(terms)


def count_relation_heads(teacher_heads: int, config: DistillationConfig) -> int:
    """Return the heads over which relations are compared."""
    if config.method == "minilm":
        return teacher_heads
    return config.num_relation_heads or 4 * teacher_heads
