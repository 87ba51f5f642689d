"""All children that a model should have, in the order of their application. Pure; `plan` compares them with reality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from paceline_operator.config import OperatorConfig
from paceline_operator.names import FIELD_MANAGER
from paceline_operator.objects import (
    autoscaling,
    cache,
    deployment,
    disruption,
    inspect,
    network_policy,
    pod_monitor,
    service,
    weights,
)
from paceline_operator.objects.common import Object
from paceline_operator.objects.deployment import Inherited
from paceline_operator.observed.observed import Observed
from paceline_operator.spec.model import Model


@dataclass(frozen=True)
class Desired:
    """Children by the step that they belong to; a later step waits for the earlier ones.

    The resource asks for `missing_kinds`, and the cluster does not know them.
    """

    inspection: tuple[Object, ...]
    caching: tuple[Object, ...]
    serving: tuple[Object, ...]
    missing_kinds: tuple[str, ...] = ()

    @property
    def keys(self) -> frozenset[tuple[str, str]]:
        """(kind, name) of every child, whatever its step."""
        everything = (*self.inspection, *self.caching, *self.serving)
        return frozenset((child["kind"], child["metadata"]["name"]) for child in everything)


def desired(model: Model, config: OperatorConfig, inherited: Inherited, known_kinds: frozenset[str]) -> Desired:
    """The children of a valid model. `known_kinds` are the optional kinds that the cluster has."""
    wanted = serving_children(model, config, inherited)
    missing = tuple(kind for kind in OPTIONAL_KINDS & {one["kind"] for one in wanted} if kind not in known_kinds)
    serving = tuple(one for one in wanted if one["kind"] not in missing)
    inspection = (inspect.inspect_job(model, config),)
    return Desired(inspection, caching_children(model, config, inherited), serving, tuple(sorted(missing)))


def caching_children(model: Model, config: OperatorConfig, inherited: Inherited) -> tuple[Object, ...]:
    """The cache claim and the Job that fills it, when there is something to cache."""
    if model.spec.cache is None or not weights.fetched(model):
        return ()
    image = deployment.image_of(model, config, inherited)
    return cache.claim(model, model.spec.cache), cache.fetch_job(model, config, image)


def serving_children(model: Model, config: OperatorConfig, inherited: Inherited) -> tuple[Object, ...]:
    """Everything that serves. The Service comes first, so that the pods' address exists before the pods do."""
    spec = model.spec
    children = [service.build(model)]
    if spec.network_policy.enabled:
        children.append(network_policy.build(model, config))
    children += [disruption.build(model), deployment.build(model, config, inherited)]
    if spec.autoscaling:
        children.append(autoscaling.build(model, spec.autoscaling))
    if spec.metrics.pod_monitor.enabled:
        children.append(pod_monitor.build(model))
    return tuple(children)


OPTIONAL_KINDS = frozenset({"ScaledObject", "PodMonitor"})


def inherit(model: Model, status: Mapping[str, Any], observed: Observed, facts: Mapping[str, Any] | None = None) -> Inherited:
    """What the next Deployment document takes over: the image that the status recorded, and the present Deployment's replicas.

    `facts` are those of the inspection.
    """
    found = observed.get("Deployment", model.name)
    replicas = _kept_replicas(model, found) if found else None
    return Inherited(status.get("runtimeImage"), replicas, (facts or {}).get("fetchedBytes", 0))


def chosen_image(model: Model, config: OperatorConfig, inherited: Inherited, observed: Observed) -> dict[str, str]:
    """`status.runtimeImage`: the default image, once pods run it; nothing where the resource names an image."""
    if model.spec.runtime.image or observed.get("Deployment", model.name) is None:
        return {}
    return {"runtimeImage": deployment.image_of(model, config, inherited)}


def _kept_replicas(model: Model, found: Object) -> int | None:
    """The count to go on applying: the count that we set, while the field is ours.

    The count is not 0 beside an autoscaler, which takes a Deployment at 0 for switched off.
    """
    replicas: int | None = found["spec"].get("replicas")
    if model.spec.autoscaling and replicas == 0:
        return model.spec.autoscaling.min_replicas
    return replicas if _we_scale(found) else None


def _we_scale(found: Object) -> bool:
    """Whether `spec.replicas` is still ours: no autoscaler has acted since we last set the field."""
    return any(
        "f:replicas" in (entry.get("fieldsV1") or {}).get("f:spec", {})
        for entry in found["metadata"].get("managedFields") or ()
        if entry.get("manager") == FIELD_MANAGER
    )
