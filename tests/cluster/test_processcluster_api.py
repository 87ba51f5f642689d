"""The control plane alone: what it is, and that it comes back."""

import pytest
from processcluster import Cluster, ClusterError

RESTRICTED = {"pod-security.kubernetes.io/enforce": "restricted"}


def test_pod_security_restricted_refuses_with_the_list_of_violations(control_plane: Cluster, namespace: str):
    """Pod Security admission is the real one: an unrestricted pod is refused, each violation named."""
    control_plane.kubectl("label", "namespace", namespace, *[f"{key}={value}" for key, value in RESTRICTED.items()])
    with pytest.raises(ClusterError) as refusal:
        control_plane.kubectl("run", "loose", "--image=busybox:test", "-n", namespace)
    message = str(refusal.value)
    assert "allowPrivilegeEscalation != false" in message
    assert "runAsNonRoot != true" in message


def test_rbac_decides(control_plane: Cluster, namespace: str):
    """A service account without a binding can do nothing."""
    account = f"--as=system:serviceaccount:{namespace}:default"
    with pytest.raises(ClusterError, match="forbidden"):
        control_plane.kubectl("get", "pods", "-n", namespace, account)


def test_api_server_comes_back_with_all_it_knew(control_plane: Cluster, namespace: str):
    """After a kill the objects are there, and the controllers act on new ones."""
    control_plane.kubectl("create", "configmap", "kept", "--from-literal=key=value", "-n", namespace)
    control_plane.restart_api_server()
    control_plane.kubectl("create", "deployment", "later", "--image=busybox:test", "-n", namespace)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    control_plane.wait_for(lambda: control_plane.api.items(pods), "a pod of a Deployment made after the restart")
    kept = control_plane.api.get(f"/api/v1/namespaces/{namespace}/configmaps/kept")
    assert kept is not None
    assert kept["data"] == {"key": "value"}
