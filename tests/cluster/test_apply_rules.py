"""What the operator's applies rest on, asked of a real API server through the operator's own client."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from kubernetes.aio import client as kubernetes_client
from kubernetes.aio import config as kubernetes_config
from processcluster import Cluster as ProcessCluster

from paceline_operator.cluster.client import Cluster
from paceline_operator.cluster.kinds import BY_NAME
from paceline_operator.errors import ApiError, GoneError

SERVICE = BY_NAME["Service"]


@pytest.fixture
async def cluster_client(control_plane: ProcessCluster) -> AsyncIterator[Cluster]:
    """The operator's client, as administrator."""
    configuration = kubernetes_client.Configuration()
    await kubernetes_config.load_kube_config(str(control_plane.kubeconfig), client_configuration=configuration)
    client = Cluster(kubernetes_client.ApiClient(configuration))
    yield client
    await client.close()


def service(namespace: str, target: int, **metadata: Any) -> dict[str, Any]:
    spec = {"selector": {"a": str(target)}, "ports": [{"name": "http", "port": 80, "targetPort": target, "protocol": "TCP"}]}
    identity = {"name": "demo", "namespace": namespace, **metadata}
    return {"apiVersion": "v1", "kind": "Service", "metadata": identity, "spec": spec}


async def test_an_apply_without_a_uid_makes_an_object_and_writes_over_none(namespace: str, cluster_client: Cluster):
    """Somebody else's took the name after we looked: their fields conflict, and nothing of theirs changes."""
    theirs = await cluster_client.create(service(namespace, 1), SERVICE)
    with pytest.raises(ApiError) as caught:
        await cluster_client.apply(service(namespace, 2, annotations={"ours": "yes"}), SERVICE)
    found = await cluster_client.get(SERVICE, namespace, "demo")

    assert caught.value.status == 409
    assert found == theirs
    await cluster_client.delete(theirs, SERVICE)
    made = await cluster_client.apply(service(namespace, 2), SERVICE)
    assert made["spec"]["ports"][0]["targetPort"] == 2


async def test_an_apply_with_a_uid_is_about_that_object(namespace: str, cluster_client: Cluster):
    """It wins the fields of that one, and neither touches the one that took its place nor makes another."""
    theirs = await cluster_client.create(service(namespace, 1), SERVICE)
    ours = await cluster_client.apply(service(namespace, 2, uid=theirs["metadata"]["uid"]), SERVICE)
    with pytest.raises(ApiError) as replaced:
        await cluster_client.apply(service(namespace, 3, uid="00000000-0000-0000-0000-000000000000"), SERVICE)
    found = await cluster_client.get(SERVICE, namespace, "demo")
    await cluster_client.delete(found, SERVICE)
    with pytest.raises(ApiError) as gone:
        await cluster_client.apply(service(namespace, 3, uid=theirs["metadata"]["uid"]), SERVICE)

    assert (ours["spec"]["ports"][0]["targetPort"], found) == (2, ours)
    assert (replaced.value.status, gone.value.status) == (422, 409)
    with pytest.raises(GoneError):
        await cluster_client.get(SERVICE, namespace, "demo")
