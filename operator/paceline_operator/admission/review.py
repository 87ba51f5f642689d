"""What the validating webhook decides: shape problems and compatibility problems of one resource, all at once.

The webhook's handler calls `review`. A pair that is known not to fit is denied; a pair that is not known is admitted with a
warning, because `kubectl apply` must work when the hub is down. The caller passes the lookup (`metadata`), so nothing here
does I/O.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from paceline_compat import Verdict, option_problems
from paceline_operator.errors import Problem, SpecError, join
from paceline_operator.gates.inspection import INCOMPATIBLE, UNKNOWN
from paceline_operator.gates.judgement import Judgement, judge, options_of
from paceline_operator.spec.model import Model, parse
from paceline_operator.spec.source import INSPECTABLE

Lookup = Callable[[Model], Awaitable[Judgement]]


@dataclass(frozen=True)
class Review:
    """`problems` deny the request; `warnings` are shown to the user who made the request."""

    problems: tuple[Problem, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def message(self) -> str:
        return join(self.problems)


async def review(resource: Mapping[str, Any], old: Mapping[str, Any] | None, lookup: Lookup) -> Review:
    """Judge a new or changed resource. A request that leaves the spec as it is, or that lets a deletion go on, passes."""
    if old and old.get("spec") == resource.get("spec"):
        return Review()
    if resource["metadata"].get("deletionTimestamp"):
        return Review()
    try:
        model = parse(resource)
    except SpecError as error:
        return Review(problems=error.problems)
    found = await _compatibility(model, lookup)
    return Review(found.problems, (*found.warnings, *cautions(model)))


def cautions(model: Model) -> list[str]:
    """What works, and is most likely not meant."""
    wanted, num_pods = model.spec.disruption, model.spec.fewest_pods
    if wanted.max_unavailable == 0:
        why = "maxUnavailable is 0"
    elif wanted.min_available is not None and 0 < num_pods <= wanted.min_available:
        why = f"minAvailable is {wanted.min_available} of {num_pods} pods"
    else:
        return []
    return [f"spec.disruption: {why}, so no pod that answers can ever be evicted, and draining its node never ends"]


async def _compatibility(model: Model, lookup: Lookup) -> Review:
    """What is known of target and draft together."""
    if reason := why_not_looked_up(model):
        asked = judge(Verdict("", None, option_problems(options_of(model))))
        if asked.problems:
            return Review(asked.problems)
        return Review(warnings=(f"compatibility is not known yet: {reason}; condition Compatible will tell",))
    return _review_of(await lookup(model))


def why_not_looked_up(model: Model) -> str | None:
    """Sources whose headers only a pod can read, with the reason; None when the webhook may look itself."""
    for source in model.spec.sources:
        if source.is_claim:
            return f"spec.{source.role}.uri is on a claim, which the inspect Job mounts"
        if source.scheme not in INSPECTABLE:
            return f"spec.{source.role}.uri is read after it was fetched"
        if source.secret_ref:
            return f"spec.{source.role} needs a Secret, which only pods see"
    return None


def _review_of(judgement: Judgement) -> Review:
    warnings = tuple(str(warning) for warning in judgement.warnings)
    if judgement.outcome == INCOMPATIBLE:
        return Review(judgement.problems, warnings)
    if judgement.outcome == UNKNOWN:
        unknown = f"compatibility is not known yet: {join(judgement.problems)}; condition Compatible will tell"
        return Review(warnings=(unknown, *warnings))
    return Review(warnings=warnings)
