"""Measure how each method starts: its masked loss before the first step and after some steps, and the encoder's.

    python benchmarks/starts.py --model_name_or_path encoder --corpus corpus.txt.gz --heldout heldout.txt.gz

All losses are measured on held-out text, in nats per masked token and in nats per masked word. Models are built,
prepared and trained like `hf-domain mlm` with the flags of their recipes. Only `adalm` has new words: its tokens differ
from those of the other starts, but its masked words are the same. The memory of G-MAP is the encoder itself. The
passages of RADA are the documents after those of the training; RADA has no loss per word, because without passages it
is its encoder. Starts that read general text (`domain_words`, `random_words`, `keywords`) need `--general`.

`--output` is written after each start; repeat the command with the same options to add missing starts.
"""

import random
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
from hf_domain.comparison.default_flags import put_files
from hf_domain.comparison.rows import RECIPES
from hf_domain.data.corpora import load_corpus, tokenize_corpus
from hf_domain.data.masking import DataCollatorForTokenMask
from hf_domain.environment import describe_environment
from hf_domain.methods import METHODS
from hf_domain.methods.adalm.expand import expand_vocabulary
from hf_domain.methods.method_rate import use_method_rate
from hf_domain.methods.rada.passages import PassageArguments, PassageReader
from hf_domain.safe_io import read_json, write_json
from hf_domain.training.callbacks import Annealing
from hf_domain.training.pretraining import (
    CorpusArguments,
    PretrainingArguments,
    load_masked_lm,
    make_collator,
    prepare_start,
)

STARTS = ("dapt", "varmae", "varmae_paper", "exbert", "exbert_paper", "gmap_mlm", "rada_mlm", "adalm", "lora")


@dataclass
class Arguments:
    """The size of the measurement."""

    model_name_or_path: str = field(metadata={"help": "Encoder with a masked-LM head."})
    corpus: str = field(metadata={"help": "Text of a domain, to train on."})
    heldout: str = field(metadata={"help": "Text of the same domain, to measure on."})
    general: str | None = field(default=None, metadata={"help": "General text, for the starts that read it."})
    starts: list[str] = field(default_factory=lambda: [*STARTS], metadata={"help": "Recipes."})
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


@dataclass
class HeldOut:
    """Masked batches of held-out text, and the number of masked tokens (or words) in them."""

    batches: list[dict[str, torch.Tensor]]
    targets: int


@torch.no_grad()
def measure(model: Any, held_out: HeldOut, training: bool = False) -> float:
    """Return the cross-entropy of the masked tokens, in nats per target."""
    was_training, total = model.training, 0.0
    model.train(training)
    for batch in held_out.batches:
        output = model(**{name: value.to(model.device) for name, value in batch.items()})
        loss = output.get("masked_reconstruction_loss", output.loss)  # VarMAE's loss has more terms
        total += float(loss) * count_masked(batch)
    model.train(was_training)
    return total / held_out.targets


def count_masked(batch: dict[str, torch.Tensor]) -> int:
    """Return the number of tokens to predict."""
    return int((batch["labels"] != -100).sum())


@contextmanager
def keep_buffers(model: Any) -> Iterator[None]:
    """Put back the buffers at the end: batch statistics change in training mode."""
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    with torch.random.fork_rng():
        yield
    for name, buffer in model.named_buffers():
        buffer.copy_(kept[name])


class HeldOutLoss(TrainerCallback):
    """Measures the held-out losses after some steps."""

    def __init__(self, held_out: dict[str, HeldOut], steps: list[int]):
        self.held_out, self.steps = held_out, steps
        self.losses: dict[str, dict[str, float]] = {name: {} for name in held_out}

    def measure(self, model: Any, step: int) -> None:
        """Measure and print the losses."""
        for name, held_out in self.held_out.items():
            self.losses[name][str(step)] = loss = measure(model, held_out)
            print(f"  step {step}: {name} {loss:.3f}", flush=True)

    def on_step_end(self, args: Any, state: Any, control: Any, model: Any = None, **kwargs) -> None:
        """Measure after the chosen steps."""
        if state.global_step in self.steps:
            self.measure(model, state.global_step)


def mask_tokens(dataset: Any, collator: Any, args: Arguments) -> HeldOut:
    """Return the masked held-out blocks, the same for all starts of one tokenizer."""
    rows = list(dataset.take(min(args.blocks, len(dataset))))
    batches = [collator(rows[first : first + args.batch_size]) for first in range(0, len(rows), args.batch_size)]
    return HeldOut(batches, sum(map(count_masked, batches)))


def mask_words(texts: list[str], usual: Any, tokenizer: Any, args: Arguments) -> HeldOut:
    """Return the starts of held-out texts with 15 % of their words masked, the same words under every tokenizer.

    Args:
        usual: The encoder's tokenizer, which chooses the words: those that it reads whole within `length` tokens.
        tokenizer: The one to read the texts with; splits them into the same words.
    """
    rng, batches, targets = random.Random(args.seed), [], 0
    for text in texts[: args.blocks]:
        encoding = usual(text, truncation=True, max_length=args.length)
        words = [word for word in encoding.word_ids() if word is not None]
        whole = range(max(words, default=0))  # the last word may be cut
        tokens = zip(encoding["input_ids"], encoding.word_ids(), strict=True)
        unknown = {word for token, word in tokens if token == usual.unk_token_id}
        masked = {word for word in whole if rng.random() < 0.15} - unknown
        encoding = tokenizer(text, truncation=True)
        tokens = zip(encoding["input_ids"], encoding.word_ids(), strict=True)
        kept = [(token, word) for token, word in tokens if word is None or word in whole]
        if masked:
            inputs = [tokenizer.mask_token_id if word in masked else token for token, word in kept]
            labels = [token if word in masked else -100 for token, word in kept]
            batches.append({"input_ids": torch.tensor([inputs]), "labels": torch.tensor([labels])})
            targets += len(masked)
    return HeldOut(batches, targets)


def read_flags(name: str, args: Arguments) -> tuple[float, PretrainingArguments, CorpusArguments, PassageArguments]:
    """Return the learning rate of a recipe and the arguments of `hf-domain mlm`.

    Raises:
        ValueError: The recipe reads general text, but there is none.
    """
    recipe = RECIPES[name]
    if recipe.needs_general and args.general is None:
        raise ValueError(f"{name} needs general text, but --general is not given. Add it, or leave out {name}.")
    flags = put_files(recipe.pretraining, {"domain": args.corpus, "general": str(args.general)})
    rate = flags.pop("learning_rate")
    flags |= {"model_name_or_path": args.model_name_or_path, "method": recipe.method, "max_seq_length": args.length}
    if METHODS[str(recipe.method)].reads_memory:
        flags["memory_name_or_path"] = args.model_name_or_path
    parser: Any = HfArgumentParser((PretrainingArguments, CorpusArguments, PassageArguments))
    return rate, *parser.parse_dict(flags)


def run(name: str, args: Arguments, usual: Any, corpus: Any, passages: Any, folder: str) -> dict[str, Any]:
    """Measure one start."""
    rate, model_args, data_args, passage_args = read_flags(name, args)
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
    tokenizer, delta = usual, None
    if name == "adalm":
        texts, tokens = corpus["train"], args.steps * args.batch_size * args.length
        tokenizer, delta, _ = expand_vocabulary(usual, texts, training_tokens=tokens, progress=False)
    examples = tokenize_corpus(corpus, tokenizer, max_seq_length=args.length, whole_words=data_args.whole_word_mask)
    set_seed(args.seed)
    model = load_masked_lm(model_args, tokenizer, delta)
    collator = make_collator(tokenizer, data_args, training_args)
    token_mask = DataCollatorForTokenMask(tokenizer, seed=args.seed)
    examples["validation"] = examples["validation"].select_columns("input_ids")
    if METHODS[str(model_args.method)].reads_passages:
        from hf_domain.datastore import build_datastore

        datastore = build_datastore(passages, Path(folder, "datastore"), tokenizer)
        reader = PassageReader(passage_args, model, tokenizer, datastore)
        examples = reader.look_up_blocks(examples)
        held_out = {"heldout": mask_tokens(examples["validation"], reader.collate(token_mask), args)}
        collator = reader.collate(collator)
    else:
        held_out = {"heldout": mask_tokens(examples["validation"], token_mask, args)}
        held_out["heldout_words"] = mask_words(corpus["validation"]["text"], usual, tokenizer, args)
    callback = HeldOutLoss(held_out, [*args.measured_steps, args.steps])
    trainer = Trainer(
        model,
        training_args,
        train_dataset=examples["train"],
        data_collator=collator,
        callbacks=[callback, Annealing()],
    )
    prepare_start(trainer, model_args)
    use_method_rate(trainer)
    with keep_buffers(model):
        train_mode = measure(model, held_out["heldout"], training=True)
    print(f"{name}: {train_mode:.3f} in training mode", flush=True)
    callback.measure(model, 0)
    started = time.perf_counter()
    trainer.train()
    return {
        "learning_rate": rate,
        "entries": len(tokenizer),
        "start_training_mode": train_mode,
        **callback.losses,
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    (args,) = HfArgumentParser(Arguments).parse_args_into_dataclasses()
    for name in args.starts:
        read_flags(name, args)
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    corpus = load_corpus(Path(args.corpus), Path(args.heldout))
    documents = corpus["train"]
    corpus["train"] = documents.take(min(args.documents, len(documents)))
    passages = documents.skip(len(corpus["train"]))
    passages = passages.take(min(args.documents, len(passages)))
    encoder = load_masked_lm(PretrainingArguments(args.model_name_or_path), tokenizer, None)
    blocks = tokenize_corpus(corpus, tokenizer, max_seq_length=args.length)["validation"]
    held_out = {"heldout": mask_tokens(blocks, DataCollatorForTokenMask(tokenizer, seed=args.seed), args)}
    held_out["heldout_words"] = mask_words(corpus["validation"]["text"], tokenizer, tokenizer, args)
    losses = {kind: measure(encoder, each) for kind, each in held_out.items()}
    print(f"encoder: {losses['heldout']:.3f} per token, {losses['heldout_words']:.3f} per word", flush=True)
    output, options = Path(args.output), asdict(args) | {"starts": None, "output": None}
    results: dict[str, Any] = {"arguments": options, "environment": describe_environment()}
    results |= {"encoder": losses, "targets": {kind: each.targets for kind, each in held_out.items()}, "starts": {}}
    if output.is_file() and (earlier := read_json(output))["arguments"] == options:
        results["starts"] = earlier["starts"]
    for name in [name for name in args.starts if name not in results["starts"]]:
        with tempfile.TemporaryDirectory() as folder:
            results["starts"][name] = run(name, args, tokenizer, corpus, passages, folder)
        write_json(output, results)
    print_table("nats per masked token", "heldout", results)
    print_table("nats per masked word", "heldout_words", results)


def print_table(title: str, kind: str, results: dict[str, Any]) -> None:
    """Print the losses of one kind of target."""
    rows = {name: row[kind] for name, row in results["starts"].items() if kind in row}
    print(f"\n{title:22}" + "".join(f"{step:>8}" for step in next(iter(rows.values()), {})))
    for name, losses in {"encoder": {"0": results["encoder"][kind]}, **rows}.items():
        print(f"{name:22}" + "".join(f"{loss:8.3f}" for loss in losses.values()))


if __name__ == "__main__":
    main()
