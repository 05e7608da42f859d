"""Hidden states of sequences on disk: computed once and memory-mapped, so that unread states cost no memory.

A folder holds shards and a manifest that names them. A shard is written whole or not at all, and its name is a digest
of its content. The manifest is written last. An interrupted computation therefore continues where it stopped and never
damages a complete store. More sequences go into new shards.
"""

import hashlib
import json
import logging
import pickle
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tqdm.auto import tqdm
from transformers import PreTrainedConfig, PreTrainedModel

from hf_domain.clusters import map_in_order
from hf_domain.extras import require
from hf_domain.safe_io import read_json, remove_unfinished, write_json, write_whole

MANIFEST, LOCK = "states.json", "states.lock"
# Size of a shard, the smaller of both (our choice): a killed run loses this much, and writing needs this much memory.
SHARD_SEQUENCES, SHARD_BYTES = 1024, 400_000_000

Inputs = dict[str, list[int]]
# Fields of a configuration that change no state; the weights are compared directly.
COSMETIC_KEYS = frozenset(
    {"_name_or_path", "architectures", "dtype", "id2label", "label2id", "problem_type", "transformers_version"}
)

logger = logging.getLogger(__name__)


def digest_config(config: PreTrainedConfig) -> str:
    """Return a digest of what a configuration says about states."""
    fields = {name: value for name, value in config.to_dict().items() if name not in COSMETIC_KEYS}
    return hashlib.sha256(json.dumps(fields, sort_keys=True, default=str).encode()).hexdigest()


def name_precision(model: PreTrainedModel) -> str:
    """Return the type in which a model computes: autocast's, if on."""
    device, precision = model.device.type, model.dtype
    if torch.is_autocast_enabled(device):
        precision = torch.get_autocast_dtype(device)
    return str(precision).removeprefix("torch.")


class StateStore:
    """The states of sequences in a folder.

    Args:
        folder: Filled by `fill_store`. An open store keeps its content if the folder is filled again.
        source: The expected source of the states, see `StateSource`; None accepts any source.

    Raises:
        FileNotFoundError: There is no complete store.
        ValueError: The states have another source, or a file is damaged.
    """

    def __init__(self, folder: str | Path, source: Mapping[str, Any] | None = None):
        self.folder = Path(folder)
        if not (self.folder / MANIFEST).is_file():
            raise FileNotFoundError(
                f"a folder of states must contain {MANIFEST}, but {folder} does not. Compute the states first."
            )
        manifest = read_json(self.folder / MANIFEST)
        self.source = manifest["source"]
        for part in find_changes(self.source, source or self.source):
            raise ValueError(
                f"the states in {folder} must have the {part} {source and source[part]}, but have "
                f"{self.source.get(part)}. Compute them again."
            )
        self._shards = [open_shard(self.folder / name) for name in manifest["shards"]]
        ids = [np.empty(0, int), *(shard["ids"].numpy() for shard in self._shards)]
        places = [(shard, row) for shard, part in enumerate(ids[1:]) for row in range(len(part))]
        order = np.argsort(np.concatenate(ids))
        self.ids = np.concatenate(ids)[order]
        self._places = np.array(places, int).reshape(-1, 2)[order]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, row: int) -> torch.Tensor:
        """Return the states of the sequence in a row, `[tokens, ..., hidden_size]`, bfloat16."""
        if not 0 <= row < len(self):
            raise IndexError(row)
        return self.read(self.ids[row : row + 1])[0]

    def read(self, ids: np.ndarray, means: bool = False) -> list[torch.Tensor]:
        """Read the states of sequences from disk, or their means.

        Raises:
            ValueError: A sequence is not in the store.
        """
        rows = np.minimum(np.searchsorted(self.ids, ids), len(self) - 1)
        found = self.ids[rows] if len(self) else np.full_like(ids, -1)
        if (found != ids).any():
            raise ValueError(
                f"every sequence to read must be in the store, but {ids[found != ids][0]} is not among the {len(self)} "
                f"of {self.folder}. Compute the states of all sequences."
            )
        places = [(self._shards[shard], row) for shard, row in self._places[rows].tolist()]
        if means:
            return [shard["means"][row] for shard, row in places]
        return [shard["states"][slice(*shard["offsets"][row : row + 2].tolist())] for shard, row in places]


@dataclass
class StateSource:
    """The inputs of states, and the function that computes them."""

    made_of: dict[str, Any]
    """Names and digests of everything that the states depend on; if one changes, all states are computed again."""
    read: Callable[[list[int]], list[Inputs]]
    """Returns the inputs of sequences, including `input_ids`, without padding."""
    encode: Callable[[list[Inputs]], list[torch.Tensor]]
    """Computes the states of a batch, each `[tokens, *shape]`."""
    shape: tuple[int, ...]
    """Shape of the states of one token."""
    keeps_means: bool = False
    """Whether to store also the mean state of each sequence, in float32."""
    grows: str | None = None
    """The part of `made_of` that may change while the inputs of the sequences stay the same."""

    def name_shard(self, ids: list[int], inputs: list[Inputs]) -> str:
        """Name a shard by its content, so that an interrupted computation finds the shards it wrote."""
        made_of = {name: value for name, value in self.made_of.items() if name != self.grows}
        content = json.dumps([made_of, ids, inputs], sort_keys=True)
        return f"states-{hashlib.sha256(content.encode()).hexdigest()[:16]}.safetensors"

    def estimate_bytes(self, num_tokens: int, num_sequences: int) -> int:
        """Return the size of states on disk, without file headers."""
        return 2 * num_tokens * prod(self.shape) + num_sequences * (4 * prod(self.shape) * self.keeps_means + 16)


def fill_store(
    folder: str | Path,
    source: StateSource,
    wanted: Iterable[int],
    *,
    batch_size: int = 32,
    executor: Executor | None = None,
) -> None:
    """Compute the states that a folder lacks. Processes that share the folder wait for each other.

    Args:
        folder: Created if missing.
        source: The inputs of the states; the log names the parts that changed.
        wanted: Ids of sequences.
        executor: See `hf_domain.clusters.open_executor`; its workers see the folder.

    Raises:
        OSError: The disk is too small; raised before anything is written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK):
        remove_unfinished(folder)
        manifest = read_manifest(folder)
        kept = dict(find_shards(folder, source, manifest))
        known = {number for ids in kept.values() for number in ids}
        missing = sorted({*wanted} - known)
        if missing or manifest["shards"] != [*kept] or not (folder / MANIFEST).is_file():
            names = [*kept, *compute_shards(folder, source, missing, batch_size, executor)]
            content = {"source": source.made_of, "shards": names, "sequences": len(known) + len(missing)}
            write_json(folder / MANIFEST, content)
            for file in {*folder.glob("states-*")} - {folder / name for name in names}:
                file.unlink()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest of a folder, or that of an empty store if it is missing or damaged."""
    try:
        return read_json(folder / MANIFEST)
    except (FileNotFoundError, ValueError):
        return {"source": {}, "shards": []}


def find_changes(source: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return the parts in which two sources differ."""
    return [part for part, value in expected.items() if source.get(part) != value]


def find_shards(folder: Path, source: StateSource, manifest: dict[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """Yield the shards to keep with their ids: all of this source, also those from before it grew."""
    changed = find_changes(manifest["source"], source.made_of)
    if manifest["shards"] and {*changed} - {source.grows}:
        logger.warning(f"The states in {folder} are computed again, because the {', the '.join(changed)} changed")
        return
    for name in manifest["shards"]:
        try:
            ids = open_shard(folder / name)["ids"].tolist()
            if not changed or source.name_shard(ids, source.read(ids)) == name:
                yield name, ids
        except ValueError:  # damaged, or with a sequence that no longer exists
            continue


def open_shard(file: Path) -> dict[str, torch.Tensor]:
    """Map a shard into memory; raise a ValueError if it is damaged."""
    try:
        with safe_open(file, "pt") as shard:
            return {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"a file of states must be complete, but {file} cannot be read ({error}). Compute the states again."
        ) from error


def compute_shards(
    folder: Path, source: StateSource, missing: list[int], batch_size: int, executor: Executor | None = None
) -> list[str]:
    """Write the missing shards and return the names of all; skip those that an interrupted computation wrote."""
    names, new, num_tokens = [], {}, 0
    for ids, inputs in cut_shards(source, missing):
        names.append(source.name_shard(ids, inputs))
        try:
            open_shard(folder / names[-1])
        except ValueError:
            new[names[-1]] = ids
            num_tokens += sum(len(each["input_ids"]) for each in inputs)
    num_sequences = sum(map(len, new.values()))
    check_room(folder, source, num_tokens, num_sequences)
    shards = ((folder / name, ids, source.read(ids)) for name, ids in new.items())
    with (
        tqdm(total=len(missing), initial=len(missing) - num_sequences, desc="Computing states") as progress,
        pack_encoder(folder, source, executor) as encode,
    ):
        for count in map_in_order(executor, write_shard, shards, encode, source.shape, source.keeps_means, batch_size):
            progress.update(count)
    return names


@contextmanager
def pack_encoder(folder: Path, source: StateSource, executor: Executor | None) -> Iterator[Any]:
    """Yield what workers call to encode. They load it from the folder: each task would carry its weights."""
    if executor is None:
        yield source.encode
        return
    require("the computation of states by several processes", "cloudpickle")
    import cloudpickle

    file = folder / f"encoder.{uuid.uuid4().hex}.unfinished"  # new for every encoder: workers keep the last one
    file.write_bytes(cloudpickle.dumps(source.encode))
    try:
        yield partial(call_encoder, file)
    finally:
        file.unlink()


def call_encoder(file: Path, inputs: list[Inputs]) -> list[torch.Tensor]:
    """Encode a batch in a worker."""
    return load_encoder(file)(inputs)


@lru_cache(maxsize=1)
def load_encoder(file: Path) -> Callable[[list[Inputs]], list[torch.Tensor]]:
    """Return what `pack_encoder` wrote."""
    return pickle.loads(file.read_bytes())


def cut_shards(source: StateSource, missing: list[int]) -> Iterator[tuple[list[int], list[Inputs]]]:
    """Yield the ids of each shard, and their inputs."""
    most = SHARD_BYTES / (2 * prod(source.shape))
    for start in range(0, len(missing), SHARD_SEQUENCES):
        part = missing[start : start + SHARD_SEQUENCES]
        inputs = source.read(part)
        ends = np.cumsum([len(each["input_ids"]) for each in inputs])
        numbers = (ends - 1) // most  # number of the shard that holds each sequence's last token
        for number in dict.fromkeys(numbers.tolist()):
            rows = np.flatnonzero(numbers == number)
            yield [part[row] for row in rows], [inputs[row] for row in rows]


def check_room(folder: Path, source: StateSource, num_tokens: int, num_sequences: int) -> None:
    """Print the size of the states; raise an OSError if they exceed the free space."""
    needed, free = source.estimate_bytes(num_tokens, num_sequences), shutil.disk_usage(folder).free
    tqdm.write(f"States of {num_sequences:,} sequences of {num_tokens:,} tokens: {needed / 1e6:,.1f} MB in {folder}")
    if needed > free:
        raise OSError(
            f"the states of {num_sequences:,} sequences need {needed / 1e9:,.2f} GB, but {folder} has "
            f"{free / 1e9:,.2f} GB left. Name another folder or use fewer sequences."
        )


def write_shard(
    shard: tuple[Path, list[int], list[Inputs]],
    encode: Callable[[list[Inputs]], list[torch.Tensor]],
    shape: tuple[int, ...],
    keeps_means: bool,
    batch_size: int,
) -> int:
    """Compute a shard, given as its file, ids and inputs, and write it; return the number of its sequences."""
    file, ids, inputs = shard
    lengths = [len(each["input_ids"]) for each in inputs]
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    states = torch.empty(int(offsets[-1]), *shape, dtype=torch.bfloat16)
    by_length = sorted(range(len(ids)), key=lengths.__getitem__)  # reduces padding
    for start in range(0, len(ids), batch_size):
        rows = by_length[start : start + batch_size]
        with torch.inference_mode():
            for row, sequence in zip(rows, encode([inputs[row] for row in rows]), strict=True):
                states[offsets[row] : offsets[row + 1]] = sequence.to(torch.bfloat16).cpu()
    tensors = {"ids": torch.tensor(ids), "offsets": offsets, "states": states}
    if keeps_means:
        # Means of the rounded states, so that a passage is selected by the same states that are read later.
        tensors["means"] = torch.stack([part.float().sum(dim=0) / max(len(part), 1) for part in states.split(lengths)])
    with write_whole(file) as unfinished:  # a lock would not do: shared disks may lack them
        save_file(tensors, unfinished)
    return len(ids)
