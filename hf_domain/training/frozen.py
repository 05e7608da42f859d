"""Fit a probe, a linear model on the states of a frozen encoder: no seed, and minutes instead of hours."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer, BatchEncoding, PreTrainedModel, PreTrainedTokenizerBase

from hf_domain.checks import check_weights
from hf_domain.data.corpora import check_length
from hf_domain.extras import require
from hf_domain.modeling.backbone import get_native_config
from hf_domain.tasks.token_classification import tokenize_words
from hf_domain.training.run import limit_length
from hf_domain.training.terminal import hide_load_report

# Inverse strength of the regularization: our choice, for standardized states of some hundred dimensions.
C = 0.01


def choose_layers(num_layers: int) -> tuple[int, int]:
    """Return the layers whose states the probe reads: one above the middle, and the last."""
    return math.ceil(2 * num_layers / 3), num_layers


def load_frozen(name: str, max_seq_length: int, use_cpu: bool) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load an encoder in float32 onto the accelerator, and its tokenizer.

    Raises:
        ValueError: The length is beyond the encoder's limit, or a weight is not finite.
    """
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    check_length(tokenizer, max_seq_length)
    with hide_load_report(is_encoder=True):
        model = AutoModel.from_pretrained(name, dtype=torch.float32, trust_remote_code=False)
    limit_length(tokenizer, model, max_seq_length)
    check_weights(model, name)
    return model.to("cuda" if torch.cuda.is_available() and not use_cpu else "cpu"), tokenizer


def encode_texts(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[list[str]],
    max_seq_length: int,
    batch_size: int = 32,
) -> np.ndarray:
    """Return a state for each text, the mean over its tokens [texts, layers x width].

    Args:
        model: Encoder without a head.
        texts: One column or two.
        max_seq_length: Longer texts are truncated to this many tokens.
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
    """Return for each sentence the states of its words [words, layers x width], those of their first tokens.

    A word that the tokenizer turns into nothing has the state of the sentence's first token.

    Args:
        model: Encoder without a head.
        tokenizer: See `prepare_for_words`.
        sentences: Lists of words.
        max_seq_length: Longer sentences are cut into windows, see `tokenize_words`.
    """
    windows = tokenize_words(
        [*sentences], [[0] * len(words) for words in sentences], tokenizer, max_seq_length=max_seq_length
    )
    names = [name for name in tokenizer.model_input_names if name in windows]

    def tokenize(rows: list[int]) -> BatchEncoding:
        return tokenizer.pad({name: [windows[name][row] for row in rows] for name in names}, return_tensors="pt")

    found: dict[int, np.ndarray] = {}
    firsts: dict[int, np.ndarray] = {}
    for rows, _, hidden in _encode(model, [len(ids) for ids in windows["input_ids"]], batch_size, tokenize):
        for number, row in enumerate(rows):
            scored = [place for place, label in enumerate(windows["labels"][row]) if label != -100]
            found[row] = hidden[number, scored].float().cpu().numpy()
            firsts[row] = hidden[number, 0].float().cpu().numpy()
    states: list[np.ndarray] = []
    for row, begins in enumerate(windows["begins"]):
        if begins:
            states.append(np.repeat(firsts[row][None], len(sentences[len(states)]), axis=0))
        states[-1][windows["words"][row]] = found[row]
    return states


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
        labels: Result of `encode_labels`: ids, rows of 0 and 1, or values; at least two different ones.
        problem_type: As in transformers' configs. Single labels get a logistic regression, several labels one each,
            and values a ridge regression.
        class_weights: "balanced" gives every class the same weight; or "none".

    Returns:
        A scikit-learn pipeline whose `predict` takes states; see also `compute_logits`.
    """
    require("a linear model on frozen states", "sklearn")
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.multiclass import OneVsRestClassifier
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    weight = None if class_weights == "none" else class_weights
    model: Any = LogisticRegression(C=C, class_weight=weight, max_iter=1000)
    if problem_type == "multi_label_classification":
        model = OneVsRestClassifier(model)
    elif problem_type == "regression":
        model = Ridge(alpha=1 / C)  # Ridge's strength is the inverse of C
    return make_pipeline(StandardScaler(), model).fit(states, np.asarray(labels))


def compute_logits(probe: Any, states: np.ndarray, num_labels: int) -> np.ndarray:
    """Return logits [examples, labels] or values [examples, 1], for `decode_logits`.

    Args:
        probe: Result of `fit_probe` on label ids.
        states: [examples, dimensions].
        num_labels: Number of the task's labels. The probe has no logits of one without training examples: -inf.
    """
    if not hasattr(probe, "decision_function"):
        return probe.predict(states)[:, None]
    logits = probe.decision_function(states)
    if logits.ndim == 1 and not hasattr(
        probe[-1], "estimators_"
    ):  # two labels: scikit-learn returns only the logit of the second
        logits = np.stack([-logits, logits], axis=1) / 2
    logits = logits.reshape(len(states), -1)
    if hasattr(probe[-1], "estimators_") or logits.shape[1] == num_labels:
        return logits
    placed = np.full((len(states), num_labels), -np.inf)
    placed[:, probe[-1].classes_] = logits  # scikit-learn has a column for each label that it saw
    return placed
