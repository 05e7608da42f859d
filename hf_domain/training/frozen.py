"""Fit a probe, a linear model on the states of a frozen encoder: no seed, and minutes instead of hours."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import DatasetDict
from transformers import (
    AutoModel,
    AutoTokenizer,
    BatchEncoding,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    TrainingArguments,
)

from hf_domain.checks import check_weights
from hf_domain.data.corpora import check_length
from hf_domain.data.files import SPLITS, check_held_out, load_files
from hf_domain.extras import require
from hf_domain.methods import PLAIN
from hf_domain.modeling.backbone import get_native_config
from hf_domain.safe_io import write_json, write_text
from hf_domain.tasks.classification import choose_thresholds, decode_logits, encode_labels, name_predictions
from hf_domain.tasks.kind import TaskKind
from hf_domain.tasks.metrics import compute_class_metrics, compute_entity_metrics
from hf_domain.tasks.outputs import LABELS, TAGS, format_labels, format_tags, list_predicted
from hf_domain.tasks.token_classification import prepare_for_words, tokenize_words
from hf_domain.training.arguments import FineTuningArguments
from hf_domain.training.run import limit_length
from hf_domain.training.run_files import METRICS
from hf_domain.training.task_trainer import limit_splits, locate_example
from hf_domain.training.terminal import hide_load_report, log_place, log_scores, suggest_task

SAMPLES = (("train", "train"), ("test", "predict"))
# Inverse strength of the regularization: our choice, for standardized states of some hundred dimensions.
C = 0.01
# Options of a fine-tuning that would change nothing here.
UNUSED = ("nearest_vote", "append_passage", "negative_labels", "metric_name")


def choose_layers(num_layers: int) -> tuple[int, int]:
    """Return the layers whose states the probe reads: one above the middle, and the last."""
    return math.ceil(2 * num_layers / 3), num_layers


def load_frozen(
    name: str, max_seq_length: int, use_cpu: bool, trust_remote_code: bool = False
) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load an encoder in float32 onto the accelerator, and its tokenizer.

    Raises:
        ValueError: The length is beyond the encoder's limit, or a weight is not finite.
    """
    tokenizer = AutoTokenizer.from_pretrained(name, trust_remote_code=trust_remote_code)
    check_length(tokenizer, max_seq_length)
    with hide_load_report(is_encoder=True):
        model = AutoModel.from_pretrained(name, dtype=torch.float32, trust_remote_code=trust_remote_code)
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
    model = probe[-1]
    if not hasattr(model, "classes_"):  # a ridge regression
        return probe.predict(states)[:, None]
    if hasattr(model, "estimators_"):  # one logistic regression for each of several labels
        return probe.decision_function(states).reshape(len(states), -1)
    placed = np.full((len(states), num_labels), -np.inf)
    placed[:, model.classes_] = probe.predict_log_proba(states)  # scikit-learn has a column for each label that it saw
    return placed


# ---------------------------------------------------------------------------------------------------------- commands


def run_frozen(
    kind: type[TaskKind],
    model_args: FineTuningArguments,
    data_args: Any,
    passage_args: Any,
    training_args: TrainingArguments,
) -> None:
    """Train a linear model on the states of an encoder, as the flags of a fine-tuning say; write what it predicts.

    The linear model is a logistic regression (one for each label of several, a ridge regression for numbers), in which
    every class has the same weight. Validation and test are scored if their files are given.

    Raises:
        ValueError: The kind has no such model, or an option cannot be used.
    """
    probe = PROBES.get(kind.name)
    if probe is None or model_args.method != PLAIN or not data_args.train_file:
        found = f"--method {model_args.method}" if data_args.train_file else "no --train_file"
        found = kind.name if probe is None else found
        raise ValueError(
            f"--frozen needs a classification or named entities, a plain encoder and --train_file, but has {found}."
        )
    if ignored := [name for name in UNUSED if getattr(data_args, name, None)]:
        raise ValueError(
            f"--frozen trains a linear model on the encoder's states alone, but --{ignored[0]} is given. Leave it out."
        )
    files = {split: getattr(data_args, f"{split}_file") for split in SPLITS}
    check_held_out(files["train"], {f"{split}_file": file for split, file in files.items() if split != "train"})
    output_dir, command = str(training_args.output_dir), "ner" if probe is probe_words else "classification"
    following = suggest_task(command, (model_args, data_args), f"{output_dir}-fine-tuned")
    task = kind(data_args)
    splits = task.read(
        DatasetDict({split: load_files(file) for split, file in files.items() if file}),
        partial(locate_example, data_args),
    )
    # Only then: a rare label of the test file may have none of the first examples.
    splits = limit_splits(splits, data_args)
    task.check(splits, does_train=True)
    length = data_args.max_seq_length or 128
    model, tokenizer = load_frozen(
        model_args.model_name_or_path, length, training_args.use_cpu, model_args.trust_remote_code
    )
    options = {"max_seq_length": length, "batch_size": training_args.per_device_eval_batch_size}
    metrics: dict[str, Any] = {f"{name}_samples": len(splits[split]) for split, name in SAMPLES if split in splits}
    for prefix, file, text, scores in probe(task, splits, model=model, tokenizer=tokenizer, **options):
        write_text(Path(output_dir, file), text)
        metrics |= {f"{prefix}_{name}": value for name, value in scores.items()}
    write_json(Path(output_dir, METRICS), metrics)
    log_scores(metrics)
    log_place("Scores and predictions", output_dir, following)


def probe_texts(task: Any, splits: DatasetDict, **options: Any) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Fit a probe on texts or pairs; yield the prefix, file, predictions and scores of each other split."""
    column, problem_type, names = task.args.label_column_name, task.problem_type, task.label_names

    def encode(split: str) -> np.ndarray:
        return encode_texts(texts=[splits[split][name][:] for name in task.text_columns], **options)

    def read_gold(split: str) -> np.ndarray:
        return np.array(encode_labels(splits[split][column][:], problem_type, task.label_ids))

    probe, thresholds = fit_probe(encode("train"), read_gold("train"), problem_type), None
    for split, prefix, file in list_predicted(splits, LABELS):
        started = time.perf_counter()
        logits = compute_logits(probe, encode(split), len(names))
        if problem_type == "multi_label_classification" and split == "validation":
            thresholds = choose_thresholds(logits, read_gold(split))
        predicted = decode_logits(logits, problem_type, thresholds)
        scores = {"runtime": time.perf_counter() - started}
        if column in splits[split].column_names:
            scores |= compute_class_metrics(predicted, read_gold(split), problem_type)
        yield prefix, file, format_labels(name_predictions(predicted, problem_type, names)), scores


def probe_words(task: Any, splits: DatasetDict, **options: Any) -> Iterator[tuple[str, str, str, dict[str, Any]]]:
    """Fit a probe on words; yield the prefix, file, predictions and scores of each other split."""
    (words,), names = task.text_columns, task.label_names
    gold = {
        split: [[names[task.label_ids[tag]] for tag in tags] for tags in rows[task.args.label_column_name]]
        for split, rows in splits.items()
    }
    prepare_for_words(options["tokenizer"])
    states = encode_words(sentences=splits["train"][words][:], **options)
    probe = fit_probe(
        np.concatenate(states), [tag for tags in gold["train"] for tag in tags], "single_label_classification"
    )
    for split, prefix, file in list_predicted(splits, TAGS):
        started = time.perf_counter()
        encoded = encode_words(sentences=splits[split][words][:], **options)
        predicted = [list(probe.predict(states)) if len(states) else [] for states in encoded]
        scores = {"runtime": time.perf_counter() - started} | compute_entity_metrics(predicted, gold[split])
        yield prefix, file, format_tags(predicted), scores


PROBES: dict[str, Callable[..., Iterator[tuple[str, str, str, dict[str, Any]]]]] = {
    "classification": probe_texts,
    "token_classification": probe_words,
}
