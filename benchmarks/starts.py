"""Measure how each method starts: its masked loss before the first step and after some steps, and the encoder's.

    python benchmarks/starts.py --model_name_or_path encoder --corpus corpus.txt.gz --heldout heldout.txt.gz

All losses are measured on held-out text. Models are built, prepared and trained like `hf-domain mlm` with the flags of
their recipes. exBERT has no new words here, because losses under different vocabularies are not comparable. `--output`
is written after each start; repeat the command with the same options to add missing starts.
"""

import copy
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoTokenizer,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

import hf_domain  # noqa: F401  the Auto classes then know its models
from hf_domain.data.corpora import load_corpus, tokenize_corpus
from hf_domain.data.masking import DataCollatorForTokenMask
from hf_domain.environment import describe_environment
from hf_domain.files import read_json, write_json
from hf_domain.recipes import RECIPES
from hf_domain.training.pretraining import PretrainingArguments, load_model, prepare_start


@dataclass
class Arguments:
    """The size of the measurement."""

    model_name_or_path: str = field(metadata={"help": "Encoder with a masked-LM head."})
    corpus: str = field(metadata={"help": "Text of a domain, to train on."})
    heldout: str = field(metadata={"help": "Text of the same domain, to measure on."})
    starts: list[str] = field(
        default_factory=lambda: ["varmae", "exbert", "dapt", "varmae_paper", "exbert_paper"],
        metadata={"help": "Recipes."},
    )
    documents: int = field(default=4000, metadata={"help": "Number of documents of the corpus."})
    blocks: int = field(default=96, metadata={"help": "Number of held-out examples."})
    batch_size: int = field(default=8, metadata={"help": "Number of examples per step."})
    length: int = field(default=128, metadata={"help": "Number of tokens per example."})
    steps: int = field(default=200, metadata={"help": "Number of training steps."})
    measured_steps: list[int] = field(
        default_factory=lambda: [50], metadata={"help": "Earlier steps at which to measure."}
    )
    bf16: bool = field(default=False, metadata={"help": "Train in mixed precision; losses are measured in float32."})
    seed: int = field(default=0, metadata={"help": "Seed of masks, order and new weights."})
    output: str = field(default="starts.json", metadata={"help": "Result file."})


@torch.no_grad()
def measure(model: Any, batches: list[dict[str, torch.Tensor]], training: bool = False) -> float:
    """Return the mean cross-entropy of the masked tokens of `batches`, nats."""
    was_training, total, count = model.training, 0.0, 0
    model.train(training)
    for batch in batches:
        output = model(**{name: value.to(model.device) for name, value in batch.items()})
        loss = output.get("masked_reconstruction_loss", output.loss)  # VarMAE's loss has more terms
        masked = int((batch["labels"] != -100).sum())
        total, count = total + float(loss) * masked, count + masked
    model.train(was_training)
    return total / count


class HeldOutLoss(TrainerCallback):
    """Measures the loss of the held-out batches after some steps."""

    def __init__(self, batches: list[dict[str, torch.Tensor]], steps: list[int]):
        self.batches, self.steps, self.losses = batches, steps, dict[str, float]()

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs) -> None:
        """Measure and print the table."""
        if state.global_step in self.steps:
            self.losses[str(state.global_step)] = loss = measure(model, self.batches)
            print(f"  step {state.global_step}: {loss:.3f} on held-out text", flush=True)


def run(name: str, args: Arguments, tokenizer: Any, examples: Any, collator: Any, folder: str) -> dict[str, Any]:
    """Measure one start."""
    flags = dict(RECIPES[name].pretraining)
    rate = flags.pop("learning_rate")
    model_args = PretrainingArguments(args.model_name_or_path, method=str(RECIPES[name].method), **flags)
    training_args = TrainingArguments(
        folder,
        per_device_train_batch_size=args.batch_size,
        max_steps=args.steps,
        learning_rate=rate,
        warmup_steps=0.1,
        bf16=args.bf16,
        use_cpu=not torch.accelerator.is_available(),
        seed=args.seed,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
    )
    set_seed(args.seed)
    model = load_model(model_args, tokenizer, None)
    held_out = make_batches(examples["validation"], collator, args)
    callback = HeldOutLoss(held_out, [*args.measured_steps, args.steps])
    trainer = Trainer(
        model, training_args, train_dataset=examples["train"], data_collator=collator, callbacks=[callback]
    )
    prepare_start(trainer, model_args)
    train_mode = measure(
        copy.deepcopy(model), held_out, training=True
    )  # a copy, because batch statistics change in training mode
    start = measure(model, held_out)
    print(f"{name}: {train_mode:.3f} in training mode, {start:.3f} in evaluation", flush=True)
    started = time.perf_counter()
    trainer.train()
    return {
        "learning_rate": rate,
        "start_training_mode": train_mode,
        "heldout": {"0": start, **callback.losses},
        "seconds": time.perf_counter() - started,
    }


def make_batches(dataset: Any, collator: Any, args: Arguments) -> list[dict[str, torch.Tensor]]:
    """Return the masked held-out blocks, which are the same for all starts."""
    rows = list(dataset.take(min(args.blocks, len(dataset))))
    return [collator(rows[first : first + args.batch_size]) for first in range(0, len(rows), args.batch_size)]


def main() -> None:
    (args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    corpus = load_corpus(Path(args.corpus), Path(args.heldout))
    corpus["train"] = corpus["train"].take(min(args.documents, len(corpus["train"])))
    examples = tokenize_corpus(corpus, tokenizer, max_seq_length=args.length)
    collator = DataCollatorForTokenMask(tokenizer, seed=args.seed)
    encoder = load_model(PretrainingArguments(args.model_name_or_path), tokenizer, None)
    encoder_loss = measure(encoder, make_batches(examples["validation"], collator, args))
    print(f"encoder: {encoder_loss:.3f}", flush=True)
    output, options = Path(args.output), asdict(args) | {"starts": None, "output": None}
    results: dict[str, Any] = {"arguments": options, "environment": describe_environment()}
    results |= {"encoder": encoder_loss, "starts": {}}
    if output.is_file() and (earlier := read_json(output))["arguments"] == options:
        results["starts"] = earlier["starts"]
    for name in [name for name in args.starts if name not in results["starts"]]:
        with tempfile.TemporaryDirectory() as folder:
            results["starts"][name] = run(name, args, tokenizer, examples, collator, folder)
        write_json(output, results)
    print(f"\n{'':14}{'training':>10}" + "".join(f"{step:>8}" for step in ["0", *args.measured_steps, args.steps]))
    for name, row in results["starts"].items():
        print(f"{name:14}{row['start_training_mode']:10.3f}" + "".join(f"{x:8.3f}" for x in row["heldout"].values()))
    print(f"{'encoder':14}{'':10}{encoder_loss:8.3f}")


if __name__ == "__main__":
    main()
