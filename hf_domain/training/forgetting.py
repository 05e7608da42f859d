"""Measure the masked-LM loss of a model on a text, without a Trainer."""

from typing import Any

import torch
from datasets import Dataset
from torch.utils.data import DataLoader
from tqdm.auto import tqdm
from transformers import PreTrainedModel


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
