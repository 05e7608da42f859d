"""The rows of a model for the new entries of its tokenizer."""

import json
import os
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)

from hf_domain.files import write_text
from hf_domain.tokenization import VocabularyDelta

LARGEST_PADDING = 1024
"""Rows by which a table may exceed its tokenizer (our choice): DeBERTa-v3 pads by 99 and no encoder we know by more,
while the table of another tokenizer, or one that got its new rows already, rarely differs by less."""


@torch.no_grad()
def apply_delta(
    model: PreTrainedModel,
    delta: VocabularyDelta,
    init: Literal["pieces", "random", "mean"] = "pieces",
    pad_to_multiple_of: int | None = None,
) -> None:
    """Give a model rows for the new entries of an expanded tokenizer, in place.

    The input embedding, the decoder where it is a table of its own, and the decoder's bias are filled. A table that is
    padded beyond its tokenizer is filled from the padding on and never shrinks.

    Args:
        model: Any model of transformers with an input embedding over the old vocabulary.
        delta: What `expand_vocabulary` returned beside the tokenizer.
        init: "pieces": the mean of the rows of the old pieces (AdaLM); an entry without known pieces gets the mean of
            all. Biases, which the paper leaves open, follow the frequency of the entry as those of old entries do; a
            delta without counts gives them the mean of the pieces too. "random": normal with the model's
            `initializer_range`, bias 0. "mean": the mean of all old rows and biases.
        pad_to_multiple_of: Enlarge the table to a multiple of this; a multiple of 64 is faster on a GPU.

    Raises:
        ValueError: The table does not match the tokenizer that was expanded.
    """
    rows = len(_list_tables(model)[0])
    if not delta.old_size <= rows <= delta.old_size + LARGEST_PADDING:
        raise ValueError(
            f"The model's embedding has {rows:,} rows, but the tokenizer that was expanded has {delta.old_size:,} "
            f"entries. The table must have as many rows, or up to {LARGEST_PADDING:,} more as padding: take model and "
            f"tokenizer from the same checkpoint, and apply a delta once."
        )
    if init not in ("pieces", "random", "mean"):
        raise ValueError(f"`init` must be 'pieces', 'random' or 'mean', but is {init!r}.")
    if not delta.pieces:
        return
    if delta.new_size > rows or pad_to_multiple_of:
        model.resize_token_embeddings(
            max(rows, delta.new_size), pad_to_multiple_of=pad_to_multiple_of, mean_resizing=False
        )
    spread = getattr(model.config.get_text_config(), "initializer_range", 0.02)
    for table in _list_tables(model):
        _fill_rows(table, delta, init, spread)


def check_not_expanded(tokenizer: PreTrainedTokenizerBase, delta: VocabularyDelta) -> None:
    """Check that a checkpoint has not got the new entries already: their trained rows would start again.

    `apply_delta` sees it by the number of rows alone, and takes a few for padding.

    Args:
        tokenizer: Of the checkpoint, before it is expanded.

    Raises:
        ValueError: The tokenizer has the entries.
    """
    if delta.pieces and max(tokenizer.get_vocab().values(), default=0) + 1 >= delta.new_size:
        raise ValueError(
            f"a vocabulary must be expanded only once, but the tokenizer of {tokenizer.name_or_path} already has "
            f"{delta.new_size:,} entries. Leave out --expanded_vocabulary to train it further."
        )


def measure_row_distances(
    before: torch.Tensor, after: torch.Tensor, delta: VocabularyDelta
) -> tuple[torch.Tensor, torch.Tensor]:
    """Measure how far training moved the rows of old and of new entries (Figure 5 of AdaLM).

    Args:
        before: Embedding right after `apply_delta`, shape [rows, hidden]; a copy, since training works in place.
        after: Embedding after training, same shape.

    Returns:
        The L2 distances of the old rows, shape [old_size], and of the new rows, shape [new entries].
    """
    distances = (after.float() - before.float()).norm(dim=1)
    return distances[: delta.old_size], distances[delta.old_size : delta.new_size]


def plot_row_distances(old: torch.Tensor, new: torch.Tensor, path: str | os.PathLike) -> None:
    """Draw what `measure_row_distances` returned, one histogram for old and one for new rows."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5, 3.5), layout="constrained")
    axes = figure.subplots()
    for distances, label in ((old, "original"), (new, "new")):
        axes.hist(distances.cpu().numpy(), bins=50, density=True, alpha=0.6, label=f"{label} entries")
    axes.set(xlabel="L2 distance of the embedding", ylabel="density")
    axes.legend()
    figure.savefig(path)


class RowDistances(TrainerCallback):
    """Measures how far training moved the rows, and writes `row_distances.json` and `.png` (Figure 5 of AdaLM).

    Args:
        model: As it is before training; a run that continues from a checkpoint loads that later.
    """

    def __init__(self, delta: VocabularyDelta, model: PreTrainedModel) -> None:
        self.delta = delta
        self.before = _list_tables(model)[0].detach().clone()

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Write the mean distances and the histogram, from one process."""
        if not state.is_world_process_zero:
            return
        after = _list_tables(kwargs["model"])[0].detach()
        old, new = measure_row_distances(self.before.to(after.device), after, self.delta)
        folder = Path(str(args.output_dir))
        distances = {"old_rows": float(old.mean()), "new_rows": float(new.mean()), "steps": state.global_step}
        write_text(folder / "row_distances.json", json.dumps(distances, indent=2) + "\n")
        plot_row_distances(old, new, folder / "row_distances.png")


class NewRowsFirst(TrainerCallback):
    """Train the new rows alone for some steps, then everything.

    New rows start as guesses, and the gradients that put them right would move a pretrained encoder as well. All other
    gradients are dropped just before the optimizer's step: freezing parameters instead would fail under a distributed
    wrapper, which waits for the gradient of each parameter that it was built with.

    Args:
        num_steps: Optimizer steps that train the new rows alone.
    """

    def __init__(self, delta: VocabularyDelta, num_steps: int) -> None:
        self.delta = delta
        self.num_steps = num_steps
        self.weight_decay: list[float] = []

    def on_pre_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Drop the gradients of everything but the new rows, and the weight decay, which needs no gradient."""
        if state.global_step >= self.num_steps:
            return
        tables = {id(table) for table in _list_tables(kwargs["model"])}
        for parameter in kwargs["model"].parameters():
            if id(parameter) not in tables:
                parameter.grad = None
            elif parameter.grad is not None:
                parameter.grad[: self.delta.old_size] = 0
                parameter.grad[self.delta.new_size :] = 0
        self.weight_decay = [group["weight_decay"] for group in kwargs["optimizer"].param_groups]
        for group in kwargs["optimizer"].param_groups:
            group["weight_decay"] = 0.0

    def on_optimizer_step(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Put the weight decay back."""
        for group, weight_decay in zip(kwargs["optimizer"].param_groups, self.weight_decay, strict=False):
            group["weight_decay"] = weight_decay
        self.weight_decay = []


def _list_tables(model: PreTrainedModel) -> list[nn.Parameter]:
    """The parameters with one row per entry: input embedding, decoder if it is not the same, decoder bias."""
    modules = [model.get_input_embeddings(), model.get_output_embeddings()]
    parameters = [parameter for module in modules if module is not None for parameter in module.parameters()]
    return list({id(parameter): parameter for parameter in parameters}.values())


def _fill_rows(table: nn.Parameter, delta: VocabularyDelta, init: str, spread: float) -> None:
    """Fill the rows of the new entries in a table [rows, width] or a bias [rows]."""
    new = table[delta.old_size : delta.new_size]
    if init == "random":
        new.normal_(std=spread) if table.dim() > 1 else new.zero_()
        return
    old = table[: delta.old_size].float().reshape(delta.old_size, -1)
    filled = old.mean(dim=0).expand(len(new), -1)
    if init == "pieces":
        pieces = [torch.tensor(ids, dtype=torch.long) for ids in delta.pieces.values()]
        lengths = torch.tensor([len(ids) for ids in pieces], device=old.device)
        starts = lengths.cumsum(0) - lengths
        means = nn.functional.embedding_bag(torch.cat(pieces).to(old.device), old, starts, mode="mean")
        filled = torch.where(lengths[:, None] > 0, means, filled)
    if init == "pieces" and table.dim() == 1 and delta.counts:
        filled = _predict_biases(old[:, 0], delta)
    new.copy_(filled.reshape(new.shape))


def _predict_biases(old: torch.Tensor, delta: VocabularyDelta) -> torch.Tensor:
    """Biases of new entries, by the line that fits those of old entries best against the logarithm of their counts.

    The bias of a masked LM is about the logarithm of a frequency. An entry is rarer than its pieces, whose mean would
    let it outbid all others wherever the model is unsure.
    """
    counts = torch.tensor(delta.counts, dtype=torch.float64, device=old.device)
    seen = counts[: delta.old_size] > 0
    x, y = counts[: delta.old_size][seen].log(), old[seen].double()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum().clamp(min=1e-9)
    return (y.mean() + slope * (counts[delta.old_size :].clamp(min=1).log() - x.mean())).float()
