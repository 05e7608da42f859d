"""Trim a model to the entries that its trimmed tokenizer kept."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_domain.checks import check_weights
from hf_domain.methods.new_embeddings import list_tables, resize_tables


@torch.no_grad()
def keep_rows(model: PreTrainedModel, kept: Sequence[int]) -> None:
    """Keep only some rows of a model's embedding, of an untied decoder and of its bias, in place.

    On texts that a trimmed tokenizer splits as before, the model computes the same hidden states as before, and the
    same logits of the entries that are left. Rows of padding go, and the token ids of the configuration follow.

    Args:
        model: A stock encoder with any head, a VarMAE, or a RADA without an encoder of passages.
        kept: Ascending ids, see `trim_vocabulary`. Entry i gets the row of `kept[i]`.

    Raises:
        ValueError: The ids are not rows of the table, the model has several tables, or it cannot take another id of the
            padding token.
    """
    check_weights(model, model.name_or_path or type(model).__name__)
    check_tables(model)
    tables = list_tables(model)
    rows = len(tables[0])
    if not kept or list(kept) != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= rows:
        raise ValueError(
            f"`kept` must be ascending ids without repeats, from 0 to {rows - 1:,}, the rows of the embedding table, "
            f"but has {len(kept):,} ids up to {max(kept, default=0):,}. Take model and tokenizer from one checkpoint."
        )
    new_ids = {old: new for new, old in enumerate(kept)}
    embedding: Any = model.get_input_embeddings()
    padding = embedding.padding_idx
    for part in model.modules():
        # RoBERTa numbers its positions from the id of the padding token: all of them would move.
        position = part.padding_idx if isinstance(part, nn.Embedding) and part is not embedding else None
        if position is not None and new_ids.get(position) != position:
            raise ValueError(
                f"the padding token must keep its id {position}, from which this model numbers its positions, but "
                f"would get {new_ids.get(position)}. Keep this vocabulary."
            )
    for table in tables:
        table[: len(kept)] = table[torch.tensor(kept, device=table.device)]
    resize_tables(model, len(kept))
    shrunk: Any = model.get_input_embeddings()
    shrunk.padding_idx = new_ids.get(padding)
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    for config in configs.values():
        for name, value in vars(config).items():
            if name.endswith("_token_id") and isinstance(value, int):
                setattr(config, name, new_ids.get(value))


def check_tables(model: PreTrainedModel) -> None:
    """Raise a ValueError unless the model has one table of words."""
    embedding: Any = model.get_input_embeddings()
    encoders = [part for part in model.modules() if isinstance(part, PreTrainedModel) and part.base_model is part]
    tables = {id(encoder.get_input_embeddings()) for encoder in encoders}
    if len(tables) > 1 or [*embedding.children()]:
        raise ValueError(
            f"the model must have a single table of words, but {type(model).__name__} has a second one. Trim its "
            f"encoder first, then build the {type(model).__name__} from it."
        )
