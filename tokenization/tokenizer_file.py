"""The tokenizer.json that a tokenizer is read from and written to."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tokenizers import Tokenizer
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from .segmentation import Model, read_vocabulary


def read_tokenizer(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """Read the tokenizer.json of a tokenizer that can be expanded, each added token an entry of the model too.

    Without that, the ids of a Unigram model, which are positions, would collide: DeBERTa-v3's [MASK] has the id after
    the last piece without being one, and the first new piece would take it.

    Raises:
        TypeError: The tokenizer has no fast backend.
        ValueError: Its model is of a kind that cannot be expanded.
    """
    if not isinstance(getattr(tokenizer, "backend_tokenizer", None), Tokenizer):
        raise TypeError(
            f"Only fast tokenizers can be expanded, but {type(tokenizer).__name__} has no `backend_tokenizer`. "
            f"Load it with AutoTokenizer and the `tokenizers` package."
        )
    state: dict[str, Any] = json.loads(tokenizer.backend_tokenizer.to_str())
    _check_model(state)
    model = state["model"]
    vocabulary = read_vocabulary(model)
    for token in sorted(state["added_tokens"], key=lambda token: token["id"]):
        if token["content"] not in vocabulary:
            state["model"] = model = _pin_token(model, token["content"], token["id"])
    return state


def replace_model(tokenizer: PreTrainedTokenizerBase, state: dict[str, Any], model: Model) -> PreTrainedTokenizerBase:
    """Make a tokenizer that differs in its model: put it into the saved files and load them as anybody would.

    Args:
        state: What `read_tokenizer` read of it.
    """
    with TemporaryDirectory() as directory:
        tokenizer.save_pretrained(directory)
        Path(directory, "tokenizer.json").write_text(json.dumps({**state, "model": model}), encoding="utf-8")
        if model["type"] == "BPE":
            # RobertaTokenizer and others rebuild their backend from vocabulary and merges, and lose ignore_merges.
            path = Path(directory, "tokenizer_config.json")
            config = json.loads(path.read_text(encoding="utf-8"))
            config |= {"tokenizer_class": "TokenizersBackend", "model_input_names": tokenizer.model_input_names}
            path.write_text(json.dumps(config), encoding="utf-8")
        new_tokenizer = AutoTokenizer.from_pretrained(directory)
    new_tokenizer.name_or_path = tokenizer.name_or_path
    return new_tokenizer


def _check_model(state: dict[str, Any]) -> None:
    """Refuse models that cannot be expanded."""
    kind = state["model"]["type"]
    if kind not in ("WordPiece", "BPE", "Unigram"):
        raise ValueError(
            f"The vocabulary of a {kind} model cannot be expanded; WordPiece, byte-level BPE and Unigram can."
        )
    if state["pre_tokenizer"] is None:
        raise ValueError(
            "A tokenizer without a pre-tokenizer takes a whole text for one word: there are none to count."
        )
    if kind == "BPE" and '"ByteLevel"' not in json.dumps(state["pre_tokenizer"]):
        raise ValueError(
            "Only a byte-level BPE can be expanded, but this one's pre-tokenizer has no ByteLevel: in a BPE of "
            "characters, a word that is looked up whole would lose its byte or unknown fallback."
        )


def _pin_token(model: Model, content: str, id_: int) -> Model:
    """Give the model the added token under the id that it has."""
    if isinstance(model["vocab"], dict):
        return {**model, "vocab": {**model["vocab"], content: id_}}
    if id_ != len(model["vocab"]):
        raise ValueError(
            f"The ids of a Unigram model are positions, but the added token {content!r} has the id {id_} where the "
            f"next position is {len(model['vocab'])}."
        )
    return {**model, "vocab": [*model["vocab"], [content, 0.0]]}
