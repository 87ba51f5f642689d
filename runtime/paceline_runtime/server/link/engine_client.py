"""The server's end of the socket to the engine: it sends requests and aborts, and hands each answer to the call it belongs to.

The routes use it through `call`, health and metrics through its state. It knows no HTTP, and not how the engine process is
started (`engine_process`); an engine in a thread of the same process will do for tests.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Self

import zmq.asyncio

from paceline_runtime import messages
from paceline_runtime.errors import EngineDiedError, UnavailableError
from paceline_runtime.server.link.acceptance_log import AcceptanceLog

Event = messages.Tokens | messages.Refused | messages.Failed


class Call:
    """One or more choices in flight. Leaving the `with` block aborts whatever has not ended, for whatever reason."""

    def __init__(self, client: EngineClient, submits: Sequence[messages.Submit]) -> None:
        self._client = client
        self._submits = tuple(submits)
        self._open = {submit.request_id: index for index, submit in enumerate(submits)}
        self._events: asyncio.Queue[tuple[int, Event]] = asyncio.Queue()

    def __enter__(self) -> Self:
        self._client.begin(self, self._submits)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.end(self._open)

    @property
    def is_open(self) -> bool:
        """Whether any choice still runs or an event waits to be taken."""
        return bool(self._open) or not self._events.empty()

    async def next(self) -> tuple[int, Event]:
        """The next event and the index of its choice. Others have their turn first, however many events wait already."""
        await asyncio.sleep(0)
        return await self._events.get()

    def deliver(self, request_id: str, event: Event) -> None:
        """Take an event. The client calls it in the order in which the engine sent."""
        index = self._open[request_id]
        if not isinstance(event, messages.Tokens) or event.finish_reason is not None:
            del self._open[request_id]
        self._events.put_nowait((index, event))


class EngineClient:
    """What the server knows of its engine. `failure` is final: once set, every call ends with it."""

    def __init__(self, socket: zmq.asyncio.Socket, on_progress: Callable[[messages.Loading], None] = lambda _: None) -> None:
        self.progress = messages.Loading("starting", 0.0)
        self.ready: messages.Ready | None = None
        self.stats: messages.Stats | None = None
        self.failure: str | None = None
        self.failed = asyncio.Event()
        self._is_ready = asyncio.Event()
        self._on_progress = on_progress
        self._socket = socket
        self._calls: dict[str, Call] = {}
        self._rebuilds: deque[asyncio.Future[messages.Rebuilt]] = deque()
        self._acceptance = AcceptanceLog()

    @property
    def num_open(self) -> int:
        """Choices in flight."""
        return len(self._calls)

    async def until_ready(self) -> messages.Ready:
        """Wait for the engine to be loaded; for ever if it fails."""
        await self._is_ready.wait()
        assert self.ready is not None
        return self.ready

    def call(self, submits: Sequence[messages.Submit]) -> Call:
        """A context manager that runs the given requests. Entering it raises `UnavailableError` unless ready."""
        return Call(self, submits)

    def begin(self, call: Call, submits: Sequence[messages.Submit]) -> None:
        """Send what `call` asks for."""
        if self.failure is not None:
            raise EngineDiedError(f"the engine has failed: {self.failure}")
        if self.ready is None:
            raise UnavailableError(f"the model is loading: {self.progress.phase}, {self.progress.fraction:.0%}")
        for submit in submits:
            self._calls[submit.request_id] = call
            self._send(submit)

    def end(self, request_ids: Iterable[str]) -> None:
        """Forget requests and have the engine abort them."""
        for request_id in request_ids:
            if self._calls.pop(request_id, None) is not None and self.failure is None:
                self._send(messages.Abort(request_id))

    async def rebuild(self, sizes: messages.Rebuild) -> messages.Rebuilt:
        """Ask for another cache and wait for what came of it. `EngineDiedError` when the engine fails meanwhile."""
        answer: asyncio.Future[messages.Rebuilt] = asyncio.get_running_loop().create_future()
        self._send(sizes)
        self._rebuilds.append(answer)
        return await answer

    def shut_down(self) -> None:
        """Ask the engine to end."""
        if self.failure is None:
            self._send(messages.Shutdown())

    def fail(self, reason: str) -> None:
        """The engine can answer no more: end every call with `reason`. The first reason stays."""
        if self.failure is None:
            self.failure = reason
        for request_id, call in list(self._calls.items()):
            self._deliver(call, request_id, messages.Failed(f"the engine failed: {self.failure}"))
        for answer in self._rebuilds:
            if not answer.done():
                answer.set_exception(EngineDiedError(f"the engine failed: {self.failure}"))
        self.failed.set()

    def cut_off(self, reason: str) -> None:
        """End every call with `reason` and have the engine abort them; the engine itself stays fit for work."""
        for request_id, call in list(self._calls.items()):
            self._send(messages.Abort(request_id))
            self._deliver(call, request_id, messages.Failed(reason))

    async def listen(self) -> None:
        """Receive until cancelled. What cannot be understood is a failure: the call it was for would wait for ever."""
        try:
            while True:
                for frame in await self._socket.recv_multipart():
                    self._route(messages.decode_from_engine(frame))
                # What waits already is received without a pause: after a stall, the backlog would hold up everyone else.
                await asyncio.sleep(0)
        except Exception as error:
            self.fail(f"it sent what cannot be understood: {type(error).__name__}: {error}")
            raise

    def _route(self, message: messages.FromEngine) -> None:
        match message:
            case messages.Tokens() | messages.Refused():
                # Absent when the request was aborted while this was on its way.
                if call := self._calls.get(message.request_id):
                    self._deliver(call, message.request_id, message)
            case messages.Rebuilt():
                answer = self._rebuilds.popleft()
                if not answer.done():  # its caller may have left
                    answer.set_result(message)
            case messages.Stats():
                self.stats = message
                self._acceptance.observe(message)
            case messages.Loading():
                self.progress = message
                self._on_progress(message)
            case messages.Ready():
                self.ready = message
                self._is_ready.set()
            case messages.Failed():
                self.fail(message.message)

    def _deliver(self, call: Call, request_id: str, event: Event) -> None:
        if not isinstance(event, messages.Tokens) or event.finish_reason is not None:
            del self._calls[request_id]
        call.deliver(request_id, event)

    def _send(self, message: messages.Message) -> None:
        # Without a high-water mark this completes at once; unawaited, so that an abort survives the cancellation
        # that causes it (zmq.asyncio keeps the order of sends that cannot complete).
        self._socket.send(messages.encode(message))
