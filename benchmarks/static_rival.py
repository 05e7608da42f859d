"""Measure the cheapest rivals of a student: a static model of model2vec, and the teacher without unused entries.

    pip install model2vec skeletoken
    python benchmarks/static_rival.py --teacher distilled/adapted-teacher --task my_task --corpus corpus.txt.gz \
        --students distilled/adapt_and_distill/adapted-distilled --output static_rival.json

The static model is distilled from the teacher with model2vec's defaults; a logistic regression of scikit-learn, its
strength chosen on the validation file, reads its vectors. The trimmed teacher keeps the entries that corpus and task
use. For the speed, all read the same test texts in turns, each alone in its batch and on one thread; the fastest of
their repetitions counts, tokenization included.
"""

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from model2vec.distill import distill
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from transformers import AutoModel, AutoTokenizer

from hf_domain.data.corpora import read_texts
from hf_domain.data.files import load_files
from hf_domain.environment import describe_environment
from hf_domain.methods.adalm.trim import keep_rows
from hf_domain.safe_io import write_json
from hf_domain.tokenization import trim_vocabulary

STRENGTHS = (0.1, 1, 10, 100, 1000)


def read_task(folder: Path, limits: dict[str, int | None]) -> dict[str, tuple[list[str], list[str]]]:
    """Return texts and labels of each part of a task, of its first rows where a part has a limit."""
    parts = {}
    for part in ("train", "validation", "test"):
        rows = load_files(str(folder / f"{part}.jsonl"))
        rows = rows.select(range(min(limits.get(part) or len(rows), len(rows))))
        parts[part] = (rows["text"][:], rows["label"][:])
    return parts


def score_static(model: Any, task: dict[str, tuple[list[str], list[str]]]) -> float:
    """Return the macro F1 of a logistic regression over the vectors of a static model."""
    vectors = {part: model.encode(texts) for part, (texts, _) in task.items()}

    def score(strength: float, part: str) -> float:
        classifier = LogisticRegression(C=strength, class_weight="balanced", max_iter=5000)
        predicted = classifier.fit(vectors["train"], task["train"][1]).predict(vectors[part])
        return float(f1_score(task[part][1], predicted, average="macro"))

    return score(max(STRENGTHS, key=lambda strength: score(strength, "validation")), "test")


def load_encoder(name: str, kept: Sequence[int] | None = None, tokenizer: Any = None) -> tuple[Any, Callable]:
    """Return an encoder, trimmed to the rows of a trimmed tokenizer if these are given, and how it reads a text."""
    encoder, tokenizer = AutoModel.from_pretrained(name).eval(), tokenizer or AutoTokenizer.from_pretrained(name)
    if kept is not None:
        keep_rows(encoder, kept)
    return encoder, lambda text: encoder(**tokenizer(text, return_tensors="pt", truncation=True, max_length=512))


def measure_times(readers: Mapping[str, Callable], examples: Sequence[Any], repetitions: int) -> dict[str, float]:
    """Return the milliseconds that each reader needs for an example on one thread, the mean over the examples."""
    torch.set_num_threads(1)
    sums = dict.fromkeys(readers, 0.0)
    with torch.inference_mode():
        for example in examples:
            fastest = dict.fromkeys(readers, float("inf"))
            for _ in range(repetitions):
                for name, read in readers.items():
                    start = time.perf_counter()
                    read(example)
                    fastest[name] = min(fastest[name], time.perf_counter() - start)
            sums = {name: sums[name] + fastest[name] for name in readers}
    return {name: 1000 * total / len(examples) for name, total in sums.items()}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("teacher", "task", "corpus", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--students", nargs="+", default=[])
    parser.add_argument("--max_train_samples", type=int, default=None)
    parser.add_argument("--max_test_samples", type=int, default=None)
    parser.add_argument("--timed_samples", type=int, default=100, help="texts for the speed")
    parser.add_argument("--repetitions", type=int, default=5)
    args = parser.parse_args()
    task = read_task(Path(args.task), {"train": args.max_train_samples, "test": args.max_test_samples})
    static = distill(args.teacher)
    texts = [*read_texts(args.corpus), *(text for part in task.values() for text in part[0])]
    tokenizer, kept = trim_vocabulary(AutoTokenizer.from_pretrained(args.teacher), texts, progress=False)
    models = {"static": (static, static.encode), "trimmed teacher": load_encoder(args.teacher, kept, tokenizer)}
    models |= {name: load_encoder(name) for name in (args.teacher, *args.students)}
    result = {
        "static_macro_f1": score_static(static, task),
        "megabytes": {name: model.num_parameters() * 4 / 1e6 for name, (model, _) in models.items() if model != static}
        | {"static": static.embedding.nbytes / 1e6},
        "milliseconds": measure_times(
            {name: read for name, (_, read) in models.items()}, task["test"][0][: args.timed_samples], args.repetitions
        ),
    }
    print(result)
    write_json(Path(args.output), result | {"environment": describe_environment()})


if __name__ == "__main__":
    main()
