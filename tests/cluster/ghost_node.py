"""A node without a kubelet: pods are bound to it, and a test says what becomes of them.

What such a test shows to the operator is what kubelets show of states that cannot be had here (a volume that does not attach,
memory that ran out), and what programs show that only pretend to be a kubelet. Used by the test_operator_* modules.
"""

from datetime import UTC, datetime
from typing import Any

from operator_scene import Scene

NAME = "ghost"
# In a model's spec: its pods run there and nowhere else.
SCHEDULING = {"nodeSelector": {"ghost": "yes"}, "tolerations": [{"operator": "Exists"}]}
MERGE = "application/merge-patch+json"


class GhostNode:
    """The node, alive from now on for as long as the node controller waits for a sign of life."""

    def __init__(self, scene: Scene) -> None:
        self._scene, self._api = scene, scene.cluster.api
        taint = {"key": "ghost", "value": "yes", "effect": "NoSchedule"}
        node = {"metadata": {"name": NAME, "labels": {"ghost": "yes"}}, "spec": {"taints": [taint]}}
        self._api.request("POST", "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", **node})
        room = {"cpu": "64", "memory": "512Gi", "pods": "500", "nvidia.com/gpu": "8"}
        ready = {
            "type": "Ready",
            "status": "True",
            "reason": "Ghost",
            "lastHeartbeatTime": stamp(),
            "lastTransitionTime": stamp(),
        }
        self._patch(f"/api/v1/nodes/{NAME}/status", {"status": {"capacity": room, "allocatable": room, "conditions": [ready]}})

    def pod(self, model: str, component: str = "server", but: str = "") -> str:
        """Name of a pod of the model that is bound to the node, another one than `but`."""
        selector = f"labelSelector=paceline.dev/model%3D{model},paceline.dev/component%3D{component}"

        def bound() -> str | None:
            found = self._api.items(f"/api/v1/namespaces/{self._scene.namespace}/pods?{selector}")
            names = [one["metadata"]["name"] for one in found if one["spec"].get("nodeName") == NAME]
            return next((name for name in names if name != but), None)

        return self._scene.cluster.wait_for(bound, f"a pod of {model} on the ghost node")

    def show(self, pod: str, *containers: dict[str, Any], **status: Any) -> None:
        """Say this of a pod, as its kubelet would."""
        body: dict[str, Any] = {"status": {"phase": "Pending", **status}}
        if containers:
            body["status"]["containerStatuses"] = containers
        self._patch(f"/api/v1/namespaces/{self._scene.namespace}/pods/{pod}/status", body)

    def tell(self, kind: str, name: str, reason: str, message: str) -> None:
        """A warning about an object, as an Event."""
        found = self._scene.get(kind, name)
        about = {key: found[key] for key in ("apiVersion", "kind")}
        about |= {key: found["metadata"][key] for key in ("name", "namespace", "uid")}
        event = {"metadata": {"generateName": f"{name}."}, "involvedObject": about, "reason": reason, "message": message}
        event |= {"type": "Warning", "firstTimestamp": stamp(), "lastTimestamp": stamp(), "count": 1}
        answer = self._api.request("POST", f"/api/v1/namespaces/{self._scene.namespace}/events", event)
        assert answer.status == 201, answer.text

    def _patch(self, path: str, body: dict[str, Any]) -> None:
        answer = self._api.request("PATCH", path, body, MERGE)
        assert answer.status == 200, answer.text


def container(name: str, restarts: int = 0, ready: bool = False, last: Any = None, **state: Any) -> dict[str, Any]:
    """A container's status; `state` is one of waiting, running and terminated."""
    image = {"image": "x", "imageID": "x"}
    return {"name": name, "restartCount": restarts, "ready": ready, "state": state, "lastState": last or {}, **image}


def ended(exit_code: int, message: str = "", reason: str = "Error", ran_s: int = 5) -> dict[str, Any]:
    """A run that ended just now."""
    now = datetime.now(UTC).timestamp()
    times = {"startedAt": stamp(now - ran_s), "finishedAt": stamp(now)}
    return {"exitCode": exit_code, "reason": reason, "message": message, "containerID": "x://y", **times}


def stamp(at: float | None = None) -> str:
    when = datetime.now(UTC) if at is None else datetime.fromtimestamp(at, UTC)
    return when.strftime("%Y-%m-%dT%H:%M:%SZ")
