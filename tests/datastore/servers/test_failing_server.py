"""What a datastore does when its server dies, restarts, fills up or loses its index: on a real OpenSearch node."""

import importlib
import sys
import threading
import time
from pathlib import Path

import pytest
from datasets import Dataset
from tiny_tokenizers import make_bert_tokenizer

from hf_domain.datastore import Datastore, add_passages, build_datastore, elasticsearch_index
from hf_domain.datastore.elasticsearch_index import _make_text as make_text

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


def test_processes_that_add_passages_outlive_a_restart(tmp_path, tokenizer, node, server):
    store = build(tmp_path / "server", tokenizer)
    rows = Dataset.from_dict({"text": TEXTS})
    expected = add_passages(rows, store, "text", k=3)["passage_ids"][:]

    def count_searches():
        return server.indices.stats(index="hf-domain-*")["_all"]["total"]["search"]["query_total"]

    def restart(before):
        while count_searches() == before:  # the processes have not searched yet
            time.sleep(0.02)
        killed.append(time.monotonic())
        node.kill()
        time.sleep(AWAY)
        node.start()

    killed: list[float] = []
    thread = threading.Thread(target=restart, args=(count_searches(),))
    thread.start()
    found = add_passages(rows, store, "text", k=3, num_proc=2)["passage_ids"][:]
    assert time.monotonic() - killed[0] > AWAY  # they were at work, and waited
    thread.join()
    assert found == expected


def test_a_server_that_stays_away_is_reported_after_the_stated_time(tmp_path, tokenizer, node, monkeypatch):
    store = build(tmp_path / "server", tokenizer)
    store.search(QUERIES[:1], 5)  # a server that never answered is not waited for
    node.kill()
    monkeypatch.setattr(elasticsearch_index, "PATIENCE", 3)
    started = time.monotonic()
    with pytest.raises(ConnectionError, match="Run the same again when it is back"):
        store.search(QUERIES, 5)
    assert 3 <= time.monotonic() - started < 30


def test_documents_are_cut_once_though_the_server_dies(tmp_path, tokenizer, node, monkeypatch):
    cut: list[str] = []
    module = sys.modules[Datastore.__module__]
    split = module.split_documents
    monkeypatch.setattr(
        module, "split_documents", lambda rows, *options: cut.extend(text for _, text in rows) or split(rows, *options)
    )
    with monkeypatch.context() as patch:
        patch.setattr(elasticsearch_index, "PATIENCE", 1)
        patch.setattr(elasticsearch_index, "_make_text", lambda *arguments: node.kill() or make_text(*arguments))
        with pytest.raises(ConnectionError, match="cannot be reached"):
            build(tmp_path / "server", tokenizer)
    node.start()
    node.wait()
    assert build(tmp_path / "server", tokenizer).search(TEXTS[7:8], 1)[0][0] == [7]
    assert cut == TEXTS


def flood(refusals, is_over):
    """Send passages to another index until our own are refused."""
    client = elasticsearch_index.connect("opensearch")
    client.transport.max_retries = 0
    lines = [line for text in TEXTS for line in ({"index": {"_index": "other"}}, {"text": text})]
    while not is_over():
        try:
            items = client.bulk(body=lines)["items"]
        except importlib.import_module("opensearchpy").TransportError as error:
            refusals.append(error.status_code)
        else:
            refusals.extend({item["index"]["status"] for item in items})


def test_passages_that_a_full_queue_refuses_are_sent_again(tmp_path, tokenizer, node, server, monkeypatch):
    """The node writes with one thread, and one request may wait."""
    settings = next(node.folder.glob("**/opensearch.yml"))
    usual = settings.read_text()
    node.kill()
    settings.write_text(f"{usual}\nnode.processors: 1\nthread_pool.write.queue_size: 1\n")
    node.start()
    node.wait()
    helpers, ours, others = importlib.import_module("opensearchpy.helpers"), list[int](), list[int]()
    send = helpers.streaming_bulk

    def record(*arguments, **options):
        for sent in send(*arguments, **options):
            ours.extend(details["status"] for details in sent[1].values())
            yield sent

    monkeypatch.setattr(helpers, "streaming_bulk", record)
    threads = [threading.Thread(target=flood, args=(others, lambda: 429 in ours)) for _ in range(8)]
    try:
        for thread in threads:
            thread.start()
        while 429 not in others:
            time.sleep(0.1)
        store = build(tmp_path / "server", tokenizer)
    finally:
        ours.append(429)  # ends the others
        settings.write_text(usual)
        node.kill()
    for thread in threads:
        thread.join()
    node.start()
    node.wait()
    assert 429 in ours[:-1] and ours.count(201) == len(TEXTS)
    here = build(tmp_path / "here", tokenizer, engine="tantivy")
    assert [ids for ids, _ in store.search(QUERIES[:200], 5)] == [ids for ids, _ in here.search(QUERIES[:200], 5)]


@pytest.mark.parametrize(
    ("block", "error", "message"),
    [
        ("read_only_allow_delete", ConnectionError, "for 2 s.*disk usage.*Run the build again later; it continues"),
        ("write", ValueError, "must accept every passage.*FORBIDDEN"),
    ],
)
def test_an_index_that_takes_no_passages_is_reported(tmp_path, tokenizer, server, monkeypatch, block, error, message):
    """A server whose disk is full sets the first block by itself, and lifts it when there is room."""
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


def test_an_index_that_is_deleted_during_a_search_is_named(tmp_path, tokenizer, server, monkeypatch):
    store = build(tmp_path / "server", tokenizer)
    expected = store.search(QUERIES, 5)
    ask, calls = elasticsearch_index._ask, iter(range(10**6))

    def delete_before_the_tenth(*arguments, **options):
        if next(calls) == 9:
            server.indices.delete(index=elasticsearch_index.name_index(store.manifest, store.analyzer))
        return ask(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(elasticsearch_index, "_ask", delete_before_the_tenth)
        with pytest.raises(FileNotFoundError, match="rebuild_index=True"):
            store.search(QUERIES, 5)
    assert next(calls) == 10  # nine requests had their answers
    store = Datastore.load(tmp_path / "server", tokenizer, rebuild_index=True)
    assert store.search(QUERIES, 5) == expected
