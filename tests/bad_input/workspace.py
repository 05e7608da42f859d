"""The good inputs that a bad case spoils, and what a command makes of them."""

import errno
import hashlib
import io
import os
import resource
import shlex
import sys
import traceback
from collections.abc import Callable
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml
from script_runs import save_tiny_bert, write_jsonl
from tiny_tokenizers import SENTENCES, make_bert_tokenizer
from transformers import (
    AutoModelForMaskedLM,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
)

from hf_domain import cli


def read_flags(text: str) -> dict[str, Any]:
    """Read a command line: a flag without a value is True, one with several a list; `!name` drops a flag."""
    flags: dict[str, Any] = {}
    name = ""
    for word in shlex.split(text):
        if word.startswith(("--", "!")):
            name = word.removeprefix("--").removeprefix("!")
            flags[name] = None if word.startswith("!") else True
        else:
            known = flags.get(name, True)
            flags[name] = word if known is True else [*(known if isinstance(known, list) else [known]), word]
    return flags


ENCODER = "--model_name_or_path encoder"
WORK = "--use_cpu --report_to none --disable_tqdm true --max_seq_length 16 --output_dir out"
TRAINING = f"{WORK} --do_train --max_steps 1 --per_device_train_batch_size 4 --save_strategy no"
CORPUS = "--train_file corpus.txt --validation_file heldout.txt"
SPLITS = "--train_file {0}/train.jsonl --validation_file {0}/validation.jsonl --test_file {0}/test.jsonl"
FINE_TUNING = f"{ENCODER} {TRAINING} --do_eval --do_predict {SPLITS}"
COMMANDS = {
    "mlm": f"{ENCODER} {CORPUS} {TRAINING}",
    "classification": FINE_TUNING.format("task"),
    "ner": FINE_TUNING.format("ner"),
    "qa": FINE_TUNING.format("qa").replace("length 16", "length 32 --doc_stride 4"),
    "expand_vocab": f"{ENCODER} --train_file corpus.txt --output_dir out --num_workers 1 --size 125 --min_frequency 2",
    "distill": f"{ENCODER} {CORPUS} {WORK} --per_device_train_batch_size 4 --save_strategy no --strategy from_scratch "
    "--student_steps 1 --num_hidden_layers 1",
    "build_datastore": f"{ENCODER} --train_file corpus.txt --output_dir out --max_length 32",
    "predict": "classifier heldout.txt --output_file labels.jsonl",
    "sentences": f"{ENCODER} --validation_file pairs/validation.jsonl --test_file pairs/test.jsonl --do_eval "
    "--do_predict --max_seq_length 16 --use_cpu --report_to none --output_dir out",
    "advise": f"{ENCODER} --corpus corpus.txt --task task --general heldout.txt --max_seq_length 16 --output_dir out",
    "compare": "plan.yaml --output_dir out --dry_run",
    "publish": "--comparison comparison --method dapt --corpus domain",
    "export": "--model_name_or_path classifier --output_dir out",
    "quickstart": f"{ENCODER} --corpus corpus.txt --task task --output_dir out --minutes 0.1 --max_seq_length 16",
}
COMMANDS = {name: read_flags(text) for name, text in COMMANDS.items()}
PLAN: dict[str, Any] = {
    "encoder": "encoder",
    "corpora": {"domain": {"train_file": "corpus.txt", "validation_file": "heldout.txt"}},
    "tasks": {"topics": {"kind": "classification", "folder": "task", "corpus": "domain"}},
    "methods": {"no_adaptation": None, "dapt": None},
    "seeds": [1, 2],
    "budget": {"tokens": 512},
    "pretraining": {"per_device_train_batch_size": 4, "max_seq_length": 16},
    "fine_tuning": {"num_train_epochs": 1, "max_seq_length": 16},
}


@dataclass
class Case:
    """One bad input.

    Args:
        command: That of `hf-domain`.
        flags: Flags that replace those of `COMMANDS`, as `read_flags` reads them; after "only ", all.
        says: Parts that the message must contain, between bars: what is wrong, and what was found.
        files: Files of the workspace that are replaced, or spoiled by a function.
        fault: A key of `FAULTS`: what goes wrong around the command.
        right: Whether what the command left is right: then nothing was wrong, and the case must end with exit 0.
        late: Whether the error can only come after the work began.
    """

    command: str
    flags: str
    says: str
    files: dict[str, Any] = field(default_factory=dict)
    fault: str = ""
    right: Callable[[], Any] | None = None
    late: bool = False

    @property
    def id(self) -> str:
        """The name in pytest's output."""
        files = (f"{file}={getattr(how, '__name__', how)!s:.50}" for file, how in self.files.items())
        return " ".join([self.command, self.flags, self.fault, *files]).strip()


def make_workspace(folder: Path) -> None:
    """Write tiny models and data on which every command of `COMMANDS` works."""
    save_tiny_bert(folder / "encoder", SENTENCES)
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder / "encoder"), make_bert_tokenizer(SENTENCES)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(tokenizer), num_labels=3, **sizes)
    decoder = GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2))
    models = {"adapted": model, "classifier": BertForSequenceClassification(config), "decoder": decoder}
    for name, each in models.items():
        each.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    words = make_bert_tokenizer([" ".join(f"word{number}" for number in range(9))])
    save_tiny_bert(folder / "other", [" ".join(words.get_vocab())])
    corpus = [f"{sentence} {number}" for number in range(10) for sentence in SENTENCES]
    (folder / "corpus.txt").write_text("\n".join(corpus), encoding="utf-8")
    (folder / "heldout.txt").write_text("\n".join(reversed(corpus[:10])), encoding="utf-8")
    for task in ("task", "ner", "qa", "pairs"):
        (folder / task).mkdir()
        for split in ("train", "validation", "test"):
            write_jsonl(folder / task / f"{split}.jsonl", [make_row(task, split, number) for number in range(8)])
    search = folder / "search"  # in the layout of BEIR
    (search / "qrels").mkdir(parents=True)
    write_jsonl(search / "corpus.jsonl", [{"_id": f"d{n}", "text": f"{SENTENCES[n % 4]} {n}"} for n in range(8)])
    write_jsonl(search / "queries.jsonl", [{"_id": f"q{n}", "text": SENTENCES[n % 4]} for n in range(8)])
    for split, queries in (("train", range(4)), ("dev", range(4, 6)), ("test", range(6, 8))):
        rows = ["query-id\tcorpus-id\tscore\n", *(f"q{n}\td{n}\t1\n" for n in queries)]
        (search / "qrels" / f"{split}.tsv").write_text("".join(rows))
    (folder / "plan.yaml").write_text(yaml.safe_dump(PLAN), encoding="utf-8")
    for name in ("empty", "sealed", "comparison/results"):
        (folder / name).mkdir(parents=True)
    from hf_domain.datastore import build_datastore

    tokenizer = AutoTokenizer.from_pretrained(folder / "encoder")
    build_datastore([{"text": text} for text in corpus], folder / "datastore", tokenizer, max_length=32)


def make_row(task: str, split: str, number: int) -> dict[str, Any]:
    """Make a row of a task."""
    text = f"{SENTENCES[number % 4]} {split} {number}"
    words = text.split()
    answers = {"text": [words[1]], "answer_start": [text.index(words[1])]}
    return {
        "task": {"text": text, "label": "ab"[number % 2]},
        "pairs": {"text": text, "text_pair": SENTENCES[number % 3], "score": number / 2},
        "ner": {"tokens": words, "tags": ["B-X"] + ["O"] * (len(words) - 1)},
        "qa": {"id": f"{split}{number}", "question": "what is it", "context": text, "answers": answers},
    }[task]


def list_arguments(case: Case) -> list[str]:
    """Return the command line of a case."""
    if case.flags.split()[:1] == ["only"]:
        return shlex.split(case.flags)[1:]
    arguments = []
    for name, value in (COMMANDS[case.command] | read_flags(case.flags)).items():
        if value is not None:
            values = [] if value is True else value if isinstance(value, list) else [value]
            arguments += [f"--{name}"] * bool(name) + values
    return arguments


# ------------------------------------------------------------------------------------------------ what goes wrong


@contextmanager
def limit_file_size():
    """No file may grow beyond 20 kB, weights among them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def seal():
    """The folder sealed/ cannot be written; root, as whom tests may run, could write any real one."""
    may, make = os.access, os.mkdir

    def is_sealed(path):
        return "sealed" in Path(os.fspath(path)).parts

    def access(path, mode, **kwargs):
        return may(path, mode, **kwargs) and not (mode & os.W_OK and is_sealed(path))

    def mkdir(path, *args, **kwargs):
        if is_sealed(path) and not Path(os.fspath(path)).exists():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        make(path, *args, **kwargs)

    with patch("os.access", access), patch("os.mkdir", mkdir):
        yield


FAULTS = {
    "": nullcontext,
    "ctrl-c": lambda: patch.object(Trainer, "training_step", side_effect=KeyboardInterrupt),
    "file size": limit_file_size,
    "read-only": seal,
}


# ------------------------------------------------------------------------------------------------ what became of it


def run_case(case: Case) -> tuple[str, str]:
    """Run a case in the working directory, a copy of the workspace; returns what became of it, and the message.

    clean: one line that says what is wrong; unclear: one that does not; traceback; harmless: exit 0 with a right
    result; wrong: exit 0 with a wrong one, or an error after the work began; overwritten: a file of the user changed.
    """
    for name, content in case.files.items():
        path = Path(name)
        if callable(content):
            content(path)
        elif content is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)
    before = digest_files()
    ends, message, has_trained = run_guarded(case)
    after = digest_files()
    if changed := sorted(name for name in before if after.get(name) != before[name]):
        return "overwritten", f"{message}\nchanged: {', '.join(changed)}"
    if ends == "exit 0":
        return "harmless" if case.right and case.right() else "wrong", message
    if ends == "traceback":
        return ends, message
    if (has_trained or after.keys() - before.keys()) and not case.late:
        return "wrong", f"{message}\nafter work: {sorted(after.keys() - before.keys())}"
    first, *others = message.strip().splitlines()
    if len(first) > 1000 or not all(line.startswith("- ") for line in others):  # the problems of a plan
        return "traceback", message
    is_clear = case.says and all(part.lower() in message.lower() for part in case.says.split("|"))
    return "clean" if is_clear else "unclear", message


def run_guarded(case: Case) -> tuple[str, str, bool]:
    """Run the command; returns how it ended, what it said, and whether it began to train."""
    out, err = io.StringIO(), io.StringIO()
    argv = ["hf-domain", case.command, *list_arguments(case)]
    with ExitStack() as stack:
        train = stack.enter_context(patch.object(Trainer, "train", autospec=True, side_effect=Trainer.train))
        for context in (patch.object(sys, "argv", argv), redirect_stdout(out), redirect_stderr(err)):
            stack.enter_context(context)
        stack.enter_context(FAULTS[case.fault]())
        try:
            cli.main()
        except SystemExit as end:
            if end.code not in (0, None):
                lines = [line for line in err.getvalue().splitlines() if line.strip()]
                return "error", end.code if isinstance(end.code, str) else (lines or [""])[-1], train.called
        except BaseException:
            return "traceback", traceback.format_exc(), train.called
    return "exit 0", out.getvalue(), train.called


def digest_files() -> dict[str, str]:
    """Return digests of the files of the working directory, without locks."""
    files = (path for path in Path().rglob("*") if path.is_file())
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files if path.suffix != ".lock"}
