"""The good inputs that a bad case spoils, and what a command makes of them."""

import builtins
import errno
import hashlib
import io
import os
import resource
import sys
import traceback
import unittest.mock
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

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

KINDS = ("clean", "unclear", "traceback", "harmless", "wrong", "overwritten")
"""What becomes of a case: one clean line, one line that does not say what is wrong, a traceback, exit 0 with a right
result, exit 0 with a wrong one or an error after the work began, a file of the user changed."""

TRAINING = {"do_train": True, "max_steps": 1, "use_cpu": True, "report_to": "none", "disable_tqdm": "true"}
SHORT = {"max_seq_length": 16, "per_device_train_batch_size": 4, "save_strategy": "no", "output_dir": "out"}
TASK_FILES = ("train", "validation", "test")


def name_files(folder: str) -> dict[str, str]:
    """The flags of the three files of a task."""
    return {f"{split}_file": f"{folder}/{split}.jsonl" for split in TASK_FILES}


FINE_TUNING = {"model_name_or_path": "encoder", "do_eval": True, "do_predict": True, **TRAINING, **SHORT}
COMMANDS: dict[str, dict[str, Any]] = {
    "mlm": {"model_name_or_path": "encoder", "train_file": "corpus.txt", "validation_file": "heldout.txt"}
    | TRAINING
    | SHORT,
    "classification": FINE_TUNING | name_files("task"),
    "ner": FINE_TUNING | name_files("ner"),
    "qa": FINE_TUNING | name_files("qa") | {"max_seq_length": 32, "doc_stride": 4},
    "expand_vocab": {
        "model_name_or_path": "encoder",
        "train_file": "corpus.txt",
        "output_dir": "out",
        "num_workers": 1,
        "size": 125,
        "min_frequency": 2,
    },
    "distill": {
        "model_name_or_path": "encoder",
        "strategy": "from_scratch",
        "student_steps": 1,
        "num_hidden_layers": 1,
        "train_file": "corpus.txt",
        "validation_file": "heldout.txt",
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": "true",
    }
    | SHORT,
    "average_models": {"model_name_or_path": ["encoder", "adapted"], "output_dir": "out"},
    "build_datastore": {
        "model_name_or_path": "encoder",
        "train_file": "corpus.txt",
        "output_dir": "out",
        "max_length": 32,
    },
    "select_text": {"datastore": "datastore", "text_file": "task/train.jsonl", "output_file": "nearest.jsonl"},
    "predict": {"": ["classifier", "heldout.txt"], "output_file": "labels.jsonl"},
    "probe": {
        "model_name_or_path": "encoder",
        "train_file": "task/train.jsonl",
        "test_file": "task/test.jsonl",
        "max_seq_length": 16,
        "use_cpu": True,
        "output_dir": "out",
    },
    "sentences": {
        "model_name_or_path": "encoder",
        "validation_file": "pairs/validation.jsonl",
        "test_file": "pairs/test.jsonl",
        "do_eval": True,
        "do_predict": True,
        "max_seq_length": 16,
        "use_cpu": True,
        "report_to": "none",
        "output_dir": "out",
    },
    "advise": {
        "model_name_or_path": "encoder",
        "corpus": "corpus.txt",
        "task": ["task"],
        "general": "heldout.txt",
        "max_seq_length": 16,
        "output_dir": "out",
    },
    "compare": {"": "plan.yaml", "output_dir": "out", "dry_run": True},
    "publish": {
        "comparison": "comparison",
        "method": "dapt",
        "corpus": "domain",
        "output_dir": "out",
        "license_note": "none",
        "limits": "all",
        "example": "the [MASK]",
    },
    "export": {"model_name_or_path": "classifier", "output_dir": "out"},
    "quickstart": {
        "model_name_or_path": "encoder",
        "corpus": "corpus.txt",
        "task": "task",
        "output_dir": "out",
        "num_tokens": 256,
        "num_train_epochs": 1,
        "num_seeds": 1,
        "max_seq_length": 16,
    },
}
PLAN: dict[str, Any] = {
    "encoder": "encoder",
    "corpora": {"domain": {"train_file": "corpus.txt", "validation_file": "heldout.txt"}},
    "tasks": {"topics": {"kind": "classification", "folder": "task", "corpus": "domain"}},
    "methods": {"fine_tune": None, "dapt": None},
    "seeds": [1, 2],
    "budget": {"tokens": 512},
    "pretraining": {"per_device_train_batch_size": 4, "max_seq_length": 16},
    "fine_tuning": {"num_train_epochs": 1, "max_seq_length": 16},
}


@dataclass
class Case:
    """One bad input."""

    command: str
    """That of `hf-domain`, or `python`."""
    name: str
    says: tuple[str, ...]
    """What the message must contain: what is wrong, and what was found."""
    options: dict[str, Any] = field(default_factory=dict)
    """Flags that replace those of `COMMANDS`: None drops one, True is a bare flag, a list is several values."""
    files: dict[str, bytes | str | Callable[[Path], None]] = field(default_factory=dict)
    """Files of the workspace that are replaced, or spoiled by a function."""
    arguments: list[str] | None = None
    """The whole command line instead of the options."""
    call: Callable[[], Any] | None = None
    """The entry point of Python that is called instead of a command."""
    fault: str | None = None
    """A key of `FAULTS`: what goes wrong around the command."""
    harmless: str = ""
    """Why exit 0 is right."""
    late: bool = False
    """Whether the error can only come after the work began."""
    then: Callable[[], Any] | None = None
    """Returns whether what the command left is right, if it is harmless."""

    @property
    def id(self) -> str:
        """The name in pytest's output."""
        return f"{self.command}: {self.name}"


def make_workspace(folder: Path) -> None:
    """Write tiny models and data on which every command of `COMMANDS` works."""
    save_tiny_bert(folder / "encoder", SENTENCES)
    model, tokenizer = AutoModelForMaskedLM.from_pretrained(folder / "encoder"), make_bert_tokenizer(SENTENCES)
    for name in ("adapted", "other"):
        model.save_pretrained(folder / name)
        tokenizer.save_pretrained(folder / name)
    words = make_bert_tokenizer([" ".join(f"word{number}" for number in range(9))])
    save_tiny_bert(folder / "other", [" ".join(words.get_vocab())])
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=len(tokenizer), num_labels=3, **sizes)
    BertForSequenceClassification(config).save_pretrained(folder / "classifier")
    tokenizer.save_pretrained(folder / "classifier")
    GPT2LMHeadModel(GPT2Config(vocab_size=len(tokenizer), n_embd=16, n_layer=1, n_head=2)).save_pretrained(
        folder / "decoder"
    )
    tokenizer.save_pretrained(folder / "decoder")
    corpus = [f"{sentence} {number}" for number in range(10) for sentence in SENTENCES]
    (folder / "corpus.txt").write_text("\n".join(corpus), encoding="utf-8")
    (folder / "heldout.txt").write_text("\n".join(reversed(corpus[:10])), encoding="utf-8")
    for task in ("task", "ner", "qa", "pairs"):
        (folder / task).mkdir()
        for split in TASK_FILES:
            write_jsonl(folder / task / f"{split}.jsonl", make_rows(task, split))
    make_search(folder / "search")
    (folder / "plan.yaml").write_text(yaml.safe_dump(PLAN), encoding="utf-8")
    (folder / "empty").mkdir()
    (folder / "sealed").mkdir()
    (folder / "comparison" / "results").mkdir(parents=True)


def make_rows(task: str, split: str) -> list[dict[str, Any]]:
    """Eight rows of a task."""
    rows: list[dict[str, Any]] = []
    for number in range(8):
        text = f"{SENTENCES[number % 4]} {split} {number}"
        if task == "task":
            rows.append({"text": text, "label": "ab"[number % 2]})
        elif task == "pairs":
            rows.append({"text": text, "text_pair": SENTENCES[number % 3], "score": number / 2})
        elif task == "ner":
            words = text.split()
            rows.append({"tokens": words, "tags": ["B-X"] + ["O"] * (len(words) - 1)})
        else:
            answers = {"text": [text.split()[1]], "answer_start": [text.index(text.split()[1])]}
            rows.append({"id": f"{split}{number}", "question": "what is it", "context": text, "answers": answers})
    return rows


def make_search(folder: Path) -> None:
    """Write a retrieval in the layout of BEIR."""
    (folder / "qrels").mkdir(parents=True)
    write_jsonl(folder / "corpus.jsonl", [{"_id": f"d{n}", "text": f"{SENTENCES[n % 4]} {n}"} for n in range(8)])
    write_jsonl(folder / "queries.jsonl", [{"_id": f"q{n}", "text": SENTENCES[n % 4]} for n in range(8)])
    for split, queries in (("train", range(4)), ("dev", range(4, 6)), ("test", range(6, 8))):
        rows = [f"q{n}\td{n}\t1\n" for n in queries]
        (folder / "qrels" / f"{split}.tsv").write_text("".join(["query-id\tcorpus-id\tscore\n", *rows]))


def make_datastore(folder: Path) -> None:
    """Build a datastore of the corpus."""
    from hf_domain.datastore import build_datastore

    documents = [{"text": text} for text in (folder / "corpus.txt").read_text(encoding="utf-8").splitlines()]
    build_datastore(documents, folder / "datastore", AutoTokenizer.from_pretrained(folder / "encoder"), max_length=32)


def list_arguments(case: Case) -> list[str]:
    """The command line of a case."""
    if case.arguments is not None:
        return case.arguments
    arguments = []
    for name, value in (COMMANDS[case.command] | case.options).items():
        if value is None:
            continue
        values = [] if value is True else value if isinstance(value, list) else [value]
        arguments += [f"--{name}"] * bool(name) + [str(item) for item in values]
    return arguments


# ------------------------------------------------------------------------------------------------ what goes wrong


@contextmanager
def press_ctrl_c() -> Iterator[None]:
    """Training is interrupted."""
    with unittest.mock.patch.object(Trainer, "training_step", side_effect=KeyboardInterrupt):
        yield


@contextmanager
def limit_file_size() -> Iterator[None]:
    """No file may grow beyond 20 kB, weights among them."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def fill_disk() -> Iterator[None]:
    """Every text file of the output folder is written to a full disk."""
    whole = builtins.open

    def open_full(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if set(mode) & {"w", "a", "x"} and "out" in Path(str(file)).parts:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(file))
        return whole(file, mode, *args, **kwargs)

    with unittest.mock.patch("builtins.open", open_full), unittest.mock.patch("io.open", open_full):
        yield


@contextmanager
def seal() -> Iterator[None]:
    """The folder sealed/ cannot be written; root, as whom tests may run, could write any real one."""
    may, make = os.access, os.mkdir

    def is_sealed(path: Any) -> bool:
        return "sealed" in Path(os.fspath(path)).parts

    def access(path: Any, mode: int, **kwargs: Any) -> bool:
        return may(path, mode, **kwargs) and not (mode & os.W_OK and is_sealed(path))

    def mkdir(path: Any, *args: Any, **kwargs: Any) -> None:
        if is_sealed(path) and not Path(os.fspath(path)).exists():
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        make(path, *args, **kwargs)

    with unittest.mock.patch("os.access", access), unittest.mock.patch("os.mkdir", mkdir):
        yield


FAULTS = {"ctrl-c": press_ctrl_c, "file size": limit_file_size, "full disk": fill_disk, "read-only": seal}


# ------------------------------------------------------------------------------------------------ what became of it


@dataclass
class Outcome:
    """What a command did with a case."""

    kind: str
    message: str


def run_case(case: Case) -> Outcome:
    """Run a case in the working directory, a copy of the workspace."""
    for name, content in case.files.items():
        path = Path(name)
        if callable(content):
            content(path)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    before = digest_files()
    ends, message, has_trained = run_guarded(case)
    after = digest_files()
    if changed := sorted(name for name in before if after.get(name) != before[name]):
        return Outcome("overwritten", f"{message}\nchanged: {', '.join(changed)}")
    if ends == "exit 0":
        is_right = case.harmless and (case.then is None or case.then())
        return Outcome("harmless" if is_right else "wrong", message)
    if ends == "traceback":
        return Outcome(ends, message)
    if (has_trained or after.keys() - before.keys()) and not case.late:
        return Outcome("wrong", f"{message}\nafter work: {sorted(after.keys() - before.keys())}")
    if not is_one_line(message):
        return Outcome("traceback", message)
    is_clear = case.says and all(part.lower() in message.lower() for part in case.says)
    return Outcome("clean" if is_clear else "unclear", message)


def is_one_line(message: str) -> bool:
    """Whether a message is one line, or one line and a list of the problems of a plan."""
    first, *others = message.strip().splitlines()
    return all(line.startswith("- ") for line in others) and len(first) < 1000


def run_guarded(case: Case) -> tuple[str, str, bool]:
    """Run the command; returns how it ended, what it said, and whether it began to train."""
    trained = []
    train = Trainer.train

    def note_training(*args: Any, **kwargs: Any) -> Any:
        trained.append(True)
        return train(*args, **kwargs)

    out, err = io.StringIO(), io.StringIO()
    argv = ["hf-domain", case.command, *list_arguments(case)] if case.call is None else []
    with ExitStack() as stack:
        stack.enter_context(unittest.mock.patch.object(Trainer, "train", note_training))
        stack.enter_context(unittest.mock.patch.object(sys, "argv", argv))
        stack.enter_context(redirect_stdout(out))
        stack.enter_context(redirect_stderr(err))
        if case.fault is not None:
            stack.enter_context(FAULTS[case.fault]())
        try:
            (case.call or cli.main)()
        except SystemExit as end:
            if end.code in (0, None):
                return "exit 0", out.getvalue(), bool(trained)
            lines = [line for line in err.getvalue().splitlines() if line.strip()]
            said = end.code if isinstance(end.code, str) else (lines or [""])[-1]
            return "error", said, bool(trained)
        except (ValueError, OSError, TypeError) as error:
            if case.call is not None and not isinstance(error, UnicodeDecodeError):
                return "error", str(error), bool(trained)
            return "traceback", traceback.format_exc(), bool(trained)
        except BaseException:
            return "traceback", traceback.format_exc(), bool(trained)
    return "exit 0", out.getvalue(), bool(trained)


def digest_files() -> dict[str, str]:
    """Digests of the files of the working directory, without caches and locks."""
    files = (path for path in Path().rglob("*") if path.is_file())
    return {
        str(path): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
        if path.parts[0] != "cache" and path.suffix != ".lock"
    }
