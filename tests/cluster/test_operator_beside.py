"""The operator beside others on a real control plane: other installations, policies, meshes, kubelets that say odd things.

The chart is installed cluster-wide, and once more for a namespace of its own, with other settings and without the webhook.
What kubelets show of states that cannot be had here a test says of pods on a ghost node.
"""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from ghost_node import NAME, SCHEDULING, GhostNode, container, ended, stamp
from operator_scene import OPERATOR, Scene, installed, models_namespace
from processcluster import Cluster, ClusterError

HOME = "home"
TAKEOVER = "operator.takeoverSeconds=5"
KINDS = ("deployment", "networkpolicy", "service")
# A verdict that lets pods be made, with a fact that is none.
UNREADABLE = json.dumps({"outcome": "Unknown", "reason": "MetadataUnavailable", "message": "s3", "model": {"blockSize": -5}})


POLICY = {
    "deployments": """[
        JSONPatch{op: "add", path: "/spec/template/spec/tolerations", value: [{"key": "theirs", "operator": "Exists"}]},
        JSONPatch{op: "add", path: "/spec/template/spec/containers/0/imagePullPolicy", value: "Never"}]""",
    "persistentvolumeclaims": """[JSONPatch{op: "add", path: "/spec/resources/requests/storage", value: "5Gi"}]""",
    "pods": """[JSONPatch{op: "add", path: "/spec/containers/-", value: Object.spec.containers{
        name: "mesh-proxy", image: "busybox:test", command: ["sh", "-c", "trap exit TERM; sleep 600 & wait"],
        securityContext: Object.spec.containers.securityContext{allowPrivilegeEscalation: false,
            capabilities: Object.spec.containers.securityContext.capabilities{drop: ["ALL"]}}}}]""",
}


def add_policy(cluster: Cluster, resource: str, model: str) -> None:
    """A policy of somebody else's that changes these objects of a model, whenever they are written."""
    group = "apps" if resource == "deployments" else ""
    operations = ["CREATE"] if resource == "pods" else ["CREATE", "UPDATE"]
    rule = {"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource], "operations": operations}
    labels = {"paceline.dev/model": model, **({"paceline.dev/component": "inspect"} if resource == "pods" else {})}
    match = {"resourceRules": [rule], "objectSelector": {"matchLabels": labels}}
    mutation = {"patchType": "JSONPatch", "jsonPatch": {"expression": POLICY[resource]}}
    spec = {"matchConstraints": match, "mutations": [mutation], "failurePolicy": "Fail", "reinvocationPolicy": "Never"}
    kind, name = {"apiVersion": "admissionregistration.k8s.io/v1"}, {"name": f"{model}-{resource}"}
    policy = {**kind, "kind": "MutatingAdmissionPolicy", "metadata": name, "spec": spec}
    binding = {**kind, "kind": "MutatingAdmissionPolicyBinding", "metadata": name, "spec": {"policyName": name["name"]}}
    cluster.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": [policy, binding]}))


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    """Installed cluster-wide, a namespace with a filled claim, and policies of somebody else's for some models in it."""
    mutated = [("deployments", "mutated"), ("persistentvolumeclaims", "mutated")]
    for resource, model in (*mutated, ("pods", "meshed"), ("pods", "retried")):
        add_policy(cluster, resource, model)
    settings = ("runtime.image.repository=stub/runtime", "replicas=1", TAKEOVER)
    with installed(cluster, *settings), models_namespace(cluster, HOME) as namespace:
        scene = Scene(cluster, namespace)
        scene.fill_claim()
        yield scene
        # No kubelet ends the pods of the ghost node.
        scene.kubectl("delete", "pods", "--all", "--force", "--grace-period=0", "--wait=false")
        cluster.kubectl("delete", "node", NAME, "--ignore-not-found")
    cluster.kubectl("delete", "mutatingadmissionpolicies,mutatingadmissionpolicybindings", "--all")


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


@pytest.fixture(scope="module")
def busy(scene: Scene) -> tuple[str, int]:
    """resourceVersion and drafted tokens of a model that drafts all the time, once its figures are in the status."""
    scene.apply("busy", speculation={"algorithm": "ngram"})
    scene.until_settled("busy")
    scene.until("busy", "AcceptanceHealthy", "True", "Measured")
    return scene.model("busy")["metadata"]["resourceVersion"], drafted(scene)


def drafted(scene: Scene) -> int:
    """By the pod's own word, which counts up with each scrape."""
    pods = scene.cluster.api.items(f"/api/v1/namespaces/{HOME}/pods?labelSelector=paceline.dev/model%3Dbusy")
    (address,) = [pod["status"]["podIP"] for pod in pods if pod["metadata"]["labels"]["paceline.dev/component"] == "server"]
    line = scene.cluster.http(f"http://{address}:8000/metrics").text.splitlines()[0]
    return int(line.split()[-1])


@pytest.mark.usefixtures("busy")
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
    """Both Jobs use a claim first, and a volume of a zone stays there: not on the node that the scheduler prefers."""
    ghost = GhostNode(scene)
    scene.cluster.kubectl("label", "node", NAME, "topology.kubernetes.io/zone=far")
    scene.cluster.kubectl("taint", "node", NAME, "far=away:PreferNoSchedule")
    far = {"key": "topology.kubernetes.io/zone", "operator": "In", "values": ["far"]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [far]}]}}
    placement = {"affinity": {"nodeAffinity": required}, "tolerations": [{"key": "ghost", "operator": "Exists"}]}
    scene.apply("zonal", target={"uri": "s3://bucket/model"}, cache={"size": "1Gi"}, scheduling=placement)

    ghost.show(ghost.pod("zonal", "inspect"), container("inspect", terminated=ended(0, UNREADABLE)), phase="Succeeded")
    assert ghost.pod("zonal", "cache")
    scene.kubectl("delete", "specm", "zonal", "--wait=false")
    scene.cluster.kubectl("delete", "node", NAME)


def num_applies(scene: Scene, child: str) -> int:
    """How often the operator said that it applies a child."""
    log = scene.cluster.kubectl("logs", f"deployment/{OPERATOR}", "-n", scene.release_namespace)
    return log.count(f"apply {child}")


def test_what_policies_change_is_applied_once(scene: Scene):
    """A toleration more, another pull policy, a larger claim, each time: one apply, and no more for later looks."""
    cached = {"target": {"uri": "s3://bucket/model"}, "cache": {"size": "1Gi"}}
    scene.apply("mutated", **cached)
    scene.cluster.wait_for(lambda: num_applies(scene, "PersistentVolumeClaim/mutated-cache"), "the claim is applied")
    scene.apply("mutated", cache=None)
    scene.cluster.wait_for(lambda: num_applies(scene, "Deployment/mutated"), "the Deployment is applied")
    look(scene, "mutated")
    pod = scene.get("deployment", "mutated")["spec"]["template"]["spec"]

    assert (pod["containers"][0]["imagePullPolicy"], pod["tolerations"][0]["key"]) == ("Never", "theirs")
    assert num_applies(scene, "PersistentVolumeClaim/mutated-cache") == num_applies(scene, "Deployment/mutated") == 1
    scene.kubectl("delete", "specm", "mutated", "--wait=false")


def test_a_job_ends_beside_a_proxy_that_does_not(scene: Scene):
    """The verdict is read from our own container, and the Job is ended when the verdict is on record."""
    scene.apply("meshed")
    scene.until("meshed", "Compatible", "True", "Compatible")
    jobs = ("get", "jobs", "-l", "paceline.dev/model=meshed", "-o", "name")
    scene.cluster.wait_for(lambda: not scene.kubectl(*jobs), "the Job is ended")
    scene.until_settled("meshed")
    scene.kubectl("delete", "specm", "meshed", "--wait=false")


def test_a_job_is_tried_again_beside_a_proxy_that_does_not_end(scene: Scene):
    """Our container fails and its Job never does: another Job gives the verdict, and nothing of either is left.

    The first attempt runs on the ghost node, since its end has to be as long ago as the operator waits; the second is real.
    """
    ghost, own = GhostNode(scene), "paceline.dev/model=retried,paceline.dev/component=inspect"
    scene.cluster.kubectl("label", "node", NAME, "room=yes", "--overwrite")
    placement = {"nodeSelector": {"room": "yes"}, "tolerations": [{"key": "ghost", "operator": "Exists"}]}
    scene.apply("retried", scheduling=placement)
    pod = ghost.pod("retried", "inspect")
    scene.cluster.kubectl("label", "node", NAME, "room-")
    assert ["inspect", "mesh-proxy"] == [one["name"] for one in scene.get("pod", pod)["spec"]["containers"]]
    job = ("get", "jobs", "-l", own, "-o", "jsonpath={.items[*].metadata.uid}")
    first, end = scene.kubectl(*job), ended(1, "hub is down")
    proxy = container("mesh-proxy", ready=True, running={"startedAt": stamp()})

    ghost.show(pod, container("inspect", terminated=end), proxy, phase="Running")
    scene.until("retried", "Compatible", "Unknown", "InspectionFailed", words="inspect: exit code 1: hub is down")
    assert first == scene.kubectl(*job)
    long_ago = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": "2026-01-01T00:00:05Z"}
    ghost.show(pod, container("inspect", terminated=end | long_ago), proxy, phase="Running")
    scene.cluster.wait_for(lambda: scene.kubectl(*job) not in ("", first), "another Job takes its place")
    scene.cluster.wait_for(lambda: scene.get("pod", pod)["metadata"].get("deletionTimestamp"), "the first one's pod has to go")
    scene.kubectl("delete", "pod", pod, "--force", "--grace-period=0")
    # Only now is there room for the second attempt, so that its Job could not come and go unseen.
    scene.cluster.kubectl("label", "nodes", "-l", "!ghost", "room=yes")
    scene.until("retried", "Compatible", "True", "Compatible")
    scene.cluster.wait_for(lambda: not scene.kubectl("get", "jobs,pods", "-l", own, "-o", "name"), "nothing is left")
    scene.until_settled("retried")
    scene.kubectl("delete", "specm", "retried", "--wait=false")
    scene.cluster.kubectl("label", "nodes", "-l", "!ghost", "room-")


def test_what_does_not_start_says_why(scene: Scene):
    """A Secret that is missing in a mount, told by a kubelet's Event; a PriorityClass, told by the Job controller's."""
    ghost = GhostNode(scene)
    scene.apply("mountless", scheduling=SCHEDULING)
    scene.apply("classless", scheduling={"priorityClassName": "nope"})
    pod = ghost.pod("mountless", "inspect")
    ghost.tell("pod", pod, "FailedMount", 'MountVolume.SetUp failed for volume "keys" : secret "nope" not found')

    mount = scene.until("mountless", "Compatible", "Unknown", "InspectionFailedMount", words='secret "nope" not found')
    refused = scene.until(
        "classless", "Compatible", "Unknown", "InspectionFailedCreate", words="no PriorityClass with name nope"
    )
    assert mount.startswith(f"pod {pod}: ")
    assert refused.startswith("Job classless-inspect-")
    assert scene.conditions("mountless")["Ready"][:2] == ("False", "InspectionFailedMount")
    scene.kubectl("delete", "specm", "mountless", "classless", "--wait=false")


def test_a_crash_has_its_name_and_turns_nothing_while_it_goes_on(scene: Scene):
    """It shows through metadata that nobody can read, through moments of readiness, and through a kubelet's odd words."""
    ghost = GhostNode(scene)
    scene.apply("crashing", target={"uri": "s3://bucket/model"}, scheduling=SCHEDULING)
    ghost.show(ghost.pod("crashing", "inspect"), container("inspect", terminated=ended(0, UNREADABLE)), phase="Succeeded")
    pod, running = ghost.pod("crashing"), {"running": {"startedAt": stamp()}}
    crash = {"terminated": ended(137, "usage: x\n [-h]\nout of pages", "OOMKilled")}
    fetched = {"initContainerStatuses": [container("fetch-target", terminated=ended(0))]}
    ghost.show(pod, container("server", 2, last=crash, **running), **fetched, phase="Running")
    words = "server: OOMKilled, exit code 137, 2 restarts: out of pages"
    for type_ in ("Available", "Ready"):
        scene.until("crashing", type_, "False", "CrashLoopBackOff", words=words)
    ready = [{"type": type_, "status": "True", "lastTransitionTime": stamp()} for type_ in ("Ready", "ContainersReady")]
    ghost.show(pod, container("server", 3, True, crash, **running), **fetched, phase="Running", conditions=ready)
    scene.until("crashing", "Available", "False", "CrashLoopBackOff", words="3 restarts")
    scene.cluster.wait_for(lambda: scene.model("crashing")["status"]["readyReplicas"] == 1, "its moment of readiness")
    assert scene.conditions("crashing")["Available"][:2] == ("False", "CrashLoopBackOff")
    told = scene.cluster.api.items(f"/api/v1/namespaces/{HOME}/events?fieldSelector=involvedObject.name%3Dcrashing")
    assert [one["count"] for one in told if one["reason"] == "CrashLoopBackOff"] == [1]

    odd = {"waiting": {"reason": "not a reason at all!", "message": "\x07odd " * 20_000}}
    ghost.show(pod, container("server", 0, **odd), **fetched, conditions=[{**one, "status": "False"} for one in ready])
    scene.until("crashing", "Available", "False", "notareasonatall", words="odd  odd")
    scene.kubectl("delete", "specm", "crashing", "--wait=false")


def test_a_busy_model_writes_nothing(scene: Scene, busy: tuple[str, int]):
    """Its pods were asked for their figures several times since, and its status is the one that it had."""
    version, num_drafted = busy
    polls = itertools.count(1)
    scene.cluster.wait_for(lambda: drafted(scene) > num_drafted + 1000 * (next(polls) + 3), "three scrapes beside ours")

    assert scene.model("busy")["metadata"]["resourceVersion"] == version
