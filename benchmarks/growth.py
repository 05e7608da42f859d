"""Measure how work on a corpus grows with its size: seconds, memory and disk at three sizes, and what 100 GB take.

    python benchmarks/growth.py --model_name_or_path bert-base-uncased --output growth.json

The text is made up: words of the tokenizer with Zipf's frequencies, so that any size can be had. Seconds are those of
processor time over all threads and processes. Memory is that of the process at its peak, beyond what it takes to load
the libraries, without memory-mapped files (RssAnon of Linux). Each measurement has a process of its own.
A comparison trains almost nothing: its figures are those of plan, processes, files and report.
"""

import argparse
import itertools
import multiprocessing
import tempfile
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import psutil
from transformers import AutoTokenizer

from hf_domain.safe_io import write_json

MEGABYTE, GIGABYTE = 1e6, 1e9
TARGETS = {"encoding": 100e6, "comparison": 1000}  # others: 100 GB
UNITS = {"encoding": "passages", "comparison": "runs"}
SENTENCE, DOCUMENT = 20, 200  # words


def write_text(file: Path, megabytes: float, tokenizer_name: str, seed: int = 0) -> None:
    """Write documents of a line each."""
    random = np.random.default_rng(seed)
    words = [word for word in AutoTokenizer.from_pretrained(tokenizer_name).get_vocab() if word.isalpha()]
    frequencies = 1 / np.arange(1, len(words) + 1)
    with file.open("w", encoding="utf-8") as lines:
        while lines.tell() < megabytes * MEGABYTE:
            drawn = [words[row] for row in random.choice(len(words), DOCUMENT, p=frequencies / frequencies.sum())]
            # New words never end: every hundredth is one that a tokenizer cuts into pieces.
            for place in random.integers(0, DOCUMENT, DOCUMENT // 100):
                drawn[place] = "".join(chr(97 + letter) for letter in random.integers(0, 26, 9))
            for end in range(SENTENCE - 1, DOCUMENT, SENTENCE):
                drawn[end] += "."
            lines.write(" ".join(drawn) + "\n")


def read_seconds() -> float:
    """Return the processor time of this process and of all that it has started."""
    process = psutil.Process()
    return sum(sum(each.cpu_times()[:4]) for each in (process, *process.children(recursive=True)))


def read_memory() -> float:
    """Return the memory of this process in MB, without memory-mapped files, whose pages the system takes back."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024 / MEGABYTE


class PeakMemory(threading.Thread):
    """Follows the memory of this process until `stop`, which returns its peak."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak, self.seconds, self.ended = 0.0, 0.0, threading.Event()
        self.start()

    def run(self) -> None:
        """Look at the memory every ms: looks every 20 ms miss short peaks."""
        while not self.ended.wait(0.001):
            self.peak = max(self.peak, read_memory())
            self.seconds = time.thread_time()

    def stop(self) -> float:
        """Return the peak in MB."""
        self.ended.set()
        self.join()
        return max(self.peak, read_memory())


def count(file: Path, folder: Path, model: str, size: float) -> None:
    from hf_domain.data.corpora import read_texts
    from hf_domain.tokenization import batch_texts, count_words

    tokenizer = AutoTokenizer.from_pretrained(model).backend_tokenizer
    count_words(batch_texts(read_texts(str(file))), tokenizer, progress=False).save(folder / "counts.parquet")


def tokenize(file: Path, folder: Path, model: str, size: float) -> None:
    from hf_domain.data.corpora import load_corpus, tokenize_corpus

    corpus = load_corpus(str(file), validation_split_percentage=0, cache_dir=str(folder))
    tokenize_corpus(corpus, AutoTokenizer.from_pretrained(model))


def stream(file: Path, folder: Path, model: str, size: float) -> None:
    from hf_domain.data.corpora import load_corpus, tokenize_corpus

    corpus = load_corpus(str(file), streaming=True, validation_split_percentage=0)
    for _ in tokenize_corpus(corpus, AutoTokenizer.from_pretrained(model))["train"]:
        pass


def build(file: Path, folder: Path, model: str, size: float) -> None:
    from hf_domain.data.files import load_files
    from hf_domain.datastore import build_datastore

    documents = load_files(str(file), streaming=True)
    build_datastore(documents, folder / "datastore", AutoTokenizer.from_pretrained(model), analyzer="english")


def encode(file: Path, folder: Path, model: str, size: float) -> None:
    import torch
    from datasets import Dataset
    from transformers import AutoConfig, AutoModelForMaskedLM

    from hf_domain import RadaForMaskedLM
    from hf_domain.methods.rada.states import build_passage_cache

    encoder = AutoModelForMaskedLM.from_config(AutoConfig.from_pretrained(model), dtype=torch.float32)
    rada = RadaForMaskedLM.from_backbone(encoder, passage_encoder="frozen")
    random, shape = torch.Generator().manual_seed(0), (int(size), 128)
    ids = torch.randint(5, rada.config.vocab_size, shape, generator=random, dtype=torch.int32).numpy()
    # On disk, as a datastore has them: lists of ids in memory took 5 kB a passage, which seemed to be the encoding's.
    place = folder.with_name(f"{folder.name}_passages")
    Dataset.from_dict({"id": range(int(size)), "input_ids": ids}).save_to_disk(place)
    passages = Dataset.load_from_disk(place)
    build_passage_cache(folder, rada, AutoTokenizer.from_pretrained(model), passages, "made up", range(int(size)))


def compare(file: Path, folder: Path, model: str, size: float) -> None:
    from hf_domain import compare

    with file.open(encoding="utf-8") as lines:
        words = [line.split()[:20] for line in itertools.islice(lines, 36)]
    rows = [{"text": " ".join(text), "label": "ab"[number % 2]} for number, text in enumerate(words)]
    task = {"train": rows[:16], "validation": rows[16:26], "test": rows[26:]}
    few = {"max_seq_length": 32, "use_cpu": True}
    compare(
        model,
        [{"text": row["text"]} for row in rows],
        {"task": task},
        ("fine_tune", "dapt"),
        output_dir=folder / "comparison",
        num_tokens=512,
        seeds=[*range(1, int(size) // 2 + 1)],
        keep_models="none",
        pretraining={**few, "per_device_train_batch_size": 4},
        fine_tuning={**few, "max_steps": 2},
    )


STAGES = {"counting": count, "tokenizing": tokenize, "streaming": stream, "datastore": build, "encoding": encode}
STAGES["comparison"] = compare


def measure(stage: str, file: Path, folder: Path, model: str, size: float) -> dict[str, float]:
    """Do the work of a stage in this process, once on little to load what it needs, then on all."""
    small = folder / "small"
    small.mkdir(parents=True)
    STAGES[stage](file.with_name("small.txt"), small, model, 2)
    memory, before, start = PeakMemory(), read_memory(), read_seconds()
    (folder / "all").mkdir()
    STAGES[stage](file, folder / "all", model, size)
    seconds = read_seconds() - start - memory.seconds
    disk = sum(each.stat().st_size for each in (folder / "all").rglob("*.*"))
    return {"size": size, "seconds": seconds, "megabytes": memory.stop() - before, "disk_megabytes": disk / MEGABYTE}


def fit(runs: list[dict[str, float]], target: float) -> dict[str, float]:
    """Fit lines through time, memory and disk over size, and follow them to the target size.

    Memory grows until buffers are full, so only its line through the two largest sizes is followed.
    """
    sizes, seconds, memory, disk = (
        np.array([run[name] for run in runs]) for name in ("size", "seconds", "megabytes", "disk_megabytes")
    )

    def follow(values: np.ndarray, last: int = 0) -> float:
        return float(np.polyval(np.polyfit(sizes[-last:], values[-last:], 1), target))

    return {
        "exponent": float(np.polyfit(np.log(sizes), np.log(seconds), 1)[0]),  # 1: twice the size takes twice the time
        "target": target,
        "core_hours": follow(seconds) / 3600,
        "gigabytes_of_memory": max(follow(memory, last=2), memory[-1]) / 1000,
        "gigabytes_of_disk": follow(disk) / 1000,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="Encoder with its tokenizer.")
    parser.add_argument("--megabytes", type=float, nargs="+", default=[16, 32, 64])
    parser.add_argument("--passages", type=int, nargs="+", default=[1000, 2000, 4000])
    parser.add_argument("--runs", type=int, nargs="+", default=[4, 8, 16], help="Of a comparison.")
    parser.add_argument("--stages", nargs="+", default=[*STAGES], choices=STAGES)
    parser.add_argument("--output", type=Path, required=True, help="JSON file.")
    args = parser.parse_args()
    figures: dict[str, dict] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for size in args.megabytes:
            write_text(folder / f"{size}.txt", size, args.model_name_or_path)
        write_text(folder / "small.txt", 0.1, args.model_name_or_path, seed=1)
        for stage in args.stages:
            runs = []
            for size in {"encoding": args.passages, "comparison": args.runs}.get(stage, args.megabytes):
                # A new process: the peak of an earlier measurement would hide this one's.
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
                    text = folder / ("small.txt" if stage in UNITS else f"{size}.txt")
                    inputs = (text, folder / f"{stage}-{size}", args.model_name_or_path, size)
                    runs.append(pool.submit(measure, stage, *inputs).result())
                print(stage, {key: round(value, 1) for key, value in runs[-1].items()}, flush=True)
            figures[stage] = {"unit": UNITS.get(stage, "MB"), "runs": runs, **fit(runs, TARGETS.get(stage, 1e5))}
            print(stage, {key: value for key, value in figures[stage].items() if key != "runs"}, flush=True)
            write_json(args.output, figures)


if __name__ == "__main__":
    main()
