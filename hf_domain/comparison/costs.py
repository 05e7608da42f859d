"""Estimate how long the steps of a comparison take: their work in tokens, times speeds that were measured.

The unit of work is a token in a training step of DAPT. Reading a token without training is a third of it: a training
step reads forward once and backward at twice the cost. A token of masked LM with VarMAE or exBERT counts as in
`Method.step_cost`. Every other row counts as DAPT, or as plain fine-tuning: also LoRA, the exBERT adapter, and G-MAP
and RADA, which read a memory or passages as well. Their own speed counts as soon as one of their steps was measured.

In the 363 fine-tunings and 23 pre-trainings of the published comparison a unit took 0.5 to 1.3 ms for every task,
except in the rows that read passages.
"""

import copy
import math
import re
import statistics
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any, Self

import torch
from transformers import AutoModelForMaskedLM, PreTrainedModel

from hf_domain.comparison.budgets import count_tokens
from hf_domain.comparison.plan import Plan
from hf_domain.comparison.step import Step
from hf_domain.data.files import SPLITS
from hf_domain.methods import METHODS
from hf_domain.methods.stock_models import decode_labeled_rows_only
from hf_domain.safe_io import read_json
from hf_domain.tasks.files import get_text, read_rows

# Start-up time of a step: loading libraries, data and the encoder. Measured on the demo, with one core.
SECONDS_OF_START = 5.0
FORWARD = 1 / 3
# Kinds of steps whose speed predicts that of others, unless they score a frozen encoder.
TRAINING = ("trunk", "pretraining", "tuning", "fine_tuning", "best")
# Defaults of the commands, for flags that are not set.
EPOCHS, LENGTHS, EVALUATED, STRIDE = 3, {"qa": 384}, 256, 128
LENGTH = 128
CHARACTERS_OF_TOKEN = 4
SAMPLE = 200  # rows of a file whose length is counted
SPECIAL = 3  # tokens of a pair
# Of the measurement of a machine: the first step is slower, and a large encoder takes many seconds for each.
TIMED_STEPS, TIMED_SECONDS, TIMED_BATCH = 5, 20.0, 8

Folders = Sequence[Path]
"""Where the files of flags may be: the folder of the plan, and that of the comparison."""


def count_work(kind: str, command: str, flags: Mapping[str, Any], folders: Folders) -> float:
    """Return the work of a step, 0 where it is not that of an encoder; see the module."""
    length = int(flags.get("max_seq_length") or LENGTHS.get(command, LENGTH))
    if kind in ("probe", "trunk", "pretraining"):
        steps = int(flags["max_steps"]) - count_steps_before(flags)
        cost = METHODS[str(flags["method"])].step_cost if "method" in flags else 1.0
        return cost * steps * count_tokens(flags)
    if kind == "evaluation":
        return FORWARD * length * int(flags.get("max_eval_samples") or EVALUATED)
    if kind not in ("tuning", "fine_tuning", "best"):
        return 0.0
    stride = int(flags.get("doc_stride") or STRIDE)
    limits = [flags.get(name) for name in ("max_train_samples", "max_eval_samples", "max_predict_samples")]
    read = [
        count_file(find_file(str(flags[f"{split}_file"]), folders), command, length, limit and int(limit), stride)
        if flags.get(f"{split}_file")
        else 0.0
        for split, limit in zip(SPLITS, limits, strict=True)
    ]
    if command == "probe":
        return FORWARD * sum(read)
    if flags.get("pseudo_labeled_file"):
        read[0] += count_file(find_file(str(flags["pseudo_labeled_file"]), folders), command, length, None)
    if flags.get("corpus_file"):  # each search encodes all passages
        passages = count_file(find_file(str(flags["corpus_file"]), folders), command, length, None)
        read = [read[0], *(tokens and tokens + passages for tokens in read[1:])]
    tested = read[2] if flags.get("do_predict") else 0.0
    return float(flags.get("num_train_epochs", EPOCHS)) * read[0] + FORWARD * (read[1] + tested)


def count_steps_before(flags: Mapping[str, Any]) -> int:
    """Return the number of training steps before the checkpoint that this step continues."""
    found = re.search(r"checkpoint-(\d+)$", str(flags.get("resume_from_checkpoint", "")))
    return int(found[1]) if found else 0


def find_file(name: str, folders: Folders) -> Path:
    """Return the file of a flag.

    Raises:
        FileNotFoundError: It is in none of the folders.
    """
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    raise FileNotFoundError(name)


def count_file(file: Path, command: str, length: int, limit: int | None, stride: int = STRIDE) -> float:
    """Estimate the tokens of a file of a task that an encoder reads."""
    return _count_file(file, file.stat().st_mtime_ns, command, length, limit, stride)


@cache
def _count_file(file: Path, changed: int, command: str, length: int, limit: int | None, stride: int) -> float:
    with file.open(encoding="utf-8") as lines:
        rows = sum(1 for line in lines if line.strip())
    sample = [row for _, row in islice(read_rows(file.name, file.parent), SAMPLE)]
    if command == "qa":
        texts = [(_count_tokens(row["question"]), _count_tokens(row["context"])) for row in sample]
        tokens = [_count_windows(question, context, length, stride) for question, context in texts]
    else:
        joined = [" ".join(map(get_text, filter(_is_text, row.values()))) for row in sample]
        tokens = [min(length, _count_tokens(text)) for text in joined]
    return min(rows, limit or rows) * statistics.mean(tokens or [0])


def _is_text(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _count_tokens(text: str) -> float:
    return len(text) / CHARACTERS_OF_TOKEN


def _count_windows(question: float, context: float, length: int, stride: int) -> float:
    """Return the tokens of the windows that a context is cut into, each of which repeats the question."""
    repeated = question + SPECIAL
    room = max(1.0, length - repeated)
    windows = 1 + max(0, math.ceil((context - room) / max(1.0, room - stride)))
    return context + windows * repeated + (windows - 1) * stride


class Speeds:
    """Measured seconds of steps, and estimates for other steps.

    Args:
        plan: The plan of the comparison.
        output_dir: Its folder; every result in it counts, also one of an earlier plan.
    """

    def __init__(self, plan: Plan, output_dir: Path):
        self.plan, self.folders = plan, (plan.folder, output_dir)
        self.measured: dict[tuple[str, ...], list[tuple[float, float]]] = defaultdict(list)
        self.known_work: dict[tuple[str, Any], float] = {}
        self.count = 0
        for file in sorted((output_dir / "results").glob("*.json")):
            try:
                content = read_json(file)
                step, seconds = content["step"], float(content["seconds"])
                flags = step["flags"] | ({"max_steps": content["max_steps"]} if "max_steps" in content else {})
                work = count_work(step["kind"], step["command"], flags, self.folders)
            except (KeyError, OSError, TypeError, ValueError):  # of another version, without seconds, or of lost files
                continue
            self.add(step["kind"], step["command"], step.get("method"), seconds, work)
            self.count += 1

    def copy(self) -> Self:
        """Return the same, to which something can be added for a moment."""
        other = copy.copy(self)
        other.measured = defaultdict(list, {group: [*pairs] for group, pairs in self.measured.items()})
        return other

    def add(self, kind: str, command: str, method: str | None, seconds: float, work: float) -> None:
        """Add what a step took."""
        for group in self._list_groups(kind, command, method):
            if group or (kind in TRAINING and command != "probe"):
                self.measured[group].append((seconds, work))

    def add_result(self, step: Step, seconds: float, max_steps: int | None) -> None:
        """Add what a step of the plan took, which may have trained for more steps than its flags say."""
        step = step if max_steps is None else step.change(max_steps=max_steps)
        self.add(step.kind, step.command, step.method, seconds, self.count_work(step))

    def count_work(self, step: Step) -> float:
        """Return the work of a step of the plan."""
        return count_work(step.kind, step.command, step.flags, self.folders)

    def estimate(self, step: Step) -> float | None:
        """Return the seconds of a step: by others of its kind, command and method, else of its kind, else of training.

        Returns:
            None if nothing was measured that it could follow from.
        """
        if self.plan.budget.minutes is not None and step.kind == "pretraining":
            return SECONDS_OF_START + 60 * self.plan.budget.minutes
        key = step.name, step.flags.get("max_steps")  # which the time of a budget may change
        if key not in self.known_work:  # whenever a step ends, a view asks for every one that remains
            self.known_work[key] = self.count_work(step)
        work = self.known_work[key]
        groups = [group for group in self._list_groups(step.kind, step.command, step.method) if group in self.measured]
        if not work:
            return statistics.mean(s for s, _ in self.measured[groups[0]]) if groups and groups[0] else SECONDS_OF_START
        for group in groups:
            if total := sum(done for _, done in self.measured[group]):
                # A quarter at least is work: short steps would predict that long ones take no time.
                at_work = sum(max(s - SECONDS_OF_START, s / 4) for s, _ in self.measured[group])
                return SECONDS_OF_START + work * at_work / total
        return None

    def measure_machine(self) -> bool:
        """Train the plan's encoder for a few steps, unless some training was measured; returns whether it did.

        Raises:
            OSError, ValueError: The encoder cannot be loaded.
        """
        if () in self.measured:
            return False
        encoder, flags = self.plan.encoder, self.plan.pretraining
        name = self.plan.folder / encoder if (self.plan.folder / encoder).is_dir() else encoder
        model = AutoModelForMaskedLM.from_pretrained(name, dtype=torch.float32, trust_remote_code=False)
        on_cpu = bool(flags.get("use_cpu")) or not torch.cuda.is_available()
        batch = int(flags.get("per_device_train_batch_size", 32))
        seconds = time_training(
            model.to("cpu" if on_cpu else "cuda"),
            # The speed of a CPU depends little on the batch, and a large encoder would take a minute for each.
            min(batch, TIMED_BATCH) if on_cpu else batch,
            int(flags.get("max_seq_length", LENGTH)),
            bf16=bool(flags.get("bf16")),
        )
        self.measured[()].append((SECONDS_OF_START + 1e6 * seconds, 1e6))
        return True

    def _list_groups(self, kind: str, command: str, method: str | None) -> list[tuple[str, ...]]:
        """List whose speeds count, the most similar first; the last is any training."""
        return [(kind, command, str(method)), (kind, command), ()]


def time_training(model: PreTrainedModel, batch_size: int, length: int, *, bf16: bool = False) -> float:
    """Return the seconds that a training step of masked LM takes for each token, here and now."""
    device, model = model.device, decode_labeled_rows_only(model)
    ids = torch.randint(5, model.config.vocab_size, (batch_size, length), device=device)
    labels = ids.masked_fill(torch.rand(ids.shape, device=device) > 0.15, -100)
    labels[:, 1] = ids[:, 1]  # at least one in each text
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
    model.train()
    seconds: list[float] = []
    while len(seconds) < 1 + TIMED_STEPS and (len(seconds) < 2 or sum(seconds) < TIMED_SECONDS):
        started = time.perf_counter()
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            loss = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        float(loss.detach())  # waits for a GPU
        seconds.append(time.perf_counter() - started)
    model.eval()
    return statistics.median(seconds[1:]) / ids.numel()
