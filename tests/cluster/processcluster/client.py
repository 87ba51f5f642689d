"""Blocking calls from the host: JSON to the API server, and HTTP through the gate to anything inside.

Standard library only, one connection a thread; used by the `Cluster` handle and by tests through it.
"""

import http.client
import json
import ssl
import threading
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

TIMEOUT_S = 60


class HttpAnswer(NamedTuple):
    """Status code and text of a response."""

    status: int
    text: str

    def json(self) -> Any:
        return json.loads(self.text)


class ApiClient:
    """The API server through a kubeconfig in JSON; safe to use from several threads."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self._netloc = urlsplit(cluster["server"]).netloc
        self._context = ssl.create_default_context(cafile=cluster["certificate-authority"])
        self._authorization = f"Bearer {config['users'][0]['user']['token']}"
        self._local = threading.local()

    def request(self, method: str, path: str, body: object = None, content_type: str = "application/json") -> HttpAnswer:
        """One request; any status is an answer. Raises OSError while the API server is away."""
        headers = {"Authorization": self._authorization, "Content-Type": content_type}
        data = None if body is None else json.dumps(body)
        try:
            return self._attempt(method, path, data, headers)
        except (http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
            # A kept connection that the server closed meanwhile; a fresh one tells whether it is there.
            return self._attempt(method, path, data, headers)

    def get(self, path: str) -> dict[str, Any] | None:
        """The object or list at a path, None when there is none. Raises OSError for any other refusal."""
        answer = self.request("GET", path)
        if answer.status == 404:
            return None
        if answer.status >= 400:
            raise OSError(f"GET {path}: {answer.status} {answer.text}")
        found: dict[str, Any] = answer.json()
        return found

    def items(self, path: str) -> list[dict[str, Any]]:
        """The items of a list; empty when the kind is unknown."""
        listed = self.get(path)
        return list(listed["items"]) if listed else []

    def close(self) -> None:
        """Closes this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()

    def _attempt(self, method: str, path: str, data: str | None, headers: dict[str, str]) -> HttpAnswer:
        connection = getattr(self._local, "connection", None)
        if connection is None:
            connection = http.client.HTTPSConnection(self._netloc, context=self._context, timeout=TIMEOUT_S)
            self._local.connection = connection
        try:
            connection.request(method, path, body=data, headers=headers)
            # An answer that was cut off holds the socket open until it is closed, too.
            with connection.getresponse() as response:
                return HttpAnswer(response.status, response.read().decode())
        except (OSError, http.client.HTTPException):
            connection.close()
            raise


def http_through_gate(gate_port: int, url: str, body: object, method: str | None, headers: dict[str, str]) -> HttpAnswer:
    """One request to an `http://` or (unverified) `https://` URL inside; a body that is not text is sent as JSON."""
    parts = urlsplit(url)
    is_tls = parts.scheme == "https"
    if parts.hostname is None or parts.scheme not in ("http", "https"):
        raise ValueError(f"url must be http://HOST[:PORT]/PATH or https://..., got {url!r}")
    if is_tls:
        context = ssl._create_unverified_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            "127.0.0.1", gate_port, timeout=TIMEOUT_S, context=context
        )
    else:
        connection = http.client.HTTPConnection("127.0.0.1", gate_port, timeout=TIMEOUT_S)
    connection.set_tunnel(parts.hostname, parts.port or (443 if is_tls else 80))
    if body is not None and not isinstance(body, (str, bytes)):
        body, headers = json.dumps(body), {"Content-Type": "application/json"} | headers
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    try:
        connection.request(method or ("GET" if body is None else "POST"), path, body=body, headers=headers)
        with connection.getresponse() as response:
            return HttpAnswer(response.status, response.read().decode())
    finally:
        connection.close()
