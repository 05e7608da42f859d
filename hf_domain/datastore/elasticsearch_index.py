"""The index on a server: Elasticsearch 8 and 9 or OpenSearch, through one code path.

For datastores that several machines search, or that one machine cannot hold. Passages and their ids stay in the folder.
The server holds an index named by a digest of its content, so it is never out of date. The server's own analyzers make
the same terms as ours.

The environment names the server: ELASTICSEARCH_URL and, as the server requires, ELASTICSEARCH_API_KEY, or
ELASTICSEARCH_USERNAME and ELASTICSEARCH_PASSWORD, or ELASTICSEARCH_BEARER_TOKEN, and ELASTICSEARCH_CA_CERTS; the same
with OPENSEARCH_. None of these is ever saved.

A call waits up to PATIENCE seconds for a server that restarts or is overloaded. Repeat the call later to continue.
"""

import hashlib
import importlib
import itertools
import logging
import os
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tqdm.auto import tqdm

from hf_domain.datastore.analysis import Analyzer
from hf_domain.datastore.manifest import Manifest
from hf_domain.extras import require

logger = logging.getLogger(__name__)

PREFIX = "hf-domain"
PASSAGES_PER_SHARD = 20_000_000  # some 5 GB of index; a shard is searched by one thread at a time
CHECKPOINT = 10_000  # an interrupted build continues after the last multiple of this many passages
QUERIES_PER_REQUEST = 32
LAYOUT = 2  # version of the index's layout; 1 had no field to sort equal scores by
RETRIES = 5  # of the client, after a timeout
BACKOFF, LONGEST_PAUSE = 1.0, 15.0  # seconds before the first retry, doubled before every other
PATIENCE = 120  # seconds of pauses in all
TIMEOUT = 60  # seconds
PACKAGES = {"elasticsearch": "elasticsearch", "opensearch": "opensearchpy"}
OVERLOADED = (429, 502, 503, 504)


class ServerBusyError(ConnectionError):
    """An overloaded server left a part of a request undone."""


def connect(engine: str, client: Any = None) -> Any:
    """Return a client of a server.

    Args:
        engine: `elasticsearch` or `opensearch`.
        client: A client, or a function without arguments that makes one. Default: made from the environment.

    Raises:
        ModuleNotFoundError: The client's package is not installed.
        ValueError: The environment names no server.
    """
    if client is not None:
        return client() if callable(client) else client
    require(f"the search in {engine}", PACKAGES[engine])
    package = importlib.import_module(PACKAGES[engine])
    names = ("url", "api_key", "username", "password", "bearer_token", "ca_certs")
    given = {name: os.environ.get(f"{engine}_{name}".upper()) for name in names}
    if not given["url"]:
        raise ValueError(
            f"the environment must name the server, but {engine.upper()}_URL is not set. Set it, or pass a client."
        )
    user = (given["username"], given["password"]) if given["username"] else None
    options: dict[str, Any] = {"max_retries": RETRIES, "retry_on_timeout": True, "http_compress": True}
    options["retry_on_status"] = ()  # the client would retry at once; `_ask` pauses first
    if given["ca_certs"]:
        options["ca_certs"] = given["ca_certs"]
    if engine == "elasticsearch":
        options |= {"request_timeout": TIMEOUT, "basic_auth": user}
        options |= {"api_key": given["api_key"], "bearer_auth": given["bearer_token"]}
        options = {name: value for name, value in options.items() if value is not None}
        return package.Elasticsearch(given["url"], **options)
    if given["api_key"] or given["bearer_token"]:
        kind, key = ("ApiKey", given["api_key"]) if given["api_key"] else ("Bearer", given["bearer_token"])
        options["headers"] = {"authorization": f"{kind} {key}"}
    return package.OpenSearch(given["url"], timeout=TIMEOUT, http_auth=user, **options)


def build_index(manifest: Manifest, analyzer: Analyzer, passages: Iterator[tuple[int, str]], client: Any) -> None:
    """Index passages on a server, or continue an interrupted build.

    Args:
        passages: Ids and texts of all passages that are not deleted.

    Raises:
        ConnectionError: The server is down or overloaded; repeat the call later to continue.
        PermissionError: The server denies access.
        ValueError: The server has another kind or version, or refuses a passage.
    """
    name, total = name_index(manifest, analyzer), manifest.num_findable
    with _tell_failures(name):
        _check_server(client, manifest.engine)
        meta = _ask(lambda: _open_index(client, name, manifest, analyzer))
        if meta["complete"]:
            return
        rows = itertools.islice(passages, meta["num_indexed"], None)
        with tqdm(total=total, initial=meta["num_indexed"], desc=f"Indexing {name}", unit="passage") as progress:
            while batch := list(itertools.islice(rows, CHECKPOINT)):
                _send(client, name, {number: _make_text(text, analyzer) for number, text in batch})
                meta["num_indexed"] += len(batch)
                _ask(lambda: client.indices.put_mapping(index=name, body={"_meta": meta}))
                progress.update(len(batch))
        _ask(lambda: client.indices.put_settings(index=name, body={"index": {"refresh_interval": None}}))
        _ask(lambda: client.indices.refresh(index=name))
        count = _ask(lambda: client.count(index=name))["count"]
        if count != total:
            raise ValueError(
                f"the server must hold every passage that it was sent, but {name} has {count} of {total}. Delete "
                "that index and build it again."
            )
        _ask(lambda: client.indices.put_mapping(index=name, body={"_meta": meta | {"complete": True}}))


def name_index(manifest: Manifest, analyzer: Analyzer) -> str:
    """Name the index of a datastore by a digest of its content."""
    content = f"{manifest.fingerprint} {analyzer.fingerprint} {LAYOUT}"
    return f"{PREFIX}-{hashlib.sha256(content.encode()).hexdigest()[:16]}"


class ElasticsearchIndex:
    """An index on a server, opened for searching.

    Args:
        manifest: Manifest of the datastore that `build_index` indexed there.
        analyzer: The analyzer it was indexed with.

    Raises:
        FileNotFoundError: The server has no such index.
        ConnectionError: The server is down or overloaded.
        PermissionError: The server denies access.
        ValueError: The server has another kind or version, or the index is incomplete.
    """

    def __init__(self, manifest: Manifest, analyzer: Analyzer, client: Any):
        self.client, self.analyzer = client, analyzer
        self.name = name_index(manifest, analyzer)
        with _tell_failures(self.name):
            _check_server(client, manifest.engine)
            meta = _ask(lambda: _read_meta(client, self.name))
        if not meta["complete"] or meta["fingerprint"] != manifest.fingerprint:
            raise ValueError(
                f"an index must hold all passages before it is searched, but {self.name} has "
                f"{meta['num_indexed']} of {manifest.num_findable}. Continue with Datastore.load(..., "
                "rebuild_index=True)."
            )
        # Otherwise each shard would use its own document frequencies.
        self.options = {"search_type": "dfs_query_then_fetch"} if meta["shards"] > 1 else {}

    def search(self, texts: Sequence[str], k: int) -> list[tuple[list[int], list[float]]]:
        """Find passages, see `Datastore.search`."""
        # Otherwise equal scores would rank by shard, and the last of the k would be arbitrary.
        options = {"size": k, "_source": False, "sort": [{"_score": "desc"}, {"id": "asc"}]}
        results = []
        with _tell_failures(self.name):
            for start in range(0, len(texts), QUERIES_PER_REQUEST):
                part = [_make_text(text, self.analyzer) for text in texts[start : start + QUERIES_PER_REQUEST]]
                for hits in self._search([options | {"query": {"match": {"text": {"query": text}}}} for text in part]):
                    ranked = [hit["sort"] for hit in hits["hits"]]
                    results.append(([int(number) for _, number in ranked], [float(score) for score, _ in ranked]))
        return results

    def _search(self, queries: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return the hits of a few queries; repeat them if an overloaded server left one unanswered."""

        def ask() -> list[dict[str, Any]]:
            body = [line for query in queries for line in ({"index": self.name}, query)]
            answers = self.client.msearch(body=body, **self.options)["responses"]
            if failures := [failure for answer in answers if (failure := _find_failure(answer, self.name))]:
                raise ServerBusyError(f"{self.name} did not answer for {PATIENCE} s: {failures[0]}. Try again later.")
            return [answer["hits"] for answer in answers]

        return _ask(ask)


def _make_text(text: str, analyzer: Analyzer) -> str:
    # A function may have the name of one of ours; the index takes its terms as words.
    return text if analyzer.function is None else " ".join(analyzer(text))


def _open_index(client: Any, name: str, manifest: Manifest, analyzer: Analyzer) -> dict[str, Any]:
    """Return how far an index is built; create it if it does not exist."""
    if client.indices.exists(index=name):
        return _read_meta(client, name)
    shards = max(1, -(-manifest.num_findable // PASSAGES_PER_SHARD))
    meta = {"fingerprint": manifest.fingerprint, "num_indexed": 0, "shards": shards, "complete": False}
    # The terms of a custom analyzer are sent as words.
    analyzer_name = analyzer.name if analyzer.function is None else "whitespace"
    properties = {"id": {"type": "long"}, "text": {"type": "text", "analyzer": analyzer_name, "index_options": "freqs"}}
    settings = {
        "number_of_shards": shards,
        "number_of_replicas": 0,
        "refresh_interval": "-1",
        "similarity": {"default": {"type": "BM25", "k1": 1.2, "b": 0.75}},
    }
    mappings = {"dynamic": "strict", "_meta": meta, "_source": {"enabled": False}, "properties": properties}
    client.indices.create(index=name, body={"settings": settings, "mappings": mappings})
    return meta


def _check_server(client: Any, engine: str) -> None:
    version = _ask(client.info, is_known=False)["version"]
    found = version.get("distribution", "elasticsearch")
    if found != engine:
        raise ValueError(
            f"the engine of the datastore, {engine}, must be that of the server, which is {found}. Use another "
            "server, or build a datastore with this engine."
        )
    if engine == "elasticsearch" and not version["number"].startswith(("8.", "9.")):
        raise ValueError(f"the server must be Elasticsearch 8 or 9, but is {version['number']}. Use another server.")


def _read_meta(client: Any, name: str) -> dict[str, Any]:
    (index,) = client.indices.get_mapping(index=name).values()
    return index["mappings"]["_meta"]


def _send(client: Any, name: str, texts: dict[int, str]) -> None:
    """Index passages; send all again if an overloaded server refused some, which replaces equal ones."""
    helpers = importlib.import_module(f"{type(client).__module__.partition('.')[0]}.helpers")
    options = {"chunk_size": 1000, "max_chunk_bytes": 10 << 20, "raise_on_error": False}

    def send() -> None:
        actions = ({"_index": name, "_id": str(number), "id": number, "text": text} for number, text in texts.items())
        sent = helpers.streaming_bulk(client, actions, **options)
        items = [details for ok, item in sent if not ok for details in item.values()]
        if refused := [item for item in items if item["status"] not in OVERLOADED]:
            raise ValueError(
                f"the server must accept every passage, but refuses {len(refused)}, the first with "
                f"{refused[0]['error']}."
            )
        if items:
            raise ServerBusyError(
                f"the server refused passages for {PATIENCE} s: {items[0]['error']}. Run the build again later; it "
                "continues."
            )

    _ask(send)


def _ask(call: Callable[[], Any], is_known: bool = True) -> Any:
    """Return the answer to a call; wait for an overloaded server, and for a restarting one if it answered before.

    The pauses grow, and are random, so that clients do not all return at once.
    """
    waited, pause = 0.0, BACKOFF
    while True:
        try:
            return call()
        except Exception as error:
            is_down = _is_of_client(error) and type(error).__name__ == "ConnectionError" and is_known
            is_busy = isinstance(error, ServerBusyError) or getattr(error, "status_code", None) in OVERLOADED
            if not (is_down or is_busy) or waited >= PATIENCE:
                raise
        if not waited:
            logger.warning(f"The search server does not answer as it should; waiting up to {PATIENCE} s.")
        length = min(pause * random.uniform(0.5, 1), PATIENCE - waited)
        time.sleep(length)
        waited, pause = waited + length, min(2 * pause, LONGEST_PAUSE)


def _find_failure(answer: dict[str, Any], name: str) -> str:
    """Return why an answer is incomplete, such as partial results; raise if asking again cannot help."""
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
    """Turn the clients' exceptions into errors that a user can act on."""
    try:
        yield
    except Exception as error:
        if not _is_of_client(error):
            raise
        kind = type(error).__name__
        if kind == "ConnectionTimeout":
            raise TimeoutError(f"the server did not answer in time: {error}. Try again later.") from error
        if kind in ("ConnectionError", "SSLError", "TlsError"):
            raise ConnectionError(
                f"the server must be up and its address right, but it cannot be reached: {error}. Run the same "
                "again when it is back."
            ) from error
        raise _explain(getattr(error, "status_code", None), str(error), name) from error


def _is_of_client(error: Exception) -> bool:
    return type(error).__module__.partition(".")[0] in ("elasticsearch", "elastic_transport", "opensearchpy")


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
    return ValueError(f"the server refuses the request: {message}")
