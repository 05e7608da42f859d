"""Cost of a distillation step: states from hooks under sdpa against `output_attentions` under eager attention.

    python benchmarks/distillation.py --output distillation.json

Both variants compute MiniLM's loss of the same batch, and the script checks that they agree. `attentions` is the usual
step: both models return all attention maps, and the loss compares their last ones. Steps alternate, so that a busy
machine slows both; the medians are compared. Peak memory is measured in one process per variant, without weights and
optimizer states. A step has the same number of tokens at every length.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import time
from pathlib import Path

import torch
import transformers
from transformers import AutoModel, BertConfig

from hf_domain.environment import describe_environment
from hf_domain.methods.adalm.attention import compute_relation_scores, record_attention
from hf_domain.methods.adalm.losses import compute_relation_loss
from hf_domain.methods.adalm.model import DistillationModel
from hf_domain.modeling.backbone import find_layers
from hf_domain.safe_io import write_json

VARIANTS = ("hooks", "attentions")
SHAPES = {  # hidden size, layers, heads, intermediate size: BERT base and AdaLM's student
    "teacher": (768, 12, 12, 3072),
    "student": (384, 6, 12, 1536),
}


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--tokens", type=int, default=4096, help="tokens of a step, including padding")
    parser.add_argument("--bf16", action="store_true", help="autocast as Trainer does with --bf16")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--output", type=Path, default=None, help="JSON file; default prints")
    return parser.parse_args()


def build_model(role: str, attn_implementation: str):
    hidden_size, layers, heads, intermediate_size = SHAPES[role]
    config = BertConfig(
        hidden_size=hidden_size,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=intermediate_size,
        hidden_dropout_prob=0.0,  # the variants would draw different dropout masks, and their losses would differ
        attention_probs_dropout_prob=0.0,
    )
    return AutoModel.from_config(config, attn_implementation=attn_implementation)


class Workload:
    """One variant with what a training step needs."""

    def __init__(self, variant: str, length: int, args: argparse.Namespace):
        torch.manual_seed(0)
        self.variant = variant
        attn_implementation = "sdpa" if variant == "hooks" else "eager"
        self.teacher = build_model("teacher", attn_implementation).to(args.device).eval()
        self.student = build_model("student", attn_implementation).to(args.device)
        self.model = DistillationModel(self.student, self.teacher).train()
        self.optimizer = torch.optim.AdamW(self.student.parameters(), lr=1e-5, fused=True)
        self.autocast = torch.autocast(args.device, torch.bfloat16, enabled=args.bf16)
        texts = max(1, args.tokens // length)
        input_ids = torch.randint(1000, 30_000, (texts, length), device=args.device)
        attention_mask = torch.ones_like(input_ids)
        attention_mask[0, length // 2 :] = 0
        self.batch = {"input_ids": input_ids, "attention_mask": attention_mask}

    def compute_loss(self) -> torch.Tensor:
        """Return MiniLM's loss of the batch."""
        if self.variant == "hooks":
            return self.model(**self.batch).loss
        with torch.no_grad():
            teacher = self.run(self.teacher)
        student = self.run(self.student)
        mask = self.batch["attention_mask"]
        return sum(compute_relation_loss(theirs, ours, mask) for theirs, ours in zip(teacher, student, strict=True))

    def run(self, model) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logarithms of the last attention map, and the value relations."""
        with record_attention(find_layers(model)[-1]) as record:
            attentions = model(**self.batch, output_attentions=True).attentions
        value = record["value"]
        return attentions[-1].clamp(min=1e-30).log(), compute_relation_scores(value, value, 12)

    def step(self) -> float:
        """Run one training step."""
        with self.autocast:
            loss = self.compute_loss()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


def measure_seconds(length: int, args: argparse.Namespace) -> dict[str, float]:
    """Return the median seconds of a step."""
    workloads = {variant: Workload(variant, length, args) for variant in VARIANTS}
    seconds: dict[str, list[float]] = {variant: [] for variant in VARIANTS}
    for repetition in range(-1, args.repetitions):  # the first warms up
        losses = {}
        for variant, workload in workloads.items():
            start = time.perf_counter()
            losses[variant] = workload.step()
            if repetition >= 0:
                seconds[variant].append(time.perf_counter() - start)
        if abs(losses["hooks"] - losses["attentions"]) > (3e-2 if args.bf16 else 1e-3) * losses["hooks"]:
            raise RuntimeError(f"the variants must compute the same loss, but compute {losses}")
    return {variant: statistics.median(values) for variant, values in seconds.items()}


def measure_bytes(variant: str, length: int, args: argparse.Namespace) -> int:
    """Return the peak memory of a step without weights and optimizer states; run in its own process (Linux)."""
    workload = Workload(variant, length, args)
    workload.step()
    if args.device == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        workload.step()
        return torch.cuda.max_memory_allocated() - before
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = read_status("VmRSS")
    workload.step()
    return read_status("VmHWM") - before


def read_status(name: str) -> int:
    """Return a size of this process from /proc, in bytes."""
    status = Path("/proc/self/status").read_text()
    return 1024 * next(int(line.split()[1]) for line in status.splitlines() if line.startswith(name))


def main() -> None:
    """Measure, print, and write the JSON file."""
    args = parse_arguments()
    transformers.utils.logging.set_verbosity_error()
    lengths = {}
    # Return freed blocks at once; blocks kept for reuse would hide the memory of a step.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = "65536"
    # Measure memory first: a process inherits the peak of its parent.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for length in args.lengths:
            memory = {variant: pool.apply(measure_bytes, (variant, length, args)) for variant in VARIANTS}
            lengths[length] = {"peak_bytes": memory, "memory_ratio": memory["hooks"] / memory["attentions"]}
    for length, row in lengths.items():
        seconds = measure_seconds(length, args)
        row |= {"median_seconds": seconds, "time_ratio": seconds["hooks"] / seconds["attentions"]}
    result = {
        "arguments": {name: str(value) for name, value in vars(args).items()},
        "environment": describe_environment(),
        "threads": torch.get_num_threads(),
        "lengths": lengths,
    }
    print(json.dumps(result, indent=2))
    if args.output:
        write_json(args.output, result)


if __name__ == "__main__":
    main()
