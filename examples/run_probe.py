# /// script
# requires-python = ">=3.11"
# dependencies = ["hf-domain"]
# ///
"""Probe a frozen encoder: a logistic regression on its states classifies texts, pairs of texts, or words.

    python examples/run_probe.py --model_name_or_path bert-base-uncased \
        --train_file train.jsonl --test_file test.jsonl --output_dir probe

Nothing is trained but the regression, so there is no seed and an encoder takes minutes. The files have the columns of
run_classification.py or, for named entities, those of run_ner.py: `tokens` and `tags`.
"""

import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModel, AutoTokenizer

import hf_domain  # noqa: F401  the Auto classes then know its models
from hf_domain.data.corpora import check_length
from hf_domain.data.file_loading import check_held_out, load_files
from hf_domain.data.metrics import compute_entity_metrics
from hf_domain.data.named_entities import prepare_for_words
from hf_domain.data.text_columns import find_text_columns
from hf_domain.files import write_json, write_text
from hf_domain.training.arguments import parse_arguments
from hf_domain.training.probe import encode_texts, encode_words, fit_probe
from hf_domain.training.run_files import LABELS, METRICS, TAGS, format_labels, format_tags
from hf_domain.training.run_folders import run_in_folder


@dataclass
class Arguments:
    """Which encoder, and which task."""

    model_name_or_path: str = field(metadata={"help": "Encoder: a folder or a name on the Hub."})
    train_file: str = field(metadata={"help": "Training data: .jsonl, .json, .csv or .parquet."})
    test_file: str = field(metadata={"help": "Test data, likewise."})
    output_dir: str = field(metadata={"help": "Where predictions and scores are written."})
    text_column_names: str | None = field(
        default=None, metadata={"help": "Column of text, or two as first,second. Default: as run_classification.py."}
    )
    max_seq_length: int = field(default=128, metadata={"help": "Tokens of an example at most."})
    max_train_samples: int | None = field(default=None, metadata={"help": "Use the first so many training examples."})
    max_predict_samples: int | None = field(default=None, metadata={"help": "Likewise for test."})
    per_device_eval_batch_size: int = field(default=32, metadata={"help": "Examples that are encoded at once."})
    use_cpu: bool = field(default=False, metadata={"help": "Use no accelerator."})


ARGUMENTS = (Arguments,)


def main() -> None:
    run_in_folder(run, *parse_arguments(*ARGUMENTS, description=__doc__))


def run(args: Arguments) -> None:
    check_held_out(args.train_file, {"test_file": args.test_file})
    train, test = load_files(args.train_file), load_files(args.test_file)
    train = train.take(min(len(train), args.max_train_samples or len(train)))
    test = test.take(min(len(test), args.max_predict_samples or len(test)))
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    check_length(tokenizer, args.max_seq_length)
    device = torch.device("cuda" if torch.cuda.is_available() and not args.use_cpu else "cpu")
    model = AutoModel.from_pretrained(args.model_name_or_path, dtype=torch.float32).to(device)
    probe = probe_words if "tags" in train.column_names else probe_texts
    metrics = probe(args, model, tokenizer, train, test)
    metrics |= {"train_samples": len(train), "predict_samples": len(test)}
    Path(args.output_dir).mkdir(parents=True, exist_ok=True)
    write_json(Path(args.output_dir, METRICS), metrics)
    print(*(f"{name}: {value:.4g}" for name, value in metrics.items()), sep="\n")


def probe_texts(args, model, tokenizer, train, test):
    columns = find_text_columns(train, args.text_column_names, label_column="label")
    options = {"max_seq_length": args.max_seq_length, "batch_size": args.per_device_eval_batch_size}
    probe = fit_probe(
        encode_texts(model, tokenizer, [train[name][:] for name in columns], **options),
        [str(x) for x in train["label"]],
    )
    started = time.perf_counter()
    predicted = probe.predict(encode_texts(model, tokenizer, [test[name][:] for name in columns], **options))
    write_text(Path(args.output_dir, LABELS), format_labels(predicted))
    metrics = {"predict_runtime": time.perf_counter() - started}
    if "label" in test.column_names:
        from sklearn.metrics import accuracy_score, f1_score

        gold = [str(label) for label in test["label"]]
        metrics["predict_accuracy"] = accuracy_score(gold, predicted)
        metrics["predict_macro_f1"] = f1_score(gold, predicted, average="macro", zero_division=0)
    return metrics


def probe_words(args, model, tokenizer, train, test):
    prepare_for_words(tokenizer)
    options = {"max_seq_length": args.max_seq_length, "batch_size": args.per_device_eval_batch_size}
    states = encode_words(model, tokenizer, train["tokens"][:], **options)
    tags = [tag for row, words in zip(train["tags"], states, strict=True) for tag in row[: len(words)]]
    probe = fit_probe(np.concatenate(states), tags)
    started = time.perf_counter()
    predicted = [
        list(probe.predict(words)) if len(words) else []
        for words in encode_words(model, tokenizer, test["tokens"][:], **options)
    ]
    write_text(Path(args.output_dir, TAGS), format_tags(predicted))
    metrics = {"predict_runtime": time.perf_counter() - started}
    # Words beyond the longest input have no prediction: they count as O, which misses their entities.
    whole = [row + ["O"] * (len(gold) - len(row)) for row, gold in zip(predicted, test["tags"], strict=True)]
    return metrics | {
        f"predict_{name}": value for name, value in compute_entity_metrics(whole, test["tags"][:]).items()
    }


if __name__ == "__main__":
    main()
