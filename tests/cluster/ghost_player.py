"""Plays the kubelet of the ghost node for a soak: verdicts, starts, crashes and ends of pods, by their statuses alone."""

import json
import threading
from collections import Counter
from http.client import HTTPException
from types import TracebackType
from typing import Any, Self

from ghost_node import MERGE, NAME, container, ended, stamp
from operator_scene import Scene

VERDICT = json.dumps({"outcome": "Compatible", "reason": "Compatible", "message": "fits"})
ROUND_S, BEATS = 0.3, 30


class Player:
    """A thread that looks at all pods of the node, again and again. `is_calm` ends the crashes."""

    def __init__(self, scene: Scene) -> None:
        self._api, self._namespace = scene.cluster.api, scene.namespace
        self._stop, self._crashing = threading.Event(), set[str]()
        self._restarts: Counter[str] = Counter()
        self._thread = threading.Thread(target=self._run)
        self.is_calm, self.num_crashes = False, 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stop.set()
        self._thread.join()

    def crash(self, model: str) -> None:
        """Let a pod of the model crash in the next round."""
        self._crashing.add(model)

    def _run(self) -> None:
        try:
            self._play()
        finally:
            self._api.close()  # a connection is its thread's

    def _play(self) -> None:
        num_rounds = 0
        while not self._stop.wait(ROUND_S):
            try:
                if num_rounds % BEATS == 0:
                    beat = {"type": "Ready", "status": "True", "reason": "Ghost", "lastHeartbeatTime": stamp()}
                    self._patch(f"/api/v1/nodes/{NAME}/status", {"conditions": [beat]})
                for pod in self._api.items(f"/api/v1/namespaces/{self._namespace}/pods"):
                    if pod["spec"].get("nodeName") == NAME:
                        self._advance(pod)
                num_rounds += 1
            except (OSError, HTTPException):
                # The API server is away: a kubelet waits, too.
                continue

    def _advance(self, pod: dict[str, Any]) -> None:
        metadata, status = pod["metadata"], pod["status"]
        path = f"/api/v1/namespaces/{self._namespace}/pods/{metadata['name']}"
        if "deletionTimestamp" in metadata:
            self._api.request("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}})
        elif metadata["labels"]["paceline.dev/component"] == "inspect":
            if status.get("phase") == "Pending":
                end = container("inspect", terminated=ended(0, VERDICT))
                self._patch(f"{path}/status", {"phase": "Succeeded", "containerStatuses": [end]})
        else:
            self._serve(pod, f"{path}/status")

    def _serve(self, pod: dict[str, Any], path: str) -> None:
        """Ready, but for a round after a crash."""
        model, uid = pod["metadata"]["labels"]["paceline.dev/model"], pod["metadata"]["uid"]
        is_crash = model in self._crashing and not self.is_calm
        is_ready = any(one["type"] == "Ready" and one["status"] == "True" for one in pod["status"].get("conditions", []))
        if is_ready and not is_crash:
            return
        if is_crash:
            self._crashing.discard(model)
            self._restarts[uid] += 1
            self.num_crashes += 1
        last = {"terminated": ended(137, "", "OOMKilled")} if self._restarts[uid] else None
        server = container("server", self._restarts[uid], not is_crash, last, running={"startedAt": stamp()})
        before = {one["type"]: one for one in pod["status"].get("conditions", [])}
        truth = {"status": str(not is_crash), "lastTransitionTime": stamp()}
        conditions = [*(one for type_, one in before.items() if type_ not in ("Ready", "ContainersReady"))]
        conditions += [{"type": type_, **truth} for type_ in ("Ready", "ContainersReady")]
        fetched = [container("fetch-target", terminated=ended(0))]
        shown = {"phase": "Running", "containerStatuses": [server], "initContainerStatuses": fetched, "conditions": conditions}
        self._patch(path, shown)

    def _patch(self, path: str, status: dict[str, Any]) -> None:
        self._api.request("PATCH", path, {"status": status}, MERGE)
