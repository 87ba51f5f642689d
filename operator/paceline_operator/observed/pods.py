"""What pods say of themselves: why a pod waits, and what a pod said at its end. Pure; the gates and `status` use it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from paceline_operator.observed.conditions import condition

Object = dict[str, Any]


def waiting(pods: Iterable[Object]) -> tuple[str, str] | None:
    """Why a pod does not run, as (reason, message): no node takes the pod, or a container waits. None if nothing is odd."""
    for pod in pods:
        scheduled = condition(pod, "PodScheduled")
        if scheduled and scheduled["status"] == "False":
            return "Unschedulable", scheduled.get("message", "no node takes the pod")
        for status in container_statuses(pod):
            state = status.get("state", {}).get("waiting") or {}
            if state.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                return state["reason"], _with_last_words(state.get("message", ""), status)
    return None


def container_statuses(pod: Object) -> list[Object]:
    """The statuses of init containers and containers alike."""
    status = pod.get("status", {})
    return [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]


def last_words(pods: Iterable[Object]) -> str:
    """The newest pod's message about its end: of a container that failed, or of the pod's eviction."""
    for pod in reversed(list(pods)):
        for status in container_statuses(pod):
            ended = status.get("state", {}).get("terminated") or {}
            if ended.get("exitCode"):
                return str(ended.get("message") or f"{status['name']} ended with exit code {ended['exitCode']}").strip()
        if message := pod.get("status", {}).get("message"):
            return str(message)
    return ""


def no_pod(job: Object | None, pods: Sequence[Object]) -> str:
    """What to tell of a Job without pods: the Job may be new, or its pods are refused, of which only the Job's Events tell."""
    if job is None or pods:
        return ""
    name = job["metadata"]["name"]
    return f"Job {name} has no pod yet; if that lasts, a quota or a policy refuses it: see kubectl describe job {name}"


def _with_last_words(message: str, status: Object) -> str:
    ended = status.get("lastState", {}).get("terminated") or {}
    words = str(ended.get("message") or "").strip()
    return f"{message}: {words}" if words else message
