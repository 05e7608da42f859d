"""Masks for masked-language modeling.

Both collators draw the masks of a batch from a seed, the epoch and the batch alone, so that a resumed run draws the
same masks as an uninterrupted one. Storing a generator's state would not achieve this: batches are collated ahead of
their step, and a resumed run skips batches without collating them. Without the epoch, batches of one example would have
the same masks in every epoch.

Token masking is transformers' `DataCollatorForLanguageModeling`. We do not use its whole-word masking, because it finds
words by gaps between character offsets. For Metaspace tokenizers (DeBERTa-v2) and for byte-level ones without trimmed
offsets (ModernBERT), the whole sequence would be one word. `BatchEncoding.word_ids()` gives the tokenizer's own words.

In languages without spaces, tokenizers define words differently. For BERT, every Chinese character is a word, so
whole-word masking equals token masking. For byte-level BPE, a word is all letters between two punctuation marks; for
Unigram, all text between two spaces, perhaps a sentence. Use token masking there.
"""

import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import get_worker_info
from transformers import BatchEncoding, DataCollatorForLanguageModeling, PreTrainedTokenizerBase
from transformers.data.data_collator import pad_without_fast_tokenizer_warning

MASKED, RANDOM = 0.8, 0.1  # what becomes of predicted words; the others stay


def check_mask_token(tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise a ValueError unless the tokenizer has a mask token."""
    if tokenizer.mask_token_id is None:
        name = tokenizer.name_or_path or type(tokenizer).__name__
        raise ValueError(
            f"the tokenizer must have a mask token for masked-language modeling, but {name} has none. Use an "
            "encoder that was pre-trained with masked-language modeling."
        )


def check_probability(mlm_probability: float) -> None:
    """Raise a ValueError unless the share of tokens to predict is above 0 and at most 1."""
    if not 0 < mlm_probability <= 1:
        raise ValueError(
            f"mlm_probability must be above 0 and at most 1, but is {mlm_probability}. The usual value is 0.15."
        )


def make_generator(examples: Sequence[dict[str, Any]], seed: int, epoch: int = 0) -> torch.Generator:
    """Return a generator whose state depends on the seed, the epoch, and the batch's token ids in their order.

    Args:
        examples: Dicts with `input_ids`.
    """
    state = zlib.crc32(bytes(epoch), seed)
    for example in examples:
        state = zlib.crc32(np.asarray(example["input_ids"], dtype=np.int32).tobytes(), state)
    return torch.Generator().manual_seed(state)


def pad_examples(
    tokenizer: PreTrainedTokenizerBase, examples: Sequence[dict[str, Any]], pad_to_multiple_of: int | None = None
) -> Any:
    """Return the inputs of a model for examples, padded to the longest; packed blocks of one length are stacked.

    `tokenizer.pad` converts lists number by number, which takes ten of the twelve milliseconds that a batch of 64 x 128
    costs: a GPU would wait for them in every step.
    """
    length = len(examples[0]["input_ids"])
    is_stackable = all([*each] == ["input_ids"] and len(each["input_ids"]) == length for each in examples)
    if not is_stackable or (pad_to_multiple_of and length % pad_to_multiple_of):
        return pad_without_fast_tokenizer_warning(
            tokenizer, examples, pad_to_multiple_of=pad_to_multiple_of, return_tensors="pt"
        )
    input_ids = torch.from_numpy(np.array([each["input_ids"] for each in examples], dtype=np.int64))
    has_mask = "attention_mask" in tokenizer.model_input_names
    return {"input_ids": input_ids} | ({"attention_mask": torch.ones_like(input_ids)} if has_mask else {})


def join_masked(batches: Sequence[Mapping[str, torch.Tensor]], tokenizer: PreTrainedTokenizerBase) -> BatchEncoding:
    """Join masked batches of one example each, with `labels`, into one batch."""
    examples = [{name: values[0].tolist() for name, values in batch.items() if name != "labels"} for batch in batches]
    joined = pad_without_fast_tokenizer_warning(tokenizer, examples, return_tensors="pt")
    joined["labels"] = pad_rows([batch["labels"][0] for batch in batches], -100, tokenizer)
    return joined


def pad_rows(rows: Sequence[torch.Tensor], value: int, tokenizer: PreTrainedTokenizerBase) -> torch.Tensor:
    """Return rows of numbers as one tensor, padded on the tokenizer's side."""
    return pad_sequence([*rows], batch_first=True, padding_value=value, padding_side=tokenizer.padding_side)


@dataclass
class DataCollatorForTokenMask(DataCollatorForLanguageModeling):
    """transformers' collator, with masks that depend only on `seed`, `epoch` and the batch."""

    seed: int = 0
    epoch: int = 0
    by_example: bool = False
    """Draw the masks of each example from it alone, whatever stands beside it; slower, for evaluations."""

    def __post_init__(self) -> None:
        check_probability(self.mlm_probability or 0.0)
        super().__post_init__()

    def torch_call(self, examples: list[Any]) -> Any:
        """Make a batch; see `DataCollatorForLanguageModeling`."""
        if self.by_example and len(examples) > 1:
            return join_masked([self.torch_call([each]) for each in examples], self.tokenizer)
        self.generator = make_generator(examples, self.seed, self.epoch)
        batch = pad_examples(self.tokenizer, examples, self.pad_to_multiple_of)
        special = torch.isin(batch["input_ids"], torch.tensor(self.tokenizer.all_special_ids))
        batch["input_ids"], batch["labels"] = self.torch_mask_tokens(batch["input_ids"], special_tokens_mask=special)
        return batch


@dataclass
class DataCollatorForWholeWordMask:
    """Pads a batch and masks whole words of it.

    A word is a sequence of tokens with the same entry of `word_ids`. Packed documents and sentence pairs need no extra
    care, because the tokens between them belong to no word. One draw per word decides whether its tokens are predicted,
    and whether they all become the mask token (80 %), become random tokens (10 %) or stay, as in Devlin et al. 2019,
    section 3.1. A single visible token would reveal the word (our choice; BERT's release draws the replacement per
    token). The draws are independent, as in the stock
    collator: `mlm_probability` is an expectation, and a short example may have no masked word.

    The examples need the column `word_ids`, which the model does not take: train with `remove_unused_columns=False`.

    Args:
        tokenizer: The tokenizer that made the examples.
        mlm_probability: Share of words to predict. Default: BERT (Devlin et al. 2019, section 3.1).
        seed: Seed of the masks.
        epoch: Number of the epoch, which `MaskRenewal` sets: each has other masks.
        by_example: Draw the masks of each example from it alone, whatever stands beside it; slower, for evaluations.

    Raises:
        ValueError: The tokenizer has no mask token, or a probability is out of range.
    """

    tokenizer: PreTrainedTokenizerBase
    mlm_probability: float = 0.15
    seed: int = 0
    epoch: int = 0
    by_example: bool = False

    def __post_init__(self) -> None:
        check_mask_token(self.tokenizer)
        check_probability(self.mlm_probability)

    def __call__(self, examples: Sequence[dict[str, Any]]) -> Any:
        """Make a batch.

        Args:
            examples: Dicts with `input_ids` and `word_ids`, one entry per token, None for a token outside words.

        Returns:
            The padded model inputs and `labels` [batch, length]: the original id of every masked token, -100 elsewhere.

        Raises:
            ValueError: The examples have no `word_ids`.
        """
        if "word_ids" not in examples[0]:
            raise ValueError(
                f"whole-word masking needs examples with the column word_ids, but they have {sorted(examples[0])}. "
                "Tokenize with whole_words=True and train with remove_unused_columns=False."
            )
        if self.by_example and len(examples) > 1:
            return join_masked([self([each]) for each in examples], self.tokenizer)
        inputs = [{k: v for k, v in example.items() if k in self.tokenizer.model_input_names} for example in examples]
        batch = pad_examples(self.tokenizer, inputs)
        words = [torch.tensor([-1 if word is None else word for word in example["word_ids"]]) for example in examples]
        batch["input_ids"], batch["labels"] = self.mask_words(
            batch["input_ids"],
            pad_rows(words, -1, self.tokenizer),
            make_generator(examples, self.seed, self.epoch),
        )
        return batch

    def mask_words(
        self, input_ids: torch.Tensor, word_ids: torch.Tensor, generator: torch.Generator
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mask whole words.

        Args:
            input_ids: Token ids [batch, length].
            word_ids: The word of every token [batch, length], -1 outside words.

        Returns:
            The masked ids and the labels, both [batch, length].
        """
        is_start = torch.ones_like(word_ids, dtype=torch.bool)
        is_start[:, 1:] = word_ids[:, 1:] != word_ids[:, :-1]
        draws = torch.rand(input_ids.shape, generator=generator).gather(1, is_start.cumsum(1) - 1)
        # Special tokens in a text and unknown tokens in a word are never predicted.
        special = torch.isin(input_ids, torch.tensor(self.tokenizer.all_special_ids))
        draws = draws.masked_fill((word_ids < 0) | special, torch.inf)

        labels = input_ids.masked_fill(draws >= self.mlm_probability, -100)
        to_mask, to_random = self.mlm_probability * MASKED, self.mlm_probability * (MASKED + RANDOM)
        random_ids = torch.randint(len(self.tokenizer), input_ids.shape, generator=generator)
        masked_ids = torch.where(draws < to_random, random_ids, input_ids)
        return masked_ids.masked_fill(draws < to_mask, self.tokenizer.mask_token_id), labels


@dataclass
class PlacingCollator:
    """Adds the places of the labels to the batches of another collator, in training.

    Counted on a GPU, they would let the host wait in every step; see `compute_masked_lm_loss`.

    Args:
        collator: Makes batches with `labels`.
        masking: The collator that draws the masks; `by_example` says that it does so for an evaluation.
    """

    collator: Any
    masking: Any
    decay: tuple[int, float] | None = None
    """The step from which on another share of the tokens is masked, and this share."""
    batches_per_step: int = 1
    first_step: int = 0
    """The step of the epoch's first batch."""
    made: int = 0
    """Number of batches since then, in this process."""

    def __call__(self, examples: Sequence[dict[str, Any]]) -> Any:
        """Make a batch with `target_places`."""
        if self.masking.by_example:
            return self.collator(examples)
        with self.mask_by_step():
            batch = self.collator(examples)
        batch["target_places"] = (batch["labels"].flatten() != -100).nonzero().flatten()
        return batch

    @contextmanager
    def mask_by_step(self) -> Iterator[None]:
        """Mask the share of the batch's step. Batches are made ahead of it, so the trainer's state cannot tell."""
        worker, number = get_worker_info(), self.made
        self.made += 1
        if worker is not None:  # the workers make the batches in turn
            number = worker.id + number * worker.num_workers
        if self.decay is None or self.first_step + number // self.batches_per_step < self.decay[0]:
            yield
            return
        share, self.masking.mlm_probability = self.masking.mlm_probability, self.decay[1]
        try:
            yield
        finally:
            self.masking.mlm_probability = share
