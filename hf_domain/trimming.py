"""Trim a model to the entries that its trimmed tokenizer kept."""

from collections.abc import Sequence

import torch
from torch import nn
from transformers import PreTrainedModel

from hf_domain.new_rows import list_tables


@torch.no_grad()
def keep_rows(model: PreTrainedModel, kept: Sequence[int]) -> None:
    """Keep only some rows of a model's embedding, of an untied decoder and of its bias, in place.

    On texts that a trimmed tokenizer splits as before, the model computes the same hidden states as before, and the
    same logits of the entries that are left. Rows of padding go, and the token ids of the configuration follow.

    Args:
        model: A model of transformers with one input embedding, over the old vocabulary. An exBERT, a G-MAP and a RADA
            with a passage encoder have several; trim their encoder before.
        kept: Ascending ids, see `trim_vocabulary`. Entry i gets the row of `kept[i]`.

    Raises:
        ValueError: The ids are not rows of the table, the model has several tables, or it cannot take another id of the
            padding token.
    """
    tables = list_tables(model)
    rows = len(tables[0])
    if not kept or list(kept) != sorted(set(kept)) or kept[0] < 0 or kept[-1] >= rows:
        raise ValueError(
            f"`kept` must be ascending ids from 0 to {rows - 1:,}, the rows of the embedding table, but has "
            f"{len(kept):,} ids up to {max(kept, default=0):,}. Take model and tokenizer from the same checkpoint."
        )
    new_ids = {old: new for new, old in enumerate(kept)}
    embedding = model.get_input_embeddings()
    padding = embedding.padding_idx
    others = [part for part in model.modules() if isinstance(part, nn.Embedding) and part is not embedding]
    if any(len(other.weight) == rows for other in others) or [*embedding.children()]:
        raise ValueError(
            f"a model must have one table of words to be trimmed, but {type(model).__name__} has another one (of a "
            "memory, of passages or of an extension). Trim the encoder, and build the model from it."
        )
    for other in others:
        # RoBERTa numbers its positions from the id of the padding token: all of them would move.
        if (position := other.padding_idx) is not None and new_ids.get(position) != position:
            raise ValueError(
                f"the padding token must keep its id {position}, from which this model numbers its positions, but "
                f"would get {new_ids.get(position)}. Keep all ids below it too."
            )
    for table in tables:
        table[: len(kept)] = table[torch.tensor(kept, device=table.device)]
    model.resize_token_embeddings(len(kept), mean_resizing=False)
    model.get_input_embeddings().padding_idx = new_ids.get(padding)
    configs = {id(part.config): part.config for part in model.modules() if isinstance(part, PreTrainedModel)}
    for config in configs.values():
        for name, value in vars(config).items():
            if name.endswith("_token_id") and isinstance(value, int):
                setattr(config, name, new_ids.get(value))
