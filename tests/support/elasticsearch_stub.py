"""A stub of a search server: the few documented calls that we make, answered in process. It is no Elasticsearch.

It keeps documents in a dictionary, ranks them by BM25 with our own analyzers, and misbehaves on request.
"""

import gzip
import json
import math
import re
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hf_domain.datastore.analysis import ANALYZERS, Analyzer


@dataclass
class Fault:
    """What goes wrong with the next calls whose path matches."""

    path: str
    times: int = 1
    status: int | None = None
    body: dict = field(default_factory=dict)
    delay: float = 0.0
    is_down: bool = False
    """The connection ends without an answer, as when a server is killed."""
    item: dict | None = None
    """Replaces the first item of a bulk or msearch answer."""


class SearchServerStub:
    """Listens on a free port of this machine until it is closed."""

    def __init__(self, distribution="elasticsearch", version="9.1.0"):
        self.distribution, self.version = distribution, version
        self.has_product_header = distribution == "elasticsearch"
        self.indices, self.faults, self.calls, self.headers = {}, [], [], []
        self.lock = threading.Lock()
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"stub": self}))
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def count_calls(self, path):
        return sum(re.search(path, call) is not None for call in self.calls)

    def answer(self, method, path, body):
        """Status and content of the answer to a call."""
        if path == "/":
            version = {"number": self.version}
            if self.distribution != "elasticsearch":
                version["distribution"] = self.distribution
            return 200, {"name": "stub", "version": version, "tagline": "You Know, for Search"}
        if path == "/_bulk":
            return 200, self._index_documents(body)
        if path == "/_msearch":
            lines = [json.loads(line) for line in body.splitlines() if line]
            return 200, {
                "took": 1,
                "responses": [
                    self._search(head["index"], query) for head, query in zip(lines[::2], lines[1::2], strict=True)
                ],
            }
        return self._answer_index(method, *path.strip("/").partition("/")[::2], body)

    def _answer_index(self, method, name, call, body):
        if method == "PUT" and not call:
            content = json.loads(body)
            assert content["mappings"]["dynamic"] == "strict"
            self.indices[name] = content | {"documents": {}}
            return 200, {"acknowledged": True, "index": name}
        if name not in self.indices:
            return 404, {"error": {"type": "index_not_found_exception", "reason": f"no such index [{name}]"}}
        index = self.indices[name]
        if call == "_mapping" and method == "PUT":
            index["mappings"] |= json.loads(body)
            return 200, {"acknowledged": True}
        if call == "_mapping":
            return 200, {name: {"mappings": index["mappings"]}}
        if call == "_settings":
            index["settings"] |= json.loads(body)["index"]
            return 200, {"acknowledged": True}
        if call == "_count":
            return 200, {"count": len(index["documents"]), "_shards": {"total": 1, "successful": 1, "failed": 0}}
        if method == "DELETE":
            del self.indices[name]
        return 200, {}

    def _index_documents(self, body):
        lines = [json.loads(line) for line in body.splitlines() if line]
        items = []
        for head, document in zip(lines[::2], lines[1::2], strict=True):
            self.indices[head["index"]["_index"]]["documents"][head["index"]["_id"]] = document
            items.append({"index": {**head["index"], "status": 201, "result": "created"}})
        return {"took": 1, "errors": False, "items": items}

    def _search(self, name, query):
        if name not in self.indices:
            reason = {"type": "index_not_found_exception", "reason": f"no such index [{name}]"}
            return {"error": reason, "status": 404}
        index = self.indices[name]
        analyzer = index["mappings"]["properties"]["text"]["analyzer"]
        analyze = Analyzer(analyzer) if analyzer in ANALYZERS else str.split
        documents = {key: analyze(document["text"]) for key, document in index["documents"].items()}
        terms = Counter(analyze(query["query"]["match"]["text"]["query"]))
        frequencies = {term: sum(term in document for document in documents.values()) for term in terms}
        mean = sum(map(len, documents.values())) / max(1, len(documents))
        scores = Counter()
        for key, document in documents.items():
            for term, count in terms.items():
                if frequency := document.count(term):
                    n = frequencies[term]
                    idf = math.log(1 + (len(documents) - n + 0.5) / (n + 0.5))
                    norm = 1.2 * (0.25 + 0.75 * len(document) / mean)
                    scores[key] += count * idf * 2.2 * frequency / (frequency + norm)
        # Without being told how, a server breaks ties by shard and segment: as good as from behind.
        order = query.get("sort", [{"_score": "desc"}])
        best = sorted(scores, key=int, reverse=True)
        for (name_of_key, direction), *_ in reversed([list(key.items()) for key in order]):
            values = scores if name_of_key == "_score" else {key: index["documents"][key][name_of_key] for key in best}
            best.sort(key=values.__getitem__, reverse=direction == "desc")
        best = best[: query["size"]]
        return {
            "took": 1,
            "timed_out": False,
            "_shards": {"total": 1, "successful": 1, "skipped": 0, "failed": 0},
            "hits": {
                "total": {"value": len(scores), "relation": "eq"},
                "hits": [
                    {"_index": name, "_id": key, "_score": scores[key], "sort": [scores[key], int(key)]} for key in best
                ],
            },
            "status": 200,
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # 40 ms a call otherwise
    stub: SearchServerStub

    def log_message(self, *arguments):
        pass

    def handle_call(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        path = self.path.partition("?")[0]
        with self.stub.lock:
            self.stub.calls.append(f"{self.command} {self.path}")
            self.stub.headers.append(dict(self.headers))
            fault = next((fault for fault in self.stub.faults if fault.times and re.search(fault.path, path)), None)
            if fault:
                fault.times -= 1
            if fault and fault.is_down:
                status, content = 0, {}
            elif fault and fault.status:
                status, content = fault.status, fault.body
            else:
                status, content = self.stub.answer(self.command, path, body.decode())
            if fault and fault.item:
                kind = "items" if "items" in content else "responses"
                if kind == "items":
                    head = content["items"][0]["index"]
                    self.stub.indices[head["_index"]]["documents"].pop(head["_id"])
                    content["items"][0] = {"index": {**head, **fault.item}}
                    content["errors"] = True
                else:
                    content["responses"][0] = fault.item
        if fault:
            time.sleep(fault.delay)
        if fault and fault.is_down:
            self.close_connection = True
            return
        try:
            self.send_answer(status, json.dumps(content).encode())
        except ConnectionError:  # the client waits no longer, as a test of slow answers wants
            self.close_connection = True

    def send_answer(self, status, payload):
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(payload)))
        if self.stub.has_product_header:
            self.send_header("X-Elastic-Product", "Elasticsearch")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(payload)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_call
