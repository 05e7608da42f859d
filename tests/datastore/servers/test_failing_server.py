"""What a datastore does when its server restarts or takes no passages: on a real OpenSearch node."""

import sys
import threading
from pathlib import Path

import pytest
from datasets import Dataset
from tiny_tokenizers import make_bert_tokenizer

from hf_domain.datastore import build_datastore, elasticsearch_index

sys.path.insert(0, str(Path(__file__).parent))
from node import Node, list_missing_tools

pytestmark = pytest.mark.servers
pytest.importorskip("opensearchpy")

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"]
TEXTS = [f"{WORDS[i % 7]} {WORDS[i % 3]} {WORDS[i // 7 % 7]} unit{i}" for i in range(3000)]
QUERIES = TEXTS
AWAY = 5  # seconds between the kill and the start


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    if missing := list_missing_tools():
        pytest.skip(f"{' and '.join(missing)} not found")
    node = Node(tmp_path_factory.mktemp("opensearch"), port=9211)
    node.start()
    node.wait()
    yield node
    node.kill()


@pytest.fixture(autouse=True)
def server(node, monkeypatch, tmp_path):
    if node.process.poll() is not None:
        node.start()
        node.wait()
    monkeypatch.setenv("OPENSEARCH_URL", node.url)
    monkeypatch.setattr(elasticsearch_index, "CHECKPOINT", 500)
    client = elasticsearch_index.connect("opensearch")
    client.indices.delete(index="hf-domain-*")  # the same content would not be indexed again
    return client


@pytest.fixture(scope="module")
def tokenizer():
    return make_bert_tokenizer([*WORDS, *TEXTS[:50]])


def build(folder, tokenizer, engine="opensearch", **options):
    documents = Dataset.from_dict({"text": TEXTS})
    return build_datastore(documents, folder, tokenizer, max_length=32, engine=engine, **options)


def restart_after(node, monkeypatch, name, calls):
    """Kill the node when a function of the index was called so often, and start it again some seconds later."""
    original, count = getattr(elasticsearch_index, name), iter(range(10**6))
    restarts = []

    def call(*arguments, **options):
        if next(count) == calls:
            node.kill()
            restarts.append(threading.Timer(AWAY, node.start))
            restarts[0].start()
        return original(*arguments, **options)

    monkeypatch.setattr(elasticsearch_index, name, call)
    return restarts


def test_a_build_outlives_a_restart(tmp_path, tokenizer, node, monkeypatch):
    restarts = restart_after(node, monkeypatch, "_send", 3)
    store = build(tmp_path / "server", tokenizer)
    assert len(restarts) == 1
    here = build(tmp_path / "here", tokenizer, engine="tantivy")
    assert [ids for ids, _ in store.search(QUERIES[:200], 5)] == [ids for ids, _ in here.search(QUERIES[:200], 5)]


def test_a_search_outlives_a_restart(tmp_path, tokenizer, node, monkeypatch):
    store = build(tmp_path / "server", tokenizer)
    expected = store.search(QUERIES, 5)
    restarts = restart_after(node, monkeypatch, "_ask", 20)
    assert store.search(QUERIES, 5) == expected
    assert len(restarts) == 1


@pytest.mark.parametrize(
    ("block", "error", "message"),
    [
        ("read_only_allow_delete", ConnectionError, "for 2 s.*disk usage.*Run the build again later; it continues"),
        ("write", ValueError, "must accept every passage.*FORBIDDEN"),
    ],
)
def test_an_index_that_takes_no_passages_is_reported(tmp_path, tokenizer, server, monkeypatch, block, error, message):
    """A server whose disk is full sets the first block by itself, and lifts it at its next look if there is room."""
    server.cluster.put_settings(body={"transient": {"cluster.info.update.interval": "1h"}})  # no look in this test
    monkeypatch.setattr(elasticsearch_index, "PATIENCE", 2)
    send, blocked = elasticsearch_index._send, iter([False, False, True])

    def block_third(client, *passages):
        if next(blocked, False):
            client.indices.put_settings(index="hf-domain-*", body={"index": {f"blocks.{block}": True}})
        send(client, *passages)

    monkeypatch.setattr(elasticsearch_index, "_send", block_third)
    with pytest.raises(error, match=message):
        build(tmp_path / "server", tokenizer)
    server.indices.put_settings(index="hf-domain-*", body={"index": {f"blocks.{block}": None}})
    assert build(tmp_path / "server", tokenizer).search(TEXTS[7:8], 1)[0][0] == [7]
