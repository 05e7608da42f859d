"""Cost of G-MAP beside plain fine-tuning of its domain encoder: training step, inference, peak memory.

    python benchmarks/gmap.py --output gmap.json

Steps of the models alternate, so that a busy machine slows all of them; the medians are compared. `plain` is the stock
classifier on the domain encoder. `gmap` has the recommended start and runs the memory encoder in every step. `cached`
reads the memory's states from a cache, in bfloat16. All sequences have the same length, without padding.

`--cpu_time` measures processor time on one thread instead of wall time; use it on a shared machine.
"""

import argparse
import json
import multiprocessing
import resource
import statistics
import time
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification

from hf_domain import GMapConfig, GMapForSequenceClassification
from hf_domain.environment import describe_environment
from hf_domain.methods import METHODS
from hf_domain.safe_io import write_json

VARIANTS = ("plain", "gmap", "cached")


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", default=None, help="configuration of both encoders; default BERT base")
    parser.add_argument("--strategy", default="chunk_gated")
    parser.add_argument("--fusion", default="memory")
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--cpu_time", action="store_true", help="measure processor time on one thread")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=None, help="JSON file; default prints")
    return parser.parse_args()


class Workload:
    """A model of one variant with what a training step needs."""

    def __init__(self, variant: str, args: argparse.Namespace):
        torch.manual_seed(0)
        config = AutoConfig.from_pretrained(args.base) if args.base else AutoConfig.for_model("bert")
        if variant == "plain":
            self.model = AutoModelForSequenceClassification.from_config(config)
        else:
            choices = {"strategy": args.strategy, "fusion": args.fusion, **METHODS["gmap"].start}
            self.model = GMapForSequenceClassification(
                GMapConfig(backbone_config=config, memory_config=config, **choices)
            )
        self.model.to(args.device)
        trainable = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trainable, lr=1e-5)
        input_ids = torch.randint(1000, config.vocab_size, (args.batch_size, args.length), device=args.device)
        self.batch = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        self.labels = torch.randint(0, 2, (args.batch_size,), device=args.device)
        if variant == "cached":
            states = len(self.model.model.state_indices)
            shape = (args.batch_size, args.length, states, config.hidden_size)
            self.batch["memory_states"] = torch.randn(shape, device=args.device).to(torch.bfloat16)

    def train(self) -> None:
        """Run one training step."""
        self.model.train()(**self.batch, labels=self.labels).loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @torch.inference_mode()
    def infer(self) -> None:
        """Run one pass through the classifier."""
        self.model.eval()(**self.batch)


def measure_seconds(args: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Return the median seconds of a step, by kind of step and variant."""
    workloads = {variant: Workload(variant, args) for variant in VARIANTS}
    read_clock = time.process_time if args.cpu_time else time.perf_counter
    medians = {}
    for kind in ("train", "infer"):
        seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
        for repetition in range(-1, args.repetitions):  # the first warms up
            for variant, workload in workloads.items():
                start = read_clock()
                getattr(workload, kind)()
                if args.device == "cuda":
                    torch.cuda.synchronize()
                if repetition >= 0:
                    seconds[variant].append(read_clock() - start)
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
    if args.cpu_time:
        torch.set_num_threads(1)
    # Measure memory first: a process inherits the peak of its parent.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        memory = {variant: pool.apply(measure_bytes, (variant, args)) for variant in VARIANTS}
    seconds = measure_seconds(args)
    train, infer = seconds["train"], seconds["infer"]
    result = {
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "environment": describe_environment(),
        "threads": torch.get_num_threads(),
        "median_seconds": seconds,
        "peak_bytes": memory,
        "ratios": {
            "train": train["gmap"] / train["plain"],
            "train_cached": train["cached"] / train["plain"],
            "infer": infer["gmap"] / infer["plain"],
            "infer_cached": infer["cached"] / infer["plain"],
            "memory": memory["gmap"] / memory["plain"],
            "memory_cached": memory["cached"] / memory["plain"],
        },
    }
    print(json.dumps(result, indent=2))
    if args.output:
        write_json(args.output, result)


if __name__ == "__main__":
    main()
