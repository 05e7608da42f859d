"""Feed a G-MAP's memory: tokenize for a memory with its own tokenizer, and keep memory states on disk.

A frozen memory gives the same states in every epoch. `cache_memory_states` computes the states of a dataset once and
keeps them on disk; `DatasetWithMemory` adds them to the examples, and the memory encoder does not run again.
"""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence
from transformers import AutoTokenizer, PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.methods.hidden_state_cache import StateSource, StateStore, digest_config, fill_store, name_precision
from hf_domain.modeling.backbone import find_encoder
from hf_domain.modeling.pretrained_gmap import fingerprint_weights, read_same_ids

# ---------------------------------------------------------------------------------------- the memory's own tokenizer


def load_memory_tokenizer(config: PreTrainedConfig, **hub_options: Any) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer of a memory that has its own; None if a model has no memory, or one with the same ids.

    Args:
        config: The configuration of any model.
        hub_options: For `from_pretrained`: `cache_dir`, `token`.
    """
    if getattr(config, "memory_tokenizer", "same") == "same":
        return None
    if config.memory_name_or_path is None:
        raise ValueError(
            "a memory with its own tokenizer must have memory_name_or_path in the config, but it is None; set it"
        )
    revision = config.memory_revision or "main"
    options = {"revision": revision, "trust_remote_code": False, **hub_options}
    return AutoTokenizer.from_pretrained(config.memory_name_or_path, **options)


def check_same_ids(tokenizer: PreTrainedTokenizerBase, memory_tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise unless the memory reads the ids of the domain encoder, which masked-LM training needs.

    Raises:
        ValueError: The tokenizers differ. Each text would be masked twice, independently, and the memory would read the
            words that the domain encoder has to predict.
    """
    if not read_same_ids(tokenizer, memory_tokenizer):
        raise ValueError(
            "both encoders must have one tokenizer in masked-LM training, where the memory reads the masked text, but "
            f"those of {tokenizer.name_or_path} and {memory_tokenizer.name_or_path} differ. Use another memory, or "
            "join the two in fine-tuning"
        )


def name_memory_inputs(tokenized: Dataset) -> Dataset:
    """Rename the columns of texts tokenized for the memory to the names of a G-MAP's arguments."""
    names = {"input_ids", "attention_mask", "token_type_ids"} & {*tokenized.column_names}
    return tokenized.select_columns(sorted(names)).rename_columns({name: f"memory_{name}" for name in names})


@dataclass
class DataCollatorWithMemory:
    """Collate as another collator does, and add the inputs of a memory or its states."""

    collator: Any
    memory_tokenizer: PreTrainedTokenizerBase | None = None
    """Pads the inputs of a memory with its own tokenizer."""

    def __call__(self, examples: Sequence[dict[str, Any]]) -> Any:
        """Make a batch.

        Args:
            examples: Dicts; those of a `DatasetWithMemory` hold `memory_states`.

        Returns:
            The batch of `collator` with the arguments of a G-MAP that start with `memory_`. States are placed at their
            tokens; the states of a memory with its own tokenizer start at the left.
        """
        memory = [{name: value for name, value in row.items() if name.startswith("memory_")} for row in examples]
        batch = self.collator(
            [{name: value for name, value in row.items() if not name.startswith("memory_")} for row in examples]
        )
        if "memory_states" in memory[0]:
            states = [row["memory_states"] for row in memory]
            real = pad_sequence([torch.ones(len(each), dtype=torch.long) for each in states], batch_first=True)
            if self.memory_tokenizer is None:
                # The memory shares these tokens; the text may be padded on the left, or to a fixed length.
                real = batch.get("attention_mask", real)
            batch["memory_states"] = states[0].new_zeros(*real.shape, *states[0].shape[1:])
            batch["memory_states"][real.bool()] = torch.cat(states)
            batch["memory_attention_mask"] = real
        elif memory[0]:
            if self.memory_tokenizer is None:
                raise ValueError(
                    f"the inputs {', '.join(memory[0])} need a memory_tokenizer that pads them, but it is None. Pass "
                    "the memory's tokenizer."
                )
            rows = [{name.removeprefix("memory_"): value for name, value in row.items()} for row in memory]
            padded = self.memory_tokenizer.pad(rows, return_tensors="pt")
            batch |= {f"memory_{name}": value for name, value in padded.items()}
        return batch


# ------------------------------------------------------------------------------------------------- the cache


class DatasetWithMemory(torch.utils.data.Dataset):
    """A dataset whose examples hold their `memory_states`.

    Args:
        dataset: Tokenized examples.
        cache: Their states, in the same order; see `cache_memory_states`.

    Raises:
        ValueError: The states are those of other examples, or of these in another order.
    """

    def __init__(self, dataset: Dataset, cache: StateStore):
        if len(dataset) != len(cache):
            raise ValueError(
                f"the cache must have the states of all {len(dataset)} examples, but has {len(cache)}. Compute "
                "it again."
            )
        if digest_memory_inputs(dataset) != cache.source["token ids"]:
            raise ValueError(
                "the cache must have the states of these examples in this order, but it has those of others. Compute "
                "them after shuffling or filtering."
            )
        self.dataset, self.cache = dataset, cache

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> dict[str, Any]:
        example = {name: value for name, value in self.dataset[row].items() if not name.startswith("memory_")}
        return {**example, "memory_states": self.cache[row]}


def cache_memory_states(
    model: PreTrainedModel, dataset: Dataset, folder: str | Path, *, batch_size: int = 32
) -> StateStore:
    """Compute the memory states of a dataset and keep them in a folder; what the folder already holds is reused.

    An interrupted computation continues where it stopped. If the memory encoder, the strategy or the token ids changed,
    the states are computed again, and the log says why.

    Args:
        model: A G-MAP with a frozen memory, with or without a head, on the device to compute on.
        dataset: Tokenized examples with `memory_input_ids`, or with `input_ids` that both encoders share.
        folder: Folder for the states; created if missing.
        batch_size: Examples encoded at once.

    Returns:
        The states in the order of the examples, `[states, hidden_size]` for each token, bfloat16, without padding.

    Raises:
        OSError: The disk is too small.
        ValueError: The memory is trained, or there is none.
    """
    base: Any = model.base_model
    made_of = describe_states(model, dataset)

    def encode(rows: list[dict[str, list[int]]]) -> list[torch.Tensor]:
        mask = [torch.ones(len(row["input_ids"]), dtype=torch.long) for row in rows]
        columns = {name: [torch.tensor(row[name]) for row in rows] for name in rows[0]} | {"attention_mask": mask}
        inputs = {name: pad_sequence(each, batch_first=True).to(model.device) for name, each in columns.items()}
        return [states[: len(real)] for states, real in zip(base.encode_memory(**inputs), mask, strict=True)]

    source = StateSource(
        made_of,
        read=lambda rows: list(iterate_memory_inputs(dataset.select(rows))),
        encode=encode,
        shape=(len(base.state_indices) or 1, model.config.memory_config.hidden_size),
    )
    fill_store(folder, source, range(len(dataset)), batch_size=batch_size)
    return StateStore(folder, made_of)


def describe_states(model: PreTrainedModel, dataset: Dataset) -> dict[str, Any]:
    """Return what memory states depend on: digests of the memory and of the token ids, the strategy, and the precision.

    Raises:
        ValueError: The memory is trained, or there is none.
    """
    if not getattr(model.config, "freeze_memory", False):
        raise ValueError(
            f"--memory_cache needs a frozen memory, but a {type(model).__name__} has no memory or trains it. Leave the "
            "flag out, or use --method gmap with freeze_memory=true."
        )
    base: Any = model.base_model
    weights = fingerprint_weights(base.memory.state_dict())
    normalized = hasattr(find_encoder(base.backbone), "final_norm")
    return {
        "memory encoder": f"{weights} {digest_config(model.config.memory_config)}",
        "precision": name_precision(model),
        "choice of states": [base.state_indices, "as they are" if normalized else "normalized"],
        "token ids": digest_memory_inputs(dataset),
    }


def digest_memory_inputs(dataset: Dataset) -> str:
    """Return a digest of the inputs of the memory encoder for all examples, in their order."""
    inputs = hashlib.sha256()
    for row in iterate_memory_inputs(dataset):
        inputs.update(np.asarray([len(row["input_ids"]), *chain(*row.values())], dtype=np.int64).tobytes())
    return inputs.hexdigest()


def iterate_memory_inputs(dataset: Dataset) -> Iterator[dict[str, list[int]]]:
    """Yield the inputs of the memory encoder for each example, `input_ids` first, without padding."""
    prefix = "memory_" if "memory_input_ids" in dataset.column_names else ""
    names = [name for name in ("input_ids", "token_type_ids") if f"{prefix}{name}" in dataset.column_names]
    mask = f"{prefix}attention_mask"
    columns = [f"{prefix}{name}" for name in names] + [mask] * (mask in dataset.column_names)
    for row in dataset.select_columns(columns):
        real = row.get(mask) or [1] * len(row[columns[0]])
        yield {
            name: [value for value, keep in zip(row[f"{prefix}{name}"], real, strict=True) if keep] for name in names
        }
