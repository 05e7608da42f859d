"""Encoded passages on disk, so that a model with a fixed passage encoder reads them instead of encoding them again.

Only passages that were retrieved are cached: nearly all of a datastore never is. The states of their tokens are kept in
bfloat16, beside their mean states in float32, by which RADA chooses a passage before it reads that one. Files are
memory-mapped: what is not read costs no memory.

A folder holds `cache.json` and the shards it names. The manifest is written last, a shard as a whole or not at all, and
is named by what is in it: what is interrupted goes on where it stopped, and never replaces a cache that is complete.
When more is retrieved, or the datastore grew, what is missing is encoded into new shards.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from filelock import FileLock
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from hf_domain.files import read_json, remove_unfinished, write_json
from hf_domain.modeling.interface_rada import average_states
from hf_domain.modeling.modeling_rada import RadaPreTrainedModel
from hf_domain.rada.collator import read_token_ids

SHARD_PASSAGES = 1024
"""Passages of a shard (our choice): what is lost when a run is killed, and held in memory while it is written; 400 MB
at a width of 768."""

MANIFEST, LOCK = "cache.json", "cache.lock"


def describe_source(
    model: RadaPreTrainedModel, tokenizer: PreTrainedTokenizerBase, passages_fingerprint: str
) -> dict[str, str]:
    """Say what cached states depend on.

    Args:
        model: A RADA; its passage encoder counts, the copy if that is frozen.
        tokenizer: Its tokenizer.
        passages_fingerprint: `datastore.fingerprint`.

    Returns:
        A digest of each, and the precision in which the encoder computes, that of autocast where it is on.
    """
    encoder = hashlib.sha256()
    for name, tensor in sorted(get_passage_encoder(model).state_dict().items()):
        encoder.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        encoder.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    device, precision = model.device.type, model.dtype
    if torch.is_autocast_enabled(device):
        precision = torch.get_autocast_dtype(device)
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return {
        "encoder": encoder.hexdigest(),
        "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest(),
        "precision": str(precision).removeprefix("torch."),
        "passages": passages_fingerprint,
    }


def get_passage_encoder(model: RadaPreTrainedModel) -> torch.nn.Module:
    """Return what encodes the passages of a RADA."""
    rada: Any = model.base_model
    return rada.passage_backbone if model.config.passage_encoder == "frozen" else rada.backbone


def list_retrieved(datasets: Iterable[Dataset], num_passages: int = 10) -> list[int]:
    """List the passages that the examples of datasets have.

    Args:
        datasets: With the column `passage_ids`.
        num_passages: Passages of an example at most.

    Returns:
        Their ids, each once, in order.
    """
    return sorted({number for dataset in datasets for row in dataset["passage_ids"] for number in row[:num_passages]})


def estimate_bytes(num_tokens: int, num_passages: int, hidden_size: int) -> int:
    """Say how large a cache becomes, without the headers of its files.

    Args:
        num_tokens: Of all its passages, special tokens included.
        num_passages: How many.
        hidden_size: Width of the encoder.

    Returns:
        Bytes: 2 a number of the states, 4 one of the mean states, 16 a passage for its id and place.
    """
    return 2 * num_tokens * hidden_size + num_passages * (4 * hidden_size + 16)


class PassageCache:
    """Encoded passages in a folder.

    Args:
        folder: Written by `build_passage_cache`.
        source: What the states must be of, see `describe_source`; None takes what is there.

    Raises:
        FileNotFoundError: There is no complete cache.
        ValueError: The cache is of another source, or a file is damaged.
    """

    def __init__(self, folder: str | Path, source: Mapping[str, str] | None = None):
        self.folder = Path(folder)
        if not (self.folder / MANIFEST).is_file():
            raise FileNotFoundError(f"a passage cache has a {MANIFEST}; {folder} has none. Build the cache first.")
        manifest = read_json(self.folder / MANIFEST)
        self.source = manifest["source"]
        for part, value in (source or self.source).items():
            if self.source.get(part) != value:
                raise ValueError(
                    f"cached passages are of one encoder, tokenizer, precision and datastore; those in {folder} have "
                    f"another {part}: {self.source.get(part)} instead of {value}. Build the cache again."
                )
        shards = [_open_shard(self.folder / name) for name in manifest["shards"]]
        ids = np.concatenate([np.empty(0, int), *(shard["ids"].numpy() for shard in shards)])
        places = np.array(
            [(shard, row) for shard, part in enumerate(shards) for row in range(len(part["ids"]))], int
        ).reshape(-1, 2)
        order = np.argsort(ids)
        self.passage_ids, self._places, self._shards = ids[order], places[order], shards

    def __len__(self) -> int:
        return len(self.passage_ids)

    def read_vectors(self, passage_ids: torch.Tensor) -> torch.Tensor:
        """Read the mean states of passages.

        Args:
            passage_ids: `[...]`.

        Returns:
            `[..., hidden_size]`, float32.

        Raises:
            ValueError: A passage is not in the cache.
        """
        rows = [shard["vectors"][place] for shard, place in self._locate(passage_ids.flatten())]
        return torch.stack(rows).view(*passage_ids.shape, -1)

    def read_states(self, passage_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Read the states of passages.

        Args:
            passage_ids: `[rows]`.

        Returns:
            `[rows, passage_length, hidden_size]`, bfloat16, zeros at padding, and the mask
            `[rows, passage_length]`, bool.

        Raises:
            ValueError: A passage is not in the cache.
        """
        rows = []
        for shard, place in self._locate(passage_ids):
            start, end = shard["offsets"][place : place + 2].tolist()
            rows.append(shard["states"][start:end])
        lengths = torch.tensor([len(row) for row in rows])
        states = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return states, torch.arange(states.shape[1]) < lengths.unsqueeze(1)

    def _locate(self, passage_ids: torch.Tensor) -> list[tuple[dict[str, torch.Tensor], int]]:
        wanted = passage_ids.cpu().numpy()
        rows = np.minimum(np.searchsorted(self.passage_ids, wanted), len(self) - 1)
        found = self.passage_ids[rows] if len(self) else np.full_like(wanted, -1)
        if (found != wanted).any():
            missing = wanted[found != wanted][0]
            raise ValueError(
                f"every passage to be read is in the cache; {missing} is not among the {len(self)} of {self.folder}. "
                "Build the cache for all that was retrieved."
            )
        return [(self._shards[shard], row) for shard, row in self._places[rows].tolist()]


def _open_shard(file: Path) -> dict[str, torch.Tensor]:
    try:
        with safe_open(file, "pt") as shard:
            return {
                name: shard.get_tensor(name) for name in ("ids", "offsets", "vectors", "states")
            }  # mapped, not read
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"the files of a passage cache are whole; {file} is not ({error}). Delete it and build again."
        ) from error


def _is_whole(file: Path) -> bool:
    try:
        _open_shard(file)
    except ValueError:
        return False
    return True


def build_passage_cache(
    folder: str | Path,
    model: RadaPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    passages: Dataset | Mapping[int, Sequence[int]],
    passages_fingerprint: str,
    passage_ids: Iterable[int],
    *,
    batch_size: int = 32,
) -> PassageCache:
    """Encode the passages whose states are not in the cache yet, keep them, and open it.

    Processes that share a cache wait for each other. Where the encoder, the tokenizer or the precision changed, all is
    encoded anew; where the datastore did, the passages of every shard in which one is no longer what it was.

    Args:
        folder: Where to; made if it does not exist.
        model: A RADA; encodes without dropout on its device.
        tokenizer: Its tokenizer.
        passages: See `hf_domain.rada.collator.read_token_ids`.
        passages_fingerprint: `datastore.fingerprint`.
        passage_ids: What was retrieved, see `list_retrieved`.
        batch_size: Passages encoded at once.

    Returns:
        The cache.

    Raises:
        OSError: The disk has not enough room; told with the size before anything is written.
        ValueError: A passage is unknown.
    """
    folder, wanted = Path(folder), sorted(set(passage_ids))
    source = describe_source(model, tokenizer, passages_fingerprint)
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK):
        remove_unfinished(folder)
        shards = _find_shards(folder, source, passages)
        known = {number for ids in shards.values() for number in ids}
        missing = [number for number in wanted if number not in known]
        if missing or not _is_complete(folder, source, shards):
            new = _encode_missing(folder, model, tokenizer, passages, source, missing, batch_size)
            names = [*shards, *new]
            write_json(folder / MANIFEST, {"source": source, "shards": names, "passages": len(known) + len(missing)})
            for file in set(folder.glob("states-*")) - {folder / name for name in names}:
                file.unlink()
        return PassageCache(folder, source)


def _read_manifest(folder: Path) -> dict[str, Any]:
    try:
        return read_json(folder / MANIFEST)
    except (FileNotFoundError, ValueError):  # none, or damaged
        return {"source": {}, "shards": []}


def _is_complete(folder: Path, source: dict[str, str], shards: dict[str, list[int]]) -> bool:
    manifest = _read_manifest(folder)
    return manifest["source"] == source and manifest["shards"] == list(shards)


def _find_shards(
    folder: Path, source: dict[str, str], passages: Dataset | Mapping[int, Sequence[int]]
) -> dict[str, list[int]]:
    """Return the shards that stay, with their ids: those of this source, also from before the datastore grew."""
    manifest, shards = _read_manifest(folder), {}
    changed = {part for part, value in source.items() if manifest["source"].get(part) != value}
    for name in manifest["shards"] if changed <= {"passages"} else ():
        try:
            ids = _open_shard(folder / name)["ids"].tolist()
            if changed and _name_shard(source, ids, read_token_ids(passages, ids)) != name:
                continue
        except ValueError:  # damaged, or of a passage that is no more
            continue
        shards[name] = ids
    return shards


def _name_shard(source: dict[str, str], passage_ids: list[int], token_ids: list[list[int]]) -> str:
    """Name a shard by what is in it, so that one of an interrupted build, or of a smaller datastore, is known again."""
    content = [source | {"passages": ""}, passage_ids, token_ids]
    return f"states-{hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]}.safetensors"


def _encode_missing(
    folder: Path,
    model: RadaPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    passages: Dataset | Mapping[int, Sequence[int]],
    source: dict[str, str],
    missing: list[int],
    batch_size: int,
) -> list[str]:
    """Write the shards of passages and return their names."""
    names, parts, num_tokens = [], {}, 0
    for start in range(0, len(missing), SHARD_PASSAGES):
        part = missing[start : start + SHARD_PASSAGES]
        token_ids = read_token_ids(passages, part)
        names.append(_name_shard(source, part, token_ids))
        if not _is_whole(folder / names[-1]):
            parts[names[-1]] = part
            num_tokens += sum(map(len, token_ids))
    num_passages = sum(map(len, parts.values()))
    _check_room(folder, num_passages, num_tokens, model.config.hidden_size)
    with tqdm(total=len(missing), desc="Encoding passages", unit="passage") as progress:
        progress.update(len(missing) - num_passages)
        for name, part in parts.items():
            tensors = _encode_shard(model, tokenizer, part, read_token_ids(passages, part), batch_size, progress)
            unfinished = folder / f"{name}.{os.getpid()}.unfinished"  # not every disk of several machines has locks
            save_file(tensors, unfinished)
            os.replace(unfinished, folder / name)
    return names


def _check_room(folder: Path, num_passages: int, num_tokens: int, hidden_size: int) -> None:
    needed, free = estimate_bytes(num_tokens, num_passages, hidden_size), shutil.disk_usage(folder).free
    tqdm.write(f"Passage cache: {num_passages:,} passages of {num_tokens:,} tokens, {needed / 1e6:,.1f} MB in {folder}")
    if needed > free:
        raise OSError(
            f"a passage cache needs its room on the disk; {num_passages:,} passages take {needed / 1e9:,.2f} GB "
            f"and {folder} has {free / 1e9:,.2f} GB. Name another folder or retrieve fewer passages."
        )


@torch.inference_mode()
def _encode_shard(
    model: RadaPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    passage_ids: list[int],
    token_ids: list[list[int]],
    batch_size: int,
    progress: tqdm,
) -> dict[str, torch.Tensor]:
    rada: Any = model.base_model
    offsets = torch.tensor([0, *np.cumsum([len(ids) for ids in token_ids])])
    states = torch.empty(int(offsets[-1]), model.config.hidden_size, dtype=torch.bfloat16)
    vectors = torch.empty(len(token_ids), model.config.hidden_size)
    training = model.training
    model.eval()
    by_length = sorted(range(len(token_ids)), key=lambda row: len(token_ids[row]))  # little padding
    for start in range(0, len(by_length), batch_size):
        rows = by_length[start : start + batch_size]
        passages = {"input_ids": [token_ids[row] for row in rows]}
        batch = tokenizer.pad(passages, return_tensors="pt", padding_side="right")  # `[:length]` below
        input_ids, mask = batch["input_ids"].to(model.device), batch["attention_mask"].to(model.device)
        encoded = rada.encode_passages(input_ids, mask).to(torch.bfloat16)
        # Of the rounded states: a passage is then chosen by what will be read.
        vectors[rows] = average_states(encoded, mask.bool()).cpu()
        for row, sequence, length in zip(rows, encoded.cpu(), mask.sum(dim=1).tolist(), strict=True):
            states[offsets[row] : offsets[row + 1]] = sequence[:length]
        progress.update(len(rows))
    model.train(training)
    return {"ids": torch.tensor(passage_ids), "offsets": offsets, "vectors": vectors, "states": states}
