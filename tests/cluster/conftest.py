"""Fixtures of the tests that run on a cluster of processes.

Inputs: `KUBEBUILDER_ASSETS`, bubblewrap and iproute2; where one is missing the tests skip and say so, and under CI=true
they fail. Outputs: `control_plane` (API server, controllers, scheduler; no node) and `cluster` (the same one with a
node of two GPUs). One cluster serves the whole run, all xdist workers included: give each test its own namespace.
Nothing about Kubernetes is faked except the kubelet and the GPUs.
"""

import fcntl
import os
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from processcluster import Cluster, ClusterError, missing_pieces

NODE = "node-1"
XDIST_WORKER = "PYTEST_XDIST_WORKER"


def pytest_addoption(parser: pytest.Parser) -> None:
    """Known only when this folder is named on the command line; the soak is skipped otherwise."""
    parser.addoption("--soak-minutes", type=float, default=None, help="length of the operator's soak")


def pytest_itemcollected(item: pytest.Item) -> None:
    """Marks all tests here."""
    item.add_marker(pytest.mark.cluster)


@pytest.fixture(scope="session")
def control_plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running control plane without a node: enough for CRD rules, admission, RBAC and scheduling decisions."""
    if problem := missing_pieces():
        if os.environ.get("CI") == "true":
            pytest.fail(f"cluster tests must run under CI: {problem}")
        pytest.skip(problem)
    folder = _shared_folder(tmp_path_factory)
    with _lock(folder / "cluster.lock"):
        cluster = _connect_or_start(folder / "cluster")
    yield cluster
    # With xdist the last worker to end takes the cluster with it.
    cluster.release() if XDIST_WORKER in os.environ else cluster.stop()


@pytest.fixture(scope="session")
def cluster(control_plane: Cluster) -> Cluster:
    """The control plane with one node, which has two GPUs and runs pods."""
    with _lock(control_plane.files.root / "node.lock"):
        if f"kubelet-{NODE}" not in control_plane.status():
            control_plane.add_node(NODE, gpus=2)
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


@pytest.fixture(autouse=True)
def _turn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One test at a time on the shared cluster: some of them restart its API server."""
    if "control_plane" not in request.fixturenames:
        yield
        return
    with _lock(_shared_folder(tmp_path_factory) / "turn.lock"):
        yield


def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same for all workers of a run."""
    folder = tmp_path_factory.getbasetemp()
    return folder.parent if XDIST_WORKER in os.environ else folder


def _connect_or_start(root: Path) -> Cluster:
    try:
        return Cluster.connect(root)
    except ClusterError:
        # None yet, or one whose last worker has just ended.
        shutil.rmtree(root, ignore_errors=True)
        return Cluster.start(root)


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
