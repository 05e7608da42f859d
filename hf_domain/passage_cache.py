"""Encoded passages on disk, so that a model with a fixed passage encoder reads them instead of encoding them again.

Only passages that were retrieved are cached: nearly all of a datastore never is. The states of their tokens are kept in
bfloat16, beside their mean states in float32, by which RADA chooses a passage before it reads that one. Files are
memory-mapped: what is not read costs no memory.

A folder holds `cache.json` and the shards it names. The manifest is written last, a shard as a whole or not at all, and
shards of another source have other names: what is interrupted goes on where it stopped, and never replaces a cache that
is complete.
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
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from tqdm import tqdm
from transformers import PreTrainedTokenizerBase

from hf_domain.modeling.modeling_rada import RadaPreTrainedModel, average_states
from hf_domain.passages import read_token_ids
from hf_domain.results import read_json, write_json

SHARD_PASSAGES = 1024
"""Passages of a shard (our choice): what is lost when a run is killed, and held in memory while it is written; 400 MB
at a width of 768."""

MANIFEST = "cache.json"


def describe_source(
    model: RadaPreTrainedModel, tokenizer: PreTrainedTokenizerBase, passages_fingerprint: str
) -> dict[str, str]:
    """Say what cached states depend on.

    Args:
        model: A RADA; its passage encoder counts, the copy if that is frozen.
        tokenizer: Its tokenizer.
        passages_fingerprint: `datastore.fingerprint`.

    Returns:
        A digest of each.
    """
    encoder = hashlib.sha256()
    for name, tensor in sorted(get_passage_encoder(model).state_dict().items()):
        encoder.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        encoder.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return {
        "encoder": encoder.hexdigest(),
        "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest(),
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
                    f"cached passages are of one encoder, tokenizer and datastore; those in {folder} have another "
                    f"{part}: {self.source.get(part)} instead of {value}. Build the cache again."
                )
        shards = [_open_shard(self.folder / name) for name in manifest["shards"]]
        self.passage_ids = np.concatenate([shard["ids"].numpy() for shard in shards]) if shards else np.empty(0, int)
        self._shards = shards

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
        rows = np.searchsorted(self.passage_ids, wanted)
        found = self.passage_ids[np.minimum(rows, len(self) - 1)] if len(self) else np.full_like(wanted, -1)
        if (found != wanted).any():
            missing = wanted[found != wanted][0]
            raise ValueError(
                f"every passage to be read is in the cache; {missing} is not among the {len(self)} of {self.folder}. "
                "Build the cache for all that was retrieved."
            )
        return [(self._shards[row // SHARD_PASSAGES], row % SHARD_PASSAGES) for row in rows.tolist()]


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
    """Encode passages and keep their states, or open the cache if it holds them already.

    Args:
        folder: Where to; made if it does not exist.
        model: A RADA; encodes without dropout on its device.
        tokenizer: Its tokenizer.
        passages: See `hf_domain.passages.read_token_ids`.
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
    if cache := _find_cache(folder, source, wanted):
        return cache
    digest = hashlib.sha256(json.dumps([source, wanted]).encode()).hexdigest()[:16]
    parts = [wanted[start : start + SHARD_PASSAGES] for start in range(0, len(wanted), SHARD_PASSAGES)]
    names = [f"states-{digest}-{number:05d}.safetensors" for number in range(len(parts))]
    folder.mkdir(parents=True, exist_ok=True)
    missing = {name: part for name, part in zip(names, parts, strict=True) if not _is_whole(folder / name)}
    _check_room(folder, passages, [number for part in missing.values() for number in part], model.config.hidden_size)
    with tqdm(total=len(wanted), desc="Encoding passages", unit="passage") as progress:
        progress.update(len(wanted) - sum(map(len, missing.values())))
        for name, part in missing.items():
            tensors = _encode_shard(model, tokenizer, part, read_token_ids(passages, part), batch_size, progress)
            save_file(tensors, folder / f"{name}.unfinished")
            os.replace(folder / f"{name}.unfinished", folder / name)
    write_json(folder / MANIFEST, {"source": source, "shards": names, "passages": len(wanted)})
    for file in set(folder.glob("states-*.safetensors*")) - {folder / name for name in names}:
        file.unlink()
    return PassageCache(folder, source)


def _find_cache(folder: Path, source: dict[str, str], wanted: list[int]) -> PassageCache | None:
    try:
        cache = PassageCache(folder, source)
    except (FileNotFoundError, ValueError):
        return None
    return cache if np.isin(wanted, cache.passage_ids).all() else None


def _check_room(
    folder: Path, passages: Dataset | Mapping[int, Sequence[int]], passage_ids: list[int], hidden_size: int
) -> None:
    tokens = 0
    for start in range(0, len(passage_ids), SHARD_PASSAGES):
        tokens += sum(map(len, read_token_ids(passages, passage_ids[start : start + SHARD_PASSAGES])))
    needed, free = estimate_bytes(tokens, len(passage_ids), hidden_size), shutil.disk_usage(folder).free
    tqdm.write(f"Passage cache: {len(passage_ids):,} passages of {tokens:,} tokens, {needed / 1e6:,.1f} MB in {folder}")
    if needed > free:
        raise OSError(
            f"a passage cache needs its room on the disk; {len(passage_ids):,} passages take {needed / 1e9:,.2f} GB "
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
        batch = tokenizer.pad({"input_ids": [token_ids[row] for row in rows]}, return_tensors="pt")
        input_ids, mask = batch["input_ids"].to(model.device), batch["attention_mask"].to(model.device)
        encoded = rada.encode_passages(input_ids, mask).to(torch.bfloat16)
        # Of the rounded states: a passage is then chosen by what will be read.
        vectors[rows] = average_states(encoded, mask.bool()).cpu()
        for row, sequence, length in zip(rows, encoded.cpu(), mask.sum(dim=1).tolist(), strict=True):
            states[offsets[row] : offsets[row + 1]] = sequence[:length]
        progress.update(len(rows))
    model.train(training)
    return {"ids": torch.tensor(passage_ids), "offsets": offsets, "vectors": vectors, "states": states}
