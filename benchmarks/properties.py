r"""What each method is for, beside its cheapest rival: made-up tasks that need what the method is made for.

    python benchmarks/properties.py --properties forgotten --seeds 1 --output properties.jsonl   # 5 minutes on a core
    python benchmarks/properties.py --output properties.jsonl --figure properties.svg            # all, five seeds

Properties:
    new_words    the label hangs on words that only the corpus explains: exBERT and AdaLM, beside LoRA
    early        the same after a third of the training
    forgotten    the label hangs on words that the domain encoder has lost: G-MAP, beside the average of weights
    found        the label is in a passage that BM25 ranks first: RADA, beside the appended passage
    alike        the same, but BM25 ranks five passages equally
    one_base     two domains of new words over one encoder that nothing trains: exBERT, beside LoRA
    real_task    what a real task loses where nothing trains the encoder: exBERT, beside LoRA and all weights trained
    domain_text  the loss on held-out text, the time and the trained megabytes: VarMAE, beside LoRA and DAPT

Every run is a command with its defaults, but in small batches, and starts from the encoder of the quickstart. A run
becomes a line of the output; the same command resumes. After `found` and `alike`, the labels in the passages of the
test texts are changed: `edited` is the accuracy on the new ones, without training.
"""

import argparse
import copy
import itertools
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import torch
from datasets import Dataset
from matplotlib.figure import Figure
from peft import PeftModel
from sklearn.metrics import f1_score
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainingArguments,
    set_seed,
)

from hf_domain import build_datastore
from hf_domain.averaging import average_models
from hf_domain.methods import METHODS
from hf_domain.methods.exbert.convert import load_under_head
from hf_domain.safe_io import read_json, write_text
from hf_domain.training.method_rate import choose_pretraining_rate

DATA = Path(__file__).parents[1] / "examples/quickstart_data"
CLASSES, PIECES, NUM_NEW = ("alpha", "beta", "gamma", "delta"), 6, 40
"""Classes of new words, pieces of each place in a word, and words of each class."""
ENDINGS = ("ing", "ed", "ly", "tion")
NUM_LABELS = 6
LIMITS = {"truncation": True, "max_length": 128}
TEXTS = 1000  # of the real task to train on
Rows = list[dict[str, Any]]


def list_words(tokenizer: Any) -> list[str]:
    """Return the words that are one token each, in a fixed order."""
    return sorted(word for word in tokenizer.get_vocab() if word.isalpha() and word.isascii() and len(word) >= 5)


# ------------------------------------------------------------------------------------------------------- new words


def draw_new_words(tokenizer: Any, rng: random.Random) -> dict[str, tuple[list[str], list[str]]]:
    """Return the new words of each class, for training and for test.

    The tokenizer spells each by three pieces of a small set, and no piece or pair of them tells the class.
    """
    entries = sorted(tokenizer.get_vocab())
    first = [piece for piece in entries if piece.isascii() and piece.isalpha() and len(piece) == 2]
    later = [piece[2:] for piece in entries if piece.startswith("##") and piece[2:].isalpha() and len(piece) == 4]
    whole: list[str] = []
    while len(whole) < NUM_NEW * len(CLASSES):
        parts = itertools.product(*(rng.sample(pieces, PIECES) for pieces in (first, later, later)))
        whole = [a + b + c for a, b, c in parts if tokenizer.tokenize(a + b + c) == [a, f"##{b}", f"##{c}"]]
    chosen = iter(rng.sample(whole, NUM_NEW * len(CLASSES)))
    found = {label: list(itertools.islice(chosen, NUM_NEW)) for label in CLASSES}
    return {label: (each[: NUM_NEW * 3 // 4], each[NUM_NEW * 3 // 4 :]) for label, each in found.items()}


def make_new_words(tokenizer: Any, seed: int, documents: int = 3000) -> tuple[list[str], Rows, Rows]:
    """Return a corpus, and a task to train on and to test.

    The corpus shows every new word among common words of its class. A text of the task has four new words of one class
    beside words that mean nothing, and the new words of its test part are not in its training part.
    """
    rng, words = random.Random(seed), list_words(tokenizer)
    new = draw_new_words(tokenizer, rng)
    common, others = rng.sample(words, 60 + 200), rng.sample(words, 300)
    topics = {label: common[15 * number : 15 * number + 15] for number, label in enumerate(CLASSES)}

    def write() -> str:
        label = rng.choice(CLASSES)
        sentences = [
            [word, *rng.choices(topics[label], k=3), rng.choice(common[60:])]
            for word in rng.choices([*itertools.chain(*new[label])], k=8)
        ]
        for sentence in sentences:
            rng.shuffle(sentence)
        return " ".join(itertools.chain(*sentences))

    def make(part: int) -> dict[str, str]:
        label = rng.choice(CLASSES)
        text = [*rng.sample(new[label][part], 4), *rng.sample(others, 2)]
        rng.shuffle(text)
        return {"text": " ".join(text), "label": label}

    return [write() for _ in range(documents)], [make(0) for _ in range(400)], [make(1) for _ in range(200)]


# -------------------------------------------------------------------------------------------------- forgotten words


def make_forgotten(tokenizer: Any, seed: int, sizes: Sequence[int] = (1500, 1000)) -> tuple[list[str], Rows, Rows]:
    """Return words to forget, and a task to train on and to test.

    Each text has one word of a kind (its ending) among words of other kinds. Words of the test are not in the training.
    """
    rng, words = random.Random(seed), list_words(tokenizer)
    found = {ending: [word for word in words if word.endswith(ending)] for ending in ENDINGS}
    kinds = {ending: rng.sample(each, 140) for ending, each in found.items()}
    others = rng.sample([word for word in words if not word.endswith(ENDINGS)], 400)

    def make(part: int) -> dict[str, str]:
        label = rng.choice(ENDINGS)
        text = [rng.choice(kinds[label][part::2]), *rng.sample(others, 5)]
        rng.shuffle(text)
        return {"text": " ".join(text), "label": label}

    train, test = ([make(part) for _ in range(size)] for part, size in enumerate(sizes))
    return [*itertools.chain(*kinds.values())], train, test


@torch.no_grad()
def forget(encoder: Path, words: list[str], folder: Path) -> None:
    """Save an encoder whose rows of some words are noise of the same mean and deviation."""
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = AutoModelForMaskedLM.from_pretrained(encoder, dtype=torch.float32)
    table, ids = model.get_input_embeddings().weight, tokenizer.convert_tokens_to_ids(words)
    rows, generator = table[ids], torch.Generator().manual_seed(0)
    table[ids] = rows.mean(0) + rows.std(0) * torch.randn(rows.shape, generator=generator)
    model.save_pretrained(folder, save_embedding_layers=False)
    tokenizer.save_pretrained(folder)


# -------------------------------------------------------------------------------------------------------- passages


class Language:
    """Draws texts and passages of words. Every number belongs to one example, so nothing is learned by heart."""

    def __init__(self, words: list[str], seed: int = 0):
        self.rng = random.Random(seed)
        words = self.rng.sample(words, NUM_LABELS + 550)
        self.labels, self.keys, self.decoys = words[:6], words[6:16], words[16:56]
        # Those of texts are not in passages, which would be found by them.
        self.of_texts, self.of_passages = words[56:256], words[256:]
        self.numbers = iter(self.rng.sample(range(1000, 10_000), 9000))

    def write(self, others: list[str], length: int, *words: Any) -> str:
        """Mix words with others that mean nothing."""
        text = [*map(str, words), *self.rng.sample(others, length - len(words))]
        self.rng.shuffle(text)
        return " ".join(text)


def make_found(language: Language) -> tuple[str, str, list[str]]:
    """Return a text, its label and its passage; the text shares its number with this passage alone."""
    number, label = next(language.numbers), language.rng.choice(language.labels)
    text = language.write(language.of_texts, 10, number)
    shared = language.rng.sample([word for word in text.split() if word != str(number)], 2)
    return text, label, [language.write(language.of_passages, 8, number, label, *shared)]


def make_alike(language: Language) -> tuple[str, str, list[str]]:
    """Return a text, its label and five passages that BM25 ranks alike, the one that counts first.

    The text shares its number and one more word with each. The label that counts stands beside one of the ten keys.
    """
    number, labels = next(language.numbers), language.rng.choices(language.labels, k=5)
    shared = [language.rng.choice(language.keys), *language.rng.sample(language.decoys, 4)]
    passages = [language.write(language.of_passages, 8, number, *pair) for pair in zip(labels, shared, strict=True)]
    return language.write(language.of_texts, 11, number, *shared), labels[0], passages


def edit(language: Language, label: str, passage: str) -> tuple[str, str]:
    """Return another label, and the passage with it."""
    new = language.rng.choice([each for each in language.labels if each != label])
    return new, " ".join(new if word == label else word for word in passage.split())


# ------------------------------------------------------------------------------------------------------------ runs


# Also saves the changes of LoRA by themselves, which the command merges into the encoder.
KEPT_APART = """
from dataclasses import replace
from hf_domain.methods import METHODS
from hf_domain.methods.lora import merge_lora
def finish(model, folder):
    model.save_pretrained(f"{folder}/adapter")
    return merge_lora(model, folder)
METHODS["lora"] = replace(METHODS["lora"], finish=finish)
"""


def run(home: Path, command: str, name: str, setup: str = "", **flags: Any) -> dict[str, Any]:
    """Run a command with its defaults, in a process of its own, and return its results."""
    if command != "expand_vocab":
        flags |= {"report_to": "none", "save_strategy": "no", "use_cpu": True, "overwrite_output_dir": True}
    parts = [str(part) for flag, value in flags.items() for part in (f"--{flag}", value)]
    code = f"{setup}\nfrom hf_domain.cli import main; main()"
    arguments = [sys.executable, "-c", code, command, *parts, "--output_dir", str(home / name)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)} stops:\n{done.stderr[-2000:]}")
    return {} if command == "expand_vocab" else read_json(home / name / "all_results.json")


def read_rows(file: Path) -> Rows:
    """Read JSON lines."""
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def write_rows(file: Path, rows: Rows) -> Path:
    """Write rows as JSON lines."""
    write_text(file, "".join(f"{json.dumps(row)}\n" for row in rows))
    return file


def classify(home: Path, name: str, encoder: Path, train: Rows, test: Rows, seed: int, **flags: Any) -> dict[str, Any]:
    """Fine-tune an encoder on a task, and return its accuracy on the test."""
    files = {"train_file": write_rows(home / "train.jsonl", train), "test_file": write_rows(home / "test.jsonl", test)}
    flags = {"do_train": True, "do_predict": True, "max_seq_length": 32, "seed": seed, **files, **flags}
    flags = {"per_device_train_batch_size": 8, "warmup_steps": 0, **flags}
    return {"accuracy": run(home, "classification", name, model_name_or_path=encoder, **flags)["predict_accuracy"]}


def adapt(home: Path, name: str, method: str, corpus: Path, args: argparse.Namespace, **flags: Any) -> dict[str, Any]:
    """Train a method on text, and return what its training says."""
    flags = {"method": method, "train_file": corpus, "max_steps": args.steps, "do_train": True, "seed": 1, **flags}
    flags = {"warmup_steps": 0.1, "per_device_train_batch_size": 16, "model_name_or_path": args.encoder, **flags}
    return run(home, "mlm", name, **flags)


def measure_new_words(args: argparse.Namespace, home: Path, seed: int) -> Iterator[tuple[str, Callable]]:
    """Yield each row with the function that runs it."""
    corpus, train, test = make_new_words(AutoTokenizer.from_pretrained(args.encoder), seed)
    file = home / "corpus.txt"
    write_text(file, "\n".join(corpus))

    def adapt_and_classify(row: str, method: str | None, **flags: Any) -> dict[str, Any]:
        encoder, megabytes = args.encoder, None
        if "expanded_vocabulary" in flags and not (home / "vocabulary").exists():
            start = {"model_name_or_path": args.encoder, "train_file": file, "embedding_init": "none"}
            run(home, "expand_vocab", "vocabulary", **start)
        if method is not None:
            trained = adapt(home, row, method, file, args, max_seq_length=64, **flags)
            encoder, megabytes = home / row, trained["trainable_parameters"] * 4 / 1e6
        return classify(home, f"{row}-task", encoder, train, test, seed) | {"megabytes": megabytes}

    words = {"expanded_vocabulary": home / "vocabulary"}
    yield "no adaptation", lambda: adapt_and_classify("none", None)
    model = AutoModelForMaskedLM.from_pretrained(args.encoder)
    rate = choose_pretraining_rate(model, METHODS["dapt"]) * METHODS["exbert"].rate_factor
    yield "DAPT", lambda: adapt_and_classify("dapt", "dapt")
    yield "DAPT at exBERT's rate", lambda: adapt_and_classify("faster", "dapt", learning_rate=rate)
    yield "LoRA with new words", lambda: adapt_and_classify("lora", "lora", **words)
    yield "AdaLM", lambda: adapt_and_classify("adalm", "dapt", **words)
    yield "exBERT", lambda: adapt_and_classify("exbert", "exbert", **words)
    yield "exBERT from the paper's start", lambda: adapt_and_classify("paper", "exbert", start="paper", **words)


def measure_early(args: argparse.Namespace, home: Path, seed: int) -> Iterator[tuple[str, Callable]]:
    """Yield each row of `measure_new_words` with the function that runs it, for a third of the steps."""
    return measure_new_words(argparse.Namespace(**vars(args) | {"steps": max(1, args.steps // 3)}), home, seed)


def measure_forgotten(args: argparse.Namespace, home: Path, seed: int) -> Iterator[tuple[str, Callable]]:
    """Yield each row with the function that runs it."""
    words, train, test = make_forgotten(AutoTokenizer.from_pretrained(args.encoder), seed)
    forget(args.encoder, words, home / "forgetful")
    both = (home / "forgetful", args.encoder)
    models = [AutoModelForMaskedLM.from_pretrained(each, dtype=torch.float32) for each in both]
    average_models(models).save_pretrained(home / "average")
    AutoTokenizer.from_pretrained(args.encoder).save_pretrained(home / "average")
    memory = {"method": "gmap", "memory_name_or_path": args.encoder}
    yield "domain encoder", lambda: classify(home, "alone", home / "forgetful", train, test, seed)
    yield "average of weights", lambda: classify(home, "averaged", home / "average", train, test, seed)
    yield "G-MAP", lambda: classify(home, "gmap", home / "forgetful", train, test, seed, **memory)


def measure_passages(make: Callable, args: argparse.Namespace, home: Path, seed: int) -> Iterator[tuple[str, Callable]]:
    """Yield each row with the function that runs it."""
    tokenizer = AutoTokenizer.from_pretrained(args.encoder)
    language = Language(list_words(tokenizer), seed)
    examples = [make(language) for _ in range(args.examples + 200)]
    rows: Rows = [{"text": text, "label": label} for text, label, _ in examples]
    edits = [edit(language, label, passages[0]) for _, label, passages in examples]
    changed = [row | {"label": label} for row, (label, _) in zip(rows, edits, strict=True)]
    for folder, firsts in (("passages", [each[2][0] for each in examples]), ("edited", [text for _, text in edits])):
        texts = [text for first, each in zip(firsts, examples, strict=True) for text in (first, *each[2][1:])]
        language.rng.shuffle(texts)  # equal scores rank by id
        build_datastore(Dataset.from_dict({"text": texts}), home / folder, tokenizer)

    def train_and_edit(name: str, **flags: Any) -> dict[str, Any]:
        train, test = rows[: args.examples], rows[args.examples :]
        found = classify(home, name, args.encoder, train, test, seed, **flags, datastore=home / "passages")
        edited = write_rows(home / "edited.jsonl", changed[args.examples :])
        flags = {name: value for name, value in flags.items() if name != "config_overrides"}
        flags |= {"test_file": edited, "do_predict": True, "datastore": home / "edited"}
        after = run(home, "classification", f"{name}-edited", model_name_or_path=home / name, **flags)
        return found | {"edited": after["predict_accuracy"]}

    few = {"num_passages": 5, "config_overrides": "passage_encoder=frozen", "passage_cache": home / "states"}
    yield (
        "no passages",
        lambda: classify(
            home, "alone", args.encoder, rows[: args.examples], rows[args.examples :], seed, num_train_epochs=2
        ),
    )
    yield "best passage appended", lambda: train_and_edit("appended", append_passage=True, max_seq_length=64)
    yield "RADA", lambda: train_and_edit("rada", method="rada", **few)


def measure_one_base(args: argparse.Namespace, home: Path, seed: int) -> Iterator[tuple[str, Callable]]:
    """Yield each row with the function that runs it."""
    yield "exBERT", lambda: serve_domains(args, home, seed, "exbert_adapter")
    yield "LoRA with new words", lambda: serve_domains(args, home, seed, "lora", setup=KEPT_APART)


def serve_domains(args: argparse.Namespace, home: Path, seed: int, method: str, setup: str = "") -> dict[str, Any]:
    """Train an adapter and a head for each of two domains, and serve both over one encoder, batch by batch.

    `megabytes` are those of a domain's file, `switch_ms` those of going from one domain to the other.
    """
    base = AutoModelForSequenceClassification.from_pretrained(args.encoder, num_labels=len(CLASSES))
    before, tokenizers, tests, sizes = copy.deepcopy(base.bert.state_dict()), [], [], []
    for domain in range(2):
        corpus, train, test = make_new_words(AutoTokenizer.from_pretrained(args.encoder), seed + 100 * domain)
        file, words, name = home / f"{domain}.txt", f"vocabulary-{domain}", f"{method}-{domain}"
        write_text(file, "\n".join(corpus))
        if not (home / words).exists():
            start = {"model_name_or_path": args.encoder, "train_file": file, "embedding_init": "none"}
            run(home, "expand_vocab", words, **start)
        adapt(home, name, method, file, args, setup=setup, max_seq_length=64, expanded_vocabulary=home / words)
        tokenizers.append(AutoTokenizer.from_pretrained(home / name))
        set_seed(seed)
        model = put_under_head(args, home / name / "adapter", tokenizers[-1], CLASSES)
        train_classifier(model, home / f"{name}-task", tokenizers[-1], train, CLASSES, seed)
        model.save_pretrained(home / f"{name}-task", save_embedding_layers=False)
        tests.append(test)
        sizes.append((home / f"{name}-task/adapter_model.safetensors").stat().st_size / 1e6)
    if method == "lora":  # ids of new words mean other words in each domain: the table has room for the longer list
        base.resize_token_embeddings(max(map(len, tokenizers)), mean_resizing=False)
    served = PeftModel.from_pretrained(base, home / f"{method}-0-task", adapter_name="first")
    served.load_adapter(home / f"{method}-1-task", adapter_name="second")
    right, waits = [], []
    for start in range(0, 200, 20):
        for domain, tokenizer, test in zip(("first", "second"), tokenizers, tests, strict=True):
            began = time.perf_counter()
            served.set_adapter(domain)
            waits.append((time.perf_counter() - began) * 1000)
            rows = test[start : start + 20]
            found = choose_labels(served, tokenizer, rows, CLASSES)
            right += [label == row["label"] for label, row in zip(found, rows, strict=True)]
    after = served.unload().bert.state_dict()
    # The pooler belongs to the head: it is new in this encoder, and trains with it.
    own = [name for name in before if not name.startswith("pooler.")]
    kept = [torch.equal(before[name], after[name][: len(before[name])]) for name in own]
    return {
        "accuracy": statistics.mean(right),
        "megabytes": statistics.mean(sizes),
        "switch_ms": statistics.median(waits),
        "base_is_kept": float(all(kept)),
    }


def put_under_head(args: argparse.Namespace, adapter: Path, tokenizer: Any, labels: Sequence[str]) -> PeftModel:
    """Return the encoder with an adapter of masked LM and a new head, both of which train; the encoder does not."""
    base = AutoModelForSequenceClassification.from_pretrained(args.encoder, num_labels=len(labels))
    if read_json(adapter / "adapter_config.json")["peft_type"] == "LORA":
        base.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    return load_under_head(base, adapter)


def train_classifier(
    model: Any, folder: Path, tokenizer: Any, train: Rows, labels: Sequence[str], seed: int, **options: Any
) -> None:
    """Train a classifier with the stock Trainer."""
    texts = tokenizer([row["text"] for row in train], **LIMITS)
    data = Dataset.from_dict({**texts, "labels": [labels.index(row["label"]) for row in train]})
    options = {"per_device_train_batch_size": 8, "max_steps": 600, "learning_rate": 1e-3, "warmup_steps": 0.1} | options
    options |= {"report_to": "none", "save_strategy": "no", "disable_tqdm": True, "use_cpu": True, "seed": seed}
    arguments = TrainingArguments(str(folder), label_names=["labels"], **options)
    Trainer(model, arguments, train_dataset=data, data_collator=DataCollatorWithPadding(tokenizer)).train()


@torch.no_grad()
def choose_labels(model: Any, tokenizer: Any, rows: Rows, labels: Sequence[str]) -> list[str]:
    """Return the label that a classifier gives to each text."""
    batch = tokenizer([row["text"] for row in rows], return_tensors="pt", padding=True, **LIMITS)
    return [labels[number] for number in model.eval()(**batch).logits.argmax(-1).tolist()]


def measure_real_task(args: argparse.Namespace, home: Path, seed: int) -> Iterator[tuple[str, Callable]]:
    """Yield each row with the function that runs it; `megabytes` are those that a domain adds to a server."""
    files = {part: args.task / f"{part}.jsonl" for part in ("train", "validation", "test")}
    train, test = read_rows(files["train"])[:TEXTS], read_rows(files["test"])
    labels = sorted({row["label"] for row in train})

    def train_all(encoder: Path) -> dict[str, Any]:
        flags = {"do_train": True, "do_eval": True, "do_predict": True, "max_seq_length": 128, "seed": seed}
        flags |= {f"{part}_file": file for part, file in files.items()} | {"max_train_samples": TEXTS}
        found = run(home, "classification", f"{encoder.name}-task", model_name_or_path=encoder, **flags)
        return {"macro_f1": found["predict_macro_f1"], "megabytes": found["trainable_parameters"] * 4 / 1e6}

    def adapt_and_train_all() -> dict[str, Any]:
        adapt(home, "dapt", "dapt", args.corpus, args, max_seq_length=128)
        return train_all(home / "dapt")

    def train_over_base(method: str, setup: str = "") -> dict[str, Any]:
        if not (home / "vocabulary").exists():
            start = {"model_name_or_path": args.encoder, "train_file": args.corpus, "embedding_init": "none"}
            run(home, "expand_vocab", "vocabulary", **start, training_tokens=args.steps * 16 * 128)
        flags = {"setup": setup, "max_seq_length": 128, "expanded_vocabulary": home / "vocabulary"}
        adapt(home, method, method, args.corpus, args, **flags)
        set_seed(seed)
        tokenizer = AutoTokenizer.from_pretrained(home / method)
        model = put_under_head(args, home / method / "adapter", tokenizer, labels)
        options = {"per_device_train_batch_size": 16, "max_steps": 1000}
        train_classifier(model, home / "task", tokenizer, train, labels, seed, **options)
        parts = [test[start : start + 32] for start in range(0, len(test), 32)]
        found = [label for part in parts for label in choose_labels(model, tokenizer, part, labels)]
        trained = sum(weight.numel() for weight in model.parameters() if weight.requires_grad)
        score = f1_score([row["label"] for row in test], found, average="macro")
        return {"macro_f1": score, "megabytes": trained * 4 / 1e6}

    yield "no adaptation, all weights trained", lambda: train_all(args.encoder)
    yield "DAPT, all weights trained", adapt_and_train_all
    yield "LoRA with new words", lambda: train_over_base("lora", KEPT_APART)
    yield "exBERT", lambda: train_over_base("exbert_adapter")


def measure_domain_text(args: argparse.Namespace, home: Path, seed: int) -> Iterator[tuple[str, Callable]]:
    """Yield each row with the function that runs it."""

    def train(method: str) -> dict[str, Any]:
        flags = {"do_eval": True, "max_seq_length": 128, "seed": seed}
        metrics = adapt(home, method, method, args.corpus, args, **flags)
        return {
            "loss": metrics["eval_loss"],
            "seconds": metrics["train_runtime"],
            "megabytes": metrics["trainable_parameters"] * 4 / 1e6,
        }

    yield "DAPT", lambda: train("dapt")
    yield "LoRA", lambda: train("lora")
    yield "VarMAE", lambda: train("varmae")


PROPERTIES: dict[str, Callable] = {
    "new_words": measure_new_words,
    "early": measure_early,
    "forgotten": measure_forgotten,
    "found": lambda *args: measure_passages(make_found, *args),
    "alike": lambda *args: measure_passages(make_alike, *args),
    "one_base": measure_one_base,
    "real_task": measure_real_task,
    "domain_text": measure_domain_text,
}


def print_table(lines: Rows) -> None:
    """Print the mean of each row's measures, with the smallest and the largest of several seeds."""
    rows = dict.fromkeys((line["property"], line["row"]) for line in lines)
    for name, row in rows:
        runs = [line["measures"] for line in lines if (line["property"], line["row"]) == (name, row)]
        said = []
        for measure in runs[0]:
            values = [each[measure] for each in runs if each[measure] is not None]
            if values:
                spread = f" ({min(values):.4g} to {max(values):.4g})" if len(values) > 1 else ""
                said.append(f"{measure} {statistics.mean(values):.4g}{spread}")
        print(f"{name:12} {row:22} {'; '.join(said)}")


# Properties whose accuracies are drawn, and the colors of their rows; others are without the method and its rival.
TITLES = {
    "new_words": "new words, whose class only the corpus shows",
    "early": "the same, after a third of the training",
    "forgotten": "words that the domain encoder has lost",
    "alike": "the answer is in one of five passages that BM25 ranks alike",
    "found": "the answer is in the passage that BM25 ranks first",
}
COLORS = dict.fromkeys(("exBERT", "exBERT from the paper's start", "AdaLM", "G-MAP", "RADA"), "#1b6ca8")
COLORS |= dict.fromkeys(("LoRA with new words", "average of weights", "best passage appended"), "#d1793a")


def draw_accuracies(lines: Rows, file: Path) -> None:
    """Draw the mean of each row as a dot, on a line from the smallest accuracy to the largest."""
    known = [*dict.fromkeys((line["property"], line["row"]) for line in lines)][::-1]
    rows = {name: drawn for name in TITLES if (drawn := [row for of, row in known if of == name])}
    figure, heights = Figure(layout="constrained"), [len(drawn) + 1.5 for drawn in rows.values()]
    figure.set_size_inches(7, 0.4 + 0.26 * sum(heights))
    panels = figure.subplots(len(rows), sharex=True, height_ratios=heights, squeeze=False)[:, 0]
    for axes, (name, drawn) in zip(panels, rows.items(), strict=True):
        for place, row in enumerate(drawn):
            runs = [line["measures"] for line in lines if (line["property"], line["row"]) == (name, row)]
            values, color = [100 * each["accuracy"] for each in runs], COLORS.get(row, "#8a8a8a")
            axes.plot([min(values), max(values)], [place, place], color=color, linewidth=2)
            axes.plot(statistics.mean(values), place, "o", color=color)
        axes.set_yticks(range(len(drawn)), drawn)
        axes.set(ylim=(-0.7, len(drawn) - 0.3), xlim=(0, 102))
        axes.set_title(TITLES[name], loc="left", fontsize=10)
        axes.spines[["top", "right"]].set_visible(False)
    panels[-1].set_xlabel("accuracy in percent")
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "hf-domain"}):
        figure.savefig(file, metadata={"Date": None})


def main() -> None:
    """Run what the output lacks, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--properties", nargs="+", choices=PROPERTIES, default=[*PROPERTIES])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--encoder", type=Path, default=DATA / "encoder")
    parser.add_argument("--corpus", type=Path, default=DATA / "corpus.txt.gz")
    parser.add_argument("--task", type=Path, default=DATA / "acl_arc", help="folder of the real task")
    parser.add_argument("--steps", type=int, default=150, help="of masked LM, with 16 texts each")
    parser.add_argument("--examples", type=int, default=2500, help="to train on, of the tasks with passages")
    parser.add_argument("--output", type=Path, required=True, help="JSON lines, a run each: read, and added to")
    parser.add_argument("--figure", type=Path, help="SVG of the accuracies")
    args = parser.parse_args()
    args.encoder, args.corpus = args.encoder.resolve(), args.corpus.resolve()
    lines = read_rows(args.output) if args.output.is_file() else []
    known = {(line["property"], line["row"], line["seed"]) for line in lines}
    for seed, name in itertools.product(args.seeds, args.properties):
        with tempfile.TemporaryDirectory() as folder:
            os.environ["HF_DATASETS_CACHE"] = f"{folder}/cache"
            for row, measure in PROPERTIES[name](args, Path(folder), seed):
                if (name, row, seed) in known:
                    continue
                started = time.monotonic()
                lines.append({"property": name, "row": row, "seed": seed, "measures": measure()})
                with args.output.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(lines[-1]) + "\n")
                print(lines[-1], f"{time.monotonic() - started:.0f} s", flush=True)
    print_table(lines)
    if args.figure is not None:
        draw_accuracies(lines, args.figure)


if __name__ == "__main__":
    main()
