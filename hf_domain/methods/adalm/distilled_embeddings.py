"""Rows of new entries, distilled from what the encoder makes of their old pieces.

Token distillation (Dobler et al., ICLR 2026, arXiv 2505.20133): the meaning of `l ##ym ##ph ##oma` does not lie in four
rows of the table, whose mean would be the row of `lymphoma`; the layers put it together. So the encoder reads a text
with the old pieces, and the new rows learn to give the same hidden states when it reads the text with the new entries.
Nothing else trains, and no word is predicted: an untied decoder keeps the mean of its rows.

The paper has decoders, in which only what follows a new entry can see it, and compares there. An encoder sees it from
both sides, so here every position counts, that of the entry too: its target is the mean of the states of its pieces.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from datasets import Dataset
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from tqdm.auto import tqdm
from transformers import PreTrainedModel

from hf_domain.modeling.backbone import find_encoder
from hf_domain.tokenization import VocabularyDelta

SNIPPET = 64
"""Tokens of a snippet; 50 in the paper. Longer ones give an entry fewer contexts for the same work."""
LONGEST = 256
"""Old pieces of a snippet: more would pass the limit of some encoder, and hardly occur."""


def distill_new_rows(
    model: PreTrainedModel,
    delta: VocabularyDelta,
    examples: Dataset,
    seed: int = 42,
    *,
    snippets_per_entry: int = 25,
    learning_rate: float = 1e-3,
    batch_size: int = 16,
    progress: bool = True,
) -> tuple[float, float]:
    """Train the rows of new entries, in place, in one pass over text that has them.

    Args:
        model: An encoder, with a head or without, or one of our models, after `apply_delta`; the encoder is left in
            evaluation mode.
        delta: What it was given rows for.
        examples: Text of the domain with the `input_ids` of the new tokenizer, as `tokenize_corpus` makes them.
        seed: Seed of the order of examples and of snippets.
        snippets_per_entry: Read a snippet only if one of its entries was read less often; the paper has 100.
        learning_rate: Learning rate of AdamW, without weight decay; falls to zero. Our choice (docs/methods/adalm.md).
        batch_size: Snippets of a step; 16 in the paper.

    Returns:
        The mean squared difference of the hidden states over the first tenth of the steps, and over the last tenth;
        NaN if no example has a new entry.
    """
    encoder: Any = find_encoder(model)
    embedding: Any = encoder.get_input_embeddings()
    table = embedding.weight
    snippets = list(choose_snippets(examples.shuffle(seed=seed), delta, snippets_per_entry))
    order = torch.randperm(len(snippets), generator=torch.Generator().manual_seed(seed)).tolist()
    batches = [order[first : first + batch_size] for first in range(0, len(order), batch_size)]
    encoder.eval()
    trained = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.requires_grad_(False)
    rows = nn.Parameter(table[delta.old_size : delta.new_size].float().clone())
    optimizer = torch.optim.AdamW([rows], lr=learning_rate, weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=max(1, len(batches)))
    losses = []
    for batch in tqdm(batches, desc="Distilling new rows", unit="step", disable=not progress):
        loss = compute_loss(encoder, table, rows, delta, [snippets[number] for number in batch])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    with torch.no_grad():
        table[delta.old_size : delta.new_size] = rows.to(table.dtype)
    for parameter in trained:
        parameter.requires_grad_(True)
    tenth = max(1, len(losses) // 10)
    if not losses:
        return float("nan"), float("nan")
    return sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth


def choose_snippets(
    examples: Iterable[Mapping[str, Any]], delta: VocabularyDelta, snippets_per_entry: int
) -> Iterator[list[int]]:
    """Yield parts of examples in which a new entry stands that was not yet seen in enough of them."""
    lengths = [len(ids) for ids in delta.pieces.values()]
    seen: Counter[int] = Counter()
    full = 0
    for example in examples:
        ids = list(example["input_ids"])
        for part in (ids[first : first + SNIPPET] for first in range(0, len(ids), SNIPPET)):
            new = [id_ - delta.old_size for id_ in part if delta.old_size <= id_ < delta.new_size]
            is_short = len(part) + sum(lengths[number] - 1 for number in new) <= LONGEST
            if is_short and any(seen[number] < snippets_per_entry for number in new):
                seen.update({*new})
                full += sum(seen[number] == snippets_per_entry for number in {*new})
                yield part
        if full == len(lengths):
            return


def compute_loss(
    encoder: Any, table: torch.Tensor, rows: torch.Tensor, delta: VocabularyDelta, snippets: list[list[int]]
) -> torch.Tensor:
    """Compute the mean squared difference of the last hidden states, with and without the new entries.

    Args:
        table: Embedding of the encoder, shape [rows, width].
        rows: Rows of the new entries, shape [new entries, width].
        delta: Has the old ids that spelled each entry.
        snippets: Token ids of the new tokenizer.
    """
    pieces = [list(ids) for ids in delta.pieces.values()]
    spelled = [
        [pieces[id_ - delta.old_size] if delta.old_size <= id_ < delta.new_size else [id_] for id_ in ids]
        for ids in snippets
    ]
    old_ids, old_mask = pad([[piece for ids in text for piece in ids] for text in spelled], table.device)
    ids, mask = pad(snippets, table.device)
    # An entry that no pieces spelled has no target, but takes part in those of its neighbors.
    known, _ = pad([[bool(ids) for ids in text] for text in spelled], table.device)
    # Where each piece is read by the new tokenizer; padding has a place of its own, which is cut off.
    places, _ = pad([[place for place, ids in enumerate(text) for _ in ids] for text in spelled], table.device)
    places[~old_mask] = ids.shape[1]
    with torch.no_grad():
        states = encoder(inputs_embeds=table[old_ids], attention_mask=old_mask.long()).last_hidden_state
        index = places[..., None].expand_as(states)
        targets = states.new_zeros(len(ids), ids.shape[1] + 1, states.shape[-1])
        targets = targets.scatter_reduce(1, index, states, "mean", include_self=False)[:, :-1]
    is_new = (ids >= delta.old_size) & (ids < delta.new_size)
    embeds = table[ids].index_put((is_new,), rows[ids[is_new] - delta.old_size].to(table.dtype))
    states = encoder(inputs_embeds=embeds, attention_mask=mask.long()).last_hidden_state
    return (states - targets)[known.bool()].float().square().mean()


def pad(texts: list[list[int]], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ids with zeros behind them, and where they are real, both of shape [texts, longest]."""
    ids = pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    lengths = torch.tensor([len(text) for text in texts])
    return ids.to(device), (torch.arange(ids.shape[1]) < lengths[:, None]).to(device)
