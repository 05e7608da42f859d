"""Encoded passages on disk, which a model with a frozen passage encoder reads instead of encoding passages again.

Only retrieved passages are stored; most of a datastore is never retrieved. The store has the states of their tokens in
bfloat16 and their mean states in float32. RADA chooses a passage by the means before it reads its states.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Any, cast

import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from hf_domain.methods.hidden_state_cache import StateSource, StateStore, digest_config, fill_store, name_precision
from hf_domain.methods.rada.collator import read_token_ids
from hf_domain.modeling.modeling_rada import RadaPreTrainedModel


def describe_source(
    model: RadaPreTrainedModel, tokenizer: PreTrainedTokenizerBase, passages_fingerprint: str
) -> dict[str, str]:
    """Return what cached states depend on.

    Args:
        model: A RADA; its passage encoder counts, which is the copy if `passage_encoder` is "frozen".
        passages_fingerprint: `datastore.fingerprint`.

    Returns:
        A digest of each, and the precision in which the encoder computes (autocast's, if on).
    """
    encoder, rada = hashlib.sha256(), cast(Any, model.base_model)
    module = rada.passage_backbone if model.config.passage_encoder == "frozen" else rada.backbone
    for name, tensor in sorted(module.state_dict().items()):
        encoder.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        encoder.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    vocabulary = json.dumps(sorted(tokenizer.get_vocab().items()))
    return {
        "encoder": f"{encoder.hexdigest()} {digest_config(model.config.backbone_config)}",
        "tokenizer": hashlib.sha256(vocabulary.encode()).hexdigest(),
        "precision": name_precision(model),
        "passages": passages_fingerprint,
    }


def list_retrieved(datasets: Iterable[Dataset], num_passages: int = 10) -> list[int]:
    """List the first `num_passages` of the `passage_ids` of each example: each id once, in ascending order."""
    return sorted({number for dataset in datasets for row in dataset["passage_ids"] for number in row[:num_passages]})


class PassageCache(StateStore):
    """Encoded passages in a folder that `build_passage_cache` wrote, as a RADA reads them; see `StateStore`."""

    def read_vectors(self, passage_ids: torch.Tensor) -> torch.Tensor:
        """Read the mean states of passages `[...]`, as `[..., hidden_size]`, float32."""
        rows = self.read(passage_ids.flatten().cpu().numpy(), means=True)
        return torch.stack(rows).view(*passage_ids.shape, -1)

    def read_states(self, passage_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Read the states of passages.

        Args:
            passage_ids: `[rows]`.

        Returns:
            `[rows, passage_length, hidden_size]`, bfloat16, zeros at padding, and the mask
            `[rows, passage_length]`, bool.
        """
        rows = self.read(passage_ids.cpu().numpy())
        lengths = torch.tensor([len(row) for row in rows])
        states = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        return states, torch.arange(states.shape[1]) < lengths.unsqueeze(1)


def build_passage_cache(
    folder: str | Path,
    model: RadaPreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    passages: Dataset | Mapping[int, Sequence[int]],
    passages_fingerprint: str,
    passage_ids: Iterable[int],
    *,
    batch_size: int = 32,
    executor: Executor | None = None,
) -> PassageCache:
    """Encode the passages that the cache lacks, save them, and open the cache.

    Processes that share a cache wait for each other. After a change of encoder, tokenizer or precision, all passages
    are encoded again. After a change of the datastore, only the shards with changed passages are.

    Args:
        folder: Created if missing.
        model: Encodes without dropout, on its device.
        passages: See `hf_domain.methods.rada.collator.read_token_ids`.
        passages_fingerprint: `datastore.fingerprint`.
        passage_ids: The retrieved passages, see `list_retrieved`.
        batch_size: Passages encoded at once.
        executor: See `fill_store`.

    Raises:
        OSError: The disk is too small; raised with the size, before anything is written.
        ValueError: A passage is unknown.
    """
    rada: Any = model.base_model
    made_of = describe_source(model, tokenizer, passages_fingerprint)

    device = model.device.type
    precision = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None  # unknown to workers

    def encode(rows: list[dict[str, list[int]]]) -> list[torch.Tensor]:
        batch = tokenizer.pad(rows, return_tensors="pt", padding_side="right").to(model.device)
        with torch.autocast(device, precision, enabled=precision is not None):
            states = rada.encode_passages(batch["input_ids"], batch["attention_mask"])
        return [sequence[: len(row["input_ids"])] for sequence, row in zip(states, rows, strict=True)]

    source = StateSource(
        made_of,
        read=lambda ids: [{"input_ids": each} for each in read_token_ids(passages, ids)],
        encode=encode,
        shape=(model.config.hidden_size,),
        keeps_means=True,
        grows="passages",
    )
    training = model.training
    model.eval()
    fill_store(folder, source, passage_ids, batch_size=batch_size, executor=executor)
    model.train(training)
    return PassageCache(folder, made_of)
