"""Do target and draft fit? The model's status tells, or the inspect Job and the Job's pods. Pure; the module makes no Job.

The status keeps the verdict because finished Jobs are cleaned up. The verdict's key says which sources the verdict is about,
so a changed resource is inspected anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline_operator.objects.inspect import inspect_key, job_name
from paceline_operator.observed.conditions import condition, is_true
from paceline_operator.observed.observed import Observed
from paceline_operator.observed.pods import last_words, no_pod, waiting
from paceline_operator.spec.model import Model

COMPATIBLE, INCOMPATIBLE, UNKNOWN, PENDING = "Compatible", "Incompatible", "Unknown", ""
OUTCOMES = frozenset({COMPATIBLE, INCOMPATIBLE, UNKNOWN})


@dataclass(frozen=True)
class Inspection:
    """`outcome` is PENDING until there is a verdict; `reason` and `message` are those of condition Compatible.

    `facts` are fields of `status.model`. `failed_at` is set when the Job gave up without a verdict: another Job is made then.
    """

    key: str
    outcome: str
    reason: str
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    failed_at: str | None = None

    @property
    def may_serve(self) -> bool:
        """Whether pods may be made. Where headers cannot tell, the runtime's own start-up check decides."""
        return self.outcome in (COMPATIBLE, UNKNOWN)


def read(model: Model, status: Mapping[str, Any], observed: Observed) -> Inspection:
    """The verdict on the model as it is now."""
    key = inspect_key(model)
    recorded = status.get("inspection") or {}
    if recorded.get("key") == key and recorded.get("outcome") in OUTCOMES:
        facts = status.get("model") or {}
        return Inspection(key, recorded["outcome"], recorded["reason"], recorded["message"], facts)
    return _from_job(key, job_name(model), observed)


def _from_job(key: str, name: str, observed: Observed) -> Inspection:
    job, pods = observed.get("Job", name), observed.pods_of_job(name)
    for pod in pods:
        if verdict := _verdict(key, pod):
            return verdict
    if failed := condition(job, "Failed"):
        why = last_words(pods) or failed.get("message") or failed.get("reason", "")
        return Inspection(key, PENDING, "InspectionFailed", why, failed_at=failed.get("lastTransitionTime", ""))
    if is_true(job, "Complete"):
        # The Job's pod went before its message was read (a lost node, a deletion by hand): only a new Job can tell.
        return Inspection(key, PENDING, "VerdictLost", "the inspect Job's pod is gone; asking anew", failed_at="")
    if stuck := waiting(pods):
        return Inspection(key, PENDING, f"Inspection{stuck[0]}", stuck[1])
    if words := last_words(pods):
        return Inspection(key, PENDING, "InspectionRetrying", words)
    return Inspection(key, PENDING, "Inspecting", no_pod(job, pods) or "the inspect Job reads the checkpoints' headers")


def _verdict(key: str, pod: Mapping[str, Any]) -> Inspection | None:
    """A pod's termination message as a verdict; None for a pod that ended otherwise or has not ended."""
    for status in pod.get("status", {}).get("containerStatuses") or ():
        ended = status.get("state", {}).get("terminated") or {}
        if ended.get("exitCode") == 0 and (found := _parsed(ended.get("message", ""))):
            return Inspection(key, found["outcome"], found["reason"], found["message"], found.get("model") or {})
    return None


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_verdict = isinstance(found, dict) and found.get("outcome") in OUTCOMES and found.get("reason")
    return found if is_verdict and isinstance(found.get("message"), str) else None
