"""Commands that are killed, or find the disk full, at a chosen write.

A command runs in a process forked from one that has imported everything. There, what writes into the folder of the case
is counted: opening a file, writing to it, moving and deleting it, and the writers that are no Python (safetensors,
torch, tokenizers). At the chosen point the process kills itself, as SIGKILL would, with half of the file written.
"""

import builtins
import functools
import importlib
import io
import json
import multiprocessing
import os
import re
import shutil
import signal
import sys
from pathlib import Path

from hf_domain.cli import COMMANDS, find_module, find_output
from hf_domain.safe_io import describe_full_disk, is_disk_full

PRELOADED = [find_module(name) for name in COMMANDS]
ENOSPC = "No space left on device"


class Watch:
    """Counts the writes below a folder and stops the process, or fails, at one of them.

    Args:
        folder: Folder of the case.
        at: Number of the point; None counts only.
        is_full: Fail as on a full disk, from that point on, instead of killing.
    """

    def __init__(self, folder, at=None, is_full=False):
        self.folder, self.at, self.is_full = os.path.abspath(folder), at, is_full
        self.points = []

    def is_inside(self, path):
        try:
            return os.path.abspath(os.fspath(path)).startswith(self.folder + os.sep)
        except TypeError:  # a number of an open file
            return False

    def reach(self, operation, path):
        """Count a point; returns whether it is the chosen one, or after it on a full disk."""
        name = os.path.relpath(os.path.abspath(os.fspath(path)), self.folder)
        self.points.append(f"{operation} {name}")
        if self.at is None:
            return False
        return len(self.points) > self.at if self.is_full else len(self.points) == self.at + 1

    def kill(self):
        os.kill(os.getpid(), signal.SIGKILL)

    def install(self):
        """Replace what writes."""
        import safetensors.torch
        import torch
        from safetensors import SafetensorError
        from transformers.tokenization_utils_tokenizers import TokenizersBackend

        builtins.open = io.open = self.watch_open(builtins.open)
        for name in ("replace", "rename", "unlink", "remove", "rmdir"):
            setattr(os, name, self.watch_call(getattr(os, name), name))
        safetensors.torch.serialize_file = self.watch_writer(
            safetensors.torch.serialize_file, SafetensorError(f"I/O error: {ENOSPC} (os error 28)")
        )
        lost = RuntimeError("[enforce fail] . PytorchStreamWriter failed writing file data/0: file write failed")
        torch.save = self.watch_writer(torch.save, lost)
        TokenizersBackend._save_pretrained = self.watch_tokenizer(TokenizersBackend._save_pretrained)

    def watch_open(self, opened):
        def watched(file, mode="r", *args, **kwargs):
            if not set(mode) & set("wax+") or not self.is_inside(file):
                return opened(file, mode, *args, **kwargs)
            stops = self.reach("open", file)
            stream = opened(file, mode, *args, **kwargs)
            if stops and not self.is_full:
                self.kill()
            return Stream(stream, self) if self.reach("write", file) else stream

        return watched

    def watch_tokenizer(self, save):
        def watched(tokenizer, save_directory, *args, **kwargs):
            file = os.path.join(save_directory, "tokenizer.json")
            stops = self.is_inside(file) and self.reach("write", file)
            if stops and self.is_full:
                raise Exception(f"{ENOSPC} (os error 28)")  # as tokenizers does
            names = save(tokenizer, save_directory, *args, **kwargs)
            if stops:
                self.halve(file)
            return names

        return watched

    def watch_call(self, call, name):
        @functools.wraps(call)
        def watched(path, *args, **kwargs):
            if kwargs.get("dir_fd") is None and self.is_inside(path):
                target = args[0] if name in ("replace", "rename") else path
                if self.reach(name, target) and not self.is_full:
                    self.kill()
            return call(path, *args, **kwargs)

        return watched

    def watch_writer(self, write, error):
        @functools.wraps(write)
        def watched(content, file, *args, **kwargs):
            stops = self.is_inside(file) and self.reach("write", file)
            if stops and self.is_full:
                raise error
            written = write(content, file, *args, **kwargs)
            if stops:
                self.halve(file)
            return written

        return watched

    def halve(self, file):
        os.truncate(file, os.path.getsize(file) // 2)
        self.kill()


class Stream:
    """An open file that writes half of what it is given first, and then kills the process or has no room."""

    def __init__(self, stream, watch):
        self.stream, self.watch = stream, watch

    def __getattr__(self, name):
        return getattr(self.stream, name)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.stream.close()

    def __iter__(self):
        return iter(self.stream)

    def fileno(self):
        raise io.UnsupportedOperation("fileno")  # shutil then copies by `write`

    def writelines(self, lines):
        self.write("".join(lines))

    def write(self, data):
        self.stream.write(data[: len(data) // 2])
        self.stream.flush()
        if self.watch.is_full:
            raise OSError(28, ENOSPC)
        self.watch.kill()


def run_watched(command, arguments, folder, cwd, log, at, is_full):
    """In the forked process: run a command with arguments, watched; writes the points to the log."""
    watch = Watch(folder, at, is_full)
    with open(log, "w", encoding="utf-8") as output:
        for stream in (1, 2):
            os.dup2(output.fileno(), stream)
    os.chdir(cwd)
    import datasets

    datasets.config.HF_DATASETS_CACHE = Path(cwd, "cache")
    sys.argv = [command, *arguments]
    script = importlib.import_module(find_module(command))
    pretend_slow_parts(script)
    watch.install()
    try:
        script.main()
    except (OSError, ValueError) as error:  # as `hf-domain` ends
        full = describe_full_disk(error, find_output(sys.argv)) if is_disk_full(error) else None
        print(f"error: {full or error}", flush=True)
        sys.exit(1)
    finally:
        print("POINTS " + json.dumps(watch.points), flush=True)


def pretend_slow_parts(script):
    """Let a comparison leave at once what its steps would leave."""
    import pretended_runs

    def pretend(step, plan, folder):
        pretended_runs.pretend(step, plan, folder)
        if step.kind in ("pretraining", "fine_tuning"):  # a model that can be published
            shutil.copytree(plan.folder / plan.encoder, folder, dirs_exist_ok=True)
            (folder / "README.md").write_text(f"# {folder.name}\n\n## Training\n", encoding="utf-8")

    pretended_runs.runner.digest_vocabulary = lambda encoder: "usual"
    if hasattr(script, "run_comparison"):
        script.run_comparison = lambda plan, folder, *_, **__: pretended_runs.run_comparison(plan, folder, pretend)


def run(command, arguments, folder, *, cwd, at=None, is_full=False):
    """Run a command in a process of its own; returns the exit code, the points and the log."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    log = Path(f"{folder}.log")
    process = context.Process(
        target=run_watched, args=(command, arguments, str(folder), str(cwd), str(log), at, is_full)
    )
    process.start()
    process.join()
    text = log.read_text(encoding="utf-8", errors="replace")
    points = [json.loads(line[7:]) for line in text.splitlines() if line.startswith("POINTS ")]
    return process.exitcode, points[0] if points else [], text


def choose_points(points, patterns=None):
    """Choose the first and the last point of each kind; a kind is an operation on a file, whatever its number."""
    kinds = {}
    for number, point in enumerate(points):
        kind = re.sub(r"[0-9a-f]{8,}|\d+", "N", point)
        if patterns is None or any(re.search(pattern, point) for pattern in patterns):
            kinds.setdefault(kind, []).append(number)
    return sorted({number for numbers in kinds.values() for number in (numbers[0], numbers[-1])})


def read_tree(folder):
    """Return what files of a case hold; None where that differs between equal runs: times, pickles and logs."""
    fixed = re.compile(
        r"(\.safetensors|config\.json|tokenizer\.json|delta\.json|predictions\.txt|predict_results\.txt|\.npy|\.arrow"
        r"|_run\.json|README\.md|held_out\.jsonl|labels\.jsonl|\.csv|commands\.sh)$"
    )
    files = {path.relative_to(folder).as_posix(): path for path in folder.rglob("*") if path.is_file()}
    # The files of an index have drawn names.
    files = {name: path for name, path in files.items() if not re.search(r"/index-\d+/", name)}
    seconds = re.compile(rb"\| seconds[a-z ]* \| \d+ \|")  # on a card
    tree = {
        name: seconds.sub(b"", path.read_bytes()) if fixed.search(name) else None
        for name, path in sorted(files.items())
    }
    # A card of sentence-transformers describes the last start: without its arguments where nothing was left to train.
    cards = {name for name, content in tree.items() if content and b"\n### Framework Versions" in content}
    return {name: None if name in cards else content for name, content in tree.items()}
