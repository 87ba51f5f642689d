"""The status of a model: (model, what was found, now) -> what `.status` is to say. Pure.

A status has conditions rather than a phase. Every condition is set from the first visit on, with a reason that is never empty.
A condition's transition time moves only when the condition's status does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from paceline_operator import names
from paceline_operator.errors import Problem, join
from paceline_operator.gates.caching import Caching
from paceline_operator.gates.inspection import COMPATIBLE, INCOMPATIBLE, Inspection
from paceline_operator.objects.service import endpoint
from paceline_operator.observed.containers import looping
from paceline_operator.observed.observed import Observed
from paceline_operator.spec.model import Model
from paceline_operator.status import acceptance, wording
from paceline_operator.status.readiness import ready
from paceline_operator.status.serving import Verdict, available, progressing, scheduled

Status = dict[str, Any]
# As in the CRD.
MAX_COUNT = 100_000


@dataclass(frozen=True)
class Change:
    """A condition that turned, for an Event."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True)
class Findings:
    """What a visit found. `accepted` is `status.acceptance`; `trouble` is why a child cannot be applied."""

    observed: Observed
    inspection: Inspection
    caching: Caching
    accepted: Mapping[str, Any]
    trouble: str = ""


def status_of(model: Model, previous: Mapping[str, Any], found: Findings, now: datetime) -> Status:
    """The whole status of a valid model."""
    inspection, caching, accepted = found.inspection, found.caching, found.accepted
    deployment, pods = found.observed.get("Deployment", model.name), found.observed.serving_pods
    verdicts = {
        names.ACCEPTED: Verdict("True", "Valid", "the resource is valid"),
        names.COMPATIBLE: compatible(inspection),
        names.WEIGHTS_CACHED: Verdict("True" if caching.is_done else "False", caching.reason, caching.message),
        names.SCHEDULED: scheduled(model, deployment, pods, found.observed.warnings),
        names.AVAILABLE: available(deployment, pods, found.observed.warnings, now),
        names.PROGRESSING: progressing(
            model, deployment, found.trouble, before_pods(inspection, caching), is_looping=bool(looping(pods, now))
        ),
        names.ACCEPTANCE_HEALTHY: Verdict(*acceptance.verdict(model.spec.speculation.algorithm, accepted)),
    }
    has_service = found.observed.get("Service", model.name) is not None
    verdicts[names.READY] = ready(verdicts, may_serve=inspection.may_serve, has_service=has_service)
    fields: Status = {
        "observedGeneration": model.generation,
        **counts(deployment),
        "selector": ",".join(f"{key}={value}" for key, value in model.selector.items()),
        "endpoint": endpoint(model),
        "conditions": conditions(verdicts, previous, model.generation, now),
    }
    if inspection.outcome:
        fields["inspection"] = {
            "key": inspection.key,
            "outcome": inspection.outcome,
            "reason": wording.reason(inspection.reason),
            "message": wording.message(inspection.message),
        }
        if inspection.facts:
            fields["model"] = dict(inspection.facts)
    if caching.key:
        fields["cache"] = {"key": caching.key, "claimName": f"{model.name}-cache"}
    if accepted:
        fields["acceptance"] = dict(accepted)
    return fields


def counts(deployment: Mapping[str, Any] | None) -> dict[str, int]:
    """The numbers of pods, as the Deployment counts them."""
    seen = (deployment or {}).get("status", {})
    return {name: min(seen.get(name, 0), MAX_COUNT) for name in ("replicas", "readyReplicas", "updatedReplicas")}


def status_of_invalid(
    problems: Sequence[Problem],
    previous: Mapping[str, Any],
    deployment: Mapping[str, Any] | None,
    generation: int,
    now: datetime,
) -> Status:
    """The status of an invalid resource. The pods that serve are left as they are and counted; nothing else is known."""
    refused = Verdict("False", "Invalid", join(problems))
    unknown = Verdict("Unknown", "NotAccepted", "the resource is not valid, see condition Accepted")
    verdicts = dict.fromkeys(names.CONDITIONS, unknown)
    verdicts |= {names.ACCEPTED: refused, names.READY: Verdict("False", "Invalid", refused.message)}
    kept = {key: value for key, value in previous.items() if key != "conditions"}
    return {
        **kept,
        **counts(deployment),
        "observedGeneration": generation,
        "conditions": conditions(verdicts, previous, generation, now),
    }


def compatible(inspection: Inspection) -> Verdict:
    """Condition Compatible: Unknown until there is a verdict, and where headers cannot give a verdict."""
    known = {COMPATIBLE: "True", INCOMPATIBLE: "False"}
    return Verdict(known.get(inspection.outcome, "Unknown"), inspection.reason, inspection.message)


def before_pods(inspection: Inspection, caching: Caching) -> Verdict | None:
    """Why the Deployment is not yet what the resource asks for, whatever the Deployment shows; None when it is."""
    if inspection.outcome == INCOMPATIBLE:
        return Verdict(
            "False", "Blocked", "what is asked for does not fit, see condition Compatible: pods are left as they are"
        )
    if not (inspection.may_serve and caching.is_done):
        return Verdict("True", "Preparing", "checkpoints are inspected and fetched before pods are made or replaced")
    return None


def conditions(
    verdicts: Mapping[str, Verdict], previous: Mapping[str, Any], generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The list of conditions in the order of `names.CONDITIONS`."""
    before = {one["type"]: one for one in previous.get("conditions") or ()}
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return [
        {
            "type": type_,
            "status": verdict.status,
            "reason": wording.reason(verdict.reason),
            "message": wording.message(verdict.message),
            "observedGeneration": generation,
            "lastTransitionTime": _since(before.get(type_), verdict.status, stamp),
        }
        for type_, verdict in ((type_, verdicts[type_]) for type_ in names.CONDITIONS)
    ]


def changes(previous: Mapping[str, Any], current: Status) -> list[Change]:
    """The conditions whose status or reason turned and that are known now. A reason that Ready only repeats is told once."""
    before = {one["type"]: (one["status"], one["reason"]) for one in previous.get("conditions") or ()}
    turned = [
        Change(one["type"], one["status"], one["reason"], one["message"])
        for one in current["conditions"]
        if one["status"] != "Unknown" and before.get(one["type"]) != (one["status"], one["reason"])
    ]
    # The list ends with Ready, so the condition that it repeats comes first.
    return list({change.reason: change for change in reversed(turned)}.values())[::-1]


def _since(before: Mapping[str, Any] | None, status: str, stamp: str) -> str:
    return str(before["lastTransitionTime"]) if before and before["status"] == status else stamp
