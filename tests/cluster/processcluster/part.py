"""One program of the cluster as a child process of the supervisor, with its log file.

Knows how to start, signal and wait; what the program is, is the command line's business.
"""

import asyncio
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path


class Part:
    """A restartable child process; `pass_fds` stay open in it."""

    def __init__(self, name: str, argv: Sequence[str], log: Path, pass_fds: Sequence[int] = ()) -> None:
        self.name = name
        self._argv = list(argv)
        self._log = log
        self._pass_fds = tuple(pass_fds)
        self._process: asyncio.subprocess.Process | None = None

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    @property
    def state(self) -> str:
        """For people: running with its pid, stopped, or ended with its exit code."""
        if self._process is None:
            return "stopped"
        code = self._process.returncode
        return f"running, pid {self._process.pid}" if code is None else f"ended with {code}, see {self._log}"

    async def start(self) -> None:
        """Starts the program; its output is appended to the log."""
        assert not self.running, f"{self.name} already runs"
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._argv, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log, pass_fds=self._pass_fds
            )

    async def stop(self, how: signal.Signals = signal.SIGKILL, grace_s: float = 5) -> None:
        """Signals the program and waits for its end; SIGKILL after `grace_s`. Does nothing when it has ended."""
        if self._process is None:
            return
        with suppress(ProcessLookupError):
            os.kill(self._process.pid, how)
        try:
            async with asyncio.timeout(grace_s):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()
        self._process = None
