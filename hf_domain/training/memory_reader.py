"""How a run feeds the memory of a G-MAP: with text of the memory's own tokenizer, or with stored states."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from datasets import DatasetDict, concatenate_datasets
from transformers import PreTrainedModel, PreTrainedTokenizerBase, TrainingArguments

from hf_domain.methods.gmap.memory import (
    DataCollatorWithMemory,
    DatasetWithMemory,
    cache_memory_states,
    load_memory_tokenizer,
    name_memory_inputs,
)
from hf_domain.methods.stock_models import autocast_as_trained
from hf_domain.tasks.kind import DataArguments
from hf_domain.training.task_trainer import map_splits


@dataclass
class MemoryReader:
    """Feeds the memory of a G-MAP in a run."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase | None
    """The memory's own tokenizer; None if it reads the ids of the domain encoder."""
    cache: str | None
    """Folder for the memory's states, with a subfolder for each split; None stores none."""

    def add_inputs(
        self,
        tokenized: DatasetDict,
        splits: DatasetDict,
        tokenize: Callable[..., Any],
        training_args: TrainingArguments,
        data_args: DataArguments,
    ) -> dict[str, Any]:
        """Add the memory's inputs to every example: its own tokens, and its states if they are stored.

        Args:
            tokenized: The inputs of the domain encoder.
            tokenize: Takes a batch and a tokenizer; see `map_splits`.
            training_args: Give the device that computes states and the process that goes first.
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
        """Return a collator that adds the memory's inputs to a batch."""
        return DataCollatorWithMemory(collator, self.tokenizer)


def load_memory_reader(model: PreTrainedModel, cache: str | None, **hub_options: Any) -> MemoryReader | None:
    """Return the reader of a model's memory; None if its batches need nothing more.

    Args:
        model: Any model. The memory of most G-MAPs reads the ids of the domain encoder.
        cache: Folder for the memory's states; None stores none.
        hub_options: For `from_pretrained`: `cache_dir`, `token`.

    Raises:
        ValueError: See `load_memory_tokenizer`.
    """
    tokenizer = load_memory_tokenizer(model.config, **hub_options)
    return None if tokenizer is None and cache is None else MemoryReader(model, tokenizer, cache)
