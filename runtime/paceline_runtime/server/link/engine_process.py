"""The engine process: started, watched and ended. `lifecycle` uses it and, through it, tests do with another factory.

It knows the process and its socket, not what is said on the socket.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import tempfile

import msgspec
import zmq
import zmq.asyncio

from paceline_runtime.config import EngineConfig
from paceline_runtime.engine.process import DEFAULT_FACTORY
from paceline_runtime.errors import ConfigError

LINGER_MS = 1000


class EngineProcess:
    """One engine process with the bound end of its socket. `start` it once, `stop` it in any case."""

    def __init__(self, config: EngineConfig, factory: str = DEFAULT_FACTORY) -> None:
        self._config = config
        self._factory = factory
        # Only this user may reach the socket: the folder has mode 0700.
        self._folder = tempfile.TemporaryDirectory(prefix="paceline-")
        self._context = zmq.asyncio.Context()
        self._process: asyncio.subprocess.Process | None = None
        self.socket = self._context.socket(zmq.PAIR)

    async def start(self) -> None:
        """Bind, start the process, hand it its configuration. Raises ConfigError where no socket can be."""
        address = f"ipc://{self._folder.name}/engine"
        self.socket.set_hwm(0)
        self.socket.setsockopt(zmq.LINGER, LINGER_MS)
        try:
            self.socket.bind(address)
        except zmq.ZMQError as error:  # a socket's path has at most 107 bytes
            raise ConfigError([f"no socket can be in {self._folder.name}, set TMPDIR to another folder: {error}"]) from None
        command = [sys.executable, "-m", "paceline_runtime.engine.process", address, self._factory]
        # Its own session: Ctrl-C must reach the server only, which then drains.
        self._process = await asyncio.create_subprocess_exec(
            *command, stdin=asyncio.subprocess.PIPE, env=self._environment(), start_new_session=True
        )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self._config) + b"\n")

    async def stop(self, patience_s: float) -> None:
        """Leave no process behind. One that was told to shut down has `patience_s` to do so; then it is killed."""
        if self._process is not None:
            try:
                await asyncio.wait_for(self._process.wait(), patience_s)
            except TimeoutError:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
                await self._process.wait()
        self.socket.close()
        self._context.term()
        self._folder.cleanup()

    async def wait(self) -> int:
        """The exit status, once there is one; negative for a signal."""
        assert self._process is not None
        return await self._process.wait()

    def _environment(self) -> dict[str, str]:
        """The server's own; `--threads` also bounds the pools that libraries size when imported."""
        threads = self._config.threads
        return {**os.environ, **({"OMP_NUM_THREADS": str(threads)} if threads else {})}
