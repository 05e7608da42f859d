"""Cost of exBERT beside the stock masked LM of the same base: training step, inference, peak memory.

    python benchmarks/exbert.py --output exbert.json

Steps of the models alternate, so that a busy machine slows all of them; the medians are compared. `stock` is the step
of transformers' masked LM; `dapt` is our own, which projects only labeled rows. Inference runs only the encoder. The
weights are random, because the start of an exBERT changes no shape and no computation.
"""

import argparse
import json
import multiprocessing
import os
import resource
import statistics
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForMaskedLM

from hf_domain import ExBertConfig, ExBertForMaskedLM
from hf_domain.environment import describe_environment
from hf_domain.methods.stock_models import decode_labeled_rows_only
from hf_domain.safe_io import write_json

VARIANTS = ("stock", "dapt", "exbert")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=None, help="configuration of the base, a name or a folder; default BERT base")
    parser.add_argument("--extension_size", type=float, default=33.2)
    parser.add_argument("--extension_vocab_size", type=int, default=17_658, help="default: that of the released exBERT")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=None, help="JSON file; default prints")
    return parser.parse_args()


class Workload:
    """A model of one variant with what a training step needs."""

    def __init__(self, variant: str, args: argparse.Namespace):
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(args.base) if args.base else AutoConfig.for_model("bert")
        if variant == "exbert":
            sizes = {"extension_size": args.extension_size, "extension_vocab_size": args.extension_vocab_size}
            self.model = ExBertForMaskedLM(ExBertConfig(backbone_config=config, **sizes))
        else:
            self.model = AutoModelForMaskedLM.from_config(config)
        if variant == "dapt":
            decode_labeled_rows_only(self.model)
        self.model.to(args.device)
        trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trainable, lr=1e-5)
        input_ids = torch.randint(1000, config.vocab_size, (args.batch_size, args.length))
        labels = input_ids.masked_fill(torch.rand(input_ids.shape) > 0.15, -100)
        self.batch = {"input_ids": input_ids.to(args.device), "labels": labels.to(args.device)}

    def train(self) -> None:
        """Run one training step."""
        self.model.train()(**self.batch).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.inference_mode()
    def infer(self) -> None:
        """Run one pass through the encoder."""
        self.model.eval().base_model(self.batch["input_ids"])


def measure_seconds(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the median seconds of a step, by kind of step and variant."""
    workloads = {variant: Workload(variant, args) for variant in VARIANTS}
    medians = {}
    for kind in ("train", "infer"):
        seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for repetition in range(-1, args.repetitions):  # the first warms up
            for variant, workload in workloads.items():
                start = time.perf_counter()
                getattr(workload, kind)()
                if args.device == "cuda":
                    torch.cuda.synchronize()
                if repetition >= 0:
                    seconds[variant].append(time.perf_counter() - start)
        medians[kind] = {variant: statistics.median(values) for variant, values in seconds.items()}
    return medians


def measure_bytes(variant: str, args: argparse.Namespace) -> int:
    """Return the peak memory of two training steps with weights, gradients and optimizer; run in its own process."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    workload = Workload(variant, args)
    for _ in range(2):
        workload.train()
    if args.device == "cuda":
        return torch.cuda.max_memory_allocated()
    return 1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)


def main() -> None:
    """Measure, print, and write the JSON file."""
    args = parse_arguments()
    # Measure memory first: a process inherits the peak of its parent. If every tensor is mapped separately, freed
    # memory leaves the process, and the peak counts only memory in use, not memory that the allocator keeps.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        memory = {variant: pool.apply(measure_bytes, (variant, args)) for variant in VARIANTS}
    del os.environ["MALLOC_MMAP_THRESHOLD_"]
    seconds = measure_seconds(args)
    train, infer = seconds["train"], seconds["infer"]
    result = {
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "environment": describe_environment(),
        "threads": torch.get_num_threads(),
        "median_seconds": seconds,
        "peak_bytes": memory,
        "ratios": {
            "train_to_stock": train["exbert"] / train["stock"],
            "train_to_dapt": train["exbert"] / train["dapt"],
            "infer_to_stock": infer["exbert"] / infer["stock"],
            "memory_to_stock": memory["exbert"] / memory["stock"],
            "memory_to_dapt": memory["exbert"] / memory["dapt"],
        },
    }
    print(json.dumps(result, indent=2))
    if args.output:
        write_json(args.output, result)


if __name__ == "__main__":
    main()
