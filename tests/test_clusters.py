"""The same results from a Dask cluster as from one process, with any number of workers, and if a worker dies."""

import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from dask_workers import start_workers
from datasets import Dataset
from elasticsearch_stub import SearchServerStub
from method_models import make_rada
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

from hf_domain.clusters import map_in_order
from hf_domain.data.corpora import tokenize_corpus
from hf_domain.datastore import build_datastore
from hf_domain.datastore.elasticsearch_index import name_index
from hf_domain.methods.rada.states import build_passage_cache
from hf_domain.tokenization import batch_texts, count_words

# Workers, and how many die: one in each of the four stages.
CLUSTERS = [pytest.param(count, 0, marks=pytest.mark.distributed) for count in (1, 2, 4)] + [(5, 4)]
WORDS = " ".join(SENTENCES).split()
# Many texts twice, most of them far apart: duplicates are found across the parts of the corpus.
TEXTS = [" ".join(WORDS[(7 * row + i * i) % len(WORDS)] for i in range(3 + row % 50)) for row in range(2300)]
TEXTS = [*TEXTS, *TEXTS[:900], "", "  "]


def run_stages(folder, executor):
    """Do all work on a corpus; returns what must be equal."""
    tokenizer = make_bert_tokenizer()
    counts = count_words(batch_texts(TEXTS, 5000), tokenizer.backend_tokenizer, executor, progress=False)
    examples = tokenize_corpus(TEXTS, tokenizer, max_seq_length=16, whole_words=True, executor=executor)["train"]
    datastore = build_datastore(
        Dataset.from_dict({"text": TEXTS}), folder / "datastore", tokenizer, max_length=32, executor=executor
    )
    torch.manual_seed(0)
    model = make_rada(passage_encoder="frozen")
    ids = range(0, datastore.manifest.num_passages, 3)
    cache = build_passage_cache(
        folder / "states", model, tokenizer, datastore.passages, datastore.fingerprint, ids, executor=executor
    )
    manifest = vars(datastore.manifest) | {"fingerprint": datastore.fingerprint}
    # tantivy gives its files random names.
    manifest["files"] = {name: manifest["files"][name] for name in manifest["parts"]}
    states = {file.name: file.read_bytes() for file in (folder / "states").glob("states-*")}
    assert len(states) > 3 and len(cache) == len(ids) and datastore.manifest.num_duplicates > 800
    found = datastore.search(TEXTS[::40], k=10)
    return {"counts": counts, "examples": examples.to_dict(), "manifest": manifest, "found": found, "states": states}


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hf_domain.methods.hidden_state_cache.SHARD_SEQUENCES", 64)
        return run_stages(tmp_path_factory.mktemp("plain"), None)


@pytest.mark.parametrize(("workers", "deaths"), CLUSTERS)
def test_a_cluster_gives_the_same(expected, workers, deaths, tmp_path, monkeypatch):
    monkeypatch.setattr("hf_domain.methods.hidden_state_cache.SHARD_SEQUENCES", 64)
    with start_workers(tmp_path, workers, kill=deaths > 0) as executor:
        found = run_stages(tmp_path, executor)
        assert len(executor._client.nthreads()) == workers - deaths
    for name, value in expected.items():
        assert found[name] == value, name


@pytest.mark.distributed
def test_a_cluster_builds_the_same_index_on_a_server(tmp_path, monkeypatch):
    """The workers cut and hash the passages; this process sends them."""
    pytest.importorskip("opensearchpy")
    stub = SearchServerStub("opensearch")
    monkeypatch.setenv("OPENSEARCH_URL", stub.url)
    built = {}
    with start_workers(tmp_path, 2) as cluster:
        for name, executor in {"plain": None, "cluster": cluster}.items():
            documents = Dataset.from_dict({"text": TEXTS})
            options = {"max_length": 32, "engine": "opensearch", "executor": executor}
            datastore = build_datastore(documents, tmp_path / name, make_bert_tokenizer(), **options)
            index = stub.indices.pop(name_index(datastore.manifest, datastore.analyzer))
            built[name] = datastore.fingerprint, index["documents"]
    stub.close()
    assert len(built["plain"][1]) == datastore.manifest.num_passages > 1000
    assert built["cluster"] == built["plain"]


def test_few_items_are_in_memory_at_once():
    drawn = []

    class Immediate:
        _max_workers = 3

        def submit(self, function, *arguments):
            return type("Done", (), {"result": lambda self: function(*arguments)})()

    results = map_in_order(
        Immediate(), lambda item, factor: item * factor, (drawn.append(i) or i for i in range(50)), 2
    )
    assert next(results) == 0 and len(drawn) == 6
    assert [*results] == [2 * i for i in range(1, 50)]


def test_workers_end_with_a_killed_process():
    """They wait for work on a pipe that they hold open themselves."""
    code = (
        "import os, time\nfrom hf_domain.clusters import open_executor\n"
        "with open_executor(2) as executor:\n    print(executor.submit(os.getpid).result(), flush=True)\n"
        "    time.sleep(600)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    worker = int(process.stdout.readline())
    os.kill(worker, 0)
    process.kill()
    process.wait()
    for _ in range(100):
        try:
            os.kill(worker, 0)
        except ProcessLookupError:
            return
        time.sleep(0.1)
    os.kill(worker, signal.SIGKILL)
    pytest.fail("the worker was still there")
