"""Measure what glibc's allocator costs in training on a Linux CPU: processor time of a masked-LM step, two settings.

    python benchmarks/allocator.py --model_name_or_path bert-base-uncased --output allocator.json

By default glibc returns large blocks, such as logits, to the system at once, which clears them when they come back. The
two variables below make it keep them. Each process measures one way; the ways take turns.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from hf_domain.environment import describe_environment
from hf_domain.files import write_json
from hf_domain.training.stock_models import decode_labeled_rows_only

KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": "100000000000"}
"""No blocks of their own mapping, and no trimming below 100 GB."""


def measure(args: argparse.Namespace) -> list[float]:
    """Return the seconds of processor time of each step after the first two, which warm up."""
    torch.manual_seed(0)
    config = AutoConfig.from_pretrained(args.model_name_or_path)
    model = AutoModelForMaskedLM.from_config(config).train()
    decode_labeled_rows_only(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, fused=True)
    seconds = []
    for _ in range(2 + args.steps):
        input_ids = torch.randint(config.vocab_size, (args.batch_size, args.length))
        labels = input_ids.masked_fill(torch.rand(input_ids.shape) > 0.15, -100)
        started = time.process_time()
        with torch.autocast("cpu", enabled=args.bf16):
            loss = model(input_ids=input_ids, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(time.process_time() - started)
    return seconds[2:]


def main() -> None:
    """Measure both ways in both precisions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="Its size counts; the weights are random.")
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--length", type=int, default=128, help="Tokens of a sequence.")
    parser.add_argument("--steps", type=int, default=5, help="Measured steps of a process.")
    parser.add_argument("--repeats", type=int, default=3, help="Processes of each way and precision.")
    parser.add_argument("--output", required=True, help="JSON file.")
    parser.add_argument("--bf16", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--only", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.only:
        print(json.dumps(measure(args)))
        return
    figures: dict[str, list[float]] = {}
    for _ in range(args.repeats):
        for precision in ("float32", "bfloat16"):
            for way, variables in (("default", {}), ("keep", KEEP)):
                command = [sys.executable, *sys.argv, "--only", *["--bf16"] * (precision == "bfloat16")]
                others = {name: value for name, value in os.environ.items() if name not in KEEP}
                run = subprocess.run(command, env=others | variables, stdout=subprocess.PIPE, text=True, check=True)
                figures.setdefault(f"{precision} {way}", []).extend(json.loads(run.stdout.splitlines()[-1]))
    medians = {name: statistics.median(seconds) for name, seconds in figures.items()}
    ratios = {
        precision: medians[f"{precision} keep"] / medians[f"{precision} default"]
        for precision in ("float32", "bfloat16")
    }
    results = {"arguments": vars(args), "environment": describe_environment(), "threads": torch.get_num_threads()}
    write_json(Path(args.output), results | {"seconds": figures, "median_seconds": medians, "ratio": ratios})
    for precision, ratio in ratios.items():
        seconds = ", ".join(f"{way} {medians[f'{precision} {way}']:.2f} s" for way in ("default", "keep"))
        print(f"{precision}: {seconds}, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
