"""The same index on a server: Elasticsearch 8 and 9 or OpenSearch, through one code path.

For datastores that several machines search, or that outgrow one. Passages and their ids stay in the folder; the server
holds an index whose name is made of what is in it, so it is never an old one. It gets the texts, and its own analyzers
make of them what ours do.

The server is named by the environment: ELASTICSEARCH_URL and, as the server wants it, ELASTICSEARCH_API_KEY, or
ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD, or ELASTICSEARCH_BEARER_TOKEN, and ELASTICSEARCH_CA_CERTS; the same
with OPENSEARCH_. Nothing of it is ever saved.
"""

import hashlib
import importlib
import itertools
import os
import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tqdm.auto import tqdm

from hf_domain.datastore.analysis import ANALYZERS, Analyzer

if TYPE_CHECKING:
    from hf_domain.datastore.store import Datastore

PREFIX = "hf-domain"
PASSAGES_PER_SHARD = 20_000_000  # some 5 GB of index; a shard is searched by one thread at a time
CHECKPOINT = 10_000  # passages after which an interrupted build goes on
QUERIES_PER_REQUEST = 32
RETRIES = 5
BACKOFF = 1.0  # seconds before the first retry, doubled before every other
TIMEOUT = 60  # seconds
PACKAGES = {"elasticsearch": "elasticsearch", "opensearch": "opensearchpy"}
OVERLOADED = (429, 502, 503, 504)


def connect(engine: str) -> Any:
    """Make a client from the environment.

    Args:
        engine: `elasticsearch` or `opensearch`.

    Returns:
        The official client.

    Raises:
        ModuleNotFoundError: The client is not installed.
        ValueError: The environment names no server.
    """
    try:
        package = importlib.import_module(PACKAGES[engine])
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"{engine} is searched with its client, which is not installed. Run pip install hf-domain[{engine}]."
        ) from error
    names = ("url", "api_key", "username", "password", "bearer_token", "ca_certs")
    given = {name: os.environ.get(f"{engine}_{name}".upper()) for name in names}
    if not given["url"]:
        raise ValueError(
            f"the environment names the server; {engine.upper()}_URL is not set. Set it, or pass a client."
        )
    user = (given["username"], given["password"]) if given["username"] else None
    options: dict[str, Any] = {
        "max_retries": RETRIES,
        "retry_on_timeout": True,
        "retry_on_status": OVERLOADED,
        "http_compress": True,
    }
    if given["ca_certs"]:
        options["ca_certs"] = given["ca_certs"]
    if engine == "elasticsearch":
        options |= {"request_timeout": TIMEOUT, "basic_auth": user}
        options |= {"api_key": given["api_key"], "bearer_auth": given["bearer_token"]}
        return package.Elasticsearch(given["url"], **{name: value for name, value in options.items() if value})
    if given["api_key"] or given["bearer_token"]:
        kind, key = ("ApiKey", given["api_key"]) if given["api_key"] else ("Bearer", given["bearer_token"])
        options["headers"] = {"authorization": f"{kind} {key}"}
    return package.OpenSearch(given["url"], timeout=TIMEOUT, http_auth=user, **options)


def build_index(datastore: "Datastore") -> None:
    """Index the passages of a datastore on its server, or go on where an interrupted build stopped.

    Args:
        datastore: Says what is indexed, with which analyzer and where.

    Raises:
        ConnectionError: The server is down or overloaded; the same call goes on later.
        PermissionError: It does not let us in.
        ValueError: It is of another kind or version, or refuses a passage.
    """
    client = datastore.client or connect(datastore.manifest.engine)
    name = name_index(datastore)
    with _tell_failures(name):
        _check_server(client, datastore.manifest.engine)
        if client.indices.exists(index=name):
            meta = _read_meta(client, name)
        else:
            shards = max(1, -(-len(datastore) // PASSAGES_PER_SHARD))
            meta = {"fingerprint": datastore.fingerprint, "num_indexed": 0, "shards": shards, "complete": False}
            client.indices.create(index=name, body=_describe_index(datastore.analyzer, meta))
        if meta["complete"]:
            return
        total = len(datastore)
        rows = itertools.islice(datastore.read_texts(), meta["num_indexed"], None)
        progress = tqdm(total=total, initial=meta["num_indexed"], desc=f"Indexing {name}", unit="passage")
        with progress:
            while batch := list(itertools.islice(rows, CHECKPOINT)):
                _send(client, [_make_action(name, number, text, datastore.analyzer) for number, text in batch])
                meta["num_indexed"] += len(batch)
                client.indices.put_mapping(index=name, body={"_meta": meta})
                progress.update(len(batch))
        client.indices.put_settings(index=name, body={"index": {"refresh_interval": None}})
        client.indices.refresh(index=name)
        count = client.count(index=name)["count"]
        if count != total:
            raise ValueError(
                f"the server holds what it was sent; {name} has {count} of {total} passages. Delete that index and "
                "build it again."
            )
        client.indices.put_mapping(index=name, body={"_meta": meta | {"complete": True}})


def name_index(datastore: "Datastore") -> str:
    """Name the index of a datastore by what is in it."""
    content = f"{datastore.fingerprint} {datastore.analyzer.fingerprint}"
    return f"{PREFIX}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


class ElasticsearchIndex:
    """An index on a server, opened for searching.

    Args:
        datastore: The datastore that was indexed there with `build_index`.

    Raises:
        FileNotFoundError: The server has no such index.
        ConnectionError: It is down or overloaded.
        PermissionError: It does not let us in.
        ValueError: It is of another kind or version, or the index is not complete.
    """

    def __init__(self, datastore: "Datastore"):
        self.client = datastore.client or connect(datastore.manifest.engine)
        self.name = name_index(datastore)
        self.analyzer = datastore.analyzer
        with _tell_failures(self.name):
            _check_server(self.client, datastore.manifest.engine)
            meta = _read_meta(self.client, self.name)
        if not meta["complete"] or meta["fingerprint"] != datastore.fingerprint:
            raise ValueError(
                f"an index is searched when all passages are in it; {self.name} has {meta['num_indexed']} of "
                f"{len(datastore)}. Go on: Datastore.load(..., rebuild_index=True)."
            )
        # Each shard counts document frequencies by itself otherwise.
        self.options = {"search_type": "dfs_query_then_fetch"} if meta["shards"] > 1 else {}

    def search(
        self, texts: Sequence[str], k: int, max_query_terms: int | None = None
    ) -> list[tuple[list[int], list[float]]]:
        """Find passages, see `Datastore.search`.

        With `max_query_terms` the server chooses the terms (`more_like_this`) and counts each of them once.
        """
        queries = [
            {"size": k, "_source": False, "query": _make_query(text, self.analyzer, max_query_terms)} for text in texts
        ]
        results = []
        with _tell_failures(self.name):
            for start in range(0, len(queries), QUERIES_PER_REQUEST):
                results += self._search(queries[start : start + QUERIES_PER_REQUEST])
        return results

    def _search(self, queries: list[dict[str, Any]]) -> list[tuple[list[int], list[float]]]:
        """Search for a few; those that an overloaded server did not answer are asked again, alone."""
        results: dict[int, tuple[list[int], list[float]]] = {}
        failure = ""
        for _ in _retry():
            waiting = [number for number in range(len(queries)) if number not in results]
            body = [line for number in waiting for line in ({"index": self.name}, queries[number])]
            answers = self.client.msearch(body=body, **self.options)["responses"]
            for number, answer in zip(waiting, answers, strict=True):
                failure = _find_failure(answer, self.name) or failure
                if not _find_failure(answer, self.name):
                    hits = [(hit["_score"], int(hit["_id"])) for hit in answer["hits"]["hits"]]
                    hits.sort(key=lambda hit: (-hit[0], hit[1]))
                    results[number] = ([number for _, number in hits], [score for score, _ in hits])
            if len(results) == len(queries):
                return [results[number] for number in range(len(queries))]
        raise ConnectionError(f"{self.name} did not answer {RETRIES + 1} times: {failure}. Try again later.")


def _describe_index(analyzer: Analyzer, meta: dict[str, Any]) -> dict[str, Any]:
    # What a function makes of a text is sent as words.
    name = analyzer.name if analyzer.function is None else "whitespace"
    text = {"type": "text", "analyzer": name, "index_options": "freqs"}
    return {
        "settings": {
            "number_of_shards": meta["shards"],
            "number_of_replicas": 0,
            "refresh_interval": "-1",
            "similarity": {"default": {"type": "BM25", "k1": 1.2, "b": 0.75}},
        },
        "mappings": {"dynamic": "strict", "_meta": meta, "_source": {"enabled": False}, "properties": {"text": text}},
    }


def _make_text(text: str, analyzer: Analyzer) -> str:
    return text if analyzer.name in ANALYZERS else " ".join(analyzer(text))


def _make_action(name: str, number: int, text: str, analyzer: Analyzer) -> dict[str, Any]:
    return {"_op_type": "index", "_index": name, "_id": str(number), "text": _make_text(text, analyzer)}


def _make_query(text: str, analyzer: Analyzer, max_query_terms: int | None) -> dict[str, Any]:
    text = _make_text(text, analyzer)
    if max_query_terms is None:
        return {"match": {"text": {"query": text}}}
    options = {"max_query_terms": max_query_terms, "min_term_freq": 1, "min_doc_freq": 1, "minimum_should_match": 1}
    return {"more_like_this": {"fields": ["text"], "like": text, **options}}


def _check_server(client: Any, engine: str) -> None:
    version = client.info()["version"]
    found = version.get("distribution", "elasticsearch")
    if found != engine:
        raise ValueError(f"the engine is what the server is; it is {found}, the datastore's engine {engine}.")
    if engine == "elasticsearch" and not version["number"].startswith(("8.", "9.")):
        raise ValueError(f"Elasticsearch 8 and 9 are supported; the server is {version['number']}. Use another server.")


def _read_meta(client: Any, name: str) -> dict[str, Any]:
    (index,) = client.indices.get_mapping(index=name).values()
    return index["mappings"]["_meta"]


def _send(client: Any, actions: list[dict[str, Any]]) -> None:
    """Index passages; those that an overloaded server refused are sent again, alone."""
    helpers = importlib.import_module(f"{type(client).__module__.partition('.')[0]}.helpers")
    pending = {action["_id"]: action for action in actions}
    failure = None
    for _ in _retry():
        options = {"chunk_size": 1000, "max_chunk_bytes": 10 << 20, "raise_on_error": False}
        failed = [item for ok, item in helpers.streaming_bulk(client, _copy(pending.values()), **options) if not ok]
        items = [details for item in failed for details in item.values()]
        refused = [item for item in items if item["status"] not in OVERLOADED]
        if refused:
            raise ValueError(f"the server refuses {len(refused)} passages, the first with {refused[0]['error']}.")
        if not items:
            return
        failure = items[0]["error"]
        pending = {item["_id"]: pending[item["_id"]] for item in items}
    raise ConnectionError(f"the server refused passages {RETRIES + 1} times: {failure}. Build again later: it goes on.")


def _copy(actions: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The clients take actions apart."""
    return (dict(action) for action in actions)


def _retry() -> Iterator[int]:
    """Count attempts, with ever longer pauses of random length between them, so that clients do not come together."""
    for attempt in range(RETRIES + 1):
        yield attempt
        if attempt < RETRIES:
            time.sleep(BACKOFF * 2**attempt * random.uniform(0.5, 1))


def _find_failure(answer: dict[str, Any], name: str) -> str:
    """Return why an answer does not hold; raise if asking again cannot help. Partial results do not hold."""
    if "error" in answer:
        if answer["status"] not in OVERLOADED:
            raise _explain(answer["status"], str(answer["error"]), name)
        return str(answer["error"])
    shards = answer["_shards"]
    if shards["failed"]:
        return f"{shards['failed']} of {shards['total']} shards failed"
    return "the search ran out of time" if answer["timed_out"] else ""


@contextmanager
def _tell_failures(name: str) -> Iterator[None]:
    """Turn what the clients raise into what a user can act on."""
    try:
        yield
    except Exception as error:
        if type(error).__module__.partition(".")[0] not in ("elasticsearch", "elastic_transport", "opensearchpy"):
            raise
        kind = type(error).__name__
        if kind == "ConnectionTimeout":
            raise TimeoutError(f"the server did not answer in time: {error}. Try again later.") from error
        if kind in ("ConnectionError", "SSLError", "TlsError"):
            raise ConnectionError(f"the server cannot be reached: {error}. Is its address right, is it up?") from error
        if kind == "UnsupportedProductError":
            raise ValueError(
                "the server does not say that it is Elasticsearch. OpenSearch needs the engine opensearch; else a "
                "proxy drops the header X-Elastic-Product."
            ) from error
        raise _explain(getattr(error, "status_code", None), str(error), name) from error


def _explain(status: Any, message: str, name: str) -> Exception:
    if status in (401, 403):
        return PermissionError(
            f"the server does not let us in ({status}): {message}. Set ..._API_KEY, or ..._USERNAME and ..._PASSWORD, "
            "of an account that may use the index."
        )
    if status == 404:
        return FileNotFoundError(
            f"the server has no index {name}. Build it, Datastore.load(..., rebuild_index=True), or name the right one."
        )
    if status in OVERLOADED:
        return ConnectionError(f"the server is overloaded ({status}): {message}. Try again later.")
    if "media_type_header" in message or "compatible-with" in message:
        return ValueError(
            "the client is of another major version than the server: "
            f"{message}. For Elasticsearch 8 run pip install 'elasticsearch>=8,<9'."
        )
    if "too_many" in message and "clauses" in message:
        return ValueError(f"a query has more terms than the server takes: {message}. Lower max_query_terms.")
    return ValueError(f"the server refuses the request ({status}): {message}")
