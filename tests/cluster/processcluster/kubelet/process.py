"""One run of one container: the bwrap process, its log, its end.

Called by the container runner. Knows argv and pids, nothing of Kubernetes.
"""

import asyncio
import json
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from processcluster.kubelet.bubble import Bubble, bubble_argv, exec_argv


class ContainerProcess:
    """A started container."""

    def __init__(self, process: asyncio.subprocess.Process, pid: int, env: Mapping[str, str]) -> None:
        self._process = process
        self.pid = pid
        self._env = dict(env)

    @classmethod
    async def start(cls, bubble: Bubble, network_pid: int, log: Path) -> "ContainerProcess":
        """Starts it in the network namespace of `network_pid`, output appended to `log`.

        A root that cannot be built or a program that is not there shows as exit code 1 with bwrap's words in the log.
        """
        info, info_writer = os.pipe()
        enter = ["nsenter", "-t", str(network_pid), "-n", "--"]
        try:
            with log.open("ab") as output:
                process = await asyncio.create_subprocess_exec(
                    *enter,
                    *bubble_argv(bubble, info_writer),
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    pass_fds=(info_writer,),
                    start_new_session=True,
                )
        finally:
            os.close(info_writer)
        with open(info) as pipe:
            text = await asyncio.to_thread(pipe.read)
        return cls(process, json.loads(text)["child-pid"] if text else process.pid, bubble.env)

    async def wait(self) -> int:
        """The exit code; 128 + the signal's number after a signal."""
        code = await self._process.wait()
        return 128 - code if code < 0 else code

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to the container's first process."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    async def execute(self, argv: Sequence[str], timeout_s: float) -> tuple[int, str]:
        """Runs a command inside. Its exit code and output. Raises TimeoutError, after killing it."""
        process = await asyncio.create_subprocess_exec(
            *exec_argv(self.pid, argv),
            env=self._env,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(timeout_s):
                output, _ = await process.communicate()
        except TimeoutError:
            # nsenter forks: the group holds the command too.
            os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            raise
        return process.returncode or 0, output.decode(errors="replace")
