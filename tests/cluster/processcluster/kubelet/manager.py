"""Which pods this node has: follows the API server and keeps one worker a pod.

Called by the kubelet's main. A pod's own life is its worker's.
"""

import asyncio
from typing import Any

from processcluster.api import Event
from processcluster.kubelet.context import Node
from processcluster.kubelet.pod import PodWorker


class PodManager:
    """The workers of one node, by pod uid."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._workers: dict[str, PodWorker] = {}
        self._discards: set[asyncio.Task[None]] = set()

    async def follow(self) -> None:
        """Runs pods as the API server binds them here, without end."""
        selector = {"fieldSelector": f"spec.nodeName={self._node.name}"}
        async for event in self._node.api.follow("/api/v1/pods", selector):
            self.apply(event)

    def apply(self, event: Event) -> None:
        """One step of the list-and-watch."""
        uids = {pod["metadata"]["uid"] for pod in event.objects}
        if event.kind == "DELETED":
            gone = uids
        else:
            gone = self._workers.keys() - uids if event.kind == "LISTED" else set()
            for pod in event.objects:
                self._admit(pod)
        for uid in set(gone) & self._workers.keys():
            self._discard(self._workers.pop(uid))

    def find(self, namespace: str, name: str) -> PodWorker | None:
        """The worker of a pod by name, for its logs."""
        for worker in self._workers.values():
            metadata = worker.pod["metadata"]
            if (metadata["namespace"], metadata["name"]) == (namespace, name):
                return worker
        return None

    async def stop(self) -> None:
        """Ends all pods at once, without a word to the API server."""
        workers = list(self._workers.values())
        self._workers.clear()
        await asyncio.gather(*(worker.discard() for worker in workers))

    def _admit(self, pod: dict[str, Any]) -> None:
        uid = pod["metadata"]["uid"]
        if uid not in self._workers:
            self._workers[uid] = PodWorker(self._node, pod)
        self._workers[uid].update(pod)

    def _discard(self, worker: PodWorker) -> None:
        task = asyncio.create_task(worker.discard())
        self._discards.add(task)
        task.add_done_callback(self._discards.discard)
