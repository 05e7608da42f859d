"""What a G-MAP needs around it: inputs of a memory with its own tokenizer, and memory states kept on disk.

A frozen memory gives the same states in every epoch. `cache_memory_states` computes those of a dataset once and keeps
them on disk; `DatasetWithMemory` adds them to the examples, and the memory encoder is not run again.
"""

import hashlib
import json
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

from hf_domain.modeling.backbone import find_encoder
from hf_domain.modeling.pretrained_gmap import fingerprint_weights, read_same_ids
from hf_domain.state_store import StateSource, StateStore, fill_store

# What a configuration says that changes no state: the weights are compared themselves.
COSMETIC_KEYS = frozenset(
    {"_name_or_path", "architectures", "dtype", "id2label", "label2id", "problem_type", "transformers_version"}
)

# ---------------------------------------------------------------------------------------- the memory's own tokenizer


def load_memory_tokenizer(config: PreTrainedConfig, **hub_options: Any) -> PreTrainedTokenizerBase | None:
    """Load the tokenizer of a memory that has its own.

    Args:
        config: Of any model.
        hub_options: For `from_pretrained`: `cache_dir`, `token`.

    Returns:
        The tokenizer; None where there is no memory, or it reads the ids of the domain encoder.

    Raises:
        ValueError: The config does not say where the memory came from.
    """
    if getattr(config, "memory_tokenizer", "same") == "same":
        return None
    if config.memory_name_or_path is None:
        raise ValueError(
            "the memory of this model has its own tokenizer and the config does not say which; set memory_name_or_path"
        )
    revision = config.memory_revision or "main"
    return AutoTokenizer.from_pretrained(config.memory_name_or_path, revision=revision, **hub_options)


def check_same_ids(tokenizer: PreTrainedTokenizerBase, memory_tokenizer: PreTrainedTokenizerBase) -> None:
    """Raise unless the memory reads the ids of the domain encoder, as masked-LM training needs it.

    Raises:
        ValueError: The tokenizers differ. Their tokens are masked apart then, and the memory would read the words that
            the domain encoder is to predict.
    """
    if not read_same_ids(tokenizer, memory_tokenizer):
        raise ValueError(
            "in masked-LM training the memory reads the masked text, so both encoders need one tokenizer; those of "
            f"{tokenizer.name_or_path} and {memory_tokenizer.name_or_path} differ. Use another memory, or join the two "
            "when the model is fine-tuned"
        )


def name_memory_inputs(tokenized: Dataset) -> Dataset:
    """Return what a memory reads of texts that its own tokenizer tokenized, by the names of a G-MAP's arguments."""
    names = {"input_ids", "attention_mask", "token_type_ids"} & {*tokenized.column_names}
    return tokenized.select_columns(sorted(names)).rename_columns({name: f"memory_{name}" for name in names})


@dataclass
class DataCollatorWithMemory:
    """Collate what a memory reads, or its states, beside what another collator collates.

    Args:
        collator: For everything else.
        memory_tokenizer: Pads the memory's inputs; not needed without them.
    """

    collator: Any
    memory_tokenizer: PreTrainedTokenizerBase | None = None

    def __call__(self, examples: Sequence[dict[str, Any]]) -> Any:
        """Make a batch.

        Args:
            examples: Dicts; those of a `DatasetWithMemory` hold `memory_states`.

        Returns:
            The batch of `collator` with the arguments of a G-MAP that begin with `memory_`. States stand where their
            tokens do, those of a memory with its own tokenizer from the left on; its inputs are padded by that.

        Raises:
            ValueError: There are inputs of a memory and no tokenizer that pads them.
        """
        memory = [{name: value for name, value in row.items() if name.startswith("memory_")} for row in examples]
        batch = self.collator(
            [{name: value for name, value in row.items() if not name.startswith("memory_")} for row in examples]
        )
        if "memory_states" in memory[0]:
            states = [row["memory_states"] for row in memory]
            real = pad_sequence([torch.ones(len(each), dtype=torch.long) for each in states], batch_first=True)
            if self.memory_tokenizer is None:
                # The same tokens: the text may be padded on the left, or to a length of its own.
                real = batch.get("attention_mask", real)
            batch["memory_states"] = states[0].new_zeros(*real.shape, *states[0].shape[1:])
            batch["memory_states"][real.bool()] = torch.cat(states)
            batch["memory_attention_mask"] = real
        elif memory[0]:
            if self.memory_tokenizer is None:
                raise ValueError(
                    f"a memory_tokenizer pads the inputs of the memory, got None and {', '.join(memory[0])}"
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
        cache: Their states, in the same order, see `cache_memory_states`.

    Raises:
        ValueError: There are more or fewer states than examples; on reading, an example has other tokens than states.
    """

    def __init__(self, dataset: Dataset, cache: StateStore):
        if len(dataset) != len(cache):
            raise ValueError(f"a cache holds the states of each example; {len(cache)} of {len(dataset)} are there")
        self.dataset, self.cache = dataset, cache

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> dict[str, Any]:
        example, states = self.dataset[row], self.cache[row]
        prefix = "memory_" if "memory_input_ids" in example else ""
        count = sum(example.get(f"{prefix}attention_mask") or [1] * len(example[f"{prefix}input_ids"]))
        if count != len(states):
            raise ValueError(
                f"example {row} has {count} tokens and {len(states)} states: the dataset is not in the order in which "
                "the states were computed. Compute them after it was shuffled or filtered"
            )
        example = {name: value for name, value in example.items() if not name.startswith("memory_")}
        return {**example, "memory_states": states}


def cache_memory_states(
    model: PreTrainedModel, dataset: Dataset, folder: str | Path, *, batch_size: int = 32
) -> StateStore:
    """Compute the memory states of a dataset, unless the folder has them.

    A run that was interrupted continues where it stopped. Where the memory encoder, the strategy or the token ids (text
    or tokenizer) have changed since, the states are computed again, and the log says why.

    Args:
        model: A G-MAP with a frozen memory, with or without a head, on the device that is to compute.
        dataset: Tokenized examples: the inputs of the memory, `memory_input_ids` and so on, or those that it shares
            with the domain encoder.
        folder: Where the states are kept; made if it does not exist.
        batch_size: Examples at once.

    Returns:
        The states, in the order of the examples: of each token `[states, hidden_size]`, bfloat16, without padding.

    Raises:
        OSError: The disk has not enough room.
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


def open_memory_cache(folder: str | Path, model: PreTrainedModel, dataset: Dataset) -> StateStore:
    """Open what `cache_memory_states` computed.

    Args:
        folder: Where the states are kept.
        model: The G-MAP that is to read them.
        dataset: The examples they belong to.

    Raises:
        FileNotFoundError: There are none, or their computation was interrupted.
        ValueError: They are of another memory encoder, strategy or text.
    """
    return StateStore(folder, describe_states(model, dataset))


def describe_states(model: PreTrainedModel, dataset: Dataset) -> dict[str, Any]:
    """Return what memory states depend on: fingerprints of the memory's weights and of the token ids, and the states.

    Raises:
        ValueError: The memory is trained, or there is none.
    """
    if not getattr(model.config, "freeze_memory", False):
        raise ValueError(
            f"--memory_cache keeps the states of a frozen memory, but a {type(model).__name__} has no memory or trains "
            "it. Leave the flag out, or use --method gmap with freeze_memory=true."
        )
    base: Any = model.base_model
    memory_config = model.config.memory_config.to_dict()
    config_text = json.dumps(
        {name: value for name, value in memory_config.items() if name not in COSMETIC_KEYS}, sort_keys=True, default=str
    )
    weights = fingerprint_weights(base.memory, dict(base.memory.named_parameters()))
    inputs = hashlib.sha256()
    for row in iterate_memory_inputs(dataset):
        inputs.update(np.asarray([len(row["input_ids"]), *chain(*row.values())], dtype=np.int64).tobytes())
    normalized = hasattr(find_encoder(base.backbone), "final_norm")
    return {
        "memory encoder": f"{weights} {hashlib.sha256(config_text.encode()).hexdigest()}",
        "choice of states": [base.state_indices, "as they are" if normalized else "normalized"],
        "token ids": inputs.hexdigest(),
    }


def iterate_memory_inputs(dataset: Dataset) -> Iterator[dict[str, list[int]]]:
    """Yield for each example the lists that the memory encoder reads, `input_ids` first, without padding."""
    prefix = "memory_" if "memory_input_ids" in dataset.column_names else ""
    names = [name for name in ("input_ids", "token_type_ids") if f"{prefix}{name}" in dataset.column_names]
    mask = f"{prefix}attention_mask"
    columns = [f"{prefix}{name}" for name in names] + [mask] * (mask in dataset.column_names)
    for row in dataset.select_columns(columns):
        real = row.get(mask) or [1] * len(row[columns[0]])
        yield {
            name: [value for value, keep in zip(row[f"{prefix}{name}"], real, strict=True) if keep] for name in names
        }
