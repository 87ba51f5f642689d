"""The life of one container of a pod: start, probe, stop, restart with backoff.

A runner owns its `ContainerView` and calls `changed` whenever that differs. The pod worker gives it a sandbox and
volumes and decides when it runs at all.
"""

import asyncio
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

from processcluster.images import read_images
from processcluster.kubelet import plan
from processcluster.kubelet.bubble import TERMINATION_LIMIT_BYTES, Bubble, passwd_line
from processcluster.kubelet.context import Node, timestamp
from processcluster.kubelet.environment import environment, load_sources, sources
from processcluster.kubelet.probes import Checker, outcomes
from processcluster.kubelet.process import ContainerProcess
from processcluster.kubelet.sandbox import Sandbox
from processcluster.kubelet.status import ContainerView, restarts
from processcluster.kubelet.volumes import Volumes
from processcluster.kubelet.waiting import NotReadyError

RETRY_S = 0.5
# A kubelet's are 10 and 300; a test has no time to wait for those.
FIRST_BACKOFF_S, LAST_BACKOFF_S = 1.0, 10.0
# What a program gets after a preStop hook that used up the grace period.
LEAST_GRACE_S = 2.0
# Keeps a message from the log's end, when that is asked for, as short as a kubelet does.
LOG_MESSAGE_BYTES = 2048


class ContainerRunner:
    """Runs one container of a pod as often as the restart policy says."""

    def __init__(self, node: Node, pod: dict[str, Any], container: dict[str, Any], changed: Callable[[], None]) -> None:
        self.view = ContainerView(container["name"], container["image"])
        self._node = node
        self._pod = pod
        self._container = container
        self._changed = changed
        self._stopping = asyncio.Event()
        self._process: ContainerProcess | None = None
        self._checker: Checker | None = None
        self._ended = asyncio.Event()
        self._killing: asyncio.Task[None] | None = None
        self._folder: Path = node.files.pods / pod["metadata"]["uid"] / "containers" / container["name"]

    def log(self, run: int) -> Path:
        """The output of the run with that number; runs count from 0."""
        return self._folder / f"{run}.log"

    async def run(self, sandbox: Sandbox, volumes: Volumes, policy: str) -> None:
        """Returns when the container has ended for good: by policy, or because `stop` was called."""
        backoff_s = 0.0
        while not self._stopping.is_set():
            await self._start_when_possible(sandbox, volumes)
            if self._process is None:
                return
            if self._stopping.is_set() and self._killing is None:
                # Told to stop while the run was being started: `stop` found nothing to end then.
                self._killing = asyncio.create_task(self._terminate(LEAST_GRACE_S))
            code = await self._until_end(sandbox)
            if self._stopping.is_set() or not restarts(policy, code):
                return
            await self._wait_before_restart(backoff_s, code)
            backoff_s = min(max(backoff_s * 2, FIRST_BACKOFF_S), LAST_BACKOFF_S)

    async def stop(self, grace_s: float) -> None:
        """preStop, SIGTERM, SIGKILL after the grace period; no further run."""
        self._stopping.set()
        await self._terminate(grace_s)

    def kill(self) -> None:
        """SIGKILL at once; no further run."""
        self._stopping.set()
        if self._process is not None:
            self._process.signal(signal.SIGKILL)

    async def _start_when_possible(self, sandbox: Sandbox, volumes: Volumes) -> None:
        """Starts a run, or returns without one when stopped while something was missing."""
        while not self._stopping.is_set():
            try:
                bubble = await self._bubble(sandbox, volumes)
            except NotReadyError as missing:
                self._wait_for(missing.reason, missing.message)
            except (OSError, TimeoutError, aiohttp.ClientError) as error:
                self._wait_for("ContainerCreating", repr(error))
            else:
                self._process = await ContainerProcess.start(bubble, sandbox.pid, self.log(self.view.restart_count))
                self._ended.clear()
                self.view.state = {"running": {"startedAt": timestamp()}}
                self.view.container_id = f"process://{self._pod['metadata']['uid']}-{self._process.pid}"
                self._changed()
                return
            await self._sleep(RETRY_S)

    async def _bubble(self, sandbox: Sandbox, volumes: Volumes) -> Bubble:
        image = plan.find_image(read_images(self._node.files.images), self.view.image)
        loaded = await load_sources(self._node.api, self._pod["metadata"]["namespace"], sources(self._container))
        addresses = {"podIP": sandbox.address, "hostIP": self._node.address}
        env = environment(self._pod, self._container, loaded, image.env, addresses)
        binds = plan.mounts(self._container, volumes.paths, volumes.read_only, env)
        self._folder.mkdir(parents=True, exist_ok=True)
        termination = self._folder / "termination"
        termination.write_bytes(b"")
        etc_files = self._etc_files(*plan.identity(self._pod["spec"], self._container, image))
        return plan.bubble(self._pod, self._container, image, env, binds, etc_files, termination)

    def _etc_files(self, user: int, group: int) -> dict[str, Path]:
        own = {"passwd": passwd_line(user, group), "group": f"user:x:{group}:\n"}
        for name, text in own.items():
            (self._folder / name).write_text(text)
        shared = self._folder.parents[1] / "etc"
        return {name: self._folder / name for name in own} | {path.name: path for path in shared.iterdir()}

    async def _until_end(self, sandbox: Sandbox) -> int:
        """Waits for the run's end with its probes beside it, and records it. Returns the exit code."""
        assert self._process is not None
        started_at = self.view.state["running"]["startedAt"]
        self._checker = Checker(self._node.probes, sandbox.address, self._container, self._process)
        probing = asyncio.create_task(self._probe(self._checker))
        code = await self._process.wait()
        self._ended.set()
        probing.cancel()
        with suppress(asyncio.CancelledError):
            await probing
        if self._killing is not None:
            await self._killing
            self._killing = None
        self._process = None
        self.view.ready = self.view.started = False
        self.view.state = {"terminated": self._terminated(code, started_at)}
        self._changed()
        return code

    def _terminated(self, code: int, started_at: str) -> dict[str, Any]:
        message = (self._folder / "termination").read_bytes()[:TERMINATION_LIMIT_BYTES]
        wants_log = self._container.get("terminationMessagePolicy") == "FallbackToLogsOnError"
        if not message and code and wants_log:
            message = self.log(self.view.restart_count).read_bytes()[-LOG_MESSAGE_BYTES:]
        return {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "message": message.decode(errors="replace"),
            "startedAt": started_at,
            "finishedAt": timestamp(),
            "containerID": self.view.container_id,
        }

    async def _probe(self, checker: Checker) -> None:
        if "startupProbe" in self._container:
            await self._startup(checker)
        self.view.started = True
        self.view.ready = "readinessProbe" not in self._container
        self._changed()
        await asyncio.gather(self._readiness(checker), self._liveness(checker))

    async def _startup(self, checker: Checker) -> None:
        async for passed in outcomes(self._container["startupProbe"], checker.passes):
            if passed:
                return
            self._kill_for(self._container["startupProbe"])

    async def _readiness(self, checker: Checker) -> None:
        if "readinessProbe" not in self._container:
            return
        async for passed in outcomes(self._container["readinessProbe"], checker.passes):
            if passed != self.view.ready:
                self.view.ready = passed
                self._changed()

    async def _liveness(self, checker: Checker) -> None:
        if "livenessProbe" not in self._container:
            return
        async for passed in outcomes(self._container["livenessProbe"], checker.passes):
            if not passed:
                self._kill_for(self._container["livenessProbe"])

    def _kill_for(self, probe: dict[str, Any]) -> None:
        """Ends this run because a probe failed; the restart policy goes on from there."""
        grace_s = probe.get("terminationGracePeriodSeconds", self._pod["spec"]["terminationGracePeriodSeconds"])
        if self._killing is None:
            self._killing = asyncio.create_task(self._terminate(grace_s))

    async def _terminate(self, grace_s: float) -> None:
        process = self._process
        if process is None:
            return
        loop = asyncio.get_running_loop()
        deadline = loop.time() + grace_s
        with suppress(TimeoutError, OSError, aiohttp.ClientError):
            async with asyncio.timeout(grace_s):
                await self._pre_stop(process, grace_s)
        process.signal(signal.SIGTERM)
        left_s = max(deadline - loop.time(), LEAST_GRACE_S if grace_s else 0)
        with suppress(TimeoutError):
            async with asyncio.timeout(left_s):
                await self._ended.wait()
        if not self._ended.is_set():
            process.signal(signal.SIGKILL)
            await self._ended.wait()

    async def _pre_stop(self, process: ContainerProcess, limit_s: float) -> None:
        hook = self._container.get("lifecycle", {}).get("preStop", {})
        if "exec" in hook:
            await process.execute(hook["exec"]["command"], limit_s)
        elif "sleep" in hook:
            async with asyncio.timeout(hook["sleep"]["seconds"]):
                await self._ended.wait()
        elif "httpGet" in hook and self._checker is not None:
            await self._checker.request(hook["httpGet"], limit_s)

    async def _wait_before_restart(self, backoff_s: float, code: int) -> None:
        """The first restart comes at once, later ones after a backoff that shows as CrashLoopBackOff."""
        self.view.last_state = self.view.state
        if backoff_s:
            self._wait_for("CrashLoopBackOff", f"back-off {backoff_s:g}s after exit code {code}")
            await self._sleep(backoff_s)
        if not self._stopping.is_set():
            self.view.restart_count += 1

    def _wait_for(self, reason: str, message: str) -> None:
        state = {"waiting": {"reason": reason, "message": message}}
        if self.view.state != state:
            self.view.state = state
            self._changed()

    async def _sleep(self, duration_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(duration_s):
                await self._stopping.wait()
