"""Do target and draft fit? The model's status tells, or the inspect Job and the Job's pods. Pure; the module makes no Job.

The status keeps the verdict because finished Jobs are cleaned up. The verdict's key says which sources the verdict is about,
so a changed resource is inspected anew.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from paceline_operator import names
from paceline_operator.gates.attempts import FAILED, RETRYING, RUNNING, attempt
from paceline_operator.objects.inspect import inspect_key, job_name
from paceline_operator.observed.conditions import condition, is_true
from paceline_operator.observed.containers import is_held
from paceline_operator.observed.observed import Observed
from paceline_operator.spec.model import Model

COMPATIBLE, INCOMPATIBLE, UNKNOWN, PENDING = "Compatible", "Incompatible", "Unknown", ""
OUTCOMES = frozenset({COMPATIBLE, INCOMPATIBLE, UNKNOWN})
# Of the Job's states; other states are reasons of somebody else's, and get a prefix.
REASONS = {FAILED: "InspectionFailed", RETRYING: "InspectionRetrying", RUNNING: "Inspecting"}
# Fields of `status.model` with their bounds, as in the CRD.
MAX_TEXTS = {"architecture": 253, "targetRevision": 128, "draftRevision": 128}
MAX_NUMBERS = {"blockSize": 65536, "fetchedBytes": 1 << 50}


@dataclass(frozen=True)
class Inspection:
    """`outcome` is PENDING until there is a verdict; `reason` and `message` are those of condition Compatible.

    `facts` are fields of `status.model`. `failed_at` is set when the Job gave up without a verdict: another Job is made then.
    `is_left_over` tells that the verdict is on record, and that containers of others keep the Job from ending.
    """

    key: str
    outcome: str
    reason: str
    message: str
    facts: Mapping[str, Any] = field(default_factory=dict)
    failed_at: str | None = None
    is_left_over: bool = False

    @property
    def may_serve(self) -> bool:
        """Whether pods may be made. Where headers cannot tell, the runtime's own start-up check decides."""
        return self.outcome in (COMPATIBLE, UNKNOWN)


def read(model: Model, status: Mapping[str, Any], observed: Observed, now: datetime) -> Inspection:
    """The verdict on the model as it is now."""
    key, name = inspect_key(model), job_name(model)
    recorded = status.get("inspection") or {}
    if recorded.get("key") == key and recorded.get("outcome") in OUTCOMES:
        facts, is_left_over = status.get("model") or {}, any(map(is_held, observed.pods_of_job(name)))
        verdict = recorded["outcome"], recorded["reason"], recorded["message"]
        return Inspection(key, *verdict, facts, is_left_over=is_left_over)
    return _from_job(key, name, observed, condition({"status": status}, names.COMPATIBLE) or {}, now)


def _from_job(key: str, name: str, observed: Observed, before: Mapping[str, Any], now: datetime) -> Inspection:
    job, pods = observed.get("Job", name), observed.pods_of_job(name)
    for pod in pods:
        if verdict := _verdict(key, pod):
            return verdict
    if is_true(job, "Complete"):
        # The Job's pod went before its message was read (a lost node, a deletion by hand): only a new Job can tell.
        return Inspection(key, PENDING, "VerdictLost", "the inspect Job's pod is gone; asking anew", failed_at="")
    found = attempt(job, pods, observed.warnings, before, now)
    reason = REASONS.get(found.state) or f"Inspection{found.state}"
    message = found.message or "the inspect Job reads the checkpoints' headers"
    return Inspection(key, PENDING, reason, message, failed_at=found.failed_at)


def _verdict(key: str, pod: Mapping[str, Any]) -> Inspection | None:
    """A pod's termination message as a verdict; None for a pod that ended otherwise or has not ended."""
    for status in pod.get("status", {}).get("containerStatuses") or ():
        ended = (status.get("state") or {}).get("terminated") or {}
        if status["name"] != names.CONTAINER_INSPECT:
            continue
        if ended.get("exitCode") == 0 and (found := _parsed(ended.get("message", ""))):
            return Inspection(key, found["outcome"], found["reason"], found["message"], facts_of(found.get("model")))
    return None


def facts_of(said: object) -> dict[str, Any]:
    """The facts among what a pod says, as far as `status.model` takes them: a pod may say anything."""
    known = said if isinstance(said, dict) else {}
    texts = {name: known[name] for name in MAX_TEXTS if isinstance(known.get(name), str)}
    numbers = {name: known[name] for name in MAX_NUMBERS if type(known.get(name)) is int}
    return {name: text.encode("utf-8", "replace").decode()[: MAX_TEXTS[name]] for name, text in texts.items()} | {
        name: number for name, number in numbers.items() if 0 <= number <= MAX_NUMBERS[name]
    }


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    is_verdict = isinstance(found, dict) and found.get("outcome") in OUTCOMES and found.get("reason")
    return found if is_verdict and isinstance(found.get("message"), str) else None
