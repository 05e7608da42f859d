"""Measure what padding costs in training: seconds of a step with padding, with texts sorted by length, and without it.

    python benchmarks/padding.py --model_name_or_path bert-base-uncased --texts train.jsonl --output padding.json

The three read the same batches of real texts, except that sorted ones (`--train_sampling_strategy group_by_length`)
hold texts of about one length. A step is forward and backward of masked LM or of a classification.
"""

import argparse
import json
import random
import time
from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from hf_domain.data.files import load_files
from hf_domain.data.masking import DataCollatorForTokenMask
from hf_domain.methods.stock_models import decode_labeled_rows_only
from hf_domain.training.padding_free import remove_padding

HEADS = {"masked_lm": AutoModelForMaskedLM, "classification": AutoModelForSequenceClassification}
WAYS = ("padded", "sorted", "padding_free")


def make_batches(texts: list[str], tokenizer, head: str, args: argparse.Namespace, size: int, is_sorted: bool) -> list:
    """Return the batches of a way; those that are sorted come from one sort of all texts."""
    encoded = [tokenizer(text, truncation=True, max_length=args.max_seq_length) for text in texts]
    rows = [{name: encoding[name] for name in tokenizer.model_input_names} for encoding in encoded]
    if is_sorted:
        rows.sort(key=lambda row: -len(row["input_ids"]))
    groups = [rows[first : first + size] for first in range(0, len(rows) - size + 1, size)]
    if is_sorted:  # as many as the others read, of all lengths
        random.Random(0).shuffle(groups)
    collator = DataCollatorForTokenMask(tokenizer, mlm_probability=0.15)
    if head == "masked_lm":
        return [dict(collator(group)) for group in groups]
    return [dict(tokenizer.pad(group, return_tensors="pt")) | {"labels": torch.zeros(size).long()} for group in groups]


def measure(model, batches: list) -> dict[str, float]:
    """Return seconds of processor time for 1,000 tokens of text, and the share of padding."""
    model.train()
    used, tokens, places = 0.0, 0, 0
    for number, batch in enumerate(batches):
        start = time.process_time()
        model(**batch).loss.backward()
        model.zero_grad()
        if number:  # the first warms up
            used += time.process_time() - start
            tokens += int(batch["attention_mask"].sum())
            places += batch["attention_mask"].numel()
    return {"seconds_per_1000_tokens": 1000 * used / tokens, "padding": 1 - tokens / places}


def main() -> None:
    """Measure every head, size of batch and way."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="Encoder with its tokenizer.")
    parser.add_argument("--texts", required=True, help="File of real texts: their lengths decide the figures.")
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[8, 32])
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--num_texts", type=int, default=640)
    parser.add_argument("--output", required=True, help="JSON file.")
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    texts = [row["text"] for row in load_files(args.texts)]
    texts = random.Random(0).sample(texts, min(args.num_texts, len(texts)))
    figures = {}
    for head, auto_class in HEADS.items():
        for size in args.batch_sizes:
            for way in WAYS:
                model = auto_class.from_pretrained(args.model_name_or_path, dtype=torch.float32)
                if head == "masked_lm":
                    decode_labeled_rows_only(model)
                if way == "padding_free":
                    remove_padding(model)
                batches = make_batches(texts, tokenizer, head, args, size, way == "sorted")
                figures[f"{head}, batches of {size}, {way}"] = row = measure(model, batches)
                print(head, size, way, {name: round(value, 3) for name, value in row.items()}, flush=True)
    Path(args.output).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
