"""The serving Deployment. `desired` calls `build`."""

from __future__ import annotations

from dataclasses import dataclass

from paceline_operator.config import OperatorConfig
from paceline_operator.names import COMPONENT_SERVER
from paceline_operator.objects.common import Object, child
from paceline_operator.objects.pod import template
from paceline_operator.spec.fields import Rollout
from paceline_operator.spec.model import Model


@dataclass(frozen=True)
class Inherited:
    """What a new Deployment document takes over from before.

    `image` is the default image that the pods run already, as the status recorded it, so that an operator upgrade restarts
    nothing. The Deployment's own image may be an edit by hand, or an image that the resource named until now.
    `replicas` is the count to keep applying while the model is autoscaled and nobody else owns the field; a document that
    left the field out earlier would reset it to 1.
    `fetched_bytes` is what each pod downloads, as the inspection found; 0 when that is not known.
    """

    image: str | None = None
    replicas: int | None = None
    fetched_bytes: int = 0


def build(model: Model, config: OperatorConfig, inherited: Inherited) -> Object:
    """The Deployment; `replicas` is absent where an autoscaler decides."""
    rollout = model.spec.rollout
    image = image_of(model, config, inherited)
    replicas = model.spec.num_replicas if model.spec.autoscaling is None else inherited.replicas
    spec: Object = {
        "selector": {"matchLabels": model.selector},
        "strategy": strategy(rollout),
        "minReadySeconds": rollout.min_ready_seconds,
        "revisionHistoryLimit": 5,
        # A long rollout is no failure: a big model's start may take its whole budget on every pod.
        "progressDeadlineSeconds": model.spec.startup_timeout_seconds + rollout.min_ready_seconds + 600,
        "template": template(model, config, image, inherited.fetched_bytes),
    }
    if replicas is not None:
        spec["replicas"] = replicas
    return child(model, COMPONENT_SERVER, {"apiVersion": "apps/v1", "kind": "Deployment", "spec": spec})


def image_of(model: Model, config: OperatorConfig, inherited: Inherited) -> str:
    """The runtime's image: the resource's, else the default that was first chosen for the resource, else today's default."""
    return model.spec.runtime.image or inherited.image or config.runtime_image


def strategy(rollout: Rollout) -> Object:
    """How pods are replaced. Surge is 0 unless the resource asks for more: a surging pod needs GPUs that are rarely spare."""
    if rollout.strategy == "Recreate":
        return {"type": "Recreate"}
    limits = {"maxSurge": rollout.max_surge, "maxUnavailable": rollout.max_unavailable}
    return {"type": "RollingUpdate", "rollingUpdate": limits}
