"""Put retrieved passages into the batches of a model that reads them.

A dataset with looked-up texts has the column `passage_ids`: the ids of at most K passages, best first. The collator
here wraps the collator of any task and adds the tokens of these passages to its batch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

PASSAGE_COLUMNS = ("passage_ids", "passage_scores")


def read_token_ids(passages: Dataset | Mapping[int, Sequence[int]], passage_ids: Sequence[int]) -> list[list[int]]:
    """Read the token ids of passages.

    Args:
        passages: A dataset with the columns `id` and `input_ids`, whose row numbers are the ids, or a mapping of ids to
            token ids.

    Raises:
        ValueError: A passage does not exist.
    """
    if not passage_ids:
        return []
    known = len(passages)
    if isinstance(passages, Mapping):
        if missing := [number for number in passage_ids if number not in passages]:
            raise ValueError(_describe_missing(missing[0], known))
        return [list(passages[number]) for number in passage_ids]
    if max(passage_ids) >= known:
        raise ValueError(_describe_missing(max(passage_ids), known))
    rows = passages.select_columns(["id", "input_ids"])[list(passage_ids)]
    for wanted, found in zip(passage_ids, rows["id"], strict=True):
        if wanted != found:
            raise ValueError(_describe_missing(wanted, known))
    return rows["input_ids"]


def _describe_missing(number: int, known: int) -> str:
    return (
        f"every retrieved passage must be in the datastore, but {number} is not among its {known}. Retrieve again: the "
        "passages come from another datastore."
    )


@dataclass
class DataCollatorWithPassages:
    """Make a batch with another collator and add the passages of its examples.

    A passage that several examples share is in the batch once, so it is encoded once.

    Args:
        collator: Makes the batch without the passages.
        tokenizer: The model's; pads passages and limits their length.
        passages: See `read_token_ids`. With None the batch has only passage ids, and the model reads the passages
            from a cache (see `hf_domain.methods.rada.states`).
        num_passages: Largest number of passages of an example; the best are kept. Default: K of the paper (section
            4.1).
    """

    collator: Callable[[list[dict[str, Any]]], Any]
    tokenizer: PreTrainedTokenizerBase
    passages: Dataset | Mapping[int, Sequence[int]] | None
    num_passages: int = 10

    def __post_init__(self) -> None:
        if self.num_passages < 1:
            raise ValueError(
                f"num_passages must be at least 1, but is {self.num_passages}. To read no passages, leave out "
                "this collator."
            )

    def __call__(self, examples: Sequence[dict[str, Any]]) -> Any:
        """Make a batch.

        Args:
            examples: The inner collator's, with `passage_ids` and perhaps `passage_scores`.

        Returns:
            The batch of the inner collator with `passage_input_ids` and `passage_attention_mask`
            [passages, passage_length], and `passage_index` [batch, num_passages], the row of each passage of an
            example, -1 for none. If `passages` is None, with `passage_ids` [batch, num_passages] instead. With
            `passage_scores` [batch, num_passages], 0 for none, if the examples have them.
        """
        if "passage_ids" not in examples[0]:
            raise ValueError(
                f"examples must have the column passage_ids, but have {sorted(examples[0])}. Call add_passages first."
            )
        chosen = [[int(number) for number in example["passage_ids"][: self.num_passages]] for example in examples]
        batch = self.collator(
            [{name: value for name, value in example.items() if name not in PASSAGE_COLUMNS} for example in examples]
        )
        # Always the same width, so that a compiled model does not compile again for fewer passages.
        ids = torch.tensor([row + [-1] * (self.num_passages - len(row)) for row in chosen])
        if "passage_scores" in examples[0]:
            scores = [example["passage_scores"][: self.num_passages] for example in examples]
            batch["passage_scores"] = torch.tensor([[*row, *[0.0] * (self.num_passages - len(row))] for row in scores])
        if self.passages is None:
            batch["passage_ids"] = ids
            return batch
        unique = sorted({number for row in chosen for number in row})
        row_of = {number: row for row, number in enumerate(unique)} | {-1: -1}
        batch["passage_input_ids"], batch["passage_attention_mask"] = self._pad(unique)
        batch["passage_index"] = torch.tensor([[row_of[number] for number in row] for row in ids.tolist()])
        return batch

    def _pad(self, passage_ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
        assert self.passages is not None
        tokens = read_token_ids(self.passages, passage_ids)
        longest = max(map(len, tokens), default=0)
        if longest > self.tokenizer.model_max_length:
            raise ValueError(
                f"passages must have at most {self.tokenizer.model_max_length} tokens, the encoder's limit, but "
                f"one has {longest}. Build the datastore with this tokenizer and shorter passages."
            )
        # One row of padding without passages, so that every batch takes the same path through the model.
        shape = (max(len(tokens), 1), max(longest, 1))
        input_ids = torch.full(shape, self.tokenizer.pad_token_id)
        mask = torch.zeros(shape, dtype=torch.long)
        for row, ids in enumerate(tokens):
            input_ids[row, : len(ids)] = torch.as_tensor(ids)
            mask[row, : len(ids)] = 1
        return input_ids, mask
