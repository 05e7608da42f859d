"""What Trainer predicts, and the names and formats of the files of predictions."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from hf_domain.checks import check_predictions

# Predictions for the test set: a label or a sentence's tags in each line, or the answers by question id. The files of
# answers have the prefix of their split, as in the scripts of transformers.
LABELS, TAGS, ANSWERS = "predict_results.txt", "predictions.txt", "predictions.json"
# The same for the validation set: labels or tags; answers are in eval_predictions.json.
VALIDATED = "eval_predictions.txt"
LABELS_HEADER = "index\tprediction"


def get_logits(predictions: Any) -> np.ndarray:
    """Return the logits of Trainer's predictions, which may be a tuple that begins with them."""
    return predictions[0] if isinstance(predictions, tuple) else predictions


def predict_validation(trainer: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return a trainer's logits and labels of its validation set, to choose something by them."""
    output = trainer.predict(trainer.eval_dataset)
    check_predictions(output.predictions)
    return get_logits(output.predictions), np.asarray(output.label_ids)


def format_labels(labels: Iterable[object]) -> str:
    """Return the text of `LABELS`; an example with several labels gets a JSON list."""
    texts = (json.dumps(label, ensure_ascii=False) if isinstance(label, list) else label for label in labels)
    return "".join(f"{line}\n" for line in [LABELS_HEADER, *(f"{row}\t{text}" for row, text in enumerate(texts))])


def read_label_lines(folder: Path, name: str = LABELS) -> list[str]:
    """Return the label of each example as text."""
    _, *lines = (folder / name).read_text(encoding="utf-8").splitlines()
    return [line.split("\t", 1)[1] for line in lines]


def format_tags(sentences: Iterable[Iterable[str]]) -> str:
    """Return the text of `TAGS`."""
    return "".join(f"{' '.join(tags)}\n" for tags in sentences)


def read_tags(folder: Path, name: str = TAGS) -> list[list[str]]:
    """Return the tags of each sentence."""
    return [line.split() for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def read_answers(folder: Path, prefix: str = "predict") -> dict[str, str]:
    """Return the answer to each question by its id."""
    return json.loads((folder / f"{prefix}_{ANSWERS}").read_text(encoding="utf-8"))
