"""The life of a server: bind, load, serve, drain, end, with the exit status that says which end it was.

The `serve` command and the demo call it. It starts the engine process and the HTTP server and connects their fates:
when the engine dies, the server tells its clients and ends too; when a SIGTERM comes, running requests finish first.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

import uvicorn

from paceline_runtime import messages
from paceline_runtime.config import ServeConfig
from paceline_runtime.engine.process import DEFAULT_FACTORY
from paceline_runtime.errors import ConfigError
from paceline_runtime.server.http.app import create_app
from paceline_runtime.server.link.engine_client import EngineClient
from paceline_runtime.server.link.engine_process import EngineProcess
from paceline_runtime.server.service import Service
from paceline_runtime.text.chat import Tokenizer

logger = logging.getLogger(__name__)

EXIT_OK = 0
EXIT_ENGINE_DIED = 1
# A `Failed` message may still be in the socket when the process that sent it is already gone.
LAST_WORDS_S = 0.5
STOP_PATIENCE_S = 5.0
CLOSE_TIMEOUT_S = 5
BACKLOG = 1024
# Longer than the 60 s for which common proxies reuse a connection, so that none of them writes into a closed one.
KEEP_ALIVE_S = 75


class HttpServer(uvicorn.Server):
    """uvicorn, except that a signal starts a drain during which the port still answers. A second one ends at once."""

    def __init__(self, config: uvicorn.Config, on_signal: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_signal = on_signal
        self._loop = asyncio.get_running_loop()
        self._num_signals = 0

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Start a drain, or end at the second signal. Python calls it between bytecodes of the main thread."""
        self._num_signals += 1
        if self._num_signals > 1:
            self.should_exit = self.force_exit = True
        self._loop.call_soon_threadsafe(self._on_signal)


@dataclass(frozen=True)
class Watcher:
    """Who wants to know how a start goes: the console, or nobody."""

    on_progress: Callable[[messages.Loading], None] = lambda _: None
    on_listening: Callable[[str], None] = lambda _: None
    on_ready: Callable[[messages.Ready], None] = lambda _: None


class Server:
    """Everything that runs in the server process."""

    def __init__(self, config: ServeConfig, watcher: Watcher, factory: str, load: Callable[[str], Tokenizer]) -> None:
        self._config = config
        self._watcher = watcher
        self._load = load
        self._process = EngineProcess(config.engine, factory)
        self._client = EngineClient(self._process.socket, watcher.on_progress)
        self._service = Service(config, self._client)
        self._stopping = asyncio.Event()
        self._http = HttpServer(_uvicorn_config(config, self._service), self._stopping.set)

    async def run(self) -> int:
        """Serve until told to stop or until the engine dies; the exit status."""
        listener = listen(self._config.host, self._config.port)
        self._watcher.on_listening(url_of(listener))
        http = asyncio.create_task(self._http.serve(sockets=[listener]))
        try:
            await self._serve_until_end(http)
        finally:
            self._client.shut_down()
            self._http.should_exit = True
            await http
            # While it loads, it does not read its socket.
            await self._process.stop(STOP_PATIENCE_S if self._client.ready else 0.0)
        if self._client.failure is None:
            return EXIT_OK
        logger.error("%s: %s", "the engine failed" if self._client.ready else "cannot start", self._client.failure)
        return EXIT_ENGINE_DIED

    async def _serve_until_end(self, http: asyncio.Task[None]) -> None:
        """Return once nothing is left to do: drained, or engine dead, or the HTTP server gone."""
        await self._process.start()
        work = [asyncio.create_task(part()) for part in (self._client.listen, self._watch, self._announce_ready)]
        ends = [asyncio.create_task(event.wait()) for event in (self._client.failed, self._stopping)]
        try:
            await asyncio.wait([http, *ends], return_when=asyncio.FIRST_COMPLETED)
            if self._stopping.is_set() and self._client.failure is None:
                await self._drain(http)
        finally:
            for task in (*work, *ends):
                task.cancel()
            await asyncio.gather(*work, *ends, return_exceptions=True)

    async def _drain(self, http: asyncio.Task[None]) -> None:
        """Refuse new requests, let the others finish, end those that take too long or that a second signal cuts short."""
        self._service.draining = True
        logger.info("draining, for at most %g s", self._config.drain_timeout_s)
        idle = asyncio.create_task(self._service.idle())
        await asyncio.wait([http, idle], timeout=self._config.drain_timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not idle.done():
            self._client.cut_off("the server is shutting down")
            idle.cancel()

    async def _watch(self) -> None:
        """Notice the end of the engine process; it is always a failure while the server runs."""
        status = await self._process.wait()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._client.failed.wait(), LAST_WORDS_S)
        self._client.fail(f"the engine process ended with status {status}")

    async def _announce_ready(self) -> None:
        """Load the tokenizer beside the engine, and tell when both are there."""
        try:
            self._service.tokenizer = await asyncio.to_thread(self._load, self._config.engine.model_path)
        except Exception as error:
            self._client.fail(f"the tokenizer cannot be loaded: {error}")
        else:
            self._watcher.on_ready(await self._client.until_ready())


async def serve(
    config: ServeConfig,
    watcher: Watcher | None = None,
    factory: str = DEFAULT_FACTORY,
    load: Callable[[str], Tokenizer] | None = None,
) -> int:
    """Run a server; `factory` names what builds the engine in its process, `load` the tokenizer in this one."""
    return await Server(config, watcher or Watcher(), factory, load or _load_tokenizer).run()


def _load_tokenizer(path: str) -> Tokenizer:
    """Imported late: the port is to be open before a tokenizer library is."""
    from paceline_runtime.text.load import load_tokenizer

    return load_tokenizer(path)


def listen(host: str, port: int) -> socket.socket:
    """Bind before anything else, so that probes find someone and a taken port is known at once."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise ConfigError([f"cannot listen on --host {host} --port {port}: {error.strerror or error}"]) from None


def url_of(listener: socket.socket) -> str:
    """Where a bound socket is reached."""
    host, port = listener.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def _uvicorn_config(config: ServeConfig, service: Service) -> uvicorn.Config:
    return uvicorn.Config(
        create_app(service),
        log_config=None,
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
    )
