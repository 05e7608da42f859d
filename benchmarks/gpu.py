"""What training and inference cost on a GPU: every figure that needs one, in one command and one JSON file.

    python benchmarks/gpu.py --output gpu.json        # on a GPU: 46 rows of some seconds each
    python benchmarks/gpu.py --rows "train bert" --output gpu.json  # only the rows whose names start so
    python benchmarks/gpu.py --tiny --output cpu.json  # tiny models, anywhere; not flex_attention or compiled rows

Random weights of bert-base and modernbert-base size. A row is measured alone: it warms up, then repeats its step for
`--seconds`. `tokens_per_second` does not count padding. `share_of_peak` divides the operations of a step, as torch
counts them, by what a large matrix product of the same type reaches on this device; torch counts none where it
compiles. A row that cannot run here, such as an attention kernel that is not installed, keeps its error.
"""

import argparse
import gc
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode
from tqdm import tqdm
from transformers import AutoConfig, AutoModelForMaskedLM, AutoModelForSequenceClassification, PreTrainedModel

from hf_domain import (
    ExBertForMaskedLM,
    GMapConfig,
    GMapForMaskedLM,
    GMapForSequenceClassification,
    RadaForSequenceClassification,
    VarMAEForMaskedLM,
)
from hf_domain.environment import describe_environment
from hf_domain.methods.lora import add_lora
from hf_domain.methods.stock_models import decode_labeled_rows_only
from hf_domain.safe_io import write_json
from hf_domain.training.padding_free import remove_padding

ENCODERS = ("bert", "modernbert")  # their default sizes are those of bert-base and modernbert-base
ATTENTIONS = ("eager", "sdpa", "flash_attention_2", "flex_attention")
MASK_SHARE, PASSAGES = 0.15, 5
TINY = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
NEW_ENTRIES = 8_000  # of AdaLM's expanded vocabulary
STUDENT = {"hidden_size": 384, "num_hidden_layers": 6, "num_attention_heads": 12, "intermediate_size": 1536}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--seconds", type=float, default=4.0, help="of measuring a row, after its warm-up")
    parser.add_argument("--rows", nargs="+", default=[""], help="the rows whose names start with one of these")
    parser.add_argument(
        "--tiny", action="store_true", help="two layers, 2 x 16 tokens, one step a row, nothing compiled"
    )
    parser.add_argument("--output", type=Path, required=True, help="JSON file")
    args = parser.parse_args()
    if args.tiny:
        args.batch_size, args.length, args.seconds = 2, 16, 0.0
    return args


def make_config(encoder: str, args: argparse.Namespace, **sizes: Any) -> Any:
    """Return the configuration of an encoder, without dropout, which some attention kernels refuse."""
    config = AutoConfig.for_model(encoder, **(TINY if args.tiny else sizes))
    config.attention_probs_dropout_prob = config.attention_dropout = 0.0
    return config


def make_masked_lm(method: str, encoder: str, attention: str, args: argparse.Namespace) -> Any:
    """Return the masked LM that a method trains."""
    config = make_config(encoder, args)
    if method == "adalm":
        config.vocab_size += NEW_ENTRIES
    base = AutoModelForMaskedLM.from_config(config, attn_implementation=attention)
    if method in ("dapt", "adalm"):
        decode_labeled_rows_only(base)
    elif method == "lora":
        return add_lora(decode_labeled_rows_only(base))
    elif method == "gmap":
        return GMapForMaskedLM(GMapConfig(backbone_config=config, memory_config=config))
    elif method.startswith("varmae"):
        return VarMAEForMaskedLM.from_backbone(base, unmasked_ratio=MASK_SHARE if method == "varmae_15" else 1.0)
    elif method == "exbert":
        return ExBertForMaskedLM.from_backbone(base)
    return base


def make_classifier(method: str, encoder: str, args: argparse.Namespace) -> PreTrainedModel:
    """Return the classifier that a method fine-tunes."""
    config = make_config(encoder, args)
    base = AutoModelForSequenceClassification.from_config(config)
    if method.startswith("gmap"):
        return GMapForSequenceClassification(GMapConfig(backbone_config=config, memory_config=config))
    if method.startswith("rada"):
        return RadaForSequenceClassification.from_backbone(base, passage_encoder="frozen")
    return base


def make_tokens(args: argparse.Namespace, batch_size: int | None = None) -> dict[str, torch.Tensor]:
    """Return a batch without padding."""
    input_ids = torch.randint(1000, 30_000, (batch_size or args.batch_size, args.length))
    return {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}


def make_masked_batch(args: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Return a batch of masked LM."""
    batch = make_tokens(args)
    is_masked = torch.rand(batch["input_ids"].shape) < MASK_SHARE
    is_masked[:, 1] = True
    return batch | {"labels": batch["input_ids"].masked_fill(~is_masked, -100)}


def make_task_batch(method: str, model: PreTrainedModel, args: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Return a batch of a classification, with the passages or the memory's states that the method reads."""
    batch = make_tokens(args) | {"labels": torch.zeros(args.batch_size, dtype=torch.long)}
    shape = (args.batch_size, PASSAGES, args.length)
    if method == "rada":
        batch["passage_input_ids"] = torch.randint(1000, 30_000, shape)
    if method == "rada_cached":
        batch["passage_states"] = torch.randn(*shape, model.config.hidden_size).to(torch.bfloat16)
        batch["passage_attention_mask"] = torch.ones(shape, dtype=torch.long)
    if method == "gmap_cached":
        shape = (args.batch_size, args.length, len(model.model.state_indices), model.config.hidden_size)
        batch["memory_states"] = torch.randn(shape).to(torch.bfloat16)
    return batch


def make_uneven_batch(args: argparse.Namespace) -> dict[str, torch.Tensor]:
    """Return texts of 1/8 to all of the length, padded to the longest."""
    lengths = torch.linspace(args.length // 8, args.length, args.batch_size).long().clamp(min=2)
    texts = [torch.randint(1000, 30_000, (length,)) for length in lengths.tolist()]
    input_ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
    is_masked = (torch.rand(input_ids.shape) < MASK_SHARE) & (input_ids != 0)
    is_masked[:, 1] = True
    labels = input_ids.masked_fill(~is_masked, -100)
    return {"input_ids": input_ids, "attention_mask": (input_ids != 0).long(), "labels": labels}


def make_training_step(model: PreTrainedModel, batch: dict, dtype: torch.dtype, is_compiled: bool = False) -> Callable:
    """Return a function that does one optimizer step, as the Trainer does it with this type."""
    model.to(DEVICE).train()
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, fused=True)
    call = torch.compile(model) if is_compiled else model
    batch = {name: value.to(DEVICE) for name, value in batch.items()}

    def step() -> None:
        with torch.autocast(DEVICE, dtype=dtype, enabled=dtype != torch.float32):
            loss = call(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def make_inference_step(model: PreTrainedModel, batch: dict, dtype: torch.dtype) -> Callable:
    """Return a function that reads a batch once."""
    model.to(DEVICE, dtype).eval()
    batch = {name: value.to(DEVICE) for name, value in batch.items()}
    return torch.inference_mode()(lambda: model(**batch))


def measure(step: Callable, num_tokens: int, peak: float | None, args: argparse.Namespace) -> dict[str, float]:
    """Return the seconds of a step, its tokens a second, its share of the device's peak and its memory."""
    for _ in range(1 if args.tiny else 3):
        step()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    seconds = repeat(step, args.seconds)
    result = {"seconds": seconds, "tokens_per_second": num_tokens / seconds}
    if peak is not None:
        with FlopCounterMode(display=False) as counter:
            step()
        result["share_of_peak"] = counter.get_total_flops() / seconds / peak
    if DEVICE == "cuda":
        result["peak_gib"] = torch.cuda.max_memory_allocated() / 2**30
    return result


def repeat(step: Callable, seconds: float) -> float:
    """Return the mean seconds of a step that is repeated for so long."""
    synchronize()
    started, count = time.perf_counter(), 0
    while not count or time.perf_counter() - started < seconds:
        step()
        count += 1
        if count % 10 == 0:
            synchronize()  # otherwise thousands of steps would wait in the queue
    synchronize()
    return (time.perf_counter() - started) / count


def synchronize() -> None:
    """Wait for the device."""
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def measure_peak(dtype: torch.dtype, args: argparse.Namespace) -> float:
    """Return the operations a second that a large matrix product reaches."""
    size = 128 if args.tiny or DEVICE == "cpu" else 8192
    left, right = (torch.randn(size, size, device=DEVICE, dtype=dtype) for _ in range(2))
    repeat(lambda: left @ right, 0)  # warms up
    return 2 * size**3 / repeat(lambda: left @ right, min(args.seconds, 1.0))


def list_rows(args: argparse.Namespace) -> Iterator[tuple[str, torch.dtype, Callable[[], tuple[Callable, int]]]]:
    """Yield the name of each row, its type, and a function that makes its step and counts its tokens."""
    half = torch.bfloat16
    for encoder in ENCODERS:
        for method in ("stock", "dapt", "adalm", "lora", "varmae", "varmae_15", "exbert", "gmap"):
            yield f"train {encoder} {method}", half, partial(train, args, method, encoder)
        for attention in ATTENTIONS[:-1] if args.tiny else ATTENTIONS:
            yield f"train {encoder} dapt {attention}", half, partial(train, args, "dapt", encoder, attention)
        yield f"train {encoder} dapt float32", torch.float32, partial(train, args, "dapt", encoder, dtype=torch.float32)
        if not args.tiny:
            yield f"train {encoder} dapt compiled", half, partial(train, args, "dapt", encoder, is_compiled=True)
        for is_padded in (True, False):
            name = f"train {encoder} dapt uneven, {'padded' if is_padded else 'padding_free'}"
            yield name, half, partial(train_uneven, args, encoder, is_padded)
        for method in ("plain", "gmap", "gmap_cached", "rada", "rada_cached"):
            yield f"fine_tune {encoder} {method}", half, partial(fine_tune, args, method, encoder)
    for name, sizes in {"teacher": {}, "student": STUDENT}.items():
        for batch_size in (1, args.batch_size):
            yield f"infer {name} {batch_size}", half, partial(infer, args, sizes, batch_size)


def train(
    args: argparse.Namespace,
    method: str,
    encoder: str,
    attention: str = "sdpa",
    dtype: torch.dtype = torch.bfloat16,
    is_compiled: bool = False,
) -> tuple[Callable, int]:
    """Return a step of masked LM and its tokens."""
    model, batch = make_masked_lm(method, encoder, attention, args), make_masked_batch(args)
    return make_training_step(model, batch, dtype, is_compiled), batch["input_ids"].numel()


def train_uneven(args: argparse.Namespace, encoder: str, is_padded: bool) -> tuple[Callable, int]:
    """Return a step of masked LM on texts of many lengths, and its tokens."""
    model, batch = make_masked_lm("dapt", encoder, "sdpa", args), make_uneven_batch(args)
    if not is_padded:
        remove_padding(model)
    return make_training_step(model, batch, torch.bfloat16), int(batch["attention_mask"].sum())


def fine_tune(args: argparse.Namespace, method: str, encoder: str) -> tuple[Callable, int]:
    """Return a step of fine-tuning and its tokens, those of passages not counted."""
    model = make_classifier(method, encoder, args)
    batch = make_task_batch(method, model, args)
    return make_training_step(model, batch, torch.bfloat16), batch["input_ids"].numel()


def infer(args: argparse.Namespace, sizes: dict[str, int], batch_size: int) -> tuple[Callable, int]:
    """Return a pass through an encoder and its tokens."""
    model = AutoModelForMaskedLM.from_config(make_config("bert", args, **sizes)).base_model
    batch = make_tokens(args, batch_size)
    return make_inference_step(model, batch, torch.bfloat16), batch["input_ids"].numel()


def main() -> None:
    """Measure every row and write the JSON file after each, so that a killed run keeps what it has."""
    args = parse_arguments()
    peaks = {dtype: measure_peak(dtype, args) for dtype in (torch.float32, torch.bfloat16)}
    device = torch.cuda.get_device_name() if DEVICE == "cuda" else "cpu"
    settings = {name: str(value) for name, value in vars(args).items()}
    rows: dict[str, dict[str, float | str]] = {}
    result = {"device": device, "arguments": settings, "environment": describe_environment(), "rows": rows}
    result["peak_operations_per_second"] = {str(dtype).removeprefix("torch."): peak for dtype, peak in peaks.items()}
    chosen = [row for row in list_rows(args) if row[0].startswith(tuple(args.rows))]
    for name, dtype, make in tqdm(chosen, unit="row"):
        torch.manual_seed(0)
        try:
            step, num_tokens = make()
            # The counter sees nothing of what torch has compiled.
            peak = None if name.endswith(("compiled", "flex_attention")) else peaks[dtype]
            rows[name] = dict(measure(step, num_tokens, peak, args))
        except (ImportError, RuntimeError) as error:  # of the second kind are memory and what kernels do not support
            if args.tiny and not isinstance(error, ImportError):
                raise
            rows[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"}
        step = make = None
        gc.collect()
        torch.compiler.reset()
        write_json(args.output, result)
        tqdm.write(f"{name:44} {rows[name].get('error') or describe(rows[name])}")


def describe(row: dict[str, Any]) -> str:
    """Write a row in one line."""
    share = f", {row['share_of_peak']:4.0%} of peak" if "share_of_peak" in row else ""
    memory = f", {row['peak_gib']:.1f} GiB" if "peak_gib" in row else ""
    return f"{1000 * row['seconds']:9.1f} ms, {row['tokens_per_second']:12,.0f} tokens/s{share}{memory}"


if __name__ == "__main__":
    main()
