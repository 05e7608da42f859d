"""A server on the loopback that speaks as much of the Hub's protocol as publishing and loading need.

The client is the real one: huggingface_hub, pointed here by `HubServer.environment`.
"""

import base64
import hashlib
import io
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

TOKEN = "hf_loopback"


@dataclass
class Repository:
    """Files by path at every commit; the first is empty."""

    private: bool = False
    commits: list[tuple[str, dict[str, bytes]]] = field(default_factory=lambda: [("0" * 40, {})])

    def get_files(self, revision):
        """Return commit and files at a revision; None if there is no such."""
        if revision in (None, "main"):
            return self.commits[-1]
        return next((commit for commit in self.commits if commit[0] == revision), None)

    def commit(self, added, deleted):
        files = {name: content for name, content in self.commits[-1][1].items() if name not in deleted} | added
        digest = hashlib.sha1(str(len(self.commits)).encode())
        for name, content in sorted(files.items()):
            digest.update(name.encode() + content)
        self.commits.append((digest.hexdigest(), files))
        return digest.hexdigest()


@dataclass
class Fault:
    """Answer matching requests with an error, so many times: a status, or "cut" to close the connection.

    "lost" does what was asked and closes the connection before it answers.
    """

    method: str
    path: str
    answer: int | str
    times: int = 1


class HubServer:
    """Use as a context; `repositories` is what was published, `requests` what was asked with which token."""

    def __init__(self):
        self.repositories: dict[str, Repository] = {}
        self.requests: list[tuple[str, str, str | None]] = []
        self.faults: list[Fault] = []
        self.store: dict[str, bytes] = {}
        self.lock = threading.Lock()
        handler = type("Handler", (Handler,), {"hub": self})
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *args):
        self.server.shutdown()
        self.server.server_close()

    def get_environment(self, folder, token=TOKEN):
        """Return the variables that point a process here; they must be set before it imports huggingface_hub."""
        return {
            "HF_ENDPOINT": f"http://127.0.0.1:{self.server.server_port}",
            "HF_HOME": str(folder),
            "HF_TOKEN": token,
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }

    def take_fault(self, method, path):
        with self.lock:
            for fault in self.faults:
                if fault.times and fault.method == method and re.search(fault.path, path):
                    fault.times -= 1
                    return fault.answer
        return None


def compute_object_id(content):
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: HubServer

    def log_message(self, *args):
        pass

    def do_HEAD(self):
        self.answer(self.get)

    def do_GET(self):
        self.answer(self.get)

    def do_POST(self):
        self.answer(self.post)

    def do_PUT(self):
        self.answer(self.put)

    def answer(self, handle):
        path, body = unquote(urlsplit(self.path).path), self.read_body()
        self.hub.requests.append((self.command, path, self.headers.get("Authorization")))
        fault = self.hub.take_fault(self.command, path)
        if fault in ("cut", "lost"):
            if fault == "lost":
                self.wfile = io.BytesIO()
                handle(path, body)
            self.close_connection = True
            self.connection.close()
        elif fault is not None and fault >= 500:  # of a gateway, which does not speak JSON
            self.send(b"<html>bad gateway</html>", fault, Content_Type="text/html")
        elif fault is not None:
            self.send_error_code(fault, "Fault")
        else:
            handle(path, body)

    def read_body(self):
        if self.headers.get("Transfer-Encoding", "").lower() != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while length := int(self.rfile.readline().strip() or b"0", 16):
            body += self.rfile.read(length)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def send(self, content, status=200, **headers):
        self.send_response(status)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def send_json(self, content, status=200, **headers):
        self.send(json.dumps(content).encode(), status, Content_Type="application/json", **headers)

    def send_error_code(self, status, code, **headers):
        self.send_json({"error": code}, status, X_Error_Code=code, X_Error_Message=code, **headers)

    def may_read(self, repository):
        return not repository.private or self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def get(self, path, body):
        if path == "/api/whoami-v2":
            role = {"type": "access_token", "accessToken": {"role": "write"}}
            return self.send_json({"type": "user", "name": "tester", "orgs": [], "auth": role})
        if match := re.fullmatch(
            r"/api/(?:models|datasets)/([^/]+/[^/]+)(?:/(revision|tree|refs)(?:/([^/]+).*)?)?", path
        ):
            return self.get_information(*match.groups())
        if match := re.fullmatch(r"/(?:datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            return self.get_file(*match.groups())
        return self.send_error_code(404, "NotFound")

    def get_information(self, name, kind, revision):
        repository = self.hub.repositories.get(name)
        if repository is None or not self.may_read(repository):
            return self.send_error_code(404, "RepoNotFound")
        commit = repository.get_files(revision)
        if commit is None:
            return self.send_error_code(404, "RevisionNotFound")
        sha, files = commit
        if kind == "tree":
            entries = [(name, len(content), compute_object_id(content)) for name, content in files.items()]
            return self.send_json([{"type": "file", "path": p, "size": s, "oid": o} for p, s, o in entries])
        if kind == "refs":
            branch = {"name": "main", "ref": "refs/heads/main", "targetCommit": sha}
            return self.send_json({"branches": [branch], "tags": [], "converts": []})
        content = {"_id": "1", "id": name, "modelId": name, "sha": sha, "private": repository.private, "tags": []}
        return self.send_json(content | {"downloads": 0, "likes": 0, "siblings": [{"rfilename": f} for f in files]})

    def get_file(self, name, revision, path):
        repository = self.hub.repositories.get(name)
        if repository is None or not self.may_read(repository):
            return self.send_error_code(404, "RepoNotFound")
        commit = repository.get_files(revision)
        if commit is None:
            return self.send_error_code(404, "RevisionNotFound")
        sha, files = commit
        if path not in files:
            return self.send_error_code(404, "EntryNotFound", X_Repo_Commit=sha)
        object_id = compute_object_id(files[path])
        return self.send(files[path], X_Repo_Commit=sha, ETag=f'"{object_id}"', Accept_Ranges="bytes")

    def put(self, path, body):
        self.hub.store[path.removeprefix("/store/")] = body
        self.send(b"")

    def post(self, path, body):
        if self.headers.get("Authorization") != f"Bearer {TOKEN}":
            return self.send_error_code(401, "Unauthorized")
        host = f"http://{self.headers['Host']}"
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked.get('organization') or 'tester'}/{asked['name']}"
            exists = name in self.hub.repositories
            private = asked.get("private") or asked.get("visibility") == "private"
            self.hub.repositories.setdefault(name, Repository(bool(private)))
            return self.send_json({"url": f"{host}/{name}", "name": name, "id": name}, 409 if exists else 200)
        if path == "/api/validate-yaml":
            return self.send_json({"errors": [], "warnings": []})
        if path.endswith("/info/lfs/objects/batch"):
            links = [(o["oid"], o["size"], f"{host}/store/{o['oid']}") for o in json.loads(body)["objects"]]
            objects = [{"oid": oid, "size": size, "actions": {"upload": {"href": link}}} for oid, size, link in links]
            return self.send_json({"transfer": "basic", "objects": objects})
        if match := re.fullmatch(r"/api/(?:models|datasets)/([^/]+/[^/]+)/(preupload|commit)/(.+)", path):
            name, kind, _ = match.groups()
            repository = self.hub.repositories.get(name)
            if repository is None:
                return self.send_error_code(404, "RepoNotFound")
            if kind == "preupload":  # no file is large: all but the weights come in the commit itself
                modes = {
                    f["path"]: "lfs" if f["path"].endswith(".safetensors") else "regular"
                    for f in json.loads(body)["files"]
                }
                files = [{"path": path, "uploadMode": mode} for path, mode in modes.items()]
                return self.send_json({"files": [{**f, "shouldIgnore": False, "oid": None} for f in files]})
            operations = [json.loads(line) for line in body.splitlines()]
            added = {
                o["value"]["path"]: base64.b64decode(o["value"]["content"]) for o in operations if o["key"] == "file"
            }
            added |= {
                o["value"]["path"]: self.hub.store[o["value"]["oid"]] for o in operations if o["key"] == "lfsFile"
            }
            deleted = {o["value"]["path"] for o in operations if o["key"].startswith("deleted")}
            with self.hub.lock:
                sha = repository.commit(added, deleted)
            answer = {"success": True, "commitUrl": f"{host}/{name}/commit/{sha}", "commitOid": sha}
            return self.send_json(answer | {"hookOutput": "", "pullRequestUrl": None})
        return self.send_error_code(404, "NotFound")
