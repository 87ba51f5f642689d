"""Pods by load: a HorizontalPodAutoscaler, or a KEDA ScaledObject. `desired` calls it when the resource asks for one."""

from __future__ import annotations

from paceline_operator.names import ANNOTATION_KEDA_EXCLUDED, COMPONENT_SERVER, METRIC_RUNNING, METRIC_WAITING
from paceline_operator.objects.common import Object, child, stamped
from paceline_operator.spec.fields import Autoscaling, Keda
from paceline_operator.spec.model import Model

METRICS = {"WaitingRequests": METRIC_WAITING, "RunningRequests": METRIC_RUNNING}


def build(model: Model, wanted: Autoscaling) -> Object:
    """The autoscaler that the resource asks for. It acts on the Deployment's replicas, which the operator then leaves alone."""
    return scaled_object(model, wanted, wanted.keda) if wanted.keda else horizontal(model, wanted)


def horizontal(model: Model, wanted: Autoscaling) -> Object:
    """An autoscaler on a metric of the pods, which a metrics adapter has to offer."""
    target = {"type": "AverageValue", "averageValue": str(wanted.target)}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": model.name},
        "minReplicas": wanted.min_replicas,
        "maxReplicas": wanted.max_replicas,
        "metrics": [{"type": "Pods", "pods": {"metric": {"name": METRICS[wanted.metric]}, "target": target}}],
    }
    return child(model, COMPONENT_SERVER, {"apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler", "spec": spec})


def scaled_object(model: Model, wanted: Autoscaling, keda: Keda) -> Object:
    """A ScaledObject: KEDA asks Prometheus. KEDA owns the autoscaler that it makes: our labels do not belong there."""
    # Pods have two parts without hyphens behind their Deployment's name: pods of a model NAME-x have three behind NAME.
    pods = f"{model.name}-[a-z0-9]+-[a-z0-9]+"
    query = f'sum({METRICS[wanted.metric]}{{namespace="{model.namespace}",pod=~"{pods}"}})'
    metadata = {"serverAddress": keda.prometheus_address, "query": query, "threshold": str(wanted.target)}
    spec = {
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": model.name},
        "minReplicaCount": wanted.min_replicas,
        "maxReplicaCount": wanted.max_replicas,
        "triggers": [{"type": "prometheus", "metricType": "AverageValue", "metadata": metadata}],
    }
    document = child(model, COMPONENT_SERVER, {"apiVersion": "keda.sh/v1alpha1", "kind": "ScaledObject", "spec": spec})
    document["metadata"]["annotations"][ANNOTATION_KEDA_EXCLUDED] = ",".join(document["metadata"]["labels"])
    return stamped(document)
