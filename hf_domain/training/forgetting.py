"""Measure what encoders have forgotten: masked-LM losses of models on corpora (figures 1 and 5 of G-MAP)."""

import os
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.data.masking import DataCollatorForTokenMask
from hf_domain.methods.stock_models import check_tokenizer_fits


def measure_masked_lm_loss(
    model: PreTrainedModel, examples: Dataset, collator: Any, *, batch_size: int = 16
) -> dict[str, float]:
    """Measure the masked-LM loss of a model.

    Args:
        model: A masked LM on the device to compute on; it is switched to evaluation mode.
        examples: With `input_ids`, as `tokenize_corpus` makes them.
        collator: Masks the examples. With a `DataCollatorForTokenMask` every model gets the same masks.

    Returns:
        `loss`, the mean cross-entropy of the masked tokens in nats, and `masked_tokens`, their number.
    """
    model.eval()
    total, count = 0.0, 0
    batches: Any = DataLoader(examples, batch_size=batch_size, collate_fn=collator)
    for batch in tqdm(batches, desc="Measuring", unit="batches", leave=False, disable=None):
        labeled = int((batch["labels"] != -100).sum())
        if not labeled:
            continue
        with torch.inference_mode():
            output = model(**{name: value.to(model.device) for name, value in batch.items()})
        total += labeled * float(output.loss)
        count += labeled
    if not count:
        raise ValueError(
            f"the text must have a masked token, but its {len(examples)} examples have none. Use more text."
        )
    return {"loss": total / count, "masked_tokens": count}


def compare_losses(
    models: Iterable[tuple[str, PreTrainedModel]],
    corpora: Mapping[str, Dataset],
    tokenizer: PreTrainedTokenizerBase,
    *,
    mlm_probability: float = 0.15,
    batch_size: int = 16,
    seed: int = 42,
) -> dict[str, dict[str, dict[str, float]]]:
    """Measure each model on each corpus.

    Args:
        models: Names and masked LMs; a generator may load them one after another.
        corpora: Examples of each corpus, tokenized by `tokenizer`.
        tokenizer: Shared by all models: per-token losses are comparable under one tokenizer only.
        seed: Seed of the masks, which all models share.

    Returns:
        For each model and each corpus, the output of `measure_masked_lm_loss`.

    Raises:
        ValueError: The tokenizer has more entries than a model.
    """
    collator = DataCollatorForTokenMask(tokenizer, mlm_probability=mlm_probability, seed=seed, by_example=True)
    losses = {}
    for name, model in models:
        check_tokenizer_fits(tokenizer, model)
        losses[name] = {
            corpus: measure_masked_lm_loss(model, examples, collator, batch_size=batch_size)
            for corpus, examples in corpora.items()
        }
    return losses


def plot_losses(losses: Mapping[str, Mapping[str, Mapping[str, float]]], path: str | os.PathLike) -> None:
    """Draw a group of bars for each corpus, with a bar for each model.

    Args:
        losses: As `compare_losses` returns them.
    """
    from matplotlib.figure import Figure

    corpora = list(next(iter(losses.values())))
    figure = Figure(figsize=(1.5 + 0.6 * len(losses) * len(corpora), 3.5), layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(losses)
    for number, (name, by_corpus) in enumerate(losses.items()):
        heights = [by_corpus[corpus]["loss"] for corpus in corpora]
        places = [place + (number - (len(losses) - 1) / 2) * width for place in range(len(corpora))]
        axes.bar_label(axes.bar(places, heights, width, label=name), fmt="%.2f", fontsize=7)
    axes.set_xticks(range(len(corpora)), corpora)
    axes.set_ylabel("Masked-LM loss (nats)")
    figure.legend(loc="outside upper center", ncols=len(losses), frameon=False)  # above the bars, not over them
    figure.savefig(path)
