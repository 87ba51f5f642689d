"""A real HTTP server on a free port with a scripted engine in a thread beside it: what most server tests talk to."""

import asyncio
import contextlib
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

import uvicorn
import zmq
import zmq.asyncio
from byte_tokenizer import ByteTokenizer
from fake_engine import FakeEngine

from paceline_runtime.config import EngineConfig, ServeConfig
from paceline_runtime.engine import process
from paceline_runtime.server.http.app import create_app
from paceline_runtime.server.lifecycle import listen, url_of
from paceline_runtime.server.link.engine_client import EngineClient
from paceline_runtime.server.service import Service

MODEL = "fake"


class LiveServer:
    """`url` answers as long as the `with` block of `running` lasts; `engine` and `service` are there to look into."""

    def __init__(self, engine: FakeEngine, config: ServeConfig, address: str) -> None:
        self.engine = engine
        self._config = config
        self._address = address
        self._up = threading.Event()
        self._listener = listen("127.0.0.1", 0)
        self.url = url_of(self._listener)
        self._http: Any = None
        self.service: Any = None

    def start(self) -> None:
        """Both threads, until the engine is ready."""
        self._threads = [threading.Thread(target=part) for part in (self._run_engine, lambda: asyncio.run(self._serve()))]
        for thread in self._threads:
            thread.start()
        assert self._up.wait(30)

    def stop(self) -> None:
        """End both; the engine sees a `Shutdown`."""
        self._http.should_exit = True
        for thread in self._threads:
            thread.join(30)
            assert not thread.is_alive()

    def _run_engine(self) -> None:
        with zmq.Context() as context, context.socket(zmq.PAIR) as socket:
            socket.set_hwm(0)
            socket.connect(self._address)
            process.run(self._config.engine, lambda config, on_progress: self.engine, socket)

    async def _serve(self) -> None:
        context = zmq.asyncio.Context()
        socket = context.socket(zmq.PAIR)
        socket.set_hwm(0)
        socket.bind(self._address)
        client = EngineClient(socket)
        listening = asyncio.create_task(client.listen())
        await client.until_ready()
        self.service = Service(self._config, client)
        self.service.tokenizer = ByteTokenizer()
        config = uvicorn.Config(create_app(self.service), log_config=None, lifespan="off", ws="none")
        self._http = uvicorn.Server(config)
        self._up.set()
        await self._http.serve(sockets=[self._listener])
        client.shut_down()
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        socket.close(linger=1000)
        context.term()


@contextlib.contextmanager
def running(**overrides: Any) -> Iterator[LiveServer]:
    """A live server; `overrides` go to `ServeConfig`."""
    config = ServeConfig(engine=EngineConfig(model_path=MODEL), **{"served_model_name": MODEL, **overrides})
    with tempfile.TemporaryDirectory(prefix="paceline-") as folder:
        server = LiveServer(FakeEngine(), config, f"ipc://{folder}/engine")
        server.start()
        try:
            yield server
        finally:
            server.stop()
