"""The OpenAI endpoints: chat completions, completions, models. Each reads a body, makes a job, and answers whole or as SSE.

`app` mounts them. Errors are raised, never written here; a client that leaves ends its request at once, streaming or not.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine
from contextlib import aclosing
from typing import Any, TypeVar

import msgspec
from fastapi import APIRouter, Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from paceline_runtime.errors import PacelineError, Problem, RequestError
from paceline_runtime.server.api.bodies import ChatBody, CommonBody, CompletionBody
from paceline_runtime.server.api.formats import ChatFormat, CompletionFormat, Format, Json
from paceline_runtime.server.api.generation import Generation
from paceline_runtime.server.api.jobs import Job, chat_job, completion_job
from paceline_runtime.server.api.parsing import parse
from paceline_runtime.server.api.wording import MAX_NAME_CHARS
from paceline_runtime.server.http.problems import describe
from paceline_runtime.server.http.responses import json_response
from paceline_runtime.server.metrics import Outcome
from paceline_runtime.server.service import Loaded, Service

T = TypeVar("T")
CHAT_PATH, COMPLETIONS_PATH = "/v1/chat/completions", "/v1/completions"
GENERATION_PATHS = frozenset({CHAT_PATH, COMPLETIONS_PATH})
SSE_HEADERS = {"content-type": "text/event-stream", "cache-control": "no-cache", "x-accel-buffering": "no"}


def openai_router(service: Service) -> APIRouter:
    """The routes under /v1."""
    router = APIRouter()

    @router.post(CHAT_PATH)
    async def chat_completions(request: Request) -> Response:
        content = await read_body(request, service.config.max_body_bytes)
        loaded = service.loaded()
        body = parse(content, ChatBody)
        _check_model(body, service)
        making = chat_job(body, f"chatcmpl-{uuid.uuid4().hex}", loaded.tokenizer, loaded.ready, service.prompts)
        job = await until_disconnected(request.receive, making)
        return await _answer(request, service, loaded, job, ChatFormat(loaded.tokenizer))

    @router.post(COMPLETIONS_PATH)
    async def completions(request: Request) -> Response:
        content = await read_body(request, service.config.max_body_bytes)
        loaded = service.loaded()
        body = parse(content, CompletionBody, loaded.ready.max_model_len)
        _check_model(body, service)
        making = completion_job(body, f"cmpl-{uuid.uuid4().hex}", loaded.tokenizer, loaded.ready, service.prompts)
        job = await until_disconnected(request.receive, making)
        return await _answer(request, service, loaded, job, CompletionFormat(loaded.tokenizer))

    @router.get("/v1/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [_model(service)]})

    @router.get("/v1/models/{name:path}")
    async def model(name: str) -> Response:
        if name != service.config.model_name:
            raise _unknown_model(name, service)
        return json_response(_model(service))

    return router


async def _answer(request: Request, service: Service, loaded: Loaded, job: Job, form: Format) -> Response:
    generation = Generation(job, form, service.client, loaded.tokenizer, service.metrics)
    if job.stream:
        return EventStream(generation, service)
    body = await until_disconnected(request.receive, generation.whole())
    service.metrics.ended("completed")
    return json_response(body)


class EventStream(Response):
    """Server-sent events of one generation.

    The headers wait for the first chunk, so that a request that the engine refuses still gets its 400. An error after that
    is an event of its own, and no `[DONE]` follows it.
    """

    def __init__(self, generation: Generation, service: Service) -> None:
        super().__init__(headers=SSE_HEADERS)
        del self.headers["content-length"]
        self._generation = generation
        self._service = service
        self._started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run until the last chunk or until the client leaves."""
        outcome: Outcome
        try:
            outcome = await until_disconnected(receive, self._run(send))
        except ClientDisconnect:
            outcome = "disconnected"
        self._service.metrics.ended(outcome)

    async def _run(self, send: Send) -> Outcome:
        try:
            async with aclosing(self._generation.chunks(self._service.config.keepalive_s)) as chunks:
                async for chunk in chunks:
                    await self._send(send, msgspec.json.encode(chunk))
        except PacelineError as error:
            if not self._started:
                raise
            await self._send(send, msgspec.json.encode(describe(error)[1]))
            await send({"type": "http.response.body", "body": b""})
            return "failed"
        await self._send(send, b"[DONE]")
        await send({"type": "http.response.body", "body": b""})
        return "completed"

    async def _send(self, send: Send, data: bytes) -> None:
        if not self._started:
            self._started = True
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": b"data: " + data + b"\n\n", "more_body": True})


async def until_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of `work`, or `ClientDisconnect` after cancelling it because the client left."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait((task, watcher), return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        task.cancel()
        watcher.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def read_body(request: Request, max_bytes: int) -> bytes:
    """The whole body; refused as soon as it is known to be too large, by its declared length or by what has come.

    It is read before anything else is refused: bytes that nobody read reset a connection that closes, and the client would
    lose the refusal with it.
    """
    body = bytearray()
    declared = request.headers.get("content-length", "")
    if not (declared.isdigit() and int(declared) > max_bytes):
        async for chunk in request.stream():
            body += chunk
            if len(body) > max_bytes:
                break
        else:
            return bytes(body)
    raise RequestError([Problem(None, f"the body is larger than {max_bytes} bytes", "body_too_large")], status=413)


def _check_model(body: CommonBody, service: Service) -> None:
    if body.model != service.config.model_name:
        raise _unknown_model(body.model, service)


def _unknown_model(name: str, service: Service) -> RequestError:
    message = f"there is no model {name[:MAX_NAME_CHARS]!r} here: this server has {service.config.model_name!r}"
    return RequestError([Problem("model", message, "model_not_found")], status=404)


def _model(service: Service) -> Json:
    ready = service.client.ready
    return {
        "id": service.config.model_name,
        "object": "model",
        "created": service.started_s,
        "owned_by": "paceline",
        "max_model_len": ready.max_model_len if ready else None,
    }
