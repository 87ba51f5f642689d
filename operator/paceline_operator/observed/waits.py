"""Which objects of a model wait without saying why, so that their Events have to be asked, and how soon again. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from paceline_operator.observed.conditions import condition, is_true
from paceline_operator.observed.containers import container_statuses, has_started
from paceline_operator.observed.observed import Observed
from paceline_operator.observed.pods import GATED, QUIET
from paceline_operator.observed.times import age_s

Object = dict[str, Any]
# A start takes some seconds anyway.
PATIENCE_S = 5.0
# Events are asked for again after a quarter of the time that the wait has lasted, within these bounds.
SOONEST_S, LATEST_S = 10.0, 45.0
# A Job whose newest attempt has not started for so long, and says why, has failed.
STALL_S = 900.0


@dataclass(frozen=True)
class Waits:
    """`silent` are the objects to ask about; `look_again_s` is None when nothing waits."""

    silent: tuple[Object, ...] = ()
    look_again_s: float | None = None


def waits(observed: Observed, now: datetime) -> Waits:
    """What waits: Jobs without pods, pods that do not start, claims that are not bound."""
    found = [*_jobs_without_pods(observed), *filter(_is_silent, _pods(observed)), *_unbound_claims(observed)]
    if not found:
        return Waits()
    ages = [age_s(one, now) for one in found]
    silent = tuple(one for one, age in zip(found, ages, strict=True) if age >= PATIENCE_S)
    return Waits(silent, min(min(max(age / 4, SOONEST_S), LATEST_S) for age in ages))


def stalled(job: Object, pods: Sequence[Object], now: datetime) -> bool:
    """Whether nothing of a Job's newest attempt has started for too long. What somebody holds back on purpose has time."""
    if is_true(job, "Suspended") or (pods and has_started(pods[-1])):
        return False
    is_gated = any((condition(pod, "PodScheduled") or {}).get("reason") == GATED for pod in pods[-1:])
    return not is_gated and age_s(newest_of(job, pods), now) >= STALL_S


def newest_of(job: Object, pods: Sequence[Object]) -> Object:
    """The attempt that counts: the newest pod, or the Job while it has none."""
    return pods[-1] if pods else job


def _pods(observed: Observed) -> Iterable[Object]:
    return [*observed.serving_pods, *(pod for pods in observed.job_pods.values() for pod in pods)]


def _is_silent(pod: Object) -> bool:
    """Whether a pod has a node and does not say why nothing of it runs yet."""
    status = pod.get("status", {})
    has_node = is_true(pod, "PodScheduled")
    if not has_node or status.get("phase") not in (None, "Pending") or pod["metadata"].get("deletionTimestamp"):
        return False
    states = [one.get("state") or {} for one in container_statuses(pod)]
    if any("running" in state for state in states):
        return False
    return all((state.get("waiting") or {}).get("reason") in QUIET for state in states)


def _jobs_without_pods(observed: Observed) -> Iterable[Object]:
    jobs = [one for (kind, _), one in observed.children.items() if kind == "Job"]
    for job in jobs:
        has_ended = is_true(job, "Complete") or is_true(job, "Failed")
        if not has_ended and not is_true(job, "Suspended") and not observed.pods_of_job(job["metadata"]["name"]):
            yield job


def _unbound_claims(observed: Observed) -> Iterable[Object]:
    """Claims of the model's own that pods wait for."""
    claims = [one for (kind, _), one in observed.children.items() if kind == "PersistentVolumeClaim"]
    is_waited_for = any((condition(pod, "PodScheduled") or {}).get("status") == "False" for pod in _pods(observed))
    return [one for one in claims if is_waited_for and one.get("status", {}).get("phase") == "Pending"]
