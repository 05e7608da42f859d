"""The files that a run leaves in its folder: names and forms, for the scripts that write them and those that read."""

import json
from collections.abc import Iterable
from pathlib import Path

# Written by Trainer.
METRICS, STATE = "all_results.json", "trainer_state.json"
# The held-out loss before the first step, until training is over.
START = "start_results.json"
# What was predicted for the test set: a label or the tags of a sentence in each line. Answers by question, as the
# scripts of transformers name them: with the prefix of the split.
LABELS, TAGS, ANSWERS = "predict_results.txt", "predictions.txt", "predictions.json"
LABELS_HEADER = "index\tprediction"


def format_labels(labels: Iterable[object]) -> str:
    """Return the text of `LABELS`; several labels of one example are a list in JSON."""
    texts = (json.dumps(label, ensure_ascii=False) if isinstance(label, list) else label for label in labels)
    return "".join(f"{line}\n" for line in [LABELS_HEADER, *(f"{row}\t{text}" for row, text in enumerate(texts))])


def read_labels(folder: Path) -> list[str]:
    """Read the label of each example, as it is written."""
    _, *lines = (folder / LABELS).read_text(encoding="utf-8").splitlines()
    return [line.split("\t", 1)[1] for line in lines]


def format_tags(sentences: Iterable[Iterable[str]]) -> str:
    """Return the text of `TAGS`."""
    return "".join(f"{' '.join(tags)}\n" for tags in sentences)


def read_tags(folder: Path) -> list[list[str]]:
    """Read the tags of each sentence."""
    return [line.split() for line in (folder / TAGS).read_text(encoding="utf-8").splitlines()]


def read_answers(folder: Path) -> dict[str, str]:
    """Read the answer to each question, by its id."""
    return json.loads((folder / f"predict_{ANSWERS}").read_text(encoding="utf-8"))
