"""Measure students of Adapt-and-Distill on held-out text: their distillation loss from one teacher, and their speed.

    python benchmarks/students.py --teacher distilled/adapted-teacher --validation_file heldout.txt.gz \
        --students distilled/*/adapted-distilled distilled/from_scratch/adapted --output students.json

The loss is MiniLM's: its two terms and their sum. A student that was never distilled is measured in the same way. For
the speed, the encoders of teacher and students take turns on each sequence, alone in its batch and on one thread, so
that a busy machine slows all of them; the fastest of their repetitions counts.
"""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
)

from hf_domain.data.corpora import load_corpus, tokenize_corpus
from hf_domain.environment import describe_environment
from hf_domain.methods.adalm.model import DistillationModel
from hf_domain.safe_io import write_json
from hf_domain.training.callbacks import log_auxiliary_losses


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--teacher", required=True)
    parser.add_argument("--students", nargs="+", required=True)
    parser.add_argument("--validation_file", required=True)
    parser.add_argument("--max_seq_length", type=int, default=128)
    parser.add_argument("--max_eval_samples", type=int, default=256)
    parser.add_argument("--timed_samples", type=int, default=50, help="sequences for the speed")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--output", type=Path, default=None, help="JSON file; default prints")
    return parser.parse_args()


def measure_times(readers: Mapping[str, Callable], examples: Sequence[Any], repetitions: int) -> dict[str, float]:
    """Return the milliseconds that each reader needs for an example on one thread, the mean over the examples."""
    torch.set_num_threads(1)
    sums = dict.fromkeys(readers, 0.0)
    with torch.inference_mode():
        for example in examples:
            fastest = dict.fromkeys(readers, float("inf"))
            for _ in range(repetitions):
                for name, read in readers.items():
                    start = time.perf_counter()
                    read(example)
                    fastest[name] = min(fastest[name], time.perf_counter() - start)
            sums = {name: sums[name] + fastest[name] for name in readers}
    return {name: 1000 * total / len(examples) for name, total in sums.items()}


def main() -> None:
    """Measure and write."""
    args = parse_arguments()
    tokenizer = AutoTokenizer.from_pretrained(args.teacher)
    corpus = load_corpus(Path(args.validation_file), Path(args.validation_file))
    examples = tokenize_corpus(corpus, tokenizer, max_seq_length=args.max_seq_length)["validation"]
    examples = examples.select(range(min(args.max_eval_samples, len(examples))))
    teacher = AutoModelForMaskedLM.from_pretrained(args.teacher)
    losses = {}
    for student in args.students:
        trainer = Trainer(
            DistillationModel(AutoModelForMaskedLM.from_pretrained(student), teacher),
            TrainingArguments("unused", report_to="none", disable_tqdm=True),
            eval_dataset=examples,
            processing_class=tokenizer,
            data_collator=DataCollatorWithPadding(tokenizer),
        )
        log_auxiliary_losses(trainer)
        metrics = trainer.evaluate()
        losses[student] = {name: value for name, value in metrics.items() if name.endswith("loss")}
        print(student, losses[student], flush=True)
    encoders = {name: AutoModel.from_pretrained(name).eval() for name in (args.teacher, *args.students)}
    timed = [torch.tensor([input_ids]) for input_ids in examples["input_ids"][: args.timed_samples]]
    milliseconds = measure_times(encoders, timed, args.repetitions)
    print(milliseconds)
    result = {"teacher": args.teacher, "sequences": len(examples), "losses": losses, "milliseconds": milliseconds}
    if args.output is None:
        print(json.dumps(result, indent=1))
    else:
        write_json(args.output, result | {"environment": describe_environment()})


if __name__ == "__main__":
    main()
