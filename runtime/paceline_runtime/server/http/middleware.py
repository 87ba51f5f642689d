"""What happens around every request: its id, the API key, and the count of requests in flight. Plain ASGI, no buffering.

`app` puts it around the application. It knows nothing of what is asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import uuid
from collections.abc import Sequence

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from paceline_runtime.server.http.keys import Keys
from paceline_runtime.server.http.problems import CHALLENGE, error_json
from paceline_runtime.server.http.responses import json_response
from paceline_runtime.server.service import Service

REQUEST_ID = "x-request-id"
# Probes and scrapers carry no key; nothing they can read depends on anyone's prompt. Administration asks for keys of its own.
OPEN_PATHS = frozenset({"/livez", "/readyz", "/metrics", "/v1/cache/rebuild"})

LINGER_S = 10.0


class UnreadBody:
    """Keeps the connection of an answer that did not read its request until the client has sent it all.

    Closing with unread bytes resets the connection, and a client that still sends loses the answer (401, 404, 413) with it;
    proxies that speak HTTP/1.0 close after every answer. Who waits to be told to continue has sent nothing and is not told.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on; hold back only the end of the answer, for at most `LINGER_S`."""
        is_read = scope["type"] != "http" or "expect" in Headers(scope=scope)

        async def receive_noting() -> Message:
            nonlocal is_read
            message = await receive()
            # A client that has left sends no more either.
            is_read = not message.get("more_body", False)
            return message

        async def send_and_linger(message: Message) -> None:
            if message["type"] == "http.response.body" and not message.get("more_body", False) and not is_read:
                await send({**message, "more_body": True})
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LINGER_S):
                        while not is_read:
                            await receive_noting()
                message = {"type": "http.response.body", "body": b""}
            await send(message)

        await self._app(scope, receive_noting, send_and_linger)


class RequestId:
    """Echoes the client's `x-request-id` if it is a sane one, else makes one up."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the header to the response."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        given = Headers(scope=scope).get(REQUEST_ID, "")
        request_id = given if re.fullmatch(r"[\w.:-]{1,128}", given, re.ASCII) else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id
            await send(message)

        return await self._app(scope, receive, send_with_id)


class ApiKeys:
    """Lets through who shows one of the keys as a bearer token; everyone when there are none."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = Keys(keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer 401 or pass on."""
        is_open = scope["type"] != "http" or scope["path"] in OPEN_PATHS or not self._keys
        if is_open or self._keys.admit(Headers(scope=scope).get("authorization", "")):
            return await self._app(scope, receive, send)
        body = error_json("send a valid API key as 'Authorization: Bearer KEY'", 401, code="invalid_api_key")
        return await json_response(body, 401, CHALLENGE)(scope, receive, send)


class InFlight:
    """Counts requests under /v1 while they are answered, so that a drain knows when it is over."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, counted."""
        if scope["type"] != "http" or not scope["path"].startswith("/v1/"):
            return await self._app(scope, receive, send)
        with self._service.in_flight():
            return await self._app(scope, receive, send)
