"""Training on a stream of files, on this machine and behind URLs."""

import math
from dataclasses import replace
from types import SimpleNamespace

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from script_runs import read_losses, run_script, save_tiny_bert
from tiny_tokenizers import SENTENCES

from hf_domain.data import corpora
from hf_domain.data.files import find_files
from hf_domain.examples import run_mlm
from hf_domain.safe_io import identify_url
from hf_domain.training.masked_lm_corpus import CorpusArguments
from hf_domain.training.pretraining_arguments import check_stream

SIZES = (1100, 500, 700)  # documents of the files


def write_shards(system, folder, sizes=SIZES):
    for number, size in enumerate(sizes):
        texts = [f"{SENTENCES[row % len(SENTENCES)]} {SENTENCES[row * 7 % 5]}" for row in range(number, number + size)]
        with system.open(f"{folder}/{number}.parquet", "wb") as file:
            pq.write_table(pa.table({"text": texts}), file)


@pytest.fixture
def run(monkeypatch, tmp_path):
    """Train on the stream; returns the losses by step."""
    encoder = save_tiny_bert(tmp_path / "encoder", SENTENCES)
    write_shards(fsspec.filesystem("file"), tmp_path)

    def run(name, **options):
        flags = {"model_name_or_path": encoder, "train_file": tmp_path / "*.parquet", "streaming": True}
        flags |= {"max_seq_length": 16, "per_device_train_batch_size": 128, "gradient_accumulation_steps": 2}
        flags |= {"do_train": True, "logging_steps": 1, "learning_rate": 1e-3, "cache_dir": tmp_path / "cache"}
        flags |= {"save_strategy": "steps", "save_steps": 0.4, "max_steps": 25}
        run_script(run_mlm.main, monkeypatch, tmp_path / name, **flags | options)
        return read_losses(tmp_path / name)

    return run


def test_resumed_run_reads_on_where_it_stopped(run, tmp_path, monkeypatch):
    """Also in the second pass over the files; only the batch of documents that a step cut into is tokenized again."""
    counted = []
    pack = corpora._pack_documents

    def count(texts, **options):
        counted.append(len(texts))
        return pack(texts, **options)

    monkeypatch.setattr(corpora, "_pack_documents", count)
    monkeypatch.setattr(corpora, "SAMPLE_OF_STREAM", 0)  # the check for unknown words reads a batch of its own
    whole = run("whole")
    assert len(whole) == 25
    for step in (10, 20):
        counted.clear()
        assert run(f"from-{step}", resume_from_checkpoint=tmp_path / "whole" / f"checkpoint-{step}") == whole
    assert sum(counted) < sum(SIZES), "Trainer would read two passes"


def test_resumed_mix_of_two_streams(run, tmp_path, monkeypatch):
    # datasets waits five seconds after each stream for threads that read Parquet, which could outlive the interpreter.
    monkeypatch.setattr("datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN", 0.1, raising=False)
    (tmp_path / "general.txt").write_text("\n".join(SENTENCES * 30), encoding="utf-8")
    options = {"mix": f"{tmp_path / 'general.txt'}:0.2", "line_by_line": True, "max_steps": 5}
    options |= {"per_device_train_batch_size": 16}
    whole = run("whole", **options)
    assert run("parts", resume_from_checkpoint=tmp_path / "whole" / "checkpoint-2", **options) == whole


def test_without_a_position_trainer_skips(run, tmp_path):
    whole = run("whole", max_steps=5)
    (tmp_path / "whole" / "checkpoint-4" / "stream-0.json").unlink()
    assert run("parts", max_steps=5, resume_from_checkpoint=tmp_path / "whole" / "checkpoint-4") == whole


def test_files_behind_urls(run, tmp_path):
    memory = fsspec.filesystem("memory")
    write_shards(memory, "/corpus")
    urls = find_files("memory://corpus/*.parquet")
    assert [url.rpartition("/")[2] for url in urls] == ["0.parquet", "1.parquet", "2.parquet"]
    assert run("remote", train_file="memory://corpus/*.parquet", max_steps=4) == run("local", max_steps=4)
    before = identify_url(urls[0])
    memory.pipe(urls[0], b"other content")
    assert identify_url(urls[0]) != before
    with pytest.raises(FileNotFoundError, match=r"one file must match memory://nowhere/\*.txt"):
        run("nowhere", train_file="memory://nowhere/*.txt")


def test_held_out_documents_are_not_read_twice(run):
    losses = run("held", do_eval=True, max_eval_samples=9, max_steps=3)
    assert all(math.isfinite(loss) for loss in losses.values())


def test_several_processes_hold_out_a_file():
    """`IterableDataset.skip` skips in the files of each process: documents held out by one would train another."""
    stream = CorpusArguments(train_file=["a.txt", "b.txt"], streaming=True)
    run = {"do_train": True, "do_eval": True, "max_steps": 5}
    with pytest.raises(ValueError, match="--streaming on several processes needs a --validation_file"):
        check_stream(stream, SimpleNamespace(**run, world_size=2))
    check_stream(stream, SimpleNamespace(**run, world_size=1))
    check_stream(stream, SimpleNamespace(**run | {"do_eval": False}, world_size=2))
    check_stream(replace(stream, validation_file=["c.txt"]), SimpleNamespace(**run, world_size=2))
