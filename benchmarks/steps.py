"""What a step of each method costs: training, fine-tuning, inference and distillation, beside the plain step.

    python benchmarks/steps.py --rows train --batch_size 8 --lengths 128 --output cpu.json   # some minutes on a CPU
    python benchmarks/steps.py --tiny --output tiny.json                                     # two layers, anywhere

On a GPU the sizes are 64 x 128 and 64 x 512 tokens of BERT base, in bfloat16, and the file is results/gpu/CARD.json:

    python benchmarks/steps.py --minutes 6 --compiled --encoders bert modernbert --rows train "fine_tune gmap"

Weights are random, because they change no shape and no computation; each method has its recommended start. Masked LM
trains without dropout, as the command does, and the stock step with that of the config. A row takes turns with the
plain step of its kind (`REFERENCES`), so that a busy machine slows both; `ratio` compares the medians.
`processor_ratio` compares processor time, which other work changes less. `share_of_peak` divides the operations of an
uncompiled step, as torch counts them, by what a large matrix product of the same type reaches on this device;
`kept_mib` is what such a step keeps for its backward pass, beside the weights. A GPU adds `gpu_ms`, `kernels` and
`peak_gib`. A row that cannot run here, such as one that does not fit into memory, keeps its error. The same command
resumes with the rows that its file lacks. With `--compiled` all but the reference is compiled, several rows at once
before the first is measured.
"""

import argparse
import copy
import functools
import gc
import multiprocessing
import os
import re
import statistics
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from hf_domain import (
    ExBertForMaskedLM,
    GMapConfig,
    GMapForMaskedLM,
    GMapForSequenceClassification,
    RadaForSequenceClassification,
    VarMAEForMaskedLM,
)
from hf_domain.comparison.run import count_cores
from hf_domain.environment import describe_environment
from hf_domain.methods import METHODS
from hf_domain.methods.adalm.attention import compute_relation_scores, record_attention
from hf_domain.methods.adalm.losses import compute_relation_loss
from hf_domain.methods.adalm.model import DistillationModel
from hf_domain.methods.lora import add_lora
from hf_domain.methods.stock_models import decode_labeled_rows_only
from hf_domain.modeling.backbone import find_layers
from hf_domain.modeling.heads import find_places
from hf_domain.safe_io import read_json, write_json

REFERENCES = {"train": "stock", "fine_tune": "plain", "infer": "plain", "distill": "attentions"}
ROWS = {
    "train": ("dapt", "adalm", "lora", "varmae", "varmae_15", "exbert", "gmap"),
    "fine_tune": ("gmap", "gmap_cached", "rada", "rada_cached"),
    "infer": ("exbert", "gmap", "gmap_cached", "rada_cached", "student"),
    "distill": ("hooks",),
}
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
STUDENT = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
NEW_ENTRIES = 8_000  # of AdaLM's expanded vocabulary
MASK_SHARE, PASSAGES = 0.15, 5
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
CARD = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
Row = tuple[str, str, str, int]
"""Kind, method, encoder and length."""
Step = Callable[[], Any]


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--rows", nargs="+", default=[""], help="rows whose names start with one of these: train exbert"
    )
    parser.add_argument("--encoders", nargs="+", default=["bert"], help="model types, of their default size")
    parser.add_argument("--lengths", type=int, nargs="+", default=[128, 512])
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--num_hidden_layers", type=int, default=None, help="fewer layers, for a CPU")
    parser.add_argument(
        "--dtype", choices=["bfloat16", "float32"], default="bfloat16" if DEVICE == "cuda" else "float32"
    )
    parser.add_argument("--compiled", action="store_true", help="compile every step but that of the reference")
    parser.add_argument("--rounds", type=int, default=5, help="turns of a row and its reference")
    parser.add_argument("--tiny", action="store_true", help="two layers, 2 x 16 tokens, one round")
    parser.add_argument("--compilers", type=int, default=4, help="rows that are compiled at once")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no row later than this")
    name = re.sub(r"\W+", "_", CARD.lower())
    parser.add_argument("--output", type=Path, default=Path(f"results/gpu/{name}.json"), help="JSON file")
    args = parser.parse_args()
    args.output.parent.mkdir(parents=True, exist_ok=True)
    if args.tiny:
        args.batch_size, args.lengths, args.rounds = 2, [16], 1
    return args


def make_config(encoder: str, args: argparse.Namespace, dropout: bool = True, **sizes: Any) -> Any:
    """Return the configuration of an encoder; dropout is never in attention, where some kernels refuse it."""
    if args.num_hidden_layers:
        sizes["num_hidden_layers"] = args.num_hidden_layers
    config = AutoConfig.for_model(encoder, **(TINY if args.tiny else sizes))
    config.attention_probs_dropout_prob = config.attention_dropout = 0.0
    if not dropout:
        config.hidden_dropout_prob = config.embedding_dropout = config.mlp_dropout = 0.0
    return config


@functools.cache
def make_base(encoder: str, new_entries: int, dropout: bool, num_hidden_layers: int | None, tiny: bool) -> Any:
    """Return the masked LM of an encoder: drawing its weights takes longer than all steps of a row."""
    args = argparse.Namespace(num_hidden_layers=num_hidden_layers, tiny=tiny)
    config = make_config(encoder, args, dropout)
    config.vocab_size += new_entries
    return AutoModelForMaskedLM.from_config(config)


def make_masked_lm(method: str, encoder: str, args: argparse.Namespace) -> Any:
    """Return the masked LM that a method trains."""
    new_entries = NEW_ENTRIES if method == "adalm" else 0
    has_dropout = method == REFERENCES["train"]  # hf-domain mlm trains without
    base = copy.deepcopy(make_base(encoder, new_entries, has_dropout, args.num_hidden_layers, args.tiny))
    if method in ("dapt", "adalm"):
        decode_labeled_rows_only(base)
    elif method == "lora":
        return add_lora(decode_labeled_rows_only(base))
    elif method == "gmap":
        config = base.config
        return GMapForMaskedLM(GMapConfig(backbone_config=config, memory_config=config, **METHODS["gmap"].start))
    elif method.startswith("varmae"):
        options = METHODS["varmae"].start | {"unmasked_ratio": MASK_SHARE if method == "varmae_15" else 1.0}
        return VarMAEForMaskedLM.from_backbone(base, **options)
    elif method == "exbert":
        return ExBertForMaskedLM.from_backbone(base, **METHODS["exbert"].start)
    return base


def make_classifier(method: str, encoder: str, args: argparse.Namespace) -> Any:
    """Return the classifier that a method fine-tunes."""
    config = make_config(encoder, args, **(STUDENT if method == "student" else {}))
    if method == "exbert":
        return make_masked_lm("exbert", encoder, args).base_model
    if method.startswith("gmap"):
        start = METHODS["gmap"].start
        return GMapForSequenceClassification(GMapConfig(backbone_config=config, memory_config=config, **start))
    base = AutoModelForSequenceClassification.from_config(config)
    if method.startswith("rada"):
        options = METHODS["rada"].start | {"passage_encoder": "frozen" if method == "rada_cached" else "shared"}
        return RadaForSequenceClassification.from_backbone(base, **options)
    return base


def make_batch(kind: str, method: str, model: Any, length: int, args: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Return a batch without padding, and what a method reads beside it."""
    input_ids = torch.randint(1000, 30_000, (args.batch_size, length))
    batch = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
    if kind == "train":
        is_masked = torch.rand(input_ids.shape) < MASK_SHARE
        is_masked[:, 1] = True
        batch["labels"] = input_ids.masked_fill(~is_masked, -100)
        if method != REFERENCES[kind]:
            batch["target_places"] = find_places(is_masked)  # as the collator of hf-domain mlm does
    if kind == "fine_tune":
        batch["labels"] = torch.zeros(args.batch_size, dtype=torch.long)
    shape = (args.batch_size, PASSAGES, length)
    if method.startswith("rada"):
        batch["passage_scores"] = 1 + torch.rand(shape[:2])
    if method == "rada":
        batch["passage_input_ids"] = torch.randint(1000, 30_000, shape)
    if method == "rada_cached":
        batch["passage_states"] = torch.randn(*shape, model.config.hidden_size, dtype=torch.bfloat16)
        batch["passage_attention_mask"] = torch.ones(shape, dtype=torch.long)
    if method == "gmap_cached":
        states = (args.batch_size, length, len(model.model.state_indices), model.config.hidden_size)
        batch["memory_states"] = torch.randn(states, dtype=torch.bfloat16)
    return {name: value.to(DEVICE) for name, value in batch.items()}


def make_step(row: Row, args: argparse.Namespace, can_compile: bool = True) -> Step:
    """Return a function that does one step of a row."""
    kind, method, encoder, length = row
    torch.manual_seed(0)
    is_compiled = can_compile and args.compiled and method != REFERENCES[kind]
    if kind == "distill":
        model = make_distillation(method, args)
    elif kind == "train":
        model = make_masked_lm(method, encoder, args)
    else:
        model = make_classifier(method, encoder, args)
    model.to(DEVICE)
    batch = make_batch(kind, method, model, length, args)
    call = torch.compile(model) if is_compiled else model
    dtype = getattr(torch, args.dtype)
    autocast = torch.autocast(DEVICE, dtype, enabled=dtype != torch.float32)
    if kind == "infer":
        model.eval()

        def infer() -> None:
            with torch.inference_mode(), autocast:
                call(**batch)

        return infer
    model.train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)

    def train() -> None:
        with autocast:
            loss = call(**batch).loss if method != "attentions" else compare_attentions(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


def make_distillation(method: str, args: argparse.Namespace) -> DistillationModel:
    """Return teacher and student; all attention maps exist with eager attention only."""
    attention = "sdpa" if method == "hooks" else "eager"
    configs = [make_config("bert", args, **sizes) for sizes in ({}, STUDENT)]
    teacher, student = (AutoModel.from_config(config, attn_implementation=attention) for config in configs)
    return DistillationModel(student, teacher.eval())


def compare_attentions(model: DistillationModel, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Return MiniLM's loss from `output_attentions`, the usual way."""
    found = []
    for encoder in (model.teacher, model.student):
        with torch.set_grad_enabled(encoder is model.student), record_attention(find_layers(encoder)[-1]) as record:
            attentions = encoder(**batch, output_attentions=True).attentions[-1]
        value = record["value"]
        heads = encoder.config.num_attention_heads
        found.append((attentions.clamp(min=1e-30).log(), compute_relation_scores(value, value, heads)))
    mask = batch["attention_mask"]
    return sum(compute_relation_loss(theirs, ours, mask) for theirs, ours in zip(*found, strict=True))


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def time_step(step: Step) -> tuple[float, float]:
    """Return the seconds of a step, and those of the processor."""
    synchronize()
    clock, processor = time.perf_counter(), time.process_time()
    step()
    synchronize()
    return time.perf_counter() - clock, time.process_time() - processor


def take_turns(step: Step, reference: Step, rounds: int) -> dict[str, float]:
    """Return milliseconds of both, and their ratios."""
    times: dict[str, list[tuple[float, float]]] = {"row": [], "reference": []}
    for number in range(-2, rounds):  # two rounds warm up
        for name, each in (("row", step), ("reference", reference)):
            spent = time_step(each)
            if number >= 0:
                times[name].append(spent)
    wall, processor = (
        {name: statistics.median(spent[which] for spent in found) for name, found in times.items()} for which in (0, 1)
    )
    return {
        "ms": 1000 * wall["row"],
        "reference_ms": 1000 * wall["reference"],
        "ratio": wall["row"] / wall["reference"],
        "processor_ratio": processor["row"] / processor["reference"],
    }


def profile(step: Step) -> dict[str, float]:
    """Return what the GPU did in a step: its milliseconds and kernels."""
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        step()
        synchronize()
    kernels = [event for event in profiler.events() if event.device_type == torch.autograd.DeviceType.CUDA]
    return {"gpu_ms": sum(event.self_device_time_total for event in kernels) / 1000, "kernels": len(kernels)}


def compile_row(row: Row, args: argparse.Namespace) -> None:
    """Compile a step in a process beside others; torch's cache on the disk keeps what it made."""
    with suppress(ImportError, RuntimeError):  # an error is kept when the row is measured
        make_step(row, args)()
    forget()


def compile_rows(rows: list[Row], args: argparse.Namespace) -> None:
    """Compile several rows at once, for at most half of the minutes: compiling needs cores, and little of a GPU."""
    os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", str(max(1, count_cores() // args.compilers)))
    # Not an executor: it would wait for processes that keep those of torch's compiler.
    with multiprocessing.get_context("spawn").Pool(args.compilers) as pool:
        done = pool.map_async(functools.partial(compile_row, args=args), rows, chunksize=1)
        done.wait(min(30 * args.minutes, 3600))


def forget() -> None:
    """Free the memory of the last row."""
    gc.collect()
    torch.compiler.reset()
    if DEVICE == "cuda":
        torch.cuda.empty_cache()


def measure_peak(dtype: torch.dtype, args: argparse.Namespace) -> float:
    """Return the operations a second that a large matrix product reaches."""
    size = 128 if args.tiny or DEVICE == "cpu" else 8192
    left, right = (torch.randn(size, size, device=DEVICE, dtype=dtype) for _ in range(2))
    return 2 * size**3 / min(time_step(lambda: left @ right)[0] for _ in range(10))


def count(row: Row, args: argparse.Namespace) -> tuple[int, dict[str, float]]:
    """Return the operations of an uncompiled step, and what it keeps: the counter sees nothing of compiled steps."""
    step, kept = make_step(row, args, can_compile=False), {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor if tensor._base is None else tensor._base, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with FlopCounterMode(display=False) as counter, torch.autograd.graph.saved_tensors_hooks(keep, lambda kept: kept):
        step()
    return counter.get_total_flops(), {"kept_mib": sum(kept.values()) / 2**20} if kept else {}


def measure(row: Row, peak: float, args: argparse.Namespace) -> dict[str, float]:
    """Return all figures of a row."""
    kind, _, encoder, length = row
    operations, result = count(row, args)
    forget()
    step = make_step(row, args)
    if DEVICE == "cuda":  # before there is another model
        step()
        torch.cuda.reset_peak_memory_stats()
        step()
        result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    result |= take_turns(step, make_step((kind, REFERENCES[kind], encoder, length), args), args.rounds)
    result["tokens_per_second"] = 1000 * args.batch_size * length / result["ms"]
    result["share_of_peak"] = 1000 * operations / result["ms"] / peak
    on_gpu = profile(step)
    return result | (on_gpu if on_gpu["kernels"] else {})


def list_rows(args: argparse.Namespace) -> dict[str, Row]:
    """Return the chosen rows by name."""
    rows = {}
    for encoder, length, (kind, methods) in product(args.encoders, args.lengths, ROWS.items()):
        for method in (REFERENCES[kind], *methods):
            name = f"{kind} {method} {encoder} {length}"
            if name.startswith(tuple(args.rows)):
                rows[name] = (kind, method, encoder, length)
    return rows


def begin_file(args: argparse.Namespace) -> dict[str, Any]:
    """Return the content of the file: that of an earlier run with these arguments on this card, or a new one."""
    free = ("output", "minutes", "compilers")
    arguments = {name: str(value) for name, value in vars(args).items() if name not in free}
    begun = read_json(args.output) if args.output.is_file() else {}
    if (begun.get("device"), begun.get("arguments")) == (CARD, arguments):
        begun["rows"] = {name: row for name, row in begun["rows"].items() if "error" not in row}
        return begun
    peak = measure_peak(getattr(torch, args.dtype), args)
    return {
        "device": CARD,
        "arguments": arguments,
        "environment": describe_environment(),
        "peak_operations_per_second": peak,
        "rows": {},
    }


def main() -> None:
    """Measure every row and write the JSON file after each, so that a killed run keeps what it has."""
    started, args = time.monotonic(), parse_arguments()
    result = begin_file(args)
    rows: dict[str, dict[str, float | str]] = result["rows"]
    missing = {name: row for name, row in list_rows(args).items() if name not in rows}
    if args.compiled:
        compile_rows([*missing.values()], args)
    for name, row in tqdm(missing.items(), unit="row"):
        if time.monotonic() - started > 60 * args.minutes:
            tqdm.write("Time is up. The same command resumes.")
            break
        try:
            rows[name] = dict(measure(row, result["peak_operations_per_second"], args))
        except (ImportError, RuntimeError) as error:  # of the second kind are memory and what kernels do not support
            if args.tiny:
                raise
            rows[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
        forget()
        write_json(args.output, result)
        figures = (f"{key} {value:,.3g}" for key, value in rows[name].items() if not isinstance(value, str))
        tqdm.write(f"{name:36} {rows[name].get('error') or ', '.join(figures)}")


if __name__ == "__main__":
    main()
