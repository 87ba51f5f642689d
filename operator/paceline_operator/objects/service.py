"""The Service in front of the serving pods. `desired` calls `build`."""

from __future__ import annotations

from paceline_operator.names import COMPONENT_SERVER, PORT_HTTP_NAME
from paceline_operator.objects.common import Object, child, stamped
from paceline_operator.spec.model import Model


def build(model: Model) -> Object:
    """The Service: one stable address for all ready pods."""
    spec = {
        "selector": model.selector,
        "ports": [{"name": PORT_HTTP_NAME, "port": model.spec.service.port, "targetPort": PORT_HTTP_NAME, "protocol": "TCP"}],
    }
    document = child(model, COMPONENT_SERVER, {"apiVersion": "v1", "kind": "Service", "spec": spec})
    document["metadata"]["annotations"] |= model.spec.service.annotations
    return stamped(document)


def endpoint(model: Model) -> str:
    """Base address of the OpenAI API inside the cluster."""
    return f"http://{model.name}.{model.namespace}.svc:{model.spec.service.port}/v1"
