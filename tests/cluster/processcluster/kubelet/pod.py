"""The life of one pod on this node: sandbox, volumes, init containers, containers, status, end.

Made by the manager when a pod is bound here; told of changes by it. All status goes through one publishing task, so
patches of a pod never overtake each other.
"""

import asyncio
import logging
import shutil
from contextlib import suppress
from typing import Any

import aiohttp

from processcluster.api import STRATEGIC_MERGE, ApiError
from processcluster.kubelet.container import RETRY_S, ContainerRunner
from processcluster.kubelet.context import Node, timestamp
from processcluster.kubelet.sandbox import Sandbox, create_sandbox
from processcluster.kubelet.status import covers, pod_status, refusal, restarts
from processcluster.kubelet.support import unsupported_fields
from processcluster.kubelet.volumes import Volumes
from processcluster.kubelet.waiting import NotReadyError
from processcluster.layout import CLUSTER_DOMAIN, DNS_ADDRESS

log = logging.getLogger(__name__)
REFRESH_S = 1.0
OUTAGES = (aiohttp.ClientError, ApiError, OSError, TimeoutError)


class PodWorker:
    """Runs one pod. `pod` is the newest that the API server has shown."""

    def __init__(self, node: Node, pod: dict[str, Any]) -> None:
        self.pod = pod
        self._node = node
        metadata = pod["metadata"]
        self._path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}"
        self._folder = node.files.pods / metadata["uid"]
        self._addresses = {"hostIP": node.address}
        self._dirty = asyncio.Event()
        self._stopping = asyncio.Event()
        refused = unsupported_fields(pod["spec"])
        self._failure = refusal(refused) if refused else {}
        self._initial = self._runners("initContainers", "initContainerStatuses")
        self._main = self._runners("containers", "containerStatuses")
        self._tasks = [asyncio.create_task(self._run_guarded()), asyncio.create_task(self._publish())]
        self._ending: asyncio.Task[None] | None = None

    def runner(self, container: str) -> ContainerRunner | None:
        """The runner of that container, for its logs."""
        return next((runner for runner in (*self._initial, *self._main) if runner.view.name == container), None)

    def update(self, pod: dict[str, Any]) -> None:
        """Takes a newer version of the pod: a deletion, an eviction, or a status that others have changed."""
        if int(pod["metadata"]["resourceVersion"]) < int(self.pod["metadata"]["resourceVersion"]):
            return
        self.pod = pod
        self._dirty.set()
        metadata = pod["metadata"]
        if "deletionTimestamp" in metadata and self._ending is None:
            self._ending = asyncio.create_task(self._delete(metadata.get("deletionGracePeriodSeconds", 30)))
        elif pod["status"].get("phase") in ("Succeeded", "Failed"):
            self._stopping.set()
            for runner in self._running():
                runner.kill()

    async def discard(self) -> None:
        """Ends the pod at once and says nothing: the API server has forgotten it."""
        self._stopping.set()
        if self._ending is not None and self._ending is not asyncio.current_task():
            self._ending.cancel()
        for runner in self._running():
            runner.kill()
        await self._tasks[0]
        self._tasks[1].cancel()
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    def _running(self) -> list[ContainerRunner]:
        return [*self._initial, *self._main]

    def _runners(self, key: str, status_key: str) -> list[ContainerRunner]:
        runners = [ContainerRunner(self._node, self.pod, item, self._dirty.set) for item in self.pod["spec"].get(key, [])]
        # After a restart of the kubelet the pod's containers are gone with it: each begins a further run.
        before = {item["name"]: item for item in self.pod.get("status", {}).get(status_key, [])}
        for runner in runners:
            found = before.get(runner.view.name, {})
            has_run = "running" in found.get("state", {})
            runner.view.restart_count = found.get("restartCount", 0) + has_run
        return runners

    async def _run_guarded(self) -> None:
        """A defect of this program must not leave a pod that never ends: it fails, with the defect as its message."""
        try:
            await self._run()
        except Exception as defect:
            log.exception("pod %s", self._path)
            self._failure = {"reason": "KubeletError", "message": repr(defect)}
            self._stopping.set()
            for runner in self._running():
                runner.kill()
        self._dirty.set()

    async def _run(self) -> None:
        if self._failure or self.pod["status"].get("phase") in ("Succeeded", "Failed"):
            return
        address = self._node.pod_addresses.take(self.pod["status"].get("podIP"))
        try:
            sandbox = await create_sandbox(address)
            self._addresses["podIP"] = address
            self._write_etc(address)
            await self._run_in(sandbox)
            await sandbox.remove()
        finally:
            self._node.pod_addresses.give_back(address)

    async def _run_in(self, sandbox: Sandbox) -> None:
        volumes = Volumes(self._node.api, self.pod, self._folder / "volumes", self._addresses)
        await self._prepare(volumes)
        await self._run_containers(sandbox, volumes)
        self._dirty.set()
        await volumes.remove()

    async def _prepare(self, volumes: Volumes) -> None:
        """Volumes, tried again until they are there or the pod is stopped."""
        while not self._stopping.is_set():
            try:
                await volumes.prepare()
                return
            except NotReadyError as missing:
                self._show_waiting(missing.reason, missing.message)
            except OUTAGES as error:
                self._show_waiting("ContainerCreating", repr(error))
            await self._pause(RETRY_S)

    async def _run_containers(self, sandbox: Sandbox, volumes: Volumes) -> None:
        refreshing = asyncio.create_task(self._refresh(volumes))
        policy = self.pod["spec"].get("restartPolicy", "Always")
        for runner in self._initial:
            # An init container that ended well is never started again, whatever the policy.
            await runner.run(sandbox, volumes, "OnFailure" if restarts(policy, 1) else "Never")
            if runner.view.exit_code != 0:
                break
        else:
            await asyncio.gather(*(runner.run(sandbox, volumes, policy) for runner in self._main))
        refreshing.cancel()

    async def _refresh(self, volumes: Volumes) -> None:
        while volumes.refreshable:
            await asyncio.sleep(REFRESH_S)
            with suppress(NotReadyError, *OUTAGES):
                await volumes.refresh()

    async def _delete(self, grace_s: float) -> None:
        """The graceful end: stop, tell, and let the API server forget the pod."""
        self._stopping.set()
        await asyncio.gather(*(runner.stop(grace_s) for runner in self._running()))
        await self._tasks[0]
        while not self._is_published():
            self._dirty.set()
            await asyncio.sleep(0.02)
        body = {"gracePeriodSeconds": 0, "preconditions": {"uid": self.pod["metadata"]["uid"]}}
        while True:
            try:
                await self._node.api.call("DELETE", self._path, body)
                return
            except ApiError as error:
                if error.code in (404, 409):
                    return
            except OUTAGES:
                pass
            await asyncio.sleep(RETRY_S)

    def _status(self) -> dict[str, Any]:
        if self._failure:
            return {"phase": "Failed", **self._failure}
        initial = [runner.view for runner in self._initial]
        main = [runner.view for runner in self._main]
        return pod_status(self.pod, initial, main, self._addresses, self._stopping.is_set(), timestamp())

    def _is_published(self) -> bool:
        """A phase that is final stays as it is, whoever set it."""
        actual = self.pod["status"]
        return actual.get("phase") in ("Succeeded", "Failed") or covers(actual, self._status())

    async def _publish(self) -> None:
        while True:
            await self._dirty.wait()
            self._dirty.clear()
            if self._is_published():
                continue
            try:
                shown = await self._node.api.call("PATCH", f"{self._path}/status", {"status": self._status()}, STRATEGIC_MERGE)
                self.update(shown)
            except OUTAGES as error:
                if isinstance(error, ApiError) and error.code == 404:
                    return
                log.warning("%s: status not taken: %r", self._path, error)
                await asyncio.sleep(RETRY_S)
                self._dirty.set()

    def _show_waiting(self, reason: str, message: str) -> None:
        for runner in self._main:
            state = {"waiting": {"reason": reason, "message": message}}
            if runner.view.state != state:
                runner.view.state = state
                self._dirty.set()

    def _write_etc(self, address: str) -> None:
        name, namespace = self.pod["metadata"]["name"], self.pod["metadata"]["namespace"]
        search = f"{namespace}.svc.{CLUSTER_DOMAIN} svc.{CLUSTER_DOMAIN} {CLUSTER_DOMAIN}"
        files = {
            "hosts": f"127.0.0.1 localhost\n{address} {name}\n",
            "hostname": f"{name}\n",
            "resolv.conf": f"nameserver {DNS_ADDRESS}\nsearch {search}\noptions ndots:5 timeout:2\n",
        }
        folder = self._folder / "etc"
        folder.mkdir(parents=True, exist_ok=True)
        for file, text in files.items():
            (folder / file).write_text(text)

    async def _pause(self, duration_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(duration_s):
                await self._stopping.wait()
