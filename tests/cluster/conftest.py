"""Fixtures of the tests that run on a cluster of processes.

Inputs: `KUBEBUILDER_ASSETS`, bubblewrap and iproute2; where one is missing the tests skip and say so, and under CI=true
they fail. Outputs: `control_plane` (API server, controllers, scheduler; no node) and `cluster` (the same one with a
node of two GPUs). One cluster serves the session: give each test its own namespace. Nothing about Kubernetes is faked
except the kubelet and the GPUs.
"""

import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from processcluster import Cluster, missing_pieces

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Marks all tests here, and keeps them in one xdist worker (`--dist loadgroup`) so that they share one cluster."""
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.cluster)
            if config.pluginmanager.hasplugin("xdist"):
                item.add_marker(pytest.mark.xdist_group("cluster"))


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running control plane without a node: enough for CRD rules, admission, RBAC and scheduling decisions."""
    if problem := missing_pieces():
        if os.environ.get("CI") == "true":
            pytest.fail(f"cluster tests must run under CI: {problem}")
        pytest.skip(problem)
    cluster = Cluster.start(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


@pytest.fixture(scope="session")
def cluster(control_plane: Cluster) -> Cluster:
    """The control plane with `node-1`, which has two GPUs and runs pods."""
    control_plane.add_node("node-1", gpus=2)
    return control_plane


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[str]:
    """A fresh namespace that takes pods, deleted afterwards without waiting."""
    name = f"test-{uuid.uuid4().hex[:8]}"
    control_plane.kubectl("create", "namespace", name)
    control_plane.wait_for(
        lambda: control_plane.api.get(f"/api/v1/namespaces/{name}/serviceaccounts/default"),
        f"default service account of {name}",
    )
    yield name
    control_plane.kubectl("delete", "namespace", name, "--wait=false")
