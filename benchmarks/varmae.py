"""Measure time and memory of a training step: stock masked LM, our DAPT step, VarMAE with all tokens and with a share.

    python benchmarks/varmae.py --output varmae.json

The models have random weights of bert-base size; VarMAE has its recommended start. The variants alternate within one
process, so that a busy machine slows all of them; the results are ratios of medians. Peak memory is measured in a
separate process for each variant.
"""

import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch
from transformers import AutoModelForMaskedLM, BertConfig, HfArgumentParser

from hf_domain import VarMAEForMaskedLM
from hf_domain.environment import describe_environment
from hf_domain.methods import METHODS
from hf_domain.methods.stock_models import decode_labeled_rows_only
from hf_domain.safe_io import write_json

VARIANTS = ("stock", "dapt", "varmae", "varmae_15")


@dataclass
class Arguments:
    """The size of the measurement."""

    batch_size: int = field(default=16, metadata={"help": "Number of sequences."})
    length: int = field(default=128, metadata={"help": "Number of tokens of a sequence."})
    num_hidden_layers: int = field(default=12, metadata={"help": "Layers of the encoder; 12 is bert-base."})
    repeats: int = field(default=7, metadata={"help": "Measured steps of each variant."})
    output: str = field(default="varmae.json", metadata={"help": "Result file."})
    only: str | None = field(
        default=None, metadata={"help": "Run only two steps of this variant, to measure its memory."}
    )


def make_step(variant: str, args: Arguments):
    """Return a function that does one optimizer step of a variant."""
    torch.manual_seed(0)
    model = AutoModelForMaskedLM.from_config(BertConfig(num_hidden_layers=args.num_hidden_layers))
    if variant == "dapt":
        decode_labeled_rows_only(model)
    elif variant.startswith("varmae"):
        ratio = 0.15 if variant == "varmae_15" else 1.0
        model = VarMAEForMaskedLM.from_backbone(model, unmasked_ratio=ratio, **METHODS["varmae"].start)
    model.train()
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5, fused=True)
    input_ids = torch.randint(1000, 30000, (args.batch_size, args.length))
    masked = torch.rand(input_ids.shape) < 0.15
    labels = input_ids.masked_fill(~masked, -100)
    inputs = {"input_ids": input_ids.masked_fill(masked, 103), "attention_mask": torch.ones_like(input_ids)}

    def step() -> None:
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()

    return step


def measure_memory(variant: str) -> float:
    """Return the peak resident memory of two steps of a variant, in MiB, minus that of the imports."""
    command = [sys.executable, __file__, *sys.argv[1:], "--only", variant]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return json.loads(output.splitlines()[-1])["peak_mib"]


def get_peak_memory() -> float:
    """Return the peak resident memory of this process, in MiB (Linux counts in KiB)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    (args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    if args.only:
        before = get_peak_memory()
        step = make_step(args.only, args)
        step()
        step()
        print(json.dumps({"peak_mib": get_peak_memory() - before}))
        return
    memory = {variant: measure_memory(variant) for variant in VARIANTS}
    steps = {variant: make_step(variant, args) for variant in VARIANTS}
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for repeat in range(args.repeats + 1):
        for variant, step in steps.items():
            started = time.perf_counter()
            step()
            if repeat:  # the first round warms up
                seconds[variant].append(time.perf_counter() - started)
    medians = {variant: statistics.median(times) for variant, times in seconds.items()}
    results = {
        "arguments": asdict(args),
        "environment": describe_environment(),
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "median_seconds": medians,
        "time_ratio": {variant: median / medians["stock"] for variant, median in medians.items()},
        "peak_mib": memory,
        "memory_ratio": {variant: peak / memory["stock"] for variant, peak in memory.items()},
    }
    write_json(Path(args.output), results)
    print(f"{'':12}{'seconds':>10}{'ratio':>8}{'MiB':>10}{'ratio':>8}")
    for variant in VARIANTS:
        print(
            f"{variant:12}{medians[variant]:10.2f}{results['time_ratio'][variant]:8.2f}"
            f"{memory[variant]:10.0f}{results['memory_ratio'][variant]:8.2f}"
        )


if __name__ == "__main__":
    main()
