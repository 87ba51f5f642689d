"""Who may reach the serving pods. `desired` calls `build` when the resource asks for a policy."""

from __future__ import annotations

from paceline_operator.config import OperatorConfig
from paceline_operator.names import COMPONENT_SERVER, PORT_HTTP
from paceline_operator.objects.common import Object, child
from paceline_operator.spec.model import Model

NAMESPACE_NAME = "kubernetes.io/metadata.name"


def build(model: Model, config: OperatorConfig) -> Object:
    """The policy lets in pods of the namespace, of the listed ones and of the operator's (it reads metrics), on one port."""
    namespaces = sorted({config.pod_namespace, *model.spec.network_policy.from_namespaces})
    peers: list[Object] = [{"podSelector": {}}]
    peers += [{"namespaceSelector": {"matchLabels": {NAMESPACE_NAME: name}}} for name in namespaces]
    spec = {
        "podSelector": {"matchLabels": model.selector},
        "policyTypes": ["Ingress"],
        "ingress": [{"from": peers, "ports": [{"port": PORT_HTTP, "protocol": "TCP"}]}],
    }
    return child(model, COMPONENT_SERVER, {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "spec": spec})
