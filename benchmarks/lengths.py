r"""Measure fine-tuning on long documents: seconds and memory by length, padded and padding-free.

    python benchmarks/lengths.py --model_name_or_path answerdotai/ModernBERT-base --output lengths.json

Documents have made-up words, and lengths drawn evenly between an eighth of the limit and the limit. Each training has a
process of its own. Seconds are its processor time, loading included, and memory is its peak.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from transformers import AutoTokenizer

from hf_domain.environment import describe_environment
from hf_domain.safe_io import read_json, write_json

# Runs a command, and says at its end what it took: seconds of the processor, and kilobytes of memory at its peak.
CODE = """
import resource, sys, time
from hf_domain.cli import main
started = time.process_time()
main()
print(time.process_time() - started, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""
ARMS = {
    "padded": {"train_sampling_strategy": "random"},
    "grouped": {},
    "padding_free": {"train_sampling_strategy": "random", "padding_free": "true"},
}


def write_documents(file: Path, kind: str, words: list[str], length: int, count: int) -> None:
    """Write documents of up to so many words, each of which is a token."""
    numbers = random.Random(0)
    with file.open("w", encoding="utf-8") as lines:
        for number in range(count):
            text = numbers.choices(words, k=numbers.randint(length // 8, length - 4))
            answers = {"text": [text[0]], "answer_start": [0]}
            row = {
                "classification": {"text": " ".join(text), "label": "ab"[number % 2]},
                "ner": {"tokens": text, "tags": ["O"] * (len(text) - 1) + ["B-X"]},
                "qa": {"id": str(number), "question": text[0], "context": " ".join(text), "answers": answers},
            }
            lines.write(json.dumps(row[kind]) + "\n")


def main() -> None:
    """Train each arm at each length."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("model_name_or_path", "output"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192])
    parser.add_argument("--kinds", nargs="+", default=["classification", "ner", "qa"])
    parser.add_argument("--batch_size", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4)
    args = parser.parse_args()
    vocabulary = AutoTokenizer.from_pretrained(args.model_name_or_path).get_vocab()
    words = sorted(word for word in vocabulary if word.isascii() and word.isalpha() and word.islower())
    rows = []
    for kind, length in ((kind, length) for kind in args.kinds for length in args.lengths):
        for arm, options in ARMS.items():
            with tempfile.TemporaryDirectory() as folder:
                write_documents(Path(folder, "train.jsonl"), kind, words, length, args.batch_size * args.steps)
                flags = {"model_name_or_path": args.model_name_or_path, "train_file": f"{folder}/train.jsonl"}
                flags |= {"output_dir": f"{folder}/out", "max_seq_length": length, "save_strategy": "no"}
                flags |= {"per_device_train_batch_size": args.batch_size, "num_train_epochs": 1, **options}
                flags |= {"doc_stride": 8} if kind == "qa" else {}
                parts = [str(part) for name, value in flags.items() for part in (f"--{name}", value)]
                command = [sys.executable, "-c", CODE, kind, *parts, "--do_train"]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                results = read_json(Path(folder, "out", "all_results.json"))
                seconds, peak = done.stderr.split()[-2:]
            row = {"kind": kind, "length": length, "arm": arm, "seconds": float(seconds)}
            rows.append(row | {"tokens": results["num_input_tokens_seen"], "gigabytes": int(peak) / 1e6})
            print(rows[-1], flush=True)
            write_json(Path(args.output), {"options": vars(args), "environment": describe_environment(), "rows": rows})


if __name__ == "__main__":
    main()
