"""What pods say of themselves: why a pod waits, and what a pod said at its end. Pure; the gates and `status` use it.

What a pod does not say (a volume that does not come, a quota) its Events tell: `waits` says whom to ask about, and the
answers are `Warnings`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from paceline_operator.observed.conditions import condition, is_true
from paceline_operator.observed.containers import container_statuses, ending
from paceline_operator.observed.warnings import Warnings

Object = dict[str, Any]
# The scheduler does not look at such a pod before its gates are taken off.
GATED = "SchedulingGated"
QUIET = frozenset({None, "", "ContainerCreating", "PodInitializing"})


def waiting(pods: Iterable[Object], warnings: Warnings) -> tuple[str, str] | None:
    """Why a pod does not run, as (reason, message): no node takes the pod, or a container waits. None if nothing is odd."""
    for pod in pods:
        scheduled = condition(pod, "PodScheduled")
        if scheduled and scheduled["status"] == "False":
            is_gated = scheduled.get("reason") == GATED
            return GATED if is_gated else "Unschedulable", warnings.with_claims(
                scheduled.get("message", "no node takes the pod")
            )
        for status in container_statuses(pod):
            state = status.get("state", {}).get("waiting") or {}
            if state.get("reason") not in QUIET:
                return state["reason"], _told(status, state)
        if warning := warnings.about(pod):
            return warning.reason, f"pod {pod['metadata']['name']}: {warning.message}"
    return None


def last_words(pods: Iterable[Object]) -> str:
    """The newest pod's message about its end: of a container that failed, or of the pod's eviction."""
    for pod in reversed(list(pods)):
        for status in container_statuses(pod):
            if (status.get("state", {}).get("terminated") or {}).get("exitCode", 0) != 0:
                return ending(status)
        if message := pod.get("status", {}).get("message"):
            return str(message)
    return ""


def no_pod(job: Object | None, pods: Sequence[Object], warnings: Warnings) -> tuple[str, str] | None:
    """Why a Job has no pods, as (reason, message): somebody holds it back, or its pods are refused. None if it has some."""
    if job is None or pods:
        return None
    name = job["metadata"]["name"]
    if is_true(job, "Suspended"):
        return "Suspended", f"Job {name} is suspended: whoever did that, a queue perhaps, has to let it go on"
    if warning := warnings.about(job):
        return warning.reason, f"Job {name}: {warning.message}"
    return "", f"Job {name} has no pod yet; if that lasts, see kubectl describe job {name}"


def _told(status: Object, state: Object) -> str:
    """A crash in the program's own words; else what the kubelet says of the wait."""
    return ending(status) or f"{status['name']}: {state.get('message') or state['reason']}"
