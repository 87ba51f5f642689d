"""Are the weights where the pods will look? Read from the model's status, the cache Job and its pods. Pure.

As with the inspection, what is known to be cached is kept in the status under a key.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_operator.names import COMPONENT_CACHE
from paceline_operator.objects import weights
from paceline_operator.objects.cache import cache_key, job_name
from paceline_operator.observed import Observed, condition, is_true, last_words, waiting
from paceline_operator.spec import Model


@dataclass(frozen=True)
class Caching:
    """`reason` and `message` are those of condition WeightsCached. `failed_at` is set when the Job gave up.

    `key` is what the claim is known to hold: empty when it does not, or when there is no claim.
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
    key, claim = cache_key(model), weights.cache_claim(model)
    job = observed.get("Job", job_name(model))
    recorded = (status.get("cache") or {}).get("key") == key and observed.get("PersistentVolumeClaim", claim)
    if recorded or is_true(job, "Complete"):
        return Caching(True, "Cached", f"claim {claim} holds the weights", key)
    return _unfinished(job, observed.pods(COMPONENT_CACHE, job_name(model)))


def _unfinished(job: Mapping[str, Any] | None, pods: list[dict[str, Any]]) -> Caching:
    if failed := condition(dict(job or {}), "Failed"):
        why = last_words(pods) or failed.get("message") or failed.get("reason", "")
        return Caching(False, "FetchFailed", why, failed_at=failed.get("lastTransitionTime", ""))
    if stuck := waiting(pods):
        return Caching(False, f"Fetch{stuck[0]}", stuck[1])
    if words := last_words(pods):
        return Caching(False, "FetchRetrying", words)
    return Caching(False, "Fetching", "the cache Job fetches the weights")
