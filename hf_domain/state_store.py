"""Hidden states of sequences on disk: computed once, memory-mapped, so that what is not read costs no memory.

A folder holds a manifest and the shards that it names. A shard is written whole or not at all, and is named by what is
in it; the manifest is written last. So an interrupted computation continues where it stopped, and never replaces a
store that is complete. More sequences go into new shards.
"""

import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tqdm.auto import tqdm

from hf_domain.files import read_json, remove_unfinished, write_json

MANIFEST, LOCK = "states.json", "states.lock"
# What is lost when a run is killed, and held in memory while it is written (our choice): the smaller of both.
SHARD_SEQUENCES, SHARD_BYTES = 1024, 400_000_000

Inputs = dict[str, list[int]]

logger = logging.getLogger(__name__)


class StateStore:
    """The states of sequences in a folder.

    Args:
        folder: Filled by `fill_store`. What is open stays as it is when the folder is filled with others later.
        source: What the states must be made of, see `StateSource`; None takes what is there.

    Raises:
        FileNotFoundError: There is no complete store.
        ValueError: The states are of another source, or a file is damaged.
    """

    def __init__(self, folder: str | Path, source: Mapping[str, Any] | None = None):
        self.folder = Path(folder)
        if not (self.folder / MANIFEST).is_file():
            raise FileNotFoundError(
                f"a folder of states has a {MANIFEST}; {folder} has none. Compute the states first."
            )
        manifest = read_json(self.folder / MANIFEST)
        self.source = manifest["source"]
        for part in find_changes(self.source, source or self.source):
            raise ValueError(
                f"the states in {folder} are of another {part}: {self.source.get(part)} instead of "
                f"{source and source[part]}. Compute them again."
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
                f"every sequence that is read must be in the store; {ids[found != ids][0]} is not among the "
                f"{len(self)} of {self.folder}. Compute the states of all."
            )
        places = [(self._shards[shard], row) for shard, row in self._places[rows].tolist()]
        if means:
            return [shard["means"][row] for shard, row in places]
        return [shard["states"][slice(*shard["offsets"][row : row + 2].tolist())] for shard, row in places]


@dataclass
class StateSource:
    """What states are made of, and how."""

    made_of: dict[str, Any]
    """What the states depend on, name to digest: where one changed, all are computed again."""
    read: Callable[[list[int]], list[Inputs]]
    """Returns the inputs of sequences, `input_ids` among them, without padding."""
    encode: Callable[[list[Inputs]], list[torch.Tensor]]
    """Computes the states of a batch, each `[tokens, *shape]`."""
    shape: tuple[int, ...]
    """Of the states of a token."""
    keeps_means: bool = False
    """Whether the mean of each sequence is kept beside its states, in float32."""
    grows: str | None = None
    """The part of `made_of` that may change where the inputs of the sequences did not."""

    def name_shard(self, ids: list[int], inputs: list[Inputs]) -> str:
        """Name a shard by what is in it, so that one of an interrupted computation is known again."""
        made_of = {name: value for name, value in self.made_of.items() if name != self.grows}
        content = json.dumps([made_of, ids, inputs], sort_keys=True)
        return f"states-{hashlib.sha256(content.encode()).hexdigest()[:16]}.safetensors"

    def estimate_bytes(self, num_tokens: int, num_sequences: int) -> int:
        """Return the size of states on disk, without the headers of the files."""
        return 2 * num_tokens * prod(self.shape) + num_sequences * (4 * prod(self.shape) * self.keeps_means + 16)


def fill_store(folder: str | Path, source: StateSource, wanted: Iterable[int], *, batch_size: int = 32) -> None:
    """Compute the states that a folder lacks. Processes that share the folder wait for each other.

    Args:
        folder: Made if it does not exist.
        source: What the states are made of; the log says which part of it changed since.
        wanted: Ids of sequences.
        batch_size: Sequences encoded at once.

    Raises:
        OSError: The disk has not enough room; told with the size before anything is written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK):
        remove_unfinished(folder)
        manifest = read_manifest(folder)
        kept = dict(find_shards(folder, source, manifest))
        known = {number for ids in kept.values() for number in ids}
        missing = sorted({*wanted} - known)
        if missing or manifest["source"] != source.made_of or manifest["shards"] != [*kept]:
            names = [*kept, *compute_shards(folder, source, missing, batch_size)]
            content = {"source": source.made_of, "shards": names, "sequences": len(known) + len(missing)}
            write_json(folder / MANIFEST, content)
            for file in {*folder.glob("states-*")} - {folder / name for name in names}:
                file.unlink()


def read_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a folder; that of an empty store where there is none, or a damaged one."""
    try:
        return read_json(folder / MANIFEST)
    except (FileNotFoundError, ValueError):
        return {"source": {}, "shards": []}


def find_changes(source: Mapping[str, Any], expected: Mapping[str, Any]) -> list[str]:
    """Return the parts in which a source differs."""
    return [part for part, value in expected.items() if source.get(part) != value]


def find_shards(folder: Path, source: StateSource, manifest: dict[str, Any]) -> Iterator[tuple[str, list[int]]]:
    """Find the shards that stay, with their ids: those of this source, also from before it grew."""
    changed = find_changes(manifest["source"], source.made_of)
    if manifest["shards"] and {*changed} - {source.grows}:
        logger.warning(f"the states in {folder} are computed again: the {', the '.join(changed)} changed")
        return
    for name in manifest["shards"]:
        try:
            ids = open_shard(folder / name)["ids"].tolist()
            if not changed or source.name_shard(ids, source.read(ids)) == name:
                yield name, ids
        except ValueError:  # damaged, or of a sequence that is no more
            continue


def open_shard(file: Path) -> dict[str, torch.Tensor]:
    """Map a shard into memory.

    Raises:
        ValueError: It is damaged.
    """
    try:
        with safe_open(file, "pt") as shard:
            return {name: shard.get_tensor(name) for name in shard.keys()}  # noqa: SIM118
    except (OSError, SafetensorError) as error:
        raise ValueError(f"the files of states must be whole; {file} is not ({error}). Compute them again.") from error


def is_whole(file: Path) -> bool:
    """Return whether a shard is there and not damaged."""
    try:
        open_shard(file)
    except ValueError:
        return False
    return True


def compute_shards(folder: Path, source: StateSource, missing: list[int], batch_size: int) -> list[str]:
    """Write the shards of sequences, but for those that an interrupted computation wrote, and return all names."""
    names, new, num_tokens = [], {}, 0
    for ids, inputs in cut_shards(source, missing):
        names.append(source.name_shard(ids, inputs))
        if not is_whole(folder / names[-1]):
            new[names[-1]] = ids
            num_tokens += sum(len(each["input_ids"]) for each in inputs)
    num_sequences = sum(map(len, new.values()))
    check_room(folder, source, num_tokens, num_sequences)
    with tqdm(total=len(missing), initial=len(missing) - num_sequences, desc="Computing states") as progress:
        for name, ids in new.items():
            tensors = compute_shard(source, ids, batch_size, progress)
            unfinished = folder / f"{name}.{os.getpid()}.unfinished"  # not every disk of several machines has locks
            save_file(tensors, unfinished)
            os.replace(unfinished, folder / name)
    return names


def cut_shards(source: StateSource, missing: list[int]) -> Iterator[tuple[list[int], list[Inputs]]]:
    """Yield the ids of each shard, and their inputs."""
    most = SHARD_BYTES / (2 * prod(source.shape))
    for start in range(0, len(missing), SHARD_SEQUENCES):
        part = missing[start : start + SHARD_SEQUENCES]
        inputs = source.read(part)
        ends = np.cumsum([len(each["input_ids"]) for each in inputs])
        numbers = (ends - 1) // most  # of the shard that holds the last token of each sequence
        for number in dict.fromkeys(numbers.tolist()):
            rows = np.flatnonzero(numbers == number)
            yield [part[row] for row in rows], [inputs[row] for row in rows]


def check_room(folder: Path, source: StateSource, num_tokens: int, num_sequences: int) -> None:
    """Say how large the states become.

    Raises:
        OSError: They are larger than what the disk has left.
    """
    needed, free = source.estimate_bytes(num_tokens, num_sequences), shutil.disk_usage(folder).free
    tqdm.write(f"States of {num_sequences:,} sequences of {num_tokens:,} tokens: {needed / 1e6:,.1f} MB in {folder}")
    if needed > free:
        raise OSError(
            f"states need room on the disk: those of {num_sequences:,} sequences take {needed / 1e9:,.2f} GB, and "
            f"{folder} has {free / 1e9:,.2f} GB. Name another folder or use fewer."
        )


def compute_shard(source: StateSource, ids: list[int], batch_size: int, progress: tqdm) -> dict[str, torch.Tensor]:
    """Compute the tensors of a shard."""
    inputs = source.read(ids)
    lengths = [len(each["input_ids"]) for each in inputs]
    offsets = torch.tensor([0, *np.cumsum(lengths)])
    states = torch.empty(int(offsets[-1]), *source.shape, dtype=torch.bfloat16)
    by_length = sorted(range(len(ids)), key=lengths.__getitem__)  # little padding
    for start in range(0, len(ids), batch_size):
        rows: Sequence[int] = by_length[start : start + batch_size]
        with torch.inference_mode():
            for row, sequence in zip(rows, source.encode([inputs[row] for row in rows]), strict=True):
                states[offsets[row] : offsets[row + 1]] = sequence.to(torch.bfloat16).cpu()
        progress.update(len(rows))
    tensors = {"ids": torch.tensor(ids), "offsets": offsets, "states": states}
    if source.keeps_means:
        # Of the rounded states: a passage is then chosen by what will be read.
        tensors["means"] = torch.stack([part.float().sum(dim=0) / max(len(part), 1) for part in states.split(lengths)])
    return tensors
