"""Are the weights where the pods will look? The model's status, the cache Job and the Job's pods tell. Pure.

The status keeps under a key which weights a claim is known to hold, as it keeps the inspection's verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from paceline_operator import names
from paceline_operator.gates.attempts import FAILED, RETRYING, RUNNING, attempt
from paceline_operator.objects import weights
from paceline_operator.objects.cache import cache_key, job_name
from paceline_operator.observed.conditions import condition, is_true
from paceline_operator.observed.containers import is_held, own_end
from paceline_operator.observed.observed import Observed
from paceline_operator.spec.model import Model
from paceline_operator.spec.source import digest_of

# Of the Job's states; other states are reasons of somebody else's, and get a prefix.
REASONS = {FAILED: "FetchFailed", RETRYING: "FetchRetrying", RUNNING: "Fetching"}


@dataclass(frozen=True)
class Caching:
    """`reason` and `message` are those of condition WeightsCached. `failed_at` is set when the Job gave up.

    `key` names the weights that this very claim is known to hold; it is empty when the claim is not known to hold them.
    `is_left_over` tells that this is on record, and that containers of others keep the Job from ending.
    """

    is_done: bool
    reason: str
    message: str
    key: str = ""
    failed_at: str | None = None
    is_left_over: bool = False


def read(model: Model, status: Mapping[str, Any], observed: Observed, now: datetime) -> Caching:
    """Whether serving pods may start, as far as weights go."""
    if not weights.fetched(model):
        return Caching(True, "OnClaim", "every checkpoint is on a claim already")
    if model.spec.cache is None:
        return Caching(True, "PerPod", "no cache: each pod fetches the weights before it serves")
    name = weights.cache_claim(model)
    claim, job = observed.get("PersistentVolumeClaim", name), observed.get("Job", job_name(model))
    pods = observed.pods_of_job(job_name(model))
    key = digest_of(cache_key(model), claim["metadata"]["uid"]) if claim else ""
    is_recorded = bool(key) and (status.get("cache") or {}).get("key") == key
    is_complete = is_true(job, "Complete") or _has_fetched(pods, len(weights.fetched(model)))
    if is_recorded or (is_complete and _was_filled(claim, job)):
        is_left_over = is_recorded and any(map(is_held, pods))
        return Caching(True, "Cached", f"claim {name} holds the weights", key, is_left_over=is_left_over)
    if is_complete:
        # This is a failure without a date: only another Job can fill today's claim.
        return Caching(
            False, "ClaimLost", f"claim {name} is another one than the cache Job filled; fetching anew", failed_at=""
        )
    found = attempt(job, pods, observed.warnings, condition({"status": status}, names.WEIGHTS_CACHED) or {}, now)
    reason = REASONS.get(found.state) or f"Fetch{found.state}"
    return Caching(False, reason, found.message or "the cache Job fetches the weights", failed_at=found.failed_at)


def _has_fetched(pods: Sequence[dict[str, Any]], num_sources: int) -> bool:
    """Whether a pod has fetched everything, and is perhaps kept from ending by containers of others."""
    ends = [own_end(pod, num_sources) for pod in pods]
    return any(end is not None and end.get("exitCode") == 0 for end in ends)


def _was_filled(claim: Mapping[str, Any] | None, job: Mapping[str, Any] | None) -> bool:
    """Whether the Job wrote into this very claim. A Job is younger than its claim, and older than a claim that came later."""
    if claim is None or job is None:
        return False
    return bool(claim["metadata"]["creationTimestamp"] <= job["metadata"]["creationTimestamp"])
