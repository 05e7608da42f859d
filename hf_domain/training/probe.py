"""A probe: a linear model on the states of a frozen encoder. It needs no seed, and minutes instead of hours."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.modeling.backbone import get_native_config

# Inverse strength of the regularization: our choice, for standardized states of some hundred dimensions.
C = 0.01


def choose_layers(num_layers: int) -> tuple[int, int]:
    """Return the layers whose states are read: one behind the middle, and the last."""
    return math.ceil(2 * num_layers / 3), num_layers


def encode_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[list[str]],
    max_seq_length: int,
    batch_size: int = 32,
) -> np.ndarray:
    """Return the states of texts, means over their tokens.

    Args:
        model: Without a head.
        tokenizer: Its tokenizer.
        texts: One column or two.
        max_seq_length: Tokens of a text at most.
        batch_size: Texts that are encoded at once.

    Returns:
        States [texts, layers x width].
    """
    columns = [[text or "" for text in column] for column in texts]

    def tokenize(rows: list[int]) -> BatchEncoding:
        parts = [[column[row] for row in rows] for column in columns]
        return tokenizer(*parts, truncation=True, max_length=max_seq_length, padding=True, return_tensors="pt")

    lengths = [sum(map(len, row)) for row in zip(*columns, strict=True)]
    states: dict[int, np.ndarray] = {}
    for rows, encodings, hidden in _encode(model, lengths, batch_size, tokenize):
        mask = encodings["attention_mask"][..., None].to(hidden)
        means = (hidden * mask).sum(1) / mask.sum(1)
        states |= dict(zip(rows, means.float().cpu().numpy(), strict=True))
    return np.stack([states[row] for row in range(len(lengths))])


def encode_words(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    sentences: Sequence[list[str]],
    max_seq_length: int,
    batch_size: int = 32,
) -> list[np.ndarray]:
    """Return the states of words, those of their first tokens.

    Args:
        model: Without a head.
        tokenizer: See `prepare_for_words`.
        sentences: As words.
        max_seq_length: Tokens of a sentence at most; words beyond have no state.
        batch_size: Sentences that are encoded at once.

    Returns:
        For each sentence states [words, layers x width].
    """
    options: dict[str, Any] = {"is_split_into_words": True, "truncation": True, "max_length": max_seq_length}

    def tokenize(rows: list[int]) -> BatchEncoding:
        return tokenizer([sentences[row] for row in rows], padding=True, return_tensors="pt", **options)

    states: dict[int, np.ndarray] = {}
    for rows, encodings, hidden in _encode(model, [len(words) for words in sentences], batch_size, tokenize):
        for number, row in enumerate(rows):
            ids = encodings.word_ids(number)
            firsts = [ids.index(word) if word in ids else None for word in range(len(sentences[row]))]
            # A word without tokens gets the state of the first token.
            known = [first or 0 for first in firsts[: 1 + max((w for w, f in enumerate(firsts) if f), default=-1)]]
            states[row] = hidden[number, known].float().cpu().numpy()
    return [states[row] for row in range(len(sentences))]


def _encode(
    model: PreTrainedModel, lengths: Sequence[int], batch_size: int, tokenize: Callable[[list[int]], BatchEncoding]
) -> Iterator[tuple[list[int], BatchEncoding, torch.Tensor]]:
    """Yield rows of similar length with their encodings and states [rows, tokens, layers x width]."""
    layers = choose_layers(get_native_config(model.config).num_hidden_layers)
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    model.eval()
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        encodings = tokenize(rows).to(model.device)
        with torch.no_grad():
            hidden = model(**encodings, output_hidden_states=True).hidden_states
        yield rows, encodings, torch.cat([hidden[layer] for layer in layers], dim=-1)


def fit_probe(states: np.ndarray, labels: Any, problem_type: str, class_weights: str = "balanced") -> Any:
    """Fit a linear model on standardized states.

    Args:
        states: [examples, dimensions].
        labels: What `encode_labels` returns: ids, rows of 0 and 1, or values; at least two different ones.
        problem_type: A logistic regression for single labels, one for each of several labels, a ridge regression for
            values; as transformers' configs name them.
        class_weights: "balanced": every class weighs the same; or "none".

    Returns:
        A pipeline of scikit-learn, whose `predict` takes states; see also `compute_logits`.
    """
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    weight = None if class_weights == "none" else class_weights
    model: Any = LogisticRegression(C=C, class_weight=weight, max_iter=1000)
    if problem_type == "multi_label_classification":
        model = OneVsRestClassifier(model)
    elif problem_type == "regression":
        model = Ridge(alpha=1 / C)  # the same strength: of a squared error it is the inverse
    return make_pipeline(StandardScaler(), model).fit(states, np.asarray(labels))


def compute_logits(probe: Any, states: np.ndarray) -> np.ndarray:
    """Return what `decode_logits` takes.

    Args:
        probe: Of `fit_probe`, on labels as ids.
        states: [examples, dimensions].

    Returns:
        Logits [examples, labels], or values [examples, 1].
    """
    if not hasattr(probe, "decision_function"):
        return probe.predict(states)[:, None]
    logits = probe.decision_function(states)
    if logits.ndim == 1 and not hasattr(probe[-1], "estimators_"):  # of two labels: the logit of the second alone
        return np.stack([-logits, logits], axis=1) / 2
    return logits.reshape(len(states), -1)
