"""Are the weights where the pods will look? The model's status, the cache Job and the Job's pods tell. Pure.

The status keeps under a key which weights a claim is known to hold, as it keeps the inspection's verdict.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline_operator.objects import weights
from paceline_operator.objects.cache import cache_key, job_name
from paceline_operator.observed.conditions import condition, is_true
from paceline_operator.observed.observed import Observed
from paceline_operator.observed.pods import last_words, no_pod, waiting
from paceline_operator.spec.model import Model
from paceline_operator.spec.source import digest_of


@dataclass(frozen=True)
class Caching:
    """`reason` and `message` are those of condition WeightsCached. `failed_at` is set when the Job gave up.

    `key` names the weights that this very claim is known to hold; it is empty when the claim is not known to hold them.
    """

    is_done: bool
    reason: str
    message: str
    key: str = ""
    failed_at: str | None = None


def read(model: Model, status: Mapping[str, Any], observed: Observed) -> Caching:
    """Whether serving pods may start, as far as weights go."""
    if not weights.fetched(model):
        return Caching(True, "OnClaim", "every checkpoint is on a claim already")
    if model.spec.cache is None:
        return Caching(True, "PerPod", "no cache: each pod fetches the weights before it serves")
    name = weights.cache_claim(model)
    claim, job = observed.get("PersistentVolumeClaim", name), observed.get("Job", job_name(model))
    key = digest_of(cache_key(model), claim["metadata"]["uid"]) if claim else ""
    is_recorded = bool(key) and (status.get("cache") or {}).get("key") == key
    if is_recorded or (is_true(job, "Complete") and _was_filled(claim, job)):
        return Caching(True, "Cached", f"claim {name} holds the weights", key)
    if is_true(job, "Complete"):
        # This is a failure without a date: only another Job can fill today's claim.
        return Caching(
            False, "ClaimLost", f"claim {name} is another one than the cache Job filled; fetching anew", failed_at=""
        )
    return _unfinished(job, observed.pods_of_job(job_name(model)))


def _was_filled(claim: Mapping[str, Any] | None, job: Mapping[str, Any] | None) -> bool:
    """Whether the Job wrote into this very claim. A Job is younger than its claim, and older than a claim that came later."""
    if claim is None or job is None:
        return False
    return bool(claim["metadata"]["creationTimestamp"] <= job["metadata"]["creationTimestamp"])


def _unfinished(job: dict[str, Any] | None, pods: Sequence[dict[str, Any]]) -> Caching:
    if failed := condition(job, "Failed"):
        why = last_words(pods) or failed.get("message") or failed.get("reason", "")
        return Caching(False, "FetchFailed", why, failed_at=failed.get("lastTransitionTime", ""))
    if stuck := waiting(pods):
        return Caching(False, f"Fetch{stuck[0]}", stuck[1])
    if words := last_words(pods):
        return Caching(False, "FetchRetrying", words)
    return Caching(False, "Fetching", no_pod(job, pods) or "the cache Job fetches the weights")
