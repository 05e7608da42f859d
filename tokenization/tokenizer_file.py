"""Read the tokenizer.json of a tokenizer, and write it with another model."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from .segmentation import Model, read_vocabulary


def read_tokenizer(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Read the tokenizer.json of a tokenizer that can be edited, with each added token as an entry of the model.

    Without these entries, ids of a Unigram model would collide, because they are positions: DeBERTa-v3's [MASK] is not
    a piece but has the id after the last one, which the first new piece would get.

    Raises:
        TypeError: The tokenizer has no fast backend.
        ValueError: The tokenizer's model cannot be edited.
    """
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        raise TypeError(
            f"only fast tokenizers can be edited, but {type(tokenizer).__name__} has no `backend_tokenizer`. "
            f"Load the tokenizer with AutoTokenizer and the `tokenizers` package."
        )
    state: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    _check_model(state)
    model = state["model"]
    vocabulary = read_vocabulary(model)
    for token in sorted(state["added_tokens"], key=lambda token: token["id"]):
        if token["content"] not in vocabulary:
            state["model"] = model = _pin_token(model, token["content"], token["id"])
    return state


LONGEST_WORD = 100  # characters that WordPiece reads by default


def replace_model(tokenizer: PreTrainedTokenizerBase, state: dict[str, Any], model: Model) -> PreTrainedTokenizerBase:
    """Return a tokenizer with another model: write it into the saved files, and load them as usual.

    Args:
        state: Result of `read_tokenizer`.
    """
    with TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        Path(directory, "tokenizer.json").write_text(json.dumps({**state, "model": model}), encoding="utf-8")
        if model["type"] == "BPE" or model.get("max_input_chars_per_word", LONGEST_WORD) != LONGEST_WORD:
            # RobertaTokenizer and others rebuild their backend from vocabulary and merges, without ignore_merges;
            # BertTokenizer without the length of a word.
            path = Path(directory, "tokenizer_config.json")
            config = json.loads(path.read_text(encoding="utf-8"))
            config |= {"tokenizer_class": "TokenizersBackend", "model_input_names": tokenizer.model_input_names}
            path.write_text(json.dumps(config), encoding="utf-8")
        new_tokenizer = AutoTokenizer.from_pretrained(directory)
    new_tokenizer.name_or_path = tokenizer.name_or_path
    return new_tokenizer


def _check_model(state: dict[str, Any]) -> None:
    """Refuse models that cannot be edited."""
    kind = state["model"]["type"]
    if kind not in ("WordPiece", "BPE", "Unigram"):
        raise ValueError(
            f"the tokenizer's model must be WordPiece, byte-level BPE or Unigram, but is {kind}. Use another tokenizer."
        )
    if state["pre_tokenizer"] is None:
        raise ValueError("the tokenizer must split texts into words, but has no pre-tokenizer. Use another tokenizer.")
    if kind == "BPE" and '"ByteLevel"' not in json.dumps(state["pre_tokenizer"]):
        raise ValueError(
            "a BPE must be byte-level, but the tokenizer's pre-tokenizer has no ByteLevel: in a BPE of characters, a "
            "word that is looked up whole would lose its byte or unknown fallback. Use another tokenizer."
        )


def _pin_token(model: Model, content: str, id_: int) -> Model:
    """Add an added token to the model under its id."""
    if isinstance(model["vocab"], dict):
        return {**model, "vocab": {**model["vocab"], content: id_}}
    if id_ != len(model["vocab"]):
        raise ValueError(
            f"an added token of a Unigram model must have the next position, {len(model['vocab'])}, as its id, but "
            f"{content!r} has the id {id_}. Use another tokenizer."
        )
    return {**model, "vocab": [*model["vocab"], [content, 0.0]]}
