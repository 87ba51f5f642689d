"""Small real HTTP servers on loopback that act as hub, object store, registry and web server, with faults on demand."""

import base64
import hashlib
import json
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TypeVar
from xml.sax.saxutils import escape

import httpx

from paceline_runtime.fetch.sources.sigv4 import Credentials, authorization


@dataclass(frozen=True)
class Seen:
    """One request as it arrived."""

    method: str
    target: str
    headers: Mapping[str, str]

    @property
    def path(self) -> str:
        return urllib.parse.unquote(self.target.partition("?")[0])

    @property
    def query(self) -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(self.target.partition("?")[2], keep_blank_values=True))


@dataclass(frozen=True)
class Answer:
    """What goes back. `cut_after` closes the connection after that many bytes; `then` runs before it does."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict)
    cut_after: int | None = None
    then: Callable[[], None] = lambda: None


class Site:
    """Answers from `files` with ranges and ETags; `faults[path]` are used up first, one per request."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.etags: dict[str, str] = {}
        self.extra_headers: dict[str, str] = {}
        self.faults: dict[str, list[Answer | Callable[[Answer], Answer]]] = {}
        self.seen: list[Seen] = []
        self.url = ""

    def answer(self, seen: Seen) -> Answer:
        """Overridden by sites with more than files."""
        return self.file(seen, seen.path)

    def respond(self, seen: Seen) -> Answer:
        self.seen.append(seen)
        fault = self.faults[seen.path].pop(0) if self.faults.get(seen.path) and seen.method == "GET" else None
        if isinstance(fault, Answer):
            return fault
        answer = self.answer(seen)
        return fault(answer) if fault else answer

    def file(self, seen: Seen, path: str) -> Answer:
        data = self.files.get(path)
        if data is None:
            return Answer(404, b"not here")
        headers = dict(self.extra_headers) | ({"ETag": self.etags[path]} if path in self.etags else {})
        wanted = seen.headers.get("range", "")
        if not wanted or seen.headers.get("if-range", headers.get("ETag")) != headers.get("ETag"):
            return Answer(200, data, headers)
        start = int(wanted.removeprefix("bytes=").rstrip("-"))
        if start >= len(data):
            return Answer(416, b"", headers)
        return Answer(206, data[start:], {**headers, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"})

    def ranges(self, path: str) -> list[str]:
        """The Range headers of the requests for a path, empty for a request of the whole."""
        return [seen.headers.get("range", "") for seen in self.seen if seen.path == path and seen.method == "GET"]


class HubSite(Site):
    """The two routes of a model hub. Weights are LFS objects on another host when `storage` is given."""

    commit = "c0ffee" + "0" * 34

    def __init__(self, repo: str, repo_files: Mapping[str, bytes], token: str | None = None) -> None:
        super().__init__()
        self.repo, self.token, self.storage = repo, token, ""
        self.repo_files = dict(repo_files)
        self.named: list[str] = list(repo_files)

    def path(self, name: str) -> str:
        return f"/{self.repo}/resolve/{self.commit}/{name}"

    def answer(self, seen: Seen) -> Answer:
        if self.token and seen.headers.get("authorization") != f"Bearer {self.token}":
            return Answer(401, b"who are you")
        if seen.path.startswith(f"/api/models/{self.repo}/revision/"):
            siblings = [self._sibling(name) for name in self.named]
            return Answer(200, json.dumps({"sha": self.commit, "siblings": siblings}).encode())
        name = seen.path.removeprefix(self.path(""))
        if self.storage and name.endswith(".safetensors"):
            return Answer(302, b"", {"Location": f"{self.storage}/{name}?X-Signature=not-for-logs"})
        self.files = {self.path(name): data for name, data in self.repo_files.items()}
        return self.file(seen, seen.path)

    def _sibling(self, name: str) -> dict[str, object]:
        data = self.repo_files.get(name, b"")
        if name.endswith((".safetensors", ".gguf")):
            lfs = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 134}
            return {"rfilename": name, "size": len(data), "blobId": "0" * 40, "lfs": lfs}
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        return {"rfilename": name, "size": len(data), "blobId": blob}


class S3Site(Site):
    """One bucket, listed `page_size` keys at a time. With credentials, every signature is computed anew and compared."""

    def __init__(self, bucket: str, objects: Mapping[str, bytes], credentials: Credentials | None = None) -> None:
        super().__init__()
        self.bucket, self.credentials, self.page_size, self.region = bucket, credentials, 2, "us-east-1"
        self.namespace, self.lists_quotes = 'xmlns="urn:fake:s3"', True
        self.files = {f"/{bucket}/{key}": data for key, data in objects.items()}
        self.etags = {path: f'"{hashlib.md5(data).hexdigest()}"' for path, data in self.files.items()}

    def answer(self, seen: Seen) -> Answer:
        if not self._is_permitted(seen):
            return Answer(403, b"<Error><Code>SignatureDoesNotMatch</Code></Error>")
        if seen.path.rstrip("/") == f"/{self.bucket}":
            return Answer(200, self._listing(seen.query))
        return self.file(seen, seen.path)

    def _is_permitted(self, seen: Seen) -> bool:
        if self.credentials is None:
            return "authorization" not in seen.headers
        names = seen.headers.get("authorization", "").partition("SignedHeaders=")[2].partition(",")[0].split(";")
        signed = {name: seen.headers[name] for name in names if name in seen.headers}
        request = httpx.Request(seen.method, f"{self.url}{seen.target}", headers=signed)
        return {"host", "x-amz-date"} <= set(signed) and seen.headers["authorization"] == authorization(
            request, self.credentials, self.region
        )

    def _listing(self, query: Mapping[str, str]) -> bytes:
        keys = sorted(path.removeprefix(f"/{self.bucket}/") for path in self.files)
        keys = [key for key in keys if key.startswith(query["prefix"])]
        start = int(query.get("continuation-token", "0"))
        shown, is_last = keys[start : start + self.page_size], start + self.page_size >= len(keys)
        items = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.files[path])}</Size>"
            f"<ETag>{escape(self.etags[path].strip('' if self.lists_quotes else chr(34)))}</ETag></Contents>"
            for key, path in ((key, f"/{self.bucket}/{key}") for key in shown)
        )
        more = "" if is_last else f"<NextContinuationToken>{start + self.page_size}</NextContinuationToken>"
        head = f'<?xml version="1.0"?><ListBucketResult {self.namespace}>'
        truncated = f"<IsTruncated>{str(not is_last).lower()}</IsTruncated>"
        return f"{head}{truncated}{more}{items}</ListBucketResult>".encode()


class RegistrySite(Site):
    """One repository with one tag. `password` switches the token flow on."""

    token = "registry-token-not-for-logs"

    def __init__(self, repository: str, layers: list[tuple[dict[str, object], bytes]], password: str = "") -> None:
        super().__init__()
        self.repository, self.password, self.lies_about_digest = repository, password, False
        descriptors = [{**extra, "digest": self.add_blob(data), "size": len(data)} for extra, data in layers]
        self.manifest = json.dumps({"schemaVersion": 2, "layers": descriptors}).encode()

    def add_blob(self, data: bytes) -> str:
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        self.files[f"/v2/{self.repository}/blobs/{digest}"] = data
        return digest

    @property
    def digest(self) -> str:
        return f"sha256:{hashlib.sha256(self.manifest).hexdigest()}"

    def answer(self, seen: Seen) -> Answer:
        if seen.path == "/token":
            basic = base64.b64encode(f"puller:{self.password}".encode()).decode()
            is_known = seen.headers.get("authorization") == f"Basic {basic}"
            return Answer(200, json.dumps({"token": self.token}).encode()) if is_known else Answer(401)
        if self.password and seen.headers.get("authorization") != f"Bearer {self.token}":
            challenge = f'Bearer realm="{self.url}/token",service="fake",scope="repository:{self.repository}:pull"'
            return Answer(401, b"", {"WWW-Authenticate": challenge})
        if seen.path in (f"/v2/{self.repository}/manifests/{tag}" for tag in ("v1", self.digest)):
            digest = f"sha256:{'0' * 64}" if self.lies_about_digest else self.digest
            return Answer(200, self.manifest, {"Docker-Content-Digest": digest})
        return self.file(seen, seen.path)


S = TypeVar("S", bound=Site)


@contextmanager
def serve(site: S, wrap: Callable[[ThreadingHTTPServer], None] | None = None, scheme: str = "http") -> Iterator[S]:
    """Run a site on a free loopback port; `wrap` may put TLS around its socket."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            headers = {name.lower(): value for name, value in self.headers.items()}
            answer = site.respond(Seen(self.command, self.path, headers))
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            self.wfile.write(answer.body[: answer.cut_after])
            answer.then()
            self.close_connection = self.close_connection or answer.cut_after is not None

        do_HEAD = do_GET  # noqa: N815 - the name that http.server looks for

        def log_message(self, format: str, *args: object) -> None:
            """Quiet: requests are in `site.seen`."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    if wrap:
        wrap(server)
    site.url = f"{scheme}://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield site
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
