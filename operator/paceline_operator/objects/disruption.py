"""The PodDisruptionBudget of the serving pods. `desired` calls `build`."""

from __future__ import annotations

from paceline_operator.names import COMPONENT_SERVER
from paceline_operator.objects.common import Object, child
from paceline_operator.spec.model import Model


def build(model: Model) -> Object:
    """The budget: one pod may be missing unless the resource says otherwise."""
    wanted = model.spec.disruption
    if wanted.min_available is not None:
        limit = {"minAvailable": wanted.min_available}
    else:
        limit = {"maxUnavailable": 1 if wanted.max_unavailable is None else wanted.max_unavailable}
    # A drain must not wait for a pod that answers nobody: a crash loop would keep its node for ever.
    spec = {"selector": {"matchLabels": model.selector}, "unhealthyPodEvictionPolicy": "AlwaysAllow", **limit}
    return child(model, COMPONENT_SERVER, {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "spec": spec})
