"""Add embedding rows for new tokenizer entries."""

import logging
from typing import Any, Literal

import torch
from torch import nn
from transformers import (
    PreTrainedModel,
    PreTrainedTokenizerBase,
)

from hf_domain.modeling.backbone import BackbonePreTrainedModel
from hf_domain.modeling.layers_exbert import LARGEST_PADDING
from hf_domain.tokenization import VocabularyDelta

logger = logging.getLogger(__name__)

LEAST_COUNTED = 20  # old entries from which the biases of new ones are predicted (our choice)


@torch.no_grad()
def apply_delta(
    model: PreTrainedModel,
    delta: VocabularyDelta,
    init: Literal["pieces", "random", "mean"] = "pieces",
    pad_to_multiple_of: int | None = None,
) -> None:
    """Add rows for the new entries of an expanded tokenizer to a model, in place.

    The rows go into the input embedding, an untied decoder, and the decoder's bias. In a padded table they replace
    padding rows first; a table never shrinks.

    Args:
        model: Any model of transformers with an input embedding over the old vocabulary.
        delta: Delta that `expand_vocabulary` returned.
        init: "pieces" uses the mean of the rows of the old tokens (AdaLM), or the mean of all rows if none is known.
            Biases, which the paper leaves open, follow the frequency of the entry, as for old entries; without counts
            they are the mean of the old tokens' biases. "random" draws from a normal distribution with the model's
            `initializer_range`, with bias 0. "mean" uses the mean of all old rows and biases.
        pad_to_multiple_of: Enlarge the table to a multiple of this; a multiple of 64 is faster on a GPU.

    Raises:
        ValueError: The table does not match the tokenizer that was expanded.
    """
    if not isinstance(model.get_input_embeddings(), nn.Module):
        raise ValueError(
            f"an encoder must have an embedding table, but a {type(model).__name__} has none. Use another family."
        )
    rows = len(list_tables(model)[0])
    if not delta.old_size <= rows <= delta.old_size + LARGEST_PADDING:
        raise ValueError(
            f"the embedding table must have a row for each of the {delta.old_size:,} entries of the tokenizer that was "
            f"expanded, and at most {LARGEST_PADDING:,} rows of padding, but has {rows:,} rows. Take model and "
            f"tokenizer from the same checkpoint, and apply a delta once."
        )
    if init not in ("pieces", "random", "mean"):
        raise ValueError(f"`init` must be 'pieces', 'random' or 'mean', but is {init!r}.")
    if not delta.pieces:
        return
    if delta.new_size > rows or pad_to_multiple_of:
        resize_tables(model, max(rows, delta.new_size), pad_to_multiple_of)
    spread = getattr(model.config.get_text_config(), "initializer_range", 0.02)
    for table in list_tables(model):
        _fill_rows(table, delta, init, spread)
        if len(table) > (first := max(rows, delta.new_size)):
            # Padding has no entry. The bias of 0 that resizing leaves would win wherever all others are far below it.
            old = table[: delta.old_size]
            table[first:] = old.mean(dim=0) if table.dim() > 1 else old.min()


def join_added_tokens(
    delta: VocabularyDelta | None, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel
) -> VocabularyDelta | None:
    """Return a delta with the tokens that a user added to the tokenizer, if the model has no rows for them.

    Args:
        delta: That of an expanded vocabulary, which the tokenizer already has and the model may not have yet.

    Returns:
        `delta` itself if the model has, or `delta` brings, a row for every id; also if other entries lack one, which
        `match_tokenizer` then refuses. The new rows start as the mean of all others.
    """
    first = model.config.get_text_config().vocab_size if delta is None else delta.new_size
    missing = {id_: token for token, id_ in tokenizer.get_vocab().items() if id_ >= first}
    if not missing or [*sorted(missing)] != [*range(first, first + len(missing))]:
        return delta
    if not tokenizer.get_added_vocab().keys() >= {*missing.values()}:
        return delta
    tokens = [missing[id_] for id_ in sorted(missing)]
    logger.warning(
        f"The model grows by the {len(tokens):,} tokens that were added to its tokenizer, such as {tokens[0]}; their "
        "embeddings start as the mean of all others"
    )
    old = delta or VocabularyDelta(first)
    counts = [*old.counts, *[0] * len(tokens)] if old.counts else []
    return VocabularyDelta(old.old_size, {**old.pieces, **{token: [] for token in tokens}}, counts)


@torch.no_grad()
def grow_tables(model: PreTrainedModel, delta: VocabularyDelta) -> None:
    """Apply a delta to a model of any kind: an exBERT grows its extension, a frozen copy gets the same new rows."""
    table: Any = model.get_input_embeddings()
    if hasattr(table, "extension"):
        model.resize_token_embeddings(delta.new_size)
        return
    apply_delta(model, delta)
    for module in model.modules():
        if isinstance(module, BackbonePreTrainedModel):
            module.follow_resized_table(model.get_input_embeddings(), delta.old_size)


@torch.no_grad()
def predicts(model: Any, token: int) -> bool:
    """Return whether a masked LM computes a loss for a token; true for other models, whose heads have no table."""
    if model.get_output_embeddings() is None or isinstance(model, BackbonePreTrainedModel):
        return True
    was_training, ids = model.training, torch.full((1, 4), token, device=model.device)
    try:
        model.eval()(input_ids=ids, labels=ids)
    except Exception:  # each family has its own; some read more than a text, or other lengths
        return False
    finally:
        model.train(was_training)
    return True


def resize_tables(model: PreTrainedModel, size: int, pad_to_multiple_of: int | None = None) -> None:
    """Give the embedding, an untied decoder and its bias another number of rows, in place.

    The head of an untied BERT or RoBERTa has a bias that it does not use, beside the decoder's. transformers 5.23
    leaves it at the old size, so that the saved model cannot be loaded, or ties both and does not load the decoder's.
    """
    decoder: Any = model.get_output_embeddings()
    bias = getattr(decoder, "bias", None)
    unused = [head for head in model.modules() if bias is not None and _has_other_bias(head, bias)]
    could_predict = predicts(model, 0)
    try:
        model.resize_token_embeddings(size, pad_to_multiple_of=pad_to_multiple_of, mean_resizing=False)
        is_whole = predicts(model, size - 1) or not could_predict
    except (AttributeError, NotImplementedError, TypeError):  # I-BERT, MobileBERT
        is_whole = False
    if not is_whole:
        raise ValueError(
            f"the embedding table must be one that transformers can enlarge together with the head, but that of a "
            f"{type(model).__name__} is not. Use another family."
        )
    resized: Any = model.get_output_embeddings()
    for module in unused:
        module.bias = nn.Parameter(resized.bias.detach().clone())


def _has_other_bias(head: nn.Module, bias: nn.Parameter) -> bool:
    """Return whether a module has no weight, unlike a layer, but a bias for every entry beside the decoder's."""
    other = getattr(head, "bias", None)
    is_other = isinstance(other, nn.Parameter) and other is not bias and other.shape == bias.shape
    return is_other and not hasattr(head, "weight")


def check_not_expanded(tokenizer: PreTrainedTokenizerBase, delta: VocabularyDelta) -> None:
    """Raise a ValueError if a checkpoint already has the new entries, whose trained rows would be overwritten.

    `apply_delta` cannot detect this reliably, because it reads a few extra rows as padding.

    Args:
        tokenizer: The checkpoint's own tokenizer.
    """
    vocabulary = tokenizer.get_vocab()
    # The size alone does not tell: a tokenizer may have been trimmed since.
    has_entries = not vocabulary.keys().isdisjoint(delta.pieces)
    if delta.pieces and (has_entries or max(vocabulary.values(), default=0) + 1 >= delta.new_size):
        raise ValueError(
            f"a vocabulary must be expanded only once, but the tokenizer of {tokenizer.name_or_path} already has "
            f"{len(vocabulary):,} entries. Leave out --expanded_vocabulary to train it further."
        )


def list_tables(model: PreTrainedModel) -> list[nn.Parameter]:
    """Return the parameters with one row per entry: input embedding, untied decoder, decoder bias."""
    modules = [model.get_input_embeddings(), model.get_output_embeddings()]
    parameters = [parameter for module in modules if module is not None for parameter in module.parameters()]
    return list({id(parameter): parameter for parameter in parameters}.values())


def _fill_rows(table: nn.Parameter, delta: VocabularyDelta, init: str, spread: float) -> None:
    """Fill the rows of the new entries in a table [rows, width] or a bias [rows]."""
    new = table[delta.old_size : delta.new_size]
    if init == "random":
        new.normal_(std=spread) if table.dim() > 1 else new.zero_()
        return
    old = table[: delta.old_size].float().reshape(delta.old_size, -1)
    filled = old.mean(dim=0).expand(len(new), -1)
    if init == "pieces":
        pieces = [torch.tensor(ids, dtype=torch.long) for ids in delta.pieces.values()]
        lengths = torch.tensor([len(ids) for ids in pieces], device=old.device)
        starts = lengths.cumsum(0) - lengths
        means = nn.functional.embedding_bag(torch.cat(pieces).to(old.device), old, starts, mode="mean")
        filled = torch.where(lengths[:, None] > 0, means, filled)
    if init == "pieces" and table.dim() == 1 and delta.counts and _count_seen(delta) >= LEAST_COUNTED:
        filled = _predict_biases(old[:, 0], delta)
    new.copy_(filled.reshape(new.shape))


def _count_seen(delta: VocabularyDelta) -> int:
    """Return how many old entries the corpus still uses beside the new ones."""
    return sum(count > 0 for count in delta.counts[: delta.old_size])


def _predict_biases(old: torch.Tensor, delta: VocabularyDelta) -> torch.Tensor:
    """Return the biases of new entries, from a line fitted to the old biases over the logarithm of their counts.

    The bias of a masked LM is about the logarithm of a frequency. An entry is rarer than its tokens; the mean of their
    biases would let it win wherever the model is unsure. No prediction leaves the range of the old biases.
    """
    counts = torch.tensor(delta.counts, dtype=torch.float64, device=old.device)
    seen = counts[: delta.old_size] > 0
    x, y = counts[: delta.old_size][seen].log(), old[seen].double()
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum().clamp(min=1e-9)
    predicted = y.mean() + slope.clamp(min=0) * (counts[delta.old_size :].clamp(min=1).log() - x.mean())
    return predicted.clamp(y.min(), y.max()).float()
