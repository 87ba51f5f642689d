"""How Prometheus finds the serving pods. `desired` calls `build` when the resource asks and the cluster knows the kind."""

from __future__ import annotations

from paceline_operator.names import COMPONENT_SERVER, PATH_METRICS, PORT_HTTP_NAME
from paceline_operator.objects.common import Object, child, stamped
from paceline_operator.spec.model import Model


def build(model: Model) -> Object:
    """The PodMonitor of every serving pod, with the labels that the cluster's Prometheus selects by."""
    wanted = model.spec.metrics.pod_monitor
    spec = {
        "selector": {"matchLabels": model.selector},
        "podMetricsEndpoints": [{"port": PORT_HTTP_NAME, "path": PATH_METRICS, "interval": wanted.interval}],
    }
    document = child(model, COMPONENT_SERVER, {"apiVersion": "monitoring.coreos.com/v1", "kind": "PodMonitor", "spec": spec})
    document["metadata"]["labels"] = {**wanted.labels, **document["metadata"]["labels"]}
    return stamped(document)
