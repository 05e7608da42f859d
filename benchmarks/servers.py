"""Measure search engines on the same passages and queries: tantivy in this process, and OpenSearch on this machine.

    OPENSEARCH_URL=http://127.0.0.1:9201 python benchmarks/servers.py --model_name_or_path bert-base-uncased \
        --corpus corpus.txt.gz --heldout heldout.txt.gz --server_pid 1234 --output servers.json

Clients are threads with connections of their own. Rates are per second, and per second of processor time of this
process and the server together, which a busy machine changes less. Without OPENSEARCH_URL only tantivy is measured.
`--lucene_classpath`, such as the server's jars, adds Lucene itself, in a Java process of its own.
"""

import argparse
import itertools
import json
import os
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from datasets import Dataset
from transformers import AutoTokenizer

from hf_domain.data.files import load_files
from hf_domain.datastore import Datastore, build_datastore
from hf_domain.datastore.elasticsearch_index import connect, name_index

MEGABYTE = 1e6
WARM_UPS = 3  # over all queries: Java compiles what runs often


def read_texts(file: str, number: int) -> list[str]:
    """Return the first texts of a file."""
    return [row["text"] for row in itertools.islice(load_files(file, streaming=True), number)]


def read_seconds(server: psutil.Process | None) -> tuple[float, float]:
    """Return the processor time of this process and of the server."""
    return time.process_time(), sum(server.cpu_times()[:2]) if server else 0.0


def measure_search(folder: Path, tokenizer, queries: list[str], clients: int, server: psutil.Process | None) -> dict:
    """Return the rates of so many clients that share the queries."""
    stores = [Datastore.load(folder, tokenizer) for _ in range(clients)]
    for store in stores:
        store.search(queries[:8], 10)  # opens what it needs
    before, start = read_seconds(server), time.perf_counter()
    with ThreadPoolExecutor(clients) as pool:
        list(pool.map(lambda number: stores[number].search(queries[number::clients], 10), range(clients)))
    seconds, after = time.perf_counter() - start, read_seconds(server)
    used = [end - begin for begin, end in zip(before, after, strict=True)]
    return {
        "queries_per_second": len(queries) / seconds,
        "queries_per_cpu_second": len(queries) / sum(used),
        "client_cpu_share": used[0] / sum(used),
    }


def measure_engine(engine: str, documents: Dataset, folder: Path, queries: list[str], args: argparse.Namespace) -> dict:
    """Return what building, storing and searching with an engine takes."""
    tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
    server = psutil.Process(args.server_pid) if engine != "tantivy" and args.server_pid else None
    before, start = read_seconds(server), time.perf_counter()
    store = build_datastore(documents, folder, tokenizer, engine=engine)
    seconds, after = time.perf_counter() - start, read_seconds(server)
    if engine == "tantivy":
        size = sum(file.stat().st_size for file in (folder / store.manifest.index).glob("*"))
    else:
        name = name_index(store.manifest, store.analyzer)
        client = connect(engine)
        client.indices.forcemerge(index=name, max_num_segments=1)  # as tantivy's is
        size = client.indices.stats(index=name)["_all"]["primaries"]["store"]["size_in_bytes"]
    for _ in range(WARM_UPS):
        store.search(queries, 10)
    rates = {n: measure_search(folder, tokenizer, queries, n, server) for n in args.clients}
    return {
        "passages": len(store),
        "passages_per_second": len(store) / seconds,
        "build_cpu_seconds": sum(after) - sum(before),
        "index_megabytes": size / MEGABYTE,
        "resident_megabytes": (server or psutil.Process()).memory_info().rss / MEGABYTE,
        "clients": rates,
        "found": [ids for ids, _ in store.search(queries, 10)],
    }


def measure_lucene(texts: list[str], queries: list[str], folder: Path, args: argparse.Namespace) -> dict:
    """Return the same of Lucene, with threads as clients."""
    folder.mkdir()
    for name, lines in {"passages": texts, "queries": queries}.items():
        (folder / name).write_text("".join(" ".join(text.split()) + "\n" for text in lines), encoding="utf-8")
    program = Path(__file__).with_name("LuceneRates.java")
    files = [str(folder / name) for name in ("passages", "queries", "index")]
    command = ["java", "-Xmx1g", "-cp", args.lucene_classpath, str(program), *files, *map(str, args.clients)]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Measure every engine."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True, help="Encoder whose tokenizer cuts the passages.")
    parser.add_argument("--corpus", required=True, help="Text, one document per line.")
    parser.add_argument("--heldout", required=True, help="Text that is not in the corpus, for queries.")
    parser.add_argument("--documents", type=int, default=20_000)
    parser.add_argument("--queries", type=int, default=512)
    parser.add_argument("--words", type=int, default=79, help="Of a query, at most.")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--server_pid", type=int, help="Process of the server, for its processor time and memory.")
    parser.add_argument("--lucene_classpath", help="Jars of Lucene.")
    parser.add_argument("--output", required=True, help="JSON file.")
    args = parser.parse_args()

    queries = [" ".join(text.split()[: args.words]) for text in read_texts(args.heldout, args.queries)]
    documents = Dataset.from_dict({"text": read_texts(args.corpus, args.documents)})
    engines = ["tantivy", *(["opensearch"] if "OPENSEARCH_URL" in os.environ else [])]
    figures = {}
    with tempfile.TemporaryDirectory() as folder:
        for engine in engines:
            figures[engine] = measure_engine(engine, documents, Path(folder, engine), queries, args)
            print(engine, {name: value for name, value in figures[engine].items() if name != "found"}, flush=True)
        if args.lucene_classpath:
            texts = [text for _, text in Datastore.load(Path(folder, "tantivy")).read_texts()]
            figures["lucene"] = measure_lucene(texts, queries, Path(folder, "lucene"), args)
            print("lucene", figures["lucene"], flush=True)
    found = [figures[engine].pop("found") for engine in engines]
    figures["rankings_equal_to_tantivy"] = {
        engine: sum(map(list.__eq__, map(list, found[0]), map(list, each))) / len(queries)
        for engine, each in zip(engines, found, strict=True)
    }
    Path(args.output).write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
