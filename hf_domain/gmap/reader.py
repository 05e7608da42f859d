"""How a run feeds the memory of a G-MAP: the texts by the memory's own tokenizer, or states that are computed once."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import DatasetDict, concatenate_datasets
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from hf_domain.gmap.memory import (
    DataCollatorWithMemory,
    DatasetWithMemory,
    cache_memory_states,
    load_memory_tokenizer,
    name_memory_inputs,
)
from hf_domain.training.arguments import DataArguments
from hf_domain.training.fine_tuning import map_splits
from hf_domain.training.stock_models import autocast_as_trained


@dataclass
class MemoryReader:
    """What a memory reads beside the text of the domain encoder."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    """The memory's own; None: it reads the ids of the domain encoder."""
    cache: str | None
    """Folder that keeps the memory's states, in a folder for each split."""

    def add_inputs(
        self,
        tokenized: DatasetDict,
        splits: DatasetDict,
        tokenize: Callable[..., Any],
        training_args: TrainingArguments,
        data_args: DataArguments,
    ) -> dict[str, Any]:
        """Add to every example what the memory reads: the text by its own tokenizer, and its states if they are kept.

        Args:
            tokenized: What the domain encoder reads.
            tokenize: Takes a batch and a tokenizer, see `map_splits`.
            training_args: Say on which device states are computed, and which process goes first.
        """
        inputs: dict[str, Any] = dict(tokenized)
        if self.tokenizer is not None:
            own = map_splits(splits, tokenize, training_args, data_args, tokenizer=self.tokenizer)
            inputs = {
                split: concatenate_datasets([dataset, name_memory_inputs(own[split])], axis=1)
                for split, dataset in inputs.items()
            }
        if self.cache is None:
            return inputs
        with training_args.main_process_first(desc="computing memory states"), autocast_as_trained(training_args):
            self.model.to(training_args.device)  # type: ignore[arg-type]
            size = training_args.per_device_eval_batch_size
            return {
                split: DatasetWithMemory(
                    dataset, cache_memory_states(self.model, dataset, Path(self.cache, split), batch_size=size)
                )
                for split, dataset in inputs.items()
            }

    def collate(self, collator: Any) -> DataCollatorWithMemory:
        """Return a collator that brings what the memory reads beside the batch."""
        return DataCollatorWithMemory(collator, self.tokenizer)


def load_memory_reader(model: PreTrainedModel, cache: str | None, **hub_options: Any) -> MemoryReader | None:
    """Return what feeds the memory of a model; None if its batches need nothing more.

    Args:
        model: Of any kind. The memory of a G-MAP usually reads the ids of the domain encoder.
        cache: Folder of the memory's states; None keeps none.
        hub_options: For `from_pretrained`: `cache_dir`, `token`.

    Raises:
        ValueError: See `load_memory_tokenizer`.
    """
    tokenizer = load_memory_tokenizer(model.config, **hub_options)
    return None if tokenizer is None and cache is None else MemoryReader(model, tokenizer, cache)
