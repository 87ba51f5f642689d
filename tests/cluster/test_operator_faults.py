"""What goes wrong in a cluster, and that the operator neither loses nor doubles anything because of it.

The chart runs as it ships, models are served by a stub that starts at once. Failing answers of the API server and closed
watches are injected on an emulated one (tests/operator/loop/test_loop.py).
"""

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme
from operator_scene import CHART, OPERATOR, STUB, Scene, installed, models_namespace
from processcluster import Cluster, ClusterError

BAD = {"target": {"uri": "pvc://models"}, "scheduling": {"spread": [{"topologyKey": "paceline.dev/model"}]}}
BAD_MESSAGE = "spec.scheduling.spread\\[0\\].topologyKey: must be a label of nodes"
WEBHOOK = "paceline-paceline-system"


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    """The chart installed, and a namespace with a filled claim."""
    with installed(cluster, "runtime.image.repository=stub/runtime"), models_namespace(cluster, "faults") as namespace:
        scene = Scene(cluster, namespace)
        scene.fill_claim()
        yield scene


@pytest.fixture
def served(scene: Scene) -> Iterator[str]:
    """A model that is served; deleted afterwards."""
    scene.apply("served", speculation={"algorithm": "ngram"})
    scene.until_settled("served")
    yield "served"
    scene.kubectl("delete", "specm", "served", "--ignore-not-found", "--wait=false")
    scene.cluster.wait_for(lambda: scene.children("served") == [], "nothing is left of it", 90)


def replicas(scene: Scene, name: str = "served") -> int:
    return int(scene.get("deployment", name)["spec"]["replicas"])


def test_children_that_are_deleted_or_edited_come_back(scene: Scene, served: str):
    """By whomever, one after another; the model is ready again each time."""
    for kind in ("service", "poddisruptionbudget", "deployment"):
        uid = scene.get(kind, served)["metadata"]["uid"]
        scene.kubectl("delete", kind, served)
        what = f"{kind} {served} is made again"
        scene.cluster.wait_for(lambda kind=kind, uid=uid: _uid(scene, kind, served) not in ("", uid), what)
    scene.kubectl("scale", "deployment", served, "--replicas=3")
    scene.cluster.wait_for(lambda: replicas(scene) == 1, "the scaling is undone")
    scene.kubectl("label", "service", served, "app.kubernetes.io/managed-by-")
    scene.cluster.wait_for(lambda: "app.kubernetes.io/managed-by" in _labels(scene, "service", served), "the label is back")
    scene.until_settled(served)


def test_another_field_manager_does_not_win_and_is_not_fought_over_its_own(scene: Scene, served: str):
    """Our field comes back, its own stays, and then the generation rests."""
    theirs = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": served, "annotations": {"theirs": "stays"}},
        "spec": {"replicas": 2},
    }
    apply = ("apply", "--server-side", "--force-conflicts", "--field-manager=other", "-n", scene.namespace, "-f", "-")
    scene.cluster.kubectl(*apply, input=json.dumps(theirs))
    scene.cluster.wait_for(lambda: replicas(scene) == 1, "our field is back")
    scene.until_settled(served)
    generation = scene.get("deployment", served)["metadata"]["generation"]
    scene.kubectl("annotate", "specm", served, "look=again")
    scene.kubectl("patch", "specm", served, "--type=merge", "-p", '{"spec": {"disruption": {"maxUnavailable": 0}}}')
    scene.until_settled(served)

    deployment = scene.get("deployment", served)
    assert deployment["metadata"]["annotations"]["theirs"] == "stays"
    assert deployment["metadata"]["generation"] == generation


def test_acceptance_is_read_and_shown(scene: Scene, served: str):
    """The stub's counters reach the status and the wide columns."""
    scene.until(served, "AcceptanceHealthy", "True", "Measured")

    assert scene.model(served)["status"]["acceptance"]["rate"] == "0.400"
    assert "0.400" in scene.kubectl("get", "specm", "-o", "wide")


def test_one_replica_leads_and_both_review(scene: Scene):
    """By their own metrics; and both are ready, which means that their webhooks answer."""
    scene.until_operator_ready()
    scene.cluster.wait_for(lambda: sorted(_leading(scene)) == [0.0, 1.0], "exactly one leads")


def test_operator_killed_at_every_step_of_a_rollout(scene: Scene):
    """All replicas at once, without grace, five times: one Job, one Deployment, the right pods in the end."""
    scene.apply("killed", speculation={"algorithm": "ngram"})
    scene.cluster.wait_for(lambda: scene.children("killed"), "the first child")
    scene.kill_operators()
    scene.cluster.wait_for(lambda: _uid(scene, "deployment", "killed"), "the Deployment", 60)
    scene.kill_operators()
    scene.until_settled("killed")
    # Edits of the resource need a webhook; that they wait for one is a test of its own.
    scene.until_operator_ready()
    scene.kubectl("patch", "specm", "killed", "--type=merge", "-p", '{"spec": {"speculation": {"numSteps": 5}}}')
    scene.kill_operators()
    scene.cluster.wait_for(lambda: "5" in _arguments(scene, "killed"), "the new template", 60)
    scene.kill_operators()
    scene.kubectl("scale", "specm", "killed", "--replicas=2")
    scene.kill_operators()
    scene.until_settled("killed")

    kinds = [name.partition("/")[0] for name in scene.children("killed") if not name.startswith(("pod/", "replicaset"))]
    assert sorted(kinds) == ["deployment.apps", "job.batch", "poddisruptionbudget.policy", "service"]
    assert scene.model("killed")["status"]["readyReplicas"] == 2
    assert "finalizers" not in scene.model("killed")["metadata"]
    scene.kubectl("delete", "specm", "killed", "--wait=false")


def test_a_failing_inspection_is_told_and_mended(scene: Scene):
    """The claim is empty at first: the pod's words are in the status, and once it is filled the model is served."""
    scene.fill_claim("late", "other")
    scene.apply("late", target={"uri": "pvc://late/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"})
    scene.until("late", "Compatible", "Unknown", "InspectionRetrying", words="no such folder")
    scene.fill_claim("late")
    scene.until_settled("late", 90)
    scene.kubectl("delete", "specm", "late", "--wait=false")


def test_a_job_that_never_schedules_is_told_and_replaced_when_that_changes(scene: Scene):
    """No node has the label; without it in the spec the Job is made anew and everything follows."""
    scene.apply("lost", scheduling={"nodeSelector": {"no": "node"}})
    scene.until("lost", "Compatible", "Unknown", "InspectionUnschedulable", words="node")
    scene.apply("lost", scheduling={})
    scene.until_settled("lost")
    scene.kubectl("delete", "specm", "lost", "--wait=false")


def test_a_job_whose_pods_a_quota_refuses_is_told(scene: Scene):
    """Only the Job's Events say so: the condition names the Job, the reason and the quota."""
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "full"}, "spec": {"hard": {"pods": "0"}}}
    scene.cluster.apply(json.dumps(quota), "-n", scene.namespace)
    scene.cluster.wait_for(lambda: scene.get("quota", "full").get("status", {}).get("hard"), "the quota holds")
    scene.apply("refused", target={"uri": "pvc://models/refused"})
    message = scene.until("refused", "Compatible", "Unknown", "InspectionFailedCreate", words="exceeded quota: full")
    assert message.startswith("Job refused-inspect-")
    scene.kubectl("delete", "specm", "refused", "--wait=false")
    scene.kubectl("delete", "quota", "full")


def test_a_jobs_pod_that_is_evicted_is_replaced(scene: Scene):
    """Evicted while it waits for a node: the Job goes on, and no second Job appears."""
    scene.apply("evicted", scheduling={"nodeSelector": {"no": "node"}})
    scene.until("evicted", "Compatible", "Unknown", "InspectionUnschedulable")
    (pod,) = [name.partition("/")[2] for name in scene.children("evicted") if name.startswith("pod/")]
    path = f"/api/v1/namespaces/{scene.namespace}/pods/{pod}/eviction"
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": scene.namespace}}
    assert scene.cluster.api.request("POST", path, eviction).status < 300
    scene.cluster.wait_for(lambda: _others(scene, "evicted", pod), "another pod of the Job")

    assert len([name for name in scene.children("evicted") if name.startswith("job")]) == 1
    scene.kubectl("delete", "specm", "evicted", "--wait=false")


def test_webhook_down_concerns_our_kind_only_and_never_deletion(scene: Scene, served: str):
    """Nothing else depends on the operator, and what is there can be scaled and removed."""
    scene.cluster.kubectl("scale", "deployment", OPERATOR, "--replicas=0", "-n", scene.release_namespace)
    # A pod that ends answers until nobody calls it any more.
    selector = ("-n", scene.release_namespace, "-l", "app.kubernetes.io/component=operator")
    scene.cluster.wait_for(lambda: not scene.cluster.kubectl("get", "pods", "-o", "name", *selector), "the operator is gone")
    with pytest.raises(ClusterError, match="failed calling webhook"):
        scene.apply("other")
    scene.kubectl("create", "configmap", "unaffected")
    scene.kubectl("scale", "specm", served, "--replicas=2")
    scene.kubectl("delete", "specm", served)
    scene.cluster.kubectl("scale", "deployment", OPERATOR, "--replicas=2", "-n", scene.release_namespace)
    scene.until_operator_ready()


def test_certificate_rotated_while_running(scene: Scene):
    """New authority and leaf, the bundle first: reviews are answered with the new one, without a restart."""
    pods = {pod["metadata"]["uid"] for pod in scene.operator_pods()}
    authority = trustme.CA()
    leaf = authority.issue_cert(f"{OPERATOR}.{scene.release_namespace}.svc")
    new = authority.cert_pem.bytes()
    _trust(scene, base64.b64decode(_secret(scene)["ca.crt"]) + new)
    chain = b"".join(blob.bytes() for blob in leaf.cert_chain_pems)
    data = {"ca.crt": new, "tls.crt": chain, "tls.key": leaf.private_key_pem.bytes()}
    patch = {"data": {name: base64.b64encode(value).decode() for name, value in data.items()}}
    arguments = ("patch", "secret", "paceline-webhook", "--type=merge", "-n", scene.release_namespace)
    scene.cluster.kubectl(*arguments, "-p", json.dumps(patch))
    _trust(scene, new)
    scene.cluster.wait_for(lambda: _refusal(scene) == "ours", "reviews are answered under the new authority", 90)

    assert {pod["metadata"]["uid"] for pod in scene.operator_pods()} == pods
    with pytest.raises(ClusterError, match=BAD_MESSAGE):
        scene.apply("bad", **BAD)


def test_an_upgrade_keeps_the_certificate_and_restarts_no_model(scene: Scene, tmp_path: Path):
    """Another default image, log level and CRD: new operator pods and fields, the same Secret, the same model pods."""
    served = "default"
    scene.apply(served, runtime={})
    scene.until_settled(served)
    before, pods = _secret(scene), _model_pods(scene, served)
    old = {pod["metadata"]["uid"] for pod in scene.operator_pods()}
    settings = ("--reuse-values", "--set", "operator.logLevel=DEBUG,runtime.image.tag=next", "--wait", "--timeout=90s")
    # Other modules apply the CRD with kubectl, which then owns it too.
    settings += ("--force-conflicts",)
    chart = str(_newer_chart(tmp_path / "chart"))
    scene.cluster.helm("upgrade", "paceline", chart, "--namespace", scene.release_namespace, *settings)
    scene.until_operator_ready()
    scene.kubectl("patch", "specm", served, "--type=merge", "-p", '{"spec": {"disruption": {"maxUnavailable": 0}}}')
    scene.cluster.wait_for(lambda: scene.get("pdb", served)["spec"]["maxUnavailable"] == 0, "the new operator works")

    assert not old & {pod["metadata"]["uid"] for pod in scene.operator_pods()}
    assert _secret(scene) == before
    assert _model_pods(scene, served) == pods
    scene.kubectl("patch", "specm", served, "--type=merge", "-p", '{"spec": {"newField": "kept"}}')
    assert scene.model(served)["spec"]["newField"] == "kept"
    scene.kubectl("set", "image", f"deployment/{served}", "server=stub/other:test")
    scene.cluster.wait_for(lambda: _image(scene, served) == STUB, "the image is the one that it first ran with")
    scene.kubectl("delete", "specm", served, "--wait=false")


def test_api_server_restarted(scene: Scene, served: str):
    """What was asked for afterwards is done, what was there stays."""
    uid = _uid(scene, "deployment", served)
    scene.cluster.restart_api_server()
    scene.kubectl("scale", "specm", served, "--replicas=2")
    scene.until_settled(served, 120)

    assert scene.model(served)["status"]["readyReplicas"] == 2
    assert _uid(scene, "deployment", served) == uid


def _newer_chart(folder: Path) -> Path:
    """The chart with a field in the CRD that the installed one does not know."""
    shutil.copytree(CHART, folder)
    crd = folder / "files" / "crds" / "speculativemodels.paceline.dev.yaml"
    text = crd.read_text()
    field = "                newField:\n                  type: string\n"
    crd.write_text(text.replace("                paused:\n", f"{field}                paused:\n", 1))
    return folder


def _image(scene: Scene, name: str) -> str:
    return str(scene.get("deployment", name)["spec"]["template"]["spec"]["containers"][0]["image"])


def _labels(scene: Scene, kind: str, name: str) -> dict[str, str]:
    return dict(scene.get(kind, name)["metadata"].get("labels", {}))


def _secret(scene: Scene) -> dict[str, str]:
    """Data of the webhook's Secret."""
    found = scene.cluster.api.get(f"/api/v1/namespaces/{scene.release_namespace}/secrets/paceline-webhook")
    assert found
    return dict(found["data"])


def _model_pods(scene: Scene, name: str) -> set[str]:
    """Uids of the pods that serve a model."""
    selector = f"paceline.dev/model={name},paceline.dev/component=server"
    return set(scene.kubectl("get", "pods", "-l", selector, "-o", "jsonpath={.items[*].metadata.uid}").split())


def _leading(scene: Scene) -> list[float]:
    """`paceline_operator_leading` of every operator pod."""
    urls = [f"http://{pod['status']['podIP']}:8080/metrics" for pod in scene.operator_pods()]
    lines = [line for url in urls for line in scene.cluster.http(url).text.splitlines()]
    return [float(line.split()[1]) for line in lines if line.startswith("paceline_operator_leading ")]


def _uid(scene: Scene, kind: str, name: str) -> str:
    return scene.kubectl("get", kind, name, "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")


def _arguments(scene: Scene, name: str) -> list[str]:
    return list(scene.get("deployment", name)["spec"]["template"]["spec"]["containers"][0]["args"])


def _others(scene: Scene, name: str, pod: str) -> list[str]:
    return [one for one in scene.children(name) if one.startswith("pod/") and one != f"pod/{pod}"]


def _trust(scene: Scene, authorities: bytes) -> None:
    """Make the API server trust these authorities for the webhook."""
    bundle = base64.b64encode(authorities).decode()
    patch = [{"op": "replace", "path": "/webhooks/0/clientConfig/caBundle", "value": bundle}]
    kind = "validatingwebhookconfiguration"
    scene.cluster.kubectl("patch", kind, WEBHOOK, "--type=json", "-p", json.dumps(patch))


def _refusal(scene: Scene) -> str:
    """Who refuses a bad resource: the operator, or the connection to it."""
    try:
        scene.apply("bad", **BAD)
    except ClusterError as error:
        return "ours" if "must be a label of nodes" in str(error) else "x509"
    return "nobody"
