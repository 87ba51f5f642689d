"""What exists of one model's children, as the API server last said. A value: filled by `store`, read by the pure parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline_operator.names import LABEL_COMPONENT

Object = dict[str, Any]


@dataclass(frozen=True)
class Observed:
    """Children and pods by (kind, name)."""

    objects: Mapping[tuple[str, str], Object]

    def get(self, kind: str, name: str) -> Object | None:
        return self.objects.get((kind, name))

    def pods(self, component: str, job_name: str | None = None) -> list[Object]:
        """Pods of a component, oldest first; with `job_name`, that Job's only."""
        found = [
            pod
            for (kind, _), pod in self.objects.items()
            if kind == "Pod"
            and pod["metadata"]["labels"].get(LABEL_COMPONENT) == component
            and job_name in (None, pod["metadata"]["labels"].get("batch.kubernetes.io/job-name"))
        ]
        return sorted(found, key=lambda pod: str(pod["metadata"].get("creationTimestamp", "")))


def observe(objects: Iterable[Object]) -> Observed:
    """Observed from the objects themselves."""
    return Observed({(found["kind"], found["metadata"]["name"]): found for found in objects})


def condition(found: Object | None, type_: str) -> Object | None:
    """One condition of an object that has the usual list of them."""
    conditions = (found or {}).get("status", {}).get("conditions") or ()
    return next((one for one in conditions if one["type"] == type_), None)


def is_true(found: Object | None, type_: str) -> bool:
    one = condition(found, type_)
    return one is not None and one["status"] == "True"


def waiting(pods: Iterable[Object]) -> tuple[str, str] | None:
    """Why a pod is not running, as (reason, message): not scheduled, or a container that waits. None if nothing is odd."""
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
    """Of init containers and containers alike."""
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
    """What to tell of a Job without pods: it may be new, or refused its pods, of which only its Events speak."""
    if job is None or pods:
        return ""
    name = job["metadata"]["name"]
    return f"Job {name} has no pod yet; if that lasts, a quota or a policy refuses it: see kubectl describe job {name}"


def _with_last_words(message: str, status: Object) -> str:
    ended = status.get("lastState", {}).get("terminated") or {}
    words = str(ended.get("message") or "").strip()
    return f"{message}: {words}" if words else message
