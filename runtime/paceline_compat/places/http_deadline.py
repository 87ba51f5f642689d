"""A time limit for a whole HTTP exchange: urllib's timeout is one of silence, and starts anew with every byte.

`http_source` calls it. It knows connections and a clock, nothing of what is read.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import urllib.request
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPResponse
from typing import Any

# A server that is silent to the end is reported as silent, not as slow.
_GRACE_S = 0.5


class _Cut:
    """Shuts the connections that it has seen, and all later ones, from the moment that it is called."""

    def __init__(self) -> None:
        self._lock, self._is_over = threading.Lock(), False
        self._sockets: list[socket.socket] = []

    def watch(self, sock: socket.socket) -> None:
        with self._lock:
            self._sockets.append(sock)
            is_over = self._is_over
        if is_over:
            self()

    def __call__(self) -> None:
        with self._lock:
            self._is_over = True
            for sock in self._sockets:
                with contextlib.suppress(OSError):  # closed already
                    sock.shutdown(socket.SHUT_RDWR)


class _Watched(urllib.request.AbstractHTTPHandler):
    """Tells `cut` of each connection that is made."""

    def __init__(self, cut: _Cut) -> None:
        super().__init__()
        self._cut = cut

    def do_open(self, http_class: Any, req: urllib.request.Request, **http_conn_args: Any) -> HTTPResponse:
        def make(*args: Any, **options: Any) -> HTTPConnection:
            connection: HTTPConnection = http_class(*args, **options)
            connect = connection.connect

            def watched() -> None:
                connect()
                self._cut.watch(connection.sock)

            connection.connect = watched  # type: ignore[method-assign]
            return connection

        return super().do_open(make, req, **http_conn_args)


class _Http(_Watched, urllib.request.HTTPHandler):
    """Plain connections, watched."""


class _Https(_Watched, urllib.request.HTTPSHandler):
    """Connections over TLS, watched."""


@contextlib.contextmanager
def opened_within(
    request: urllib.request.Request, left_s: float, silence_s: float, *handlers: urllib.request.BaseHandler
) -> Iterator[HTTPResponse]:
    """The response to `request`. Its connections are shut when header and body are not there soon after `left_s`.

    A read then finds the end of the stream, or an OSError. TimeoutError after `silence_s` without a byte.
    """
    cut = _Cut()
    timer = threading.Timer(left_s + _GRACE_S, cut)
    timer.daemon = True
    timer.start()
    try:
        with urllib.request.build_opener(*handlers, _Http(cut), _Https(cut)).open(request, timeout=silence_s) as response:
            yield response
    finally:
        timer.cancel()
