"""What exists of one model, as the API server last said: its children, and the pods that they made. A value.

`store` fills it, the pure parts read it. What only carries the model's labels is not in it: see `ownership`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_operator.ownership import has_owner, is_child

Object = dict[str, Any]
MADE_BY_CHILDREN = frozenset({"Pod", "ReplicaSet"})


@dataclass(frozen=True)
class Observed:
    """Children by (kind, name); pods by the name of their Job, and those of the Deployment. Pods come oldest first."""

    children: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    serving_pods: Sequence[Object] = ()
    job_pods: Mapping[str, Sequence[Object]] = field(default_factory=dict)

    def get(self, kind: str, name: str) -> Object | None:
        return self.children.get((kind, name))

    def pods_of_job(self, name: str) -> Sequence[Object]:
        return self.job_pods.get(name, ())


def observe(objects: Iterable[Object], uid: str) -> Observed:
    """What belongs to the model with this uid, out of all objects that carry its labels.

    A pod's owner is a child: a Job, or the Deployment by way of a ReplicaSet.
    """
    found = sorted(objects, key=lambda one: str(one["metadata"].get("creationTimestamp", "")))
    children = [one for one in found if one["kind"] not in MADE_BY_CHILDREN and is_child(one, uid)]
    jobs = {one["metadata"]["name"]: _owned(found, "Pod", [one]) for one in children if one["kind"] == "Job"}
    sets = _owned(found, "ReplicaSet", [one for one in children if one["kind"] == "Deployment"])
    by_place = {(one["kind"], one["metadata"]["name"]): one for one in children}
    return Observed(by_place, _owned(found, "Pod", sets), jobs)


def _owned(objects: Iterable[Object], kind: str, owners: Iterable[Object]) -> list[Object]:
    uids = {owner["metadata"]["uid"] for owner in owners}
    return [one for one in objects if one["kind"] == kind and has_owner(one, uids)]


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
