"""Cost of RADA beside the plain encoder: inference and training step, with and without cached passages.

    python benchmarks/rada.py --output rada.json

The model has random weights of bert-base size, the recommended start and a classification head. The variants alternate
within one process, so that a busy machine slows all of them. The results are ratios of medians, of wall time and of
processor time (without waiting). `cached_10` reads 10 passages per input from a cache on disk; with `--scores pooled`
evaluation reads only one of them. `encoded_10` encodes all of them, without gradient. A single layer of the same width
makes the cache of random passages, because the content of the states does not matter.
"""

import statistics
import tempfile
import time
from dataclasses import asdict, dataclass, field

import torch
from tqdm import tqdm
from transformers import AutoModelForSequenceClassification, BatchEncoding, BertConfig, HfArgumentParser

from hf_domain import RadaForSequenceClassification
from hf_domain.environment import describe_environment
from hf_domain.methods import METHODS
from hf_domain.methods.rada.states import PassageCache, build_passage_cache
from hf_domain.safe_io import write_json


@dataclass
class Arguments:
    """The size of the measurement."""

    batch_size: int = field(default=8, metadata={"help": "Number of inputs."})
    length: int = field(default=128, metadata={"help": "Number of tokens of an input."})
    passage_length: int = field(default=256, metadata={"help": "Number of tokens of a passage."})
    cached: list[int] = field(default_factory=lambda: [1, 5, 10, 50], metadata={"help": "Numbers of cached passages."})
    encoded: list[int] = field(default_factory=lambda: [10], metadata={"help": "Numbers of encoded passages."})
    num_hidden_layers: int = field(default=12, metadata={"help": "Layers of the encoder; 12 is bert-base."})
    scores: str = field(
        default=METHODS["rada"].start["scores"], metadata={"help": "pooled, logsumexp, joint or literal."}
    )
    repeats: int = field(default=7, metadata={"help": "Measured steps of each variant."})
    device: str = field(default="cuda" if torch.cuda.is_available() else "cpu", metadata={"help": "Device to run on."})
    output: str = field(default="rada.json", metadata={"help": "Result file."})


class RandomPassages:
    """The part of a tokenizer that building a cache needs, for passages of random ids and one length."""

    def get_vocab(self) -> dict[str, int]:
        """No vocabulary."""
        return {}

    def pad(self, rows: list[dict[str, list]], return_tensors: str, padding_side: str) -> BatchEncoding:
        """Stack the rows, which need no padding."""
        input_ids = torch.tensor([row["input_ids"] for row in rows])
        return BatchEncoding({"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)})


class Workload:
    """A model with its optimizer: the plain encoder, or one that reads cached or encoded passages."""

    def __init__(self, kind: str, args: Arguments, cache: PassageCache):
        torch.manual_seed(0)
        config = BertConfig(num_hidden_layers=args.num_hidden_layers)
        self.model = AutoModelForSequenceClassification.from_config(config)
        if kind != "plain":
            encoder = "frozen" if kind == "cached" else "shared"
            options = METHODS["rada"].start | {"passage_encoder": encoder, "scores": args.scores, "num_labels": 2}
            self.model = RadaForSequenceClassification.from_backbone(self.model, **options)
            self.model.use_passage_cache(cache)
        self.model.to(args.device)
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)

    def train(self, batch: dict[str, torch.Tensor]) -> None:
        """Run one training step."""
        self.optimizer.zero_grad()
        self.model.train()(**batch).loss.backward()
        self.optimizer.step()

    @torch.inference_mode()
    def infer(self, batch: dict[str, torch.Tensor]) -> None:
        """One prediction."""
        self.model.eval()(**batch)


def make_batch(variant: str, args: Arguments, passages: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the same inputs for all variants, and the passages of one variant."""
    torch.manual_seed(0)
    input_ids = torch.randint(1000, 30000, (args.batch_size, args.length))
    labels = torch.zeros(args.batch_size, dtype=torch.long)
    batch = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids), "labels": labels}
    kind, _, number = variant.partition("_")
    if kind != "plain":
        ids = torch.randperm(len(passages))[: args.batch_size * int(number)].view(args.batch_size, -1)
        batch["passage_scores"] = 1 + torch.rand(ids.shape)
        batch |= {"passage_ids": ids} if kind == "cached" else {"passage_input_ids": passages[ids]}
    return {name: value.to(args.device) for name, value in batch.items()}


def measure(args: Arguments, passages: torch.Tensor, cache: PassageCache) -> dict[str, dict[str, list[list[float]]]]:
    """Return wall time and processor time of every step, by kind and variant."""
    variants = ["plain", *(f"cached_{k}" for k in args.cached), *(f"encoded_{k}" for k in args.encoded)]
    workloads = {kind: Workload(kind, args, cache) for kind in ("plain", "cached", "encoded")}
    batches = {variant: make_batch(variant, args, passages) for variant in variants}
    seconds: dict[str, dict[str, list[list[float]]]] = {}
    for kind in ("infer", "train"):
        seconds[kind] = {variant: [] for variant in variants}
        for repeat in tqdm(range(-1, args.repeats), desc=kind):  # the first warms up
            for variant, batch in batches.items():
                step = getattr(workloads[variant.partition("_")[0]], kind)
                start, start_of_processor = time.perf_counter(), time.process_time()
                step(batch)
                if args.device == "cuda":
                    torch.cuda.synchronize()
                if repeat >= 0:
                    spent = [time.perf_counter() - start, time.process_time() - start_of_processor]
                    seconds[kind][variant].append(spent)
    return seconds


def main() -> None:
    """Measure, print, and write the JSON file."""
    (args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    torch.manual_seed(0)
    count = args.batch_size * max([*args.cached, *args.encoded])
    passages = torch.randint(1000, 30000, (count, args.passage_length))
    with tempfile.TemporaryDirectory() as folder:
        one_layer = AutoModelForSequenceClassification.from_config(BertConfig(num_hidden_layers=1))
        encoder = RadaForSequenceClassification.from_backbone(one_layer).to(args.device)
        rows = {number: row.tolist() for number, row in enumerate(passages)}
        cache = build_passage_cache(folder, encoder, RandomPassages(), rows, "random", range(count))
        seconds = measure(args, passages, cache)
    ratios: dict[str, dict[str, list[float]]] = {}
    for kind, of_kind in seconds.items():
        medians = {
            variant: list(map(statistics.median, zip(*spent, strict=True))) for variant, spent in of_kind.items()
        }
        ratios[kind] = {
            variant: [mine / plain for mine, plain in zip(values, medians["plain"], strict=True)]
            for variant, values in medians.items()
        }
        for variant, (clock, processor) in ratios[kind].items():
            print(
                f"{kind:6} {variant:12} {medians[variant][0]:9.4f} s, of plain {clock:.3f}, processor {processor:.3f}"
            )
    result = {"arguments": asdict(args), **describe_environment(), "seconds": seconds, "ratios_to_plain": ratios}
    write_json(args.output, result)


if __name__ == "__main__":
    main()
