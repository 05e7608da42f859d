r"""Probe a frozen encoder: train a linear model on its states to label texts, pairs of texts, or words.

    python examples/run_probe.py --model_name_or_path bert-base-uncased \
        --train_file train.jsonl --test_file test.jsonl --output_dir probe

The linear model is a logistic regression (one per label for several labels, a ridge regression for numbers). There is
no seed, and an encoder takes minutes. The files are those of run_classification.py or, for named entities, run_ner.py.
"""

import time
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
from datasets import DatasetDict

import hf_domain  # noqa: F401  the Auto classes then know its models
from hf_domain.data.columns import check_columns, find_text_columns
from hf_domain.data.files import check_held_out, load_files
from hf_domain.safe_io import write_json, write_text
from hf_domain.tasks.classification import choose_thresholds, decode_logits, encode_labels, name_predictions
from hf_domain.tasks.labels import hide_unknown, name_multi_hot, read_labels
from hf_domain.tasks.metrics import compute_class_metrics, compute_entity_metrics
from hf_domain.tasks.outputs import LABELS, TAGS, format_labels, format_tags, list_predicted
from hf_domain.tasks.token_classification import check_tags, prepare_for_words
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.frozen import compute_logits, encode_texts, encode_words, fit_probe, load_frozen
from hf_domain.training.run_files import METRICS
from hf_domain.training.run_folder import run_in_folder
from hf_domain.training.task_trainer import limit_splits, locate_example
from hf_domain.training.terminal import log_place, log_scores, start_logging, suggest_task


@dataclass
class Arguments:
    """The encoder and the task."""

    model_name_or_path: str = field(metadata={"help": "Encoder: a folder or a name on the Hub."})
    train_file: str = field(metadata={"help": "Training data: .jsonl, .json, .csv or .parquet."})
    test_file: str = field(metadata={"help": "Test data."})
    output_dir: str = field(metadata={"help": "Folder for predictions and scores."})
    validation_file: str | None = field(
        default=None, metadata={"help": "Validation data: scored, and the thresholds of several labels (else 0.5)."}
    )
    text_column_names: str | None = field(
        default=None, metadata={"help": "Column of text, or two as first,second. Default: as in run_classification.py."}
    )
    label_column_name: str = field(default="label", metadata={"help": "Column of labels of texts."})
    do_regression: bool | None = field(
        default=None, metadata={"help": "Predict labels as numbers. Default: on if they are fractions."}
    )
    class_weights: Literal["balanced", "none"] = field(
        default="balanced", metadata={"help": "balanced: every class has the same weight."}
    )
    max_seq_length: int = field(default=128, metadata={"help": "Maximum number of tokens of an example."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use the first N training examples."})
    max_eval_samples: int | None = field(default=None, metadata={"help": "The same for validation."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "The same for test."})
    per_device_eval_batch_size: int = field(default=32, metadata={"help": "Number of examples in a batch."})
    use_cpu: bool = field(default=False, metadata={"help": "Do not use an accelerator."})


ARGUMENTS = (Arguments,)


def main() -> None:
    start_logging()
    run_in_folder(run, *parse_arguments(*ARGUMENTS, description=__doc__))


def run(args: Arguments) -> None:
    check_held_out(args.train_file, {"validation_file": args.validation_file, "test_file": args.test_file})
    files = {"train": args.train_file, "validation": args.validation_file, "test": args.test_file}
    splits = DatasetDict({split: load_files(file) for split, file in files.items() if file})
    model, tokenizer = load_frozen(args.model_name_or_path, args.max_seq_length, args.use_cpu)
    options = {"max_seq_length": args.max_seq_length, "batch_size": args.per_device_eval_batch_size}
    has_tags = "tags" in splits["train"].column_names
    probe, task = (probe_words, "ner") if has_tags else (probe_texts, "classification")
    metrics = probe(args, splits, model=model, tokenizer=tokenizer, **options)
    write_json(Path(args.output_dir, METRICS), metrics)
    log_scores(metrics)
    log_place("Scores and predictions", args.output_dir, suggest_task(task, args, f"{args.output_dir}-fine-tuned"))


def probe_texts(args, splits, **options):
    column = args.label_column_name
    check_columns(splits, [column], "--label_column_name", column)
    text_columns = find_text_columns(splits["train"], args.text_column_names, label_column=column)
    splits = name_multi_hot(hide_unknown(splits, column), column)
    problem_type, names, ids = read_labels(splits, column, args.do_regression, None, partial(locate_example, args))
    splits = limit_splits(splits, args)  # then: a rare label of the test file may have none of the first examples

    def encode(split):
        return encode_texts(texts=[splits[split][name][:] for name in text_columns], **options)

    def read_gold(split):
        return np.array(encode_labels(splits[split][column][:], problem_type, ids))

    probe, thresholds = fit_probe(encode("train"), read_gold("train"), problem_type, args.class_weights), None
    metrics = count_samples(splits)
    for split, prefix, file in list_predicted(splits, LABELS):
        started = time.perf_counter()
        logits = compute_logits(probe, encode(split), len(names))
        if problem_type == "multi_label_classification" and split == "validation":
            thresholds = choose_thresholds(logits, read_gold(split))
        predicted = decode_logits(logits, problem_type, thresholds)
        write_text(Path(args.output_dir, file), format_labels(name_predictions(predicted, problem_type, names)))
        metrics[f"{prefix}_runtime"] = time.perf_counter() - started
        if column in splits[split].column_names:
            scores = compute_class_metrics(predicted, read_gold(split), problem_type)
            metrics |= {f"{prefix}_{name}": value for name, value in scores.items()}
    return metrics


def count_samples(splits):
    return {"train_samples": len(splits["train"]), "predict_samples": len(splits["test"])}


def probe_words(args, splits, **options):
    splits = limit_splits(splits, args)
    train, metrics = splits["train"], count_samples(splits)
    check_tags(sorted({str(tag) for row in train["tags"] for tag in row}))
    prepare_for_words(options["tokenizer"])
    states = encode_words(sentences=train["tokens"][:], **options)
    tags = [tag for row in train["tags"] for tag in row]
    probe = fit_probe(np.concatenate(states), tags, "single_label_classification", args.class_weights)
    for split, prefix, file in list_predicted(splits, TAGS):
        started, gold = time.perf_counter(), splits[split]["tags"][:]
        encoded = encode_words(sentences=splits[split]["tokens"][:], **options)
        predicted = [list(probe.predict(words)) if len(words) else [] for words in encoded]
        write_text(Path(args.output_dir, file), format_tags(predicted))
        metrics[f"{prefix}_runtime"] = time.perf_counter() - started
        metrics |= {f"{prefix}_{name}": value for name, value in compute_entity_metrics(predicted, gold).items()}
    return metrics


if __name__ == "__main__":
    main()
