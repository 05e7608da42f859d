"""Names and formats of the files of predictions, for the code that writes and reads them."""

import json
from collections.abc import Iterable
from pathlib import Path

# Predictions for the test set: a label or a sentence's tags in each line, or the answers by question id. The files of
# answers have the prefix of their split, as in the scripts of transformers.
LABELS, TAGS, ANSWERS = "predict_results.txt", "predictions.txt", "predictions.json"
# The same for the validation set: labels or tags; answers are in eval_predictions.json.
VALIDATED = "eval_predictions.txt"
LABELS_HEADER = "index\tprediction"


def format_labels(labels: Iterable[object]) -> str:
    """Return the text of `LABELS`; an example with several labels gets a JSON list."""
    texts = (json.dumps(label, ensure_ascii=False) if isinstance(label, list) else label for label in labels)
    return "".join(f"{line}\n" for line in [LABELS_HEADER, *(f"{row}\t{text}" for row, text in enumerate(texts))])


def read_labels(folder: Path, name: str = LABELS) -> list[str]:
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
