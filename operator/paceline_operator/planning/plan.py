"""What to do next for one model: (desired, observed, now) -> objects to apply, objects to delete, when to look again.

`plan` looks at what is, never at what happened, so a restart at any point continues where things stand. A hash on each child
shows what the operator itself applied; comparing the fields that are ours shows what others edited.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from paceline_operator.gates.caching import Caching
from paceline_operator.gates.inspection import Inspection
from paceline_operator.observed.conditions import is_true
from paceline_operator.observed.observed import Observed
from paceline_operator.planning.desired import Desired
from paceline_operator.planning.drift import Remainders, grown, stamp_of
from paceline_operator.spec.model import Model

Object = dict[str, Any]
RETRY_S = 120.0


@dataclass(frozen=True)
class Plan:
    """The operator deletes `delete`, then applies `apply` in order.

    `details` say why, for the log. `look_again_s` is None when events suffice.
    """

    apply: tuple[Object, ...] = ()
    delete: tuple[Object, ...] = ()
    details: tuple[str, ...] = ()
    look_again_s: float | None = None

    @property
    def is_empty(self) -> bool:
        return not self.apply and not self.delete


def plan(
    model: Model,
    desired: Desired,
    observed: Observed,
    inspection: Inspection,
    caching: Caching,
    now: datetime,
    remainders: Remainders,
) -> Plan:
    """The next step. A paused model gets no step; a gate that closes again leaves the pods that serve already.

    `remainders` are the differences that earlier applies of the same documents have left.
    """
    if model.spec.paused:
        return Plan(details=("paused",))
    deletions, details = _deletions(desired, observed), []
    waits_s = []
    for step in (inspection, caching):
        if step.failed_at is not None:
            job = _job_of(step, desired)
            wait_s = _wait_s(step.failed_at, now)
            details.append(f"{step.reason}: new attempt in {wait_s:.0f} s")
            waits_s.append(wait_s)
            deletions += [found for found in (observed.get(*job),) if found and not wait_s]
        if step.is_left_over:
            left = observed.get(*_job_of(step, desired))
            deletions += [left] if left and not left["metadata"].get("deletionTimestamp") else []
    steps = _open_steps(desired, inspection, caching)
    deletions += [found for child in steps if (found := observed.get(*_key(child))) and _is_outdated_job(child, found)]
    doomed = {_key(found) for found in deletions}
    wanted = [grown(child, observed.get(*_key(child))) for child in steps if _key(child) not in doomed]
    replaced = [child for child in wanted if _selector_differs(child, observed.get(*_key(child)))]
    deletions += [found for child in replaced if (found := observed.get(*_key(child)))]
    changes = [
        child for child in wanted if child not in replaced and needs_apply(child, observed.get(*_key(child)), remainders)
    ]
    details += [f"apply {child['kind']}/{child['metadata']['name']}" for child in changes]
    details += [f"delete {found['kind']}/{found['metadata']['name']}" for found in deletions]
    return Plan(tuple(changes), tuple(deletions), tuple(details), min(filter(None, waits_s), default=None))


def needs_apply(child: Object, found: Object | None, remainders: Remainders) -> bool:
    """Whether the child is absent, was applied from another document, or was edited in a field that is ours."""
    if found is None:
        return True
    if child["kind"] == "Job":
        # A Job cannot change, and its name says what it is about.
        return False
    return remainders.needs_apply(child, found)


def _open_steps(desired: Desired, inspection: Inspection, caching: Caching) -> tuple[Object, ...]:
    """The children whose time has come. A verdict or a fetch that is on record needs no Job any more."""
    opened = () if inspection.outcome else desired.inspection
    if not inspection.may_serve:
        return opened
    opened += tuple(child for child in desired.caching if child["kind"] != "Job" or not caching.is_done)
    return opened + desired.serving if caching.is_done else opened


def _deletions(desired: Desired, observed: Observed) -> list[Object]:
    """The children that the model no longer asks for. A retained claim, which has no owner, is not among them."""
    return [
        found
        for key, found in observed.children.items()
        if key not in desired.keys
        and not found["metadata"].get("deletionTimestamp")
        and found["metadata"].get("ownerReferences")
    ]


def _job_of(step: Inspection | Caching, desired: Desired) -> tuple[str, str]:
    children = desired.inspection if isinstance(step, Inspection) else desired.caching
    return next(_key(child) for child in children if child["kind"] == "Job")


def _wait_s(failed_at: str, now: datetime) -> float:
    """Seconds until another Job takes a failed one's place; 0 when the time has come, or when the failure has no date."""
    if not failed_at:
        return 0.0
    due = datetime.fromisoformat(failed_at) + timedelta(seconds=RETRY_S)
    return max(0.0, (due - now).total_seconds())


def _is_outdated_job(child: Object, found: Object) -> bool:
    """Whether a Job runs with other settings (a node selector that no node has): only a new Job can have the new settings.

    A Job without its hash tells nothing: where a policy takes annotations off, each new Job would be outdated.
    """
    has_ended = is_true(found, "Complete") or is_true(found, "Failed")
    return child["kind"] == "Job" and not has_ended and stamp_of(found) not in ("", stamp_of(child))


def _selector_differs(child: Object, found: Object | None) -> bool:
    """Whether a Deployment has another selector. A selector cannot change, so the Deployment is made anew once.

    One that was made from this very document has the selector that the API server makes of it.
    """
    if child["kind"] != "Deployment" or found is None or stamp_of(found) == stamp_of(child):
        return False
    return bool(found["spec"]["selector"] != child["spec"]["selector"])


def _key(child: Object) -> tuple[str, str]:
    return child["kind"], child["metadata"]["name"]
