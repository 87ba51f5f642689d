"""The engine process: `python -m paceline_runtime.engine.process ADDRESS FACTORY`. `server/link/engine_process.py` starts it.

Its configuration comes as one line of JSON on standard input; that pipe then stays open, and its end means that the server
is gone. Messages are those of `messages.py`, one or more per ZeroMQ message. It knows no HTTP, and the engine only by what
`Engine` says; the factory is named by import path, so that this module needs no torch.
"""

from __future__ import annotations

import importlib
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Protocol, cast

import msgspec
import zmq

from paceline_runtime import messages
from paceline_runtime.config import EngineConfig
from paceline_runtime.errors import ConfigError

DEFAULT_FACTORY = "paceline_runtime.engine.factory:build_with_tokenizer"
STATS_INTERVAL_S = 1.0
EXIT_ORPHANED = 3


class Info(Protocol):
    """What `Ready` tells of a loaded engine."""

    @property
    def model_type(self) -> str: ...
    @property
    def vocab_size(self) -> int: ...
    @property
    def max_model_len(self) -> int: ...
    @property
    def plan(self) -> str: ...


class Engine(Protocol):
    """What the loop drives. Nothing here blocks except `step`, which runs while `has_work`."""

    @property
    def info(self) -> Info:
        """What was loaded and how it was planned."""

    @property
    def has_work(self) -> bool:
        """Whether `step` has anything to do: requests that wait or run, results not yet collected."""

    def add(self, submit: messages.Submit) -> messages.Refused | None:
        """Queue a request, or say at once why it can never run."""

    def abort(self, request_id: str) -> None:
        """Forget a request and free all it holds; unknown ids are ignored."""

    def step(self) -> list[messages.Tokens]:
        """One step; what it committed, each request cut at its end."""

    def rebuild(self, sizes: messages.Rebuild) -> messages.Rebuilt:
        """Give the idle engine another cache, or say why it keeps the old one."""

    def stats(self) -> messages.Stats:
        """A snapshot of counters and gauges."""


EngineFactory = Callable[[EngineConfig, Callable[[str, float], None]], Engine]


class EngineLoop:
    """Feeds an engine from a socket and the socket from the engine, until a `Shutdown` comes."""

    def __init__(self, engine: Engine, socket: zmq.Socket[bytes], clock: Callable[[], float] = time.monotonic) -> None:
        self._engine = engine
        self._socket = socket
        self._clock = clock
        self._reported: messages.Stats | None = None
        self._next_report_s = 0.0

    def run(self) -> None:
        """Serve. Whatever the engine raises ends the loop: its state cannot be trusted afterwards."""
        while self._receive():
            if self._engine.has_work:
                send(self._socket, self._engine.step())
            self._report()

    def _receive(self) -> bool:
        """Take all that has arrived, blocking only when idle; False once told to stop."""
        timeout_ms = 0 if self._engine.has_work else self._idle_timeout_ms()
        while self._socket.poll(timeout_ms):
            message = messages.decode_to_engine(self._socket.recv())
            if isinstance(message, messages.Shutdown):
                return False
            self._handle(message)
            timeout_ms = 0
        return True

    def _handle(self, message: messages.Submit | messages.Abort | messages.Rebuild) -> None:
        if isinstance(message, messages.Abort):
            self._engine.abort(message.request_id)
        elif isinstance(message, messages.Rebuild):
            send(self._socket, [self._engine.rebuild(message)])
        elif refused := self._engine.add(message):
            send(self._socket, [refused])

    def _idle_timeout_ms(self) -> int | None:
        """Until the next report is due if there is something new to report, else for ever."""
        if self._engine.stats() == self._reported:
            return None
        return max(0, int((self._next_report_s - self._clock()) * 1000) + 1)

    def _report(self) -> None:
        now_s = self._clock()
        if now_s < self._next_report_s:
            return
        stats = self._engine.stats()
        if stats != self._reported:
            send(self._socket, [stats])
            self._reported = stats
            self._next_report_s = now_s + STATS_INTERVAL_S


def send(socket: zmq.Socket[bytes], batch: Sequence[messages.Message]) -> None:
    """All messages of one step as the frames of one ZeroMQ message."""
    if batch:
        socket.send_multipart([messages.encode(message) for message in batch])


def run(config: EngineConfig, factory: EngineFactory, socket: zmq.Socket[bytes]) -> int:
    """Load, report ready, serve; the exit status. Every way to fail is told to the server before it is returned."""
    try:
        engine = factory(config, lambda phase, fraction: send(socket, [messages.Loading(phase, fraction)]))
    except (ConfigError, ValueError, OSError, MemoryError) as error:
        return _fail(socket, str(error) or type(error).__name__)
    except Exception as error:
        traceback.print_exc()
        return _fail(socket, f"{type(error).__name__}: {error}")
    try:
        send(socket, _greeting(engine))
        EngineLoop(engine, socket).run()
    except Exception as error:
        traceback.print_exc()
        return _fail(socket, f"{type(error).__name__}: {error}")
    return 0


def _greeting(engine: Engine) -> list[messages.Message]:
    info, stats = engine.info, engine.stats()
    ready = messages.Ready(
        model_type=info.model_type,
        max_model_len=info.max_model_len,
        vocab_size=info.vocab_size,
        num_pages=stats.num_pages,
        plan=info.plan,
    )
    return [ready, stats]


def _fail(socket: zmq.Socket[bytes], message: str) -> int:
    send(socket, [messages.Failed(message)])
    return 1


def load_factory(path: str) -> EngineFactory:
    """The object at `module:attribute`."""
    module, _, attribute = path.partition(":")
    return cast(EngineFactory, getattr(importlib.import_module(module), attribute))


def exit_with(lifeline_fd: int) -> None:
    """Leave at once when the other end of the pipe is closed, even in the middle of loading or of a step."""

    def watch() -> None:
        # Not through a buffered reader: its lock, held by a waiting thread, is a fatal error when the interpreter ends.
        while os.read(lifeline_fd, 1):
            pass
        os._exit(EXIT_ORPHANED)

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


def main(argv: Sequence[str]) -> int:
    """Entry point of the process."""
    address, factory = argv
    # Ctrl-C in a terminal reaches the whole group; the server decides when the engine ends.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    config = msgspec.json.decode(sys.stdin.buffer.readline(), type=EngineConfig)
    exit_with(sys.stdin.fileno())
    with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
        socket.set_hwm(0)
        socket.connect(address)
        return run(config, load_factory(factory), socket)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
