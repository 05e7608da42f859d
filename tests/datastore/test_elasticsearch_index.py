"""Indices on a server.

The contract suite runs against the servers that ELASTICSEARCH_URL and OPENSEARCH_URL name, and against a stub in this
process. A stub passing says that our calls are what we think they are, not that a server answers so.
"""

import importlib
import os
import pickle
import random
import sys
from contextlib import contextmanager

import pytest
from datasets import Dataset
from elasticsearch_stub import Fault, SearchServerStub
from tiny_tokenizers import SENTENCES, make_bert_tokenizer

from hf_domain.datastore import Datastore, add_passages, build_datastore, elasticsearch_index
from hf_domain.datastore.analysis import Analyzer
from hf_domain.datastore.elasticsearch_index import _make_text, connect

pytest.importorskip("tantivy")

WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta"]
TEXTS = [f"{WORDS[i % 7]} {WORDS[i % 3]} {WORDS[i // 7]} the models unit{i}" for i in range(45)]
QUERIES = [*TEXTS, "alpha beta beta", "model", "", "the of", "\N{GRINNING FACE}"]
PACKAGES = {"elasticsearch": "elasticsearch", "opensearch": "opensearchpy"}


@pytest.fixture
def tokenizer():
    return make_bert_tokenizer([*SENTENCES, *TEXTS])


@pytest.fixture(autouse=True)
def quick(monkeypatch, tmp_path):
    for name, seconds in {"BACKOFF": 0.001, "LONGEST_PAUSE": 0.01, "PATIENCE": 0.2}.items():
        monkeypatch.setattr(elasticsearch_index, name, seconds, raising=False)
    monkeypatch.setattr(elasticsearch_index, "CHECKPOINT", 10)


@contextmanager
def start_stub(engine):
    """Not with monkeypatch: `Dataset.map` with processes puts another os.environ in place of the patched one."""
    pytest.importorskip(PACKAGES[engine])
    variable, stub = f"{engine.upper()}_URL", SearchServerStub(engine)
    before = os.environ.get(variable)
    os.environ[variable] = stub.url
    yield stub
    os.environ.pop(variable)
    if before is not None:
        os.environ[variable] = before
    stub.close()


SERVERS = ["elasticsearch stub", "opensearch stub"]
SERVERS += [pytest.param(f"{engine} server", marks=pytest.mark.real_server) for engine in PACKAGES]


@pytest.fixture(params=SERVERS)
def engine(request):
    """The engine of the contract suite; its server is named by the environment."""
    engine, kind = request.param.split()
    if kind == "stub":
        with start_stub(engine):
            yield engine
        return
    if not os.environ.get(f"{engine.upper()}_URL"):
        pytest.skip(f"{engine.upper()}_URL names no server: the contract was not tried on a real one")
    pytest.importorskip(PACKAGES[engine])
    client, before = connect(engine), set(connect(engine).indices.get_mapping(index="hf-domain-*"))
    yield engine
    for name in set(client.indices.get_mapping(index="hf-domain-*")) - before:
        client.indices.delete(index=name)


@pytest.fixture(params=["elasticsearch", "opensearch"])
def stub(request):
    with start_stub(request.param) as stub:
        yield stub


def name_index(datastore):
    return elasticsearch_index.name_index(datastore.manifest, datastore.analyzer)


def build(folder, tokenizer, engine, texts=TEXTS, **options):
    documents = Dataset.from_dict({"text": texts})
    return build_datastore(documents, folder, tokenizer, max_length=32, engine=engine, **options)


@pytest.mark.parametrize("analyzer", ["english", "standard", "cjk", str.split])
def test_server_ranks_as_tantivy_does(tmp_path, tokenizer, engine, analyzer):
    texts = [*TEXTS, "合同应当采用书面形式。", "当事人应当采用"]
    on_server = build(tmp_path / "server", tokenizer, engine, texts, analyzer=analyzer)
    here = build(tmp_path / "here", tokenizer, "tantivy", texts, analyzer=analyzer)
    assert on_server.fingerprint == here.fingerprint
    queries = [*QUERIES, "合同采用书面", "当事人"]
    for ours, theirs in zip(on_server.search(queries, 47), here.search(queries, 47), strict=True):
        assert dict(zip(*ours, strict=True)).keys() == dict(zip(*theirs, strict=True)).keys()
        ranks = {number: round(score, 3) for number, score in zip(*theirs, strict=True)}
        assert [ranks[number] for number in ours[0]] == sorted(ranks.values(), reverse=True)
        if ours[1]:  # servers differ by a constant factor
            assert [score / ours[1][0] for score in ours[1]] == pytest.approx(
                [score / theirs[1][0] for score in theirs[1]], rel=1e-3
            )


def test_datastore_on_a_server_is_one_like_others(tmp_path, tokenizer, engine):
    datastore = build(tmp_path / "store", tokenizer, engine)
    assert not list(datastore.folder.glob("index-*"))
    datastore = Datastore.load(tmp_path / "store", tokenizer)
    rows = Dataset.from_dict({"text": TEXTS[:7]})
    found = add_passages(rows, datastore, "text", k=3)
    assert all(len(ids) == 3 and row not in ids for row, ids in enumerate(found["passage_ids"][:]))
    assert add_passages(rows, datastore, "text", k=3, num_proc=2)["passage_ids"][:] == found["passage_ids"][:]

    assert datastore.search(["unit3 unit4"], 5)[0][0] == [3, 4]
    assert datastore.delete([3]) == 1
    assert datastore.search(["unit3 unit4"], 5)[0][0] == [4]
    assert datastore.add(Dataset.from_dict({"text": ["omega", TEXTS[4]]})) == 1
    assert Datastore.load(tmp_path / "store").search(["omega unit3 unit4"], 5)[0][0] in ([4, 45], [45, 4])
    assert datastore.search(["models"], 7)[0][0] == [*range(3), *range(4, 8)]  # all score the same: the lowest ids


def test_same_content_is_indexed_once(tmp_path, tokenizer, engine):
    one = build(tmp_path / "one", tokenizer, engine)
    two = build(tmp_path / "two", tokenizer, engine, client=connect(engine))
    assert name_index(one) == name_index(two)
    standard = Datastore.load(tmp_path / "two", analyzer="standard", rebuild_index=True)
    assert name_index(standard) != name_index(one)
    assert one.search(["models"], 50)[0] and standard.search(["model"], 50)[0] == ([], [])


def test_missing_index_is_reported(tmp_path, tokenizer, engine):
    datastore = build(tmp_path / "store", tokenizer, engine)
    connect(engine).indices.delete(index=name_index(datastore))
    with pytest.raises(FileNotFoundError, match=rf"no index {name_index(datastore)}\. Build it"):
        Datastore.load(tmp_path / "store")
    with pytest.raises(FileNotFoundError, match="no index"):
        datastore.search(["alpha"])
    again = Datastore.load(tmp_path / "store", rebuild_index=True)
    assert again.search(["unit5"])[0][0] == [5]


def test_calls_of_the_stub(tmp_path, tokenizer, stub):
    datastore = build(tmp_path / "store", tokenizer, stub.distribution)
    index = stub.indices[name_index(datastore)]
    assert index["mappings"]["_source"] == {"enabled": False}
    assert index["mappings"]["properties"] == {
        "id": {"type": "long"},
        "text": {"type": "text", "analyzer": "english", "index_options": "freqs"},
    }
    assert index["settings"]["number_of_shards"] == 1 and index["settings"]["refresh_interval"] is None
    assert index["settings"]["similarity"] == {"default": {"type": "BM25", "k1": 1.2, "b": 0.75}}
    assert index["mappings"]["_meta"] == {
        "fingerprint": datastore.fingerprint, "num_indexed": 45, "shards": 1, "complete": True
    }  # fmt: skip
    assert stub.count_calls("_bulk") == 5
    datastore.search(["alpha"] * 70)
    assert stub.count_calls("_msearch") == 3 and not stub.count_calls("dfs_query_then_fetch")


def test_equal_scores_rank_by_id_on_several_shards(tmp_path, tokenizer, engine, monkeypatch):
    monkeypatch.setattr(elasticsearch_index, "PASSAGES_PER_SHARD", 20)
    texts = [f"alpha beta unit{number}" for number in range(45)]
    datastore = build(tmp_path / "store", tokenizer, engine, texts)
    found = datastore.search(["alpha", "beta", "alpha unit44"], 9)
    assert [ids for ids, _ in found] == [[*range(9)], [*range(9)], [44, *range(8)]]


@pytest.mark.parametrize(
    "engine", [SERVERS[0], pytest.param(SERVERS[1], marks=pytest.mark.commands), *SERVERS[2:]], indirect=True
)
def test_several_shards_find_what_one_index_finds(tmp_path, tokenizer, engine, monkeypatch, request):
    """The same passages and scores: each shard alone has other frequencies."""
    # The stub takes a minute for what a server does in a second.
    num_texts, num_queries = (600, 40) if "stub" in request.node.callspec.id else (1500, 150)
    random.seed(0)
    words, weights = [f"w{number}" for number in range(400)], [1 / (number + 1) for number in range(400)]
    texts = [" ".join(random.choices(words, weights, k=random.randint(5, 25))) for _ in range(num_texts)]
    queries = [" ".join(random.choices(words, weights, k=40)) for _ in range(num_queries)]
    queries += ["", "w1 w1 unknown", "unknown"]
    monkeypatch.setattr(elasticsearch_index, "CHECKPOINT", 2 * num_texts // 3)
    here = build(tmp_path / "here", tokenizer, "tantivy", texts, analyzer="standard")
    found = {}
    for shards in (1, 3):
        monkeypatch.setattr(elasticsearch_index, "PASSAGES_PER_SHARD", -(-len(here) // shards))
        store = build(tmp_path / f"shards-{shards}", tokenizer, engine, texts, analyzer="standard")
        found[shards] = store.search(queries, 10)
        connect(engine).indices.delete(index=name_index(store))
    assert found[3] == found[1]
    expected = here.search(queries, 10)
    factor = found[1][0][1][0] / expected[0][1][0]  # servers differ by a constant factor
    for (_, scores), (_, their_scores) in zip(found[1], expected, strict=True):
        assert scores == pytest.approx([factor * score for score in their_scores], rel=1e-3)


def test_several_shards_count_frequencies_together(tmp_path, tokenizer, stub, monkeypatch):
    monkeypatch.setattr(elasticsearch_index, "PASSAGES_PER_SHARD", 20)
    datastore = build(tmp_path / "store", tokenizer, stub.distribution)
    assert stub.indices[name_index(datastore)]["settings"]["number_of_shards"] == 3
    datastore.search(["alpha"])
    assert stub.count_calls("_msearch.*dfs_query_then_fetch") == 1


@pytest.mark.parametrize(
    "fault",
    [
        Fault("_bulk", status=429, body={"error": {"type": "es_rejected_execution_exception"}, "status": 429}),
        Fault("_bulk", status=503, times=3),
        Fault("_bulk", item={"status": 429, "error": {"type": "es_rejected_execution_exception"}}, times=3),
        Fault("_bulk", item={"status": 503, "error": {"type": "unavailable_shards_exception"}}),
        Fault("_mapping", status=503),
    ],
    ids=["429", "503", "429 item", "503 item", "mapping"],
)
def test_busy_server_is_asked_again_while_building(tmp_path, tokenizer, stub, fault):
    stub.faults = [Fault(**vars(fault))]
    datastore = build(tmp_path / "store", tokenizer, stub.distribution)
    assert stub.faults[0].times == 0
    assert datastore.search(["unit1 unit44"], 5)[0][0] == [1, 44]


def test_server_that_restarts_is_waited_for(tmp_path, tokenizer, stub, caplog):
    stub.faults = [Fault("_bulk", is_down=True, times=15)]  # the clients try six times, at once
    datastore = build(tmp_path / "store", tokenizer, stub.distribution)
    stub.faults = [Fault("_msearch", is_down=True, times=15)]
    assert datastore.search(["unit1 unit44"], 5)[0][0] == [1, 44]
    assert stub.faults[0].times == 0 and caplog.text.count("waiting up to 0.2 s") == 2


def test_documents_are_cut_once_though_the_server_dies(tmp_path, tokenizer, stub, monkeypatch):
    cut = []
    module = sys.modules[Datastore.__module__]
    split = module.split_documents
    monkeypatch.setattr(
        module, "split_documents", lambda rows, *options: cut.extend(text for _, text in rows) or split(rows, *options)
    )
    stub.faults = [Fault("_bulk", is_down=True, times=1_000)]
    with pytest.raises(ConnectionError, match="cannot be reached"):
        build(tmp_path / "store", tokenizer, stub.distribution)
    stub.faults = []
    datastore = build(tmp_path / "store", tokenizer, stub.distribution)
    assert cut == TEXTS

    stub.faults = [Fault("_bulk", is_down=True, times=1_000)]
    documents = Dataset.from_dict({"text": ["omega"]})
    with pytest.raises(ConnectionError, match="cannot be reached"):
        datastore.add(documents)
    stub.faults = []
    assert datastore.add(documents) == 1 and datastore.search(["omega"])[0][0] == [45]


def make_client():
    """A function that other processes can import; the environment does not name this server."""
    return connect_to(os.environ["STUB"])


def connect_to(url):
    return importlib.import_module("opensearchpy").OpenSearch(url)


def test_processes_make_their_own_client(tmp_path, tokenizer):
    with start_stub("opensearch") as stub:
        del os.environ["OPENSEARCH_URL"]
        os.environ["STUB"] = stub.url
        datastore = build(tmp_path / "store", tokenizer, "opensearch", client=make_client())
        rows, expected = Dataset.from_dict({"text": TEXTS[:7]}), datastore.search(TEXTS[:7], 3)
        with pytest.raises(ValueError, match=r"must make its own client in each.* Pass client=FUNCTION"):
            add_passages(rows, datastore, "text", k=3, num_proc=2)
        datastore = Datastore.load(tmp_path / "store", client=make_client)
        assert datastore.search(TEXTS[:7], 3) == expected
        assert pickle.loads(pickle.dumps(datastore)).search(TEXTS[:7], 3) == expected
        found = add_passages(rows, datastore, "text", k=3, num_proc=2)["passage_ids"][:]
        assert found == add_passages(rows, datastore, "text", k=3)["passage_ids"][:]
        del os.environ["STUB"]
        os.environ["OPENSEARCH_URL"] = stub.url


FAILED_SHARD = {"timed_out": False, "_shards": {"total": 2, "failed": 1}, "hits": {"hits": []}, "status": 200}
TIMED_OUT = {"timed_out": True, "_shards": {"total": 1, "failed": 0}, "hits": {"hits": []}, "status": 200}
BUSY = {"error": {"type": "es_rejected_execution_exception"}, "status": 429}


@pytest.mark.parametrize(
    ("item", "message"),
    [(FAILED_SHARD, "1 of 2 shards failed"), (TIMED_OUT, "ran out of time"), (BUSY, "es_rejected_execution")],
)
def test_queries_that_fail_are_asked_again(tmp_path, tokenizer, stub, item, message):
    datastore = build(tmp_path / "store", tokenizer, stub.distribution)
    expected = datastore.search(["unit1", "unit2"])
    stub.faults = [Fault("_msearch", item=item, times=2)]
    assert datastore.search(["unit1", "unit2"]) == expected
    stub.faults = [Fault("_msearch", item=item, times=100)]
    with pytest.raises(ConnectionError, match=rf"did not answer for 0\.2 s: .*{message}"):
        datastore.search(["unit1", "unit2"])
    assert stub.faults[0].times < 95


@pytest.mark.parametrize(
    ("fault", "error", "message"),
    [
        (Fault("_msearch", status=401, body={"error": "missing"}), PermissionError, r"\(401\).*_API_KEY, or"),
        (Fault("_msearch", status=403, body={"error": "no"}), PermissionError, r"\(403\).*account that may"),
        (Fault("_msearch", status=503, times=100), ConnectionError, r"overloaded \(503\)"),
        (Fault("_msearch", status=400, body={"error": "x"}), ValueError, r"refuses the request"),
    ],
)
def test_failures_are_reported(tmp_path, tokenizer, stub, fault, error, message):
    datastore = build(tmp_path / "store", tokenizer, stub.distribution)
    stub.faults = [Fault(**vars(fault))]
    with pytest.raises(error, match=message):
        datastore.search(["unit1"])


def test_slow_and_dead_servers_are_reported(tmp_path, tokenizer, stub):
    engine = stub.distribution
    build(tmp_path / "store", tokenizer, engine)
    package = importlib.import_module(PACKAGES[engine])
    make = package.Elasticsearch if engine == "elasticsearch" else package.OpenSearch
    timeout = {"request_timeout" if engine == "elasticsearch" else "timeout": 0.2}
    datastore = Datastore.load(tmp_path / "store", client=make(stub.url, max_retries=0, **timeout))
    stub.faults = [Fault("_msearch", delay=1.0)]
    with pytest.raises(TimeoutError, match="did not answer in time"):
        datastore.search(["unit1"])
    stub.close()
    with pytest.raises(ConnectionError, match="cannot be reached"):
        datastore.search(["unit1"])


def test_other_servers_are_reported(tmp_path, tokenizer):
    with start_stub("elasticsearch") as stub:
        stub.version = "7.17.0"
        with pytest.raises(ValueError, match=r"must be Elasticsearch 8 or 9, but is 7\.17\.0"):
            build(tmp_path / "one", tokenizer, "elasticsearch")
        stub.has_product_header = False
        with pytest.raises(ValueError, match=r"refuses the request: .*not Elasticsearch"):
            build(tmp_path / "two", tokenizer, "elasticsearch")
        stub.has_product_header, stub.distribution = True, "opensearch"
        with pytest.raises(ValueError, match="elasticsearch, must be that of the server, which is opensearch"):
            build(tmp_path / "three", tokenizer, "elasticsearch")


def test_interrupted_build_continues(tmp_path, tokenizer, stub):
    refusal = {"status": 400, "error": {"type": "strict_dynamic_mapping_exception"}}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(elasticsearch_index, "_send", fail_after(3, elasticsearch_index._send))
        with pytest.raises(KeyboardInterrupt):
            build(tmp_path / "store", tokenizer, stub.distribution)
    assert not (tmp_path / "store").exists()
    (index,) = stub.indices.values()
    assert index["mappings"]["_meta"]["num_indexed"] == 30 and not index["mappings"]["_meta"]["complete"]
    calls = stub.count_calls("_bulk")
    stub.faults = [Fault("_bulk", item=refusal)]
    with pytest.raises(ValueError, match=r"but refuses 1, the first with .*strict_dynamic"):
        build(tmp_path / "store", tokenizer, stub.distribution)
    datastore = build(tmp_path / "store", tokenizer, stub.distribution)
    assert stub.count_calls("_bulk") == calls + 3
    assert len(index["documents"]) == 45 and datastore.search(["unit30"])[0][0] == [30]


def fail_after(number, function):
    calls = iter(range(100))

    def fail(*arguments):
        if next(calls) == number:
            raise KeyboardInterrupt
        return function(*arguments)

    return fail


def test_incomplete_index_is_not_searched(tmp_path, tokenizer, stub):
    datastore = build(tmp_path / "store", tokenizer, stub.distribution)
    stub.indices[name_index(datastore)]["mappings"]["_meta"] |= {"complete": False, "num_indexed": 20}
    with pytest.raises(ValueError, match=r"has 20 of 45\. Continue"):
        Datastore.load(tmp_path / "store")
    assert Datastore.load(tmp_path / "store", rebuild_index=True).search(["unit44"])[0][0] == [44]
    del stub.indices[name_index(datastore)]["documents"]["7"]
    stub.indices[name_index(datastore)]["mappings"]["_meta"]["complete"] = False
    with pytest.raises(ValueError, match="has 44 of 45"):
        Datastore.load(tmp_path / "store", rebuild_index=True)


@pytest.mark.parametrize(
    ("variables", "header"),
    [
        ({"API_KEY": "abc"}, "ApiKey abc"),
        ({"BEARER_TOKEN": "abc"}, "Bearer abc"),
        ({"USERNAME": "user", "PASSWORD": "pass"}, "Basic dXNlcjpwYXNz"),
        ({}, None),
    ],
)
def test_authentication_comes_from_the_environment_and_is_not_saved(
    tmp_path, tokenizer, stub, monkeypatch, variables, header
):
    for name, value in variables.items():
        monkeypatch.setenv(f"{stub.distribution.upper()}_{name}", value)
    build(tmp_path / "store", tokenizer, stub.distribution)
    sent = [{name.lower(): value for name, value in headers.items()}.get("authorization") for headers in stub.headers]
    assert set(sent) == {header}
    for file in (tmp_path / "store").rglob("*.json"):
        assert "abc" not in file.read_text() or file.parent.name == "tokenizer"
        assert stub.url not in file.read_text()


def test_missing_server_or_client_is_reported(tmp_path, tokenizer, monkeypatch):
    monkeypatch.delenv("OPENSEARCH_URL", raising=False)
    with pytest.raises(ValueError, match="OPENSEARCH_URL is not set"):
        build(tmp_path / "store", tokenizer, "opensearch")
    assert not list(tmp_path.glob("store*"))
    monkeypatch.setitem(sys.modules, "opensearchpy", None)
    with pytest.raises(ModuleNotFoundError, match=r"needs opensearch-py, .* pip install \"\.\[servers\]\""):
        connect("opensearch")


def test_function_with_the_name_of_one_of_our_analyzers():
    def english(text):
        return [word for word in text.lower().split() if word != "the"]

    english.__qualname__ = "english"  # as outside of a test
    assert _make_text("The Cats, the", Analyzer(english)) == "cats,"
    assert _make_text("The Cats, the", Analyzer("english")) == "The Cats, the"
