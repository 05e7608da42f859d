"""What a model or a tokenizer does with a text: functions that take objects and return plain data."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.nn import functional as F
from transformers import FillMaskPipeline, PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.methods.gmap.memory import load_memory_tokenizer
from hf_domain.methods.rada.passages import count_positions
from hf_domain.modeling.configuration_gmap import GATED_STRATEGIES
from hf_domain.modeling.modeling_exbert import ExBertConfig, ExBertPreTrainedModel
from hf_domain.modeling.modeling_gmap import GMapConfig, GMapPreTrainedModel
from hf_domain.prediction import LONGEST

# Where every token is masked in a row of its own: rows that are encoded at once, and at most.
ROWS, MOST_ROWS = 32, 128
# What a user may write for the mask token of any tokenizer.
MASKS = ("[MASK]", "<mask>", "___")


def check_text(
    text: str, tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel | None = None, limit: int = LONGEST
) -> str:
    """Return a text without blanks around it, unless there is nothing to read in it or too much.

    Args:
        model: Reads the text; its limit holds as well.
        limit: Largest number of tokens.

    Raises:
        ValueError: The text is empty, or longer than a limit: nothing is cut off unseen.
    """
    text = text.strip()
    if not text:
        raise ValueError("there must be a text to read, but it is empty. Write or paste one.")
    positions = None if model is None else count_positions(model)
    limit = min(limit, tokenizer.model_max_length, positions or limit)
    if (count := len(tokenizer(text, verbose=False)["input_ids"])) > limit:
        raise ValueError(f"a text must have at most {limit} tokens, but this one has {count:,}. Shorten it.")
    return text


# ------------------------------------------------------------------------------------------------------- vocabularies


class Piece(NamedTuple):
    """A token of a text."""

    text: str
    """As written in the text; an unknown token has its own name."""
    is_new: bool
    """Whether the old vocabulary does not have the token."""


def cut_words(
    text: str, tokenizer: PreTrainedTokenizerBase, old: PreTrainedTokenizerBase | int | None = None
) -> list[list[Piece]]:
    """Cut a text, and return the pieces of each word.

    Args:
        tokenizer: A fast one.
        old: The tokenizer before its vocabulary was expanded, or the number of its entries. Default: no entry is new.
    """
    entries = old.get_vocab() if isinstance(old, PreTrainedTokenizerBase) else None
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
    tokens: Any = tokenizer.convert_ids_to_tokens(encoding["input_ids"])
    words: list[list[Piece]] = []
    last = None
    rows = zip(encoding["input_ids"], tokens, encoding["offset_mapping"], encoding.word_ids(), strict=True)
    for number, token, (start, end), word in rows:
        is_new = token not in entries if entries is not None else isinstance(old, int) and number >= old
        shown = token if number == tokenizer.unk_token_id else text[start:end].strip()
        if word is None or word != last:
            words.append([])
        words[-1].append(Piece(shown, is_new))
        last = word
    return words


# --------------------------------------------------------------------------------------------------------- masked LM


def fill_masks(
    text: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int = 5
) -> list[list[tuple[str, float]]]:
    """Return the likeliest tokens of each mask with their probabilities.

    Args:
        text: With one or several masks, written as in `MASKS` for every tokenizer.
        model: A masked LM.
        count: Tokens of a mask.

    Raises:
        ValueError: The text has no mask, or cannot be read, see `check_text`.
    """
    for mask in MASKS:
        text = text.replace(mask, str(tokenizer.mask_token))
    text = check_text(text, tokenizer, model)
    if str(tokenizer.mask_token) not in text:
        raise ValueError(f"the text must have a word to fill in, written as {MASKS[0]}, but has none. Mask one.")
    reader: Any = tokenizer
    filled: Any = FillMaskPipeline(model=model, tokenizer=reader, top_k=count)(text)
    masks = filled if isinstance(filled[0], list) else [filled]
    return [[(token["token_str"].strip(), token["score"]) for token in tokens] for tokens in masks]


@torch.no_grad()
def measure_losses(text: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[tuple[str, float]]:
    """Return the loss of each token in nats when it alone is masked (Salazar et al. 2020); nothing is drawn.

    Args:
        model: A masked LM.

    Raises:
        ValueError: The text cannot be read, see `check_text`.
    """
    text = check_text(text, tokenizer, model, MOST_ROWS)
    encoding = tokenizer(text, return_tensors="pt", return_special_tokens_mask=True)
    places = (encoding.pop("special_tokens_mask")[0] == 0).nonzero().flatten()
    ids, losses = encoding["input_ids"][0], []
    for chosen in places.split(ROWS):
        rows: Any = {name: value.expand(len(chosen), -1).to(model.device) for name, value in encoding.items()}
        each = torch.arange(len(chosen))
        rows["input_ids"] = rows["input_ids"].clone()
        rows["input_ids"][each, chosen] = tokenizer.mask_token_id
        logits = model.eval()(**rows).logits[each, chosen].float().cpu()
        losses += F.cross_entropy(logits, ids[chosen], reduction="none").tolist()
    return [(name_token(number, tokenizer), loss) for number, loss in zip(ids[places], losses, strict=True)]


def tokenize_word(word: str, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the tokens of a word, in a text or at its start: whichever are fewer.

    Raises:
        ValueError: The word cannot be read, see `check_text`, or none of it is known.
    """
    word = check_text(word, tokenizer)
    tokens = min((tokenizer.tokenize(text) for text in (f" {word}", word)), key=len)
    if {*tokens} <= {tokenizer.unk_token}:
        raise ValueError(f"the tokenizer must know the word, but has no token for {word}. Try another one.")
    return tokens


@torch.no_grad()
def find_neighbors(
    word: str, model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, count: int = 10
) -> list[tuple[str, float]]:
    """Return the entries of the vocabulary whose embeddings are nearest to a word's, with their cosines.

    Args:
        word: Where the tokenizer cuts it, the mean of its pieces is compared, and the pieces themselves are left out.

    Raises:
        ValueError: The word cannot be read, see `check_text`.
    """
    ids = torch.tensor(tokenizer.convert_tokens_to_ids(tokenize_word(word, tokenizer)))
    embed: Any = model.get_input_embeddings()
    # Called, not read as a weight: an exBERT has a second table for its new entries.
    table = embed(torch.arange(len(tokenizer), device=model.device)).float().cpu()
    cosines = F.cosine_similarity(table, table[ids].mean(dim=0, keepdim=True))
    cosines[torch.cat([ids, torch.tensor(tokenizer.all_special_ids)])] = -2.0
    found = cosines.topk(min(count, len(cosines) - len(ids)))
    return [(name_token(n, tokenizer), c) for n, c in zip(found.indices.tolist(), found.values.tolist(), strict=True)]


# ------------------------------------------------------------------------------------------------------------- gates


@dataclass
class Gates:
    """Shares from 0 to 1: a row for each gate, a column for each token or head."""

    title: str
    columns: list[str]
    rows: dict[str, list[float]]


def has_gates(config: Any) -> bool:
    """Return whether the model of a configuration decides by gates what it reads."""
    if isinstance(config, GMapConfig):
        return bool(config.plan_memory()) and (config.fusion == "gate" or config.strategy in GATED_STRATEGIES)
    return isinstance(config, ExBertConfig) and bool(config.extension_hidden_size)


@torch.no_grad()
def measure_gates(texts: Sequence[str], model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase) -> list[Gates]:
    """Return what the gates of an exBERT or a G-MAP let through for a text or a pair of texts.

    Raises:
        ValueError: The model has no gates, or the text cannot be read, see `check_text`.
    """
    if not has_gates(model.config):
        raise ValueError(
            f"the model must have gates, but {type(model).__name__} has none. Look at an exBERT or a G-MAP."
        )
    texts = [check_text(text, tokenizer, model) for text in texts]
    inputs = tokenizer(*texts, return_tensors="pt", truncation=True).to(model.device)
    read = tokenizer
    if (own := load_memory_tokenizer(model.config)) is not None:
        read = own
        memory = own(*texts, return_tensors="pt", truncation=True).to(model.device)
        inputs |= {f"memory_{name}": value for name, value in memory.items()}
    base: Any = model.base_model
    gates: dict[str, nn.Module]
    if isinstance(model, ExBertPreTrainedModel):
        layers: Any = model.get_base_layers()
        gates = {f"layer {number}": layer.side.gate for number, layer in enumerate(layers, 1)}
        with record_outputs(gates) as outputs:
            model.eval()(**inputs)
        shares = {name: (1 - output[0, :, 0].sigmoid()).tolist() for name, output in outputs.items()}
        return [Gates("Share of the side module in each layer", list_tokens(inputs["input_ids"], tokenizer), shares)]
    assert isinstance(model, GMapPreTrainedModel)
    found = []
    gates = {f"{layer}": gate for (layer, _), gate in zip(base.plan, base.memory_gates, strict=False)}
    with record_outputs(gates) as outputs:
        model.eval()(**inputs)
    for (layer, states), output in zip(base.plan, outputs.values(), strict=False):
        weights = output[0, :, :, 0].float().softmax(dim=-1).T.tolist()
        rows = {f"layer {state}" if state else "embeddings": row for state, row in zip(states, weights, strict=True)}
        ids = inputs.get("memory_input_ids", inputs["input_ids"])
        found.append(Gates(f"What layer {layer} reads: shares of the memory's layers", list_tokens(ids, read), rows))
    if len(base.head_gates):
        rows = {
            f"layer {layer}": gate.weight.sigmoid().tolist()
            for (layer, _), gate in zip(base.plan, base.head_gates, strict=True)
        }
        heads = [f"head {number}" for number in range(1, model.config.num_attention_heads + 1)]
        found.append(Gates("Share of the memory in each head", heads, rows))
    return found


def name_token(number: Any, tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a token as a reader sees it."""
    return str(tokenizer.decode([number])).strip()


def list_tokens(ids: torch.Tensor, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """Return the tokens of the only row of a batch."""
    return [name_token(number, tokenizer) for number in ids[0].tolist()]


@contextmanager
def record_outputs(modules: Mapping[str, nn.Module]) -> Iterator[dict[str, torch.Tensor]]:
    """Record the last output of modules, by name."""
    outputs: dict[str, torch.Tensor] = {}

    def note(name: str, module: nn.Module, inputs: Any, output: torch.Tensor) -> None:
        outputs[name] = output.detach().float().cpu()

    handles = [module.register_forward_hook(partial(note, name)) for name, module in modules.items()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()
