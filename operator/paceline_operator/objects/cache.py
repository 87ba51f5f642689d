"""The claim that keeps fetched weights, and the Job that fills it before any GPU pod exists. `desired` calls both."""

from __future__ import annotations

from paceline_operator.config import OperatorConfig
from paceline_operator.names import COMPONENT_CACHE
from paceline_operator.objects import weights
from paceline_operator.objects.common import Object, child, without_none
from paceline_operator.objects.job import Retries, job
from paceline_operator.spec.fields import Cache
from paceline_operator.spec.model import Model
from paceline_operator.spec.source import digest_of

# A fetch resumes where an earlier one stopped, so many attempts cost little.
BACKOFF_LIMIT = 6
# `paceline fetch` ends so when the request is wrong (2) or the source says no (3).
FINAL_EXIT_CODES = (2, 3)


def cache_key(model: Model) -> str:
    """What the claim has to hold; the Job's name carries it, since a Job cannot change."""
    return digest_of(*(source.digest for source in weights.fetched(model)))


def job_name(model: Model) -> str:
    return f"{model.name}-cache-{cache_key(model)}"


def claim(model: Model, wanted: Cache) -> Object:
    """The claim, which outlives the model when `retain` says so."""
    spec = {
        # A claim's modes are a list that cannot change. The resource's modes are a set: their order means nothing.
        "accessModes": sorted(wanted.access_modes),
        "resources": {"requests": {"storage": wanted.size}},
        **without_none(storageClassName=wanted.storage_class_name),
    }
    body = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "spec": spec}
    return child(model, COMPONENT_CACHE, body, name=weights.cache_claim(model), owned=not wanted.retain)


def fetch_job(model: Model, config: OperatorConfig, image: str) -> Object:
    """The Job that fetches every remote source into the claim, target and draft beside each other."""
    sources, pull = weights.fetched(model), model.spec.runtime.image_pull_policy
    pod = {
        "containers": [weights.fetch_container(source, config, image, pull) for source in sources],
        "volumes": [*weights.volumes(model, sources, read_only=False), {"name": "tmp", "emptyDir": {}}],
        **without_none(imagePullSecrets=list(model.spec.runtime.image_pull_secrets)),
    }
    return job(model, COMPONENT_CACHE, job_name(model), pod, Retries(BACKOFF_LIMIT, final_exit_codes=FINAL_EXIT_CODES))
