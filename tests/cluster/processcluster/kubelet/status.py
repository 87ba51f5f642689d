"""What the API server is told about a pod: phase, conditions and container statuses.

Pure over the runners' views and the time. `covers` decides whether the API server already shows it, so that nothing is
sent twice and an edit by others (NodeNotReady after an outage) is seen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

RESTART_ALWAYS, RESTART_ON_FAILURE = "Always", "OnFailure"


@dataclass
class ContainerView:
    """The public state of one container; its runner writes it."""

    name: str
    image: str
    state: dict[str, Any] = field(default_factory=lambda: {"waiting": {"reason": "PodInitializing"}})
    last_state: dict[str, Any] = field(default_factory=dict)
    ready: bool = False
    started: bool = False
    restart_count: int = 0
    container_id: str = ""

    @property
    def exit_code(self) -> int | None:
        """Of the run that has just ended, else None."""
        code: int | None = self.state.get("terminated", {}).get("exitCode")
        return code

    def document(self) -> dict[str, Any]:
        """As a containerStatus."""
        return {
            "name": self.name,
            "image": self.image,
            "imageID": f"process://{self.image}",
            "state": self.state,
            "lastState": self.last_state,
            "ready": self.ready,
            "started": self.started,
            "restartCount": self.restart_count,
            "containerID": self.container_id,
        }


def restarts(policy: str, exit_code: int) -> bool:
    """Whether a container that ended so is started again."""
    return policy == RESTART_ALWAYS or (policy == RESTART_ON_FAILURE and exit_code != 0)


def phase(policy: str, initial: Sequence[ContainerView], main: Sequence[ContainerView], stopping: bool) -> str:
    """Pending, Running, Succeeded or Failed. A pod that is being deleted restarts nothing."""
    effective = "Never" if stopping else policy
    if any(view.exit_code and not restarts(effective, view.exit_code) for view in initial):
        return "Failed"
    codes = [view.exit_code for view in main]
    if all(code is not None and not restarts(effective, code) for code in codes):
        return "Failed" if any(codes) else "Succeeded"
    has_begun = [bool(view.container_id) for view in main]
    if stopping and not any(has_begun):
        return "Failed"
    return "Running" if all(has_begun) else "Pending"


def pod_status(
    pod: dict[str, Any],
    initial: Sequence[ContainerView],
    main: Sequence[ContainerView],
    addresses: dict[str, str],
    stopping: bool,
    now: str,
) -> dict[str, Any]:
    """The whole status; conditions keep their transition time while they do not change."""
    current = phase(pod["spec"].get("restartPolicy", RESTART_ALWAYS), initial, main, stopping)
    has_ended = current in ("Succeeded", "Failed")
    is_initialized = all(view.exit_code == 0 for view in initial)
    is_ready = not has_ended and bool(main) and all(view.ready for view in main)
    unready = "" if is_ready else ("PodCompleted" if current == "Succeeded" else "ContainersNotReady")
    truths = {
        "PodReadyToStartContainers": (not has_ended and "podIP" in addresses, ""),
        "Initialized": (is_initialized, "" if is_initialized else "ContainersNotInitialized"),
        "ContainersReady": (is_ready, unready),
        "Ready": (is_ready and _gates_open(pod), unready if not is_ready or _gates_open(pod) else "ReadinessGatesNotReady"),
    }
    before = {condition["type"]: condition for condition in pod.get("status", {}).get("conditions", [])}
    status: dict[str, Any] = {
        "phase": current,
        "conditions": [_condition(kind, *truth, before.get(kind), now) for kind, truth in truths.items()],
        "containerStatuses": [view.document() for view in main],
        "hostIP": addresses["hostIP"],
        "hostIPs": [{"ip": addresses["hostIP"]}],
        "startTime": pod.get("status", {}).get("startTime", now),
    }
    if initial:
        status["initContainerStatuses"] = [view.document() for view in initial]
    if "podIP" in addresses:
        status |= {"podIP": addresses["podIP"], "podIPs": [{"ip": addresses["podIP"]}]}
    return status


def refusal(fields: Sequence[str]) -> dict[str, str]:
    """Why a pod fails that asks for what this kubelet lacks."""
    message = f"this process kubelet does not know: {', '.join(fields)}"
    return {"reason": "UnsupportedField", "message": message}


def covers(actual: Any, wanted: Any) -> bool:
    """Whether `actual` shows all of `wanted`; it may hold more. Conditions compare by type, absent equals empty."""
    if isinstance(wanted, dict):
        actual = actual or {}
        return isinstance(actual, dict) and all(covers(actual.get(key), value) for key, value in wanted.items())
    if isinstance(wanted, list):
        actual = actual or []
        if wanted and isinstance(wanted[0], dict) and "type" in wanted[0]:
            by_type = {item["type"]: item for item in actual}
            return all(covers(by_type.get(item["type"]), item) for item in wanted)
        return len(actual) == len(wanted) and all(map(covers, actual, wanted))
    return bool(actual == wanted) or (not wanted and actual is None)


def _gates_open(pod: dict[str, Any]) -> bool:
    shown = {item["type"]: item["status"] for item in pod.get("status", {}).get("conditions", [])}
    return all(shown.get(gate["conditionType"]) == "True" for gate in pod["spec"].get("readinessGates", []))


def _condition(kind: str, truth: bool, reason: str, before: dict[str, Any] | None, now: str) -> dict[str, Any]:
    status = str(truth)
    since = before["lastTransitionTime"] if before and before["status"] == status else now
    return {"type": kind, "status": status, "reason": reason, "lastTransitionTime": since}
