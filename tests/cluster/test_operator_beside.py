"""Two installations, standbys, drains and zones on a real control plane: nothing fights, nothing hangs.

The chart is installed cluster-wide, and once more for a namespace of its own, with other settings and without the webhook.
"""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from ghost_node import NAME, GhostNode
from operator_scene import OPERATOR, Scene, installed, models_namespace
from processcluster import Cluster, ClusterError

HOME = "home"
TAKEOVER = "operator.takeoverSeconds=5"
KINDS = ("deployment", "networkpolicy", "service")


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    """Installed cluster-wide, and a namespace with a filled claim."""
    settings = ("runtime.image.repository=stub/runtime", "replicas=1", TAKEOVER)
    with installed(cluster, *settings), models_namespace(cluster, HOME) as namespace:
        scene = Scene(cluster, namespace)
        scene.fill_claim()
        yield scene


def marks(scene: Scene, name: str) -> dict[str, Any]:
    """What any write over a model's children would change."""
    found = {kind: scene.get(kind, name)["metadata"] for kind in KINDS}
    marks: dict[str, Any] = {kind: (one["uid"], one.get("generation")) for kind, one in found.items()}
    return marks | {"jobs": scene.kubectl("get", "jobs", "-o", "jsonpath={.items[*].metadata.uid}").split()}


def look(scene: Scene, name: str) -> None:
    """Make all operators look once more, and wait for what the manager did."""
    scene.kubectl("patch", "specm", name, "--type=merge", "-p", '{"spec": {"disruption": {"maxUnavailable": 2}}}')
    scene.cluster.wait_for(lambda: scene.get("pdb", name)["spec"].get("maxUnavailable") == 2, "another look")


def managed_by(scene: Scene, name: str, manager: str) -> None:
    scene.cluster.wait_for(lambda: scene.model(name)["status"].get("manager") == manager, f"{manager} manages {name}", 60)


def test_two_installations_never_fight(scene: Scene):
    """The one at home takes over, its standby is ready without a webhook, the other keeps off, and takes over afterwards."""
    scene.apply("early", networkPolicy={"enabled": True})
    scene.until_settled("early")
    assert scene.model("early")["status"]["manager"] == OPERATOR
    settings = ("scope=Namespace", "replicas=2", "webhook.enabled=false", "rbac.aggregate=false", TAKEOVER)
    with installed(scene.cluster, *settings, release_namespace=HOME, crds=False, keeps_namespace=True):
        scene.apply("late", networkPolicy={"enabled": True})
        for name in ("early", "late"):
            managed_by(scene, name, f"{HOME}/{OPERATOR}")
            scene.until_settled(name)
        before = {name: marks(scene, name) for name in ("early", "late")}
        for name in before:
            look(scene, name)
        assert {name: marks(scene, name) for name in before} == before
        assert HOME in json.dumps(scene.get("networkpolicy", "late")["spec"])
        assert len(before["early"]["jobs"]) == 2
    managed_by(scene, "early", OPERATOR)
    scene.until_settled("early")
    assert marks(scene, "early")["deployment"] == before["early"]["deployment"]
    scene.kubectl("delete", "specm", "early", "late", "--wait=false")


def test_a_drain_waits_for_no_pod_that_answers_nobody(scene: Scene):
    """Evicted whatever the budget says; a budget that never lets a pod go that answers is warned of."""
    forever = scene.resource("stuck", disruption={"maxUnavailable": 0}, runtime={"image": "no/such:image"})
    with pytest.raises(ClusterError, match="draining its node never ends"):
        scene.cluster.apply(json.dumps(forever), "-n", scene.namespace, "--warnings-as-errors")
    scene.until("stuck", "Available", "False", "ErrImagePull")
    selector = ("-l", "paceline.dev/model=stuck,paceline.dev/component=server", "-o", "jsonpath={.items[*].metadata.name}")
    pod = scene.kubectl("get", "pods", *selector)
    scene.cluster.wait_for(lambda: scene.get("pdb", "stuck").get("status", {}).get("expectedPods"), "the budget counts it")
    path = f"/api/v1/namespaces/{scene.namespace}/pods/{pod}/eviction"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": scene.namespace}}
    answer = scene.cluster.api.request("POST", path, eviction)
    assert answer.status == 201, answer.text
    assert scene.get("pdb", "stuck")["status"]["disruptionsAllowed"] == 0
    scene.kubectl("delete", "specm", "stuck", "--wait=false")


def test_jobs_go_where_the_pods_may_go(scene: Scene):
    """Both Jobs are the first to use a claim, and a volume of a zone stays there: not on the empty node of the other zone."""
    GhostNode(scene)
    for node, zone in (("node-1", "near"), (NAME, "far")):
        scene.cluster.kubectl("label", "node", node, f"topology.kubernetes.io/zone={zone}", "--overwrite")
    near = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["near"]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [near]}]}}
    placement = {"affinity": {"nodeAffinity": required}, "tolerations": [{"operator": "Exists"}]}
    scene.apply("zonal", target={"uri": "s3://bucket/model"}, cache={"size": "1Gi"}, scheduling=placement)

    def nodes() -> dict[str, str] | None:
        pods = scene.cluster.api.items(f"/api/v1/namespaces/{scene.namespace}/pods?labelSelector=paceline.dev/model%3Dzonal")
        of = {pod["metadata"]["labels"]["paceline.dev/component"]: pod["spec"].get("nodeName", "") for pod in pods}
        return of if set(of) == {"inspect", "cache"} and all(of.values()) else None

    assert scene.cluster.wait_for(nodes, "both Jobs' pods have nodes") == {"inspect": "node-1", "cache": "node-1"}
    scene.kubectl("delete", "specm", "zonal", "--wait=false")
    scene.cluster.kubectl("delete", "node", NAME)
