"""Condition Ready: whether the endpoint answers, and if not, the cause that a human should look at first. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from paceline_operator import names
from paceline_operator.status.serving import Verdict

# With these reasons a condition is False on the way, by somebody's will, or because another one is; every other is a cause.
CALM = frozenset(
    {
        *("Inspecting", "Fetching", "NotDeployed", "Loading", "Settled", "Paused", "ScaledToZero"),
        *("SchedulingGated", "InspectionSchedulingGated", "FetchSchedulingGated", "InspectionSuspended", "FetchSuspended"),
    }
)
# In the order in which they come true.
GATES = (names.ACCEPTED, names.COMPATIBLE, names.WEIGHTS_CACHED)


def ready(verdicts: Mapping[str, Verdict], *, may_serve: bool, has_service: bool) -> Verdict:
    """The summary of the other conditions. `may_serve` tells that Compatible lets pods be made, Unknown or not."""
    available, progress = verdicts[names.AVAILABLE], verdicts[names.PROGRESSING]
    is_available = available.status == "True"
    blocking = [verdict for type_, verdict in _gates(verdicts, may_serve) if verdict.status == "False" or not is_available]
    if not is_available:
        blocking.append(available)
        blocking += [progress] if progress.status == "False" else []
    if blocking:
        cause = min(blocking, key=_rank)
        return Verdict("False", cause.reason, cause.message)
    if not has_service:
        return Verdict("False", "NoService", "pods answer, but no Service of ours leads to them, see condition Progressing")
    if progress.status == "True":
        return Verdict("True", "Updating", f"the endpoint answers; {progress.message}")
    return Verdict("True", "Serving", "the endpoint answers")


def _gates(verdicts: Mapping[str, Verdict], may_serve: bool) -> list[tuple[str, Verdict]]:
    """The gates that are not open. Metadata that nobody can read opens its gate: the runtime tells."""
    shut = [(type_, verdicts[type_]) for type_ in GATES if verdicts[type_].status != "True"]
    return [one for one in shut if one[0] != names.COMPATIBLE or not may_serve or one[1].status == "False"]


def _rank(verdict: Verdict) -> int:
    """A cause that is known first, then one that keeps something from being known, then what only takes time."""
    if verdict.reason in CALM:
        return 2
    return 0 if verdict.status == "False" else 1
