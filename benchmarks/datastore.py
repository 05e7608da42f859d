"""Measure a datastore: the time to build and to search it, its memory and its size.

python benchmarks/datastore.py --model_name_or_path bert-base-uncased \
    --corpus a.txt.gz b.txt.gz --heldout heldout.txt.gz --output datastore.json

Rates are per second of processor time over all threads, which a busy machine changes little.
"""

import argparse
import itertools
import json
import multiprocessing
import os
import random
import resource
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from datasets import Dataset, IterableDataset
from transformers import AutoTokenizer

from hf_domain.data.files import load_files
from hf_domain.datastore import Datastore, add_passages, build_datastore
from hf_domain.datastore.tantivy_index import TantivyIndex

MEGABYTE = 1e6


def read_cpu_seconds() -> float:
    """Return the processor time of this process, over all threads."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def read_peak_megabytes() -> float:
    """Return the peak memory of this process, including memory-mapped files."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEGABYTE


def measure_size(folder: Path, pattern: str) -> float:
    return sum(file.stat().st_size for file in folder.glob(pattern)) / MEGABYTE


def read_documents(files: Sequence[str], number: int) -> Iterator[dict]:
    """Yield the first documents of the files, in turns."""
    rows = zip(*(load_files(file, streaming=True) for file in files), strict=False)
    return itertools.islice(itertools.chain.from_iterable(rows), number)


def measure_build(files: list[str], number: int, folder: str, model: str, analyzer: str) -> dict:
    """Measure the complete build from documents to a datastore."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    # datasets would read a list as shards, each with the full number of documents.
    dataset = IterableDataset.from_generator(read_documents, gen_kwargs={"files": tuple(files), "number": number})
    before, start, start_cpu = read_peak_megabytes(), time.perf_counter(), read_cpu_seconds()
    datastore = build_datastore(dataset, folder, tokenizer, analyzer=analyzer)
    seconds, cpu_seconds = time.perf_counter() - start, read_cpu_seconds() - start_cpu
    megabytes = sum(len(row["text"].encode()) for row in read_documents(files, number)) / MEGABYTE
    return {
        "documents": datastore.manifest.num_documents,
        "megabytes": megabytes,
        "passages": len(datastore),
        "duplicates": datastore.manifest.num_duplicates,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "megabytes_per_cpu_second": megabytes / cpu_seconds,
        "passages_per_cpu_second": len(datastore) / cpu_seconds,
        "peak_megabytes": read_peak_megabytes(),
        "megabytes_before": before,
        "index_megabytes": measure_size(datastore.folder, f"{datastore.manifest.index}/*"),
        "passages_megabytes": measure_size(datastore.folder, "*.arrow"),
    }


def measure_search(folder: str, queries: list[str], k: int, repeats: int = 3) -> dict:
    """Measure search alone, and search as a step of data preparation."""
    before, datastore = read_peak_megabytes(), Datastore.load(folder)
    index = TantivyIndex(datastore.folder / datastore.manifest.index, datastore.analyzer)
    index.search(queries[:50], k)
    rates = []
    for _ in range(repeats):
        start_cpu = read_cpu_seconds()
        index.search(queries, k)
        rates.append(len(queries) / (read_cpu_seconds() - start_cpu))
    peak = read_peak_megabytes()
    start_cpu = read_cpu_seconds()
    with tempfile.TemporaryDirectory() as cache:
        os.environ["HF_DATASETS_CACHE"] = cache
        add_passages(Dataset.from_dict({"text": queries}), datastore, "text", k)
    return {
        "queries": len(queries),
        "words": statistics.mean(len(query.split()) for query in queries),
        "queries_per_cpu_second": statistics.median(rates),
        "rows_per_cpu_second": len(queries) / (read_cpu_seconds() - start_cpu),
        "peak_megabytes": peak,
        "megabytes_before": before,
    }


def run_alone(function, *arguments) -> dict:
    """Call a function in its own process, so that the peak memory is the function's."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        return process.submit(function, *arguments).result()


def main() -> None:
    """Measure everything, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="Encoder whose tokenizer cuts the passages.")
    parser.add_argument("--corpus", required=True, nargs="+", help="Text, one document per line, plain or .gz.")
    parser.add_argument("--heldout", required=True, nargs="+", help="Text that is not in the corpus, for queries.")
    parser.add_argument("--output", required=True, help="JSON file of the results.")
    parser.add_argument("--documents", type=int, default=75_000, help="Number of documents of the datastore.")
    parser.add_argument("--queries", type=int, default=2_000)
    parser.add_argument("--characters", action="store_true", help="Split queries by characters: Chinese has no spaces.")
    parser.add_argument("--analyzer", default="english")
    parser.add_argument("--k", type=int, default=10)
    args = parser.parse_args()

    generator = random.Random(0)
    queries = []
    for text in (row["text"] for row in read_documents(args.heldout, args.queries)):
        length = generator.randint(60, 100)
        queries.append(text[:length] if args.characters else " ".join(text.split()[:length]))
    with tempfile.TemporaryDirectory() as directory:
        folder = f"{directory}/datastore"
        results = {
            "build": run_alone(
                measure_build, args.corpus, args.documents, folder, args.model_name_or_path, args.analyzer
            ),
            "search": run_alone(measure_search, folder, queries, args.k),
        }
    with open(args.output, "w", encoding="utf-8") as file:
        json.dump(results, file, indent=2)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
