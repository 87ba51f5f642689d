"""Objects of others beside a model's own, on a real control plane: none is deleted, none is written over, none is believed.

The chart runs as it ships, models are served by a stub, and KEDA is a small controller in this process (`stub_keda`).
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import stub_keda
from operator_scene import STUB, Scene, installed, models_namespace
from processcluster import Cluster

from paceline_operator.cluster.client import path_of
from paceline_operator.cluster.kinds import BY_NAME, CHILDREN
from paceline_operator.objects.inspect import job_name
from paceline_operator.spec.model import parse

KEDA: dict[str, Any] = {"maxReplicas": 3, "keda": {"prometheusAddress": "http://prometheus:9090"}}
LABELS = {"app.kubernetes.io/name": "paceline", "app.kubernetes.io/managed-by": "paceline-operator"}
MODEL_UID = "paceline.dev/model-uid"
OFF = {"target": {"uri": "s3://bucket/model"}, "replicas": 0}
POD = {"containers": [{"name": "server", "image": "busybox:test"}]}
PAUSE = {"matchLabels": {"not": "ours"}}
REFERENCE = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "theirs"}
# An object of each kind that somebody else may have; none makes a pod.
SPECS: dict[str, Any] = {
    "Job": {"suspend": True, "template": {"spec": {**POD, "restartPolicy": "Never"}}},
    "PersistentVolumeClaim": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "3Gi"}}},
    "Deployment": {"replicas": 0, "selector": PAUSE, "template": {"metadata": {"labels": PAUSE["matchLabels"]}, "spec": POD}},
    "Service": {"selector": PAUSE["matchLabels"], "ports": [{"port": 1}]},
    "PodDisruptionBudget": {"selector": PAUSE, "minAvailable": 1},
    "NetworkPolicy": {"podSelector": PAUSE, "policyTypes": ["Ingress"]},
    "HorizontalPodAutoscaler": {"scaleTargetRef": REFERENCE, "maxReplicas": 2},
    "ScaledObject": {"scaleTargetRef": REFERENCE, "triggers": [{"type": "cron", "metadata": {"threshold": "1"}}]},
    "PodMonitor": {"selector": PAUSE, "podMetricsEndpoints": []},
}
# What a model has to say for a child of the kind to be asked for.
ASKING: dict[str, Any] = {
    "PersistentVolumeClaim": {**OFF, "cache": {"size": "1Gi"}},
    "NetworkPolicy": {"networkPolicy": {"enabled": True}},
    "HorizontalPodAutoscaler": {"autoscaling": {"maxReplicas": 2}},
    "ScaledObject": {"autoscaling": KEDA},
    "PodMonitor": {"metrics": {"podMonitor": {"enabled": True}}},
}
OWNERS = ("nobody", "another")


@pytest.fixture(scope="module")
def beside(cluster: Cluster) -> Iterator[Scene]:
    """A namespace with a filled claim, on a cluster that knows the optional kinds."""
    stub_keda.install(cluster)
    with models_namespace(cluster, "owners") as namespace:
        beside = Scene(cluster, namespace)
        beside.fill_claim()
        beside.kubectl("create", "configmap", "another")
        yield beside
    stub_keda.uninstall(cluster)


@pytest.fixture(scope="module")
def strays(beside: Scene) -> dict[tuple[str, str], str]:
    """(kind, owner) -> uid of objects of every kind with the labels of the children of a model `base`."""
    return {(kind, owner): foreign(beside, kind, f"stray-{owner}", "base", owner) for kind in SPECS for owner in OWNERS}


@pytest.fixture(scope="module")
def scene(beside: Scene, strays: dict[tuple[str, str], str]) -> Iterator[Scene]:
    """The chart installed: the operator's first list has the strays of all kinds, watched or not."""
    with installed(beside.cluster, "runtime.image.repository=stub/runtime", "replicas=1"):
        yield beside


@pytest.mark.parametrize("version", [stub_keda.COPIES_ALL_LABELS, stub_keda.EXCLUDES_LABELS])
def test_kedas_autoscaler_is_left_to_keda(scene: Scene, tmp_path: Path, version: str):
    """Made once, whatever labels it has; later looks and edits change nothing about it."""
    name = f"scaled-{version.replace('.', '-')}"
    with stub_keda.running(scene.cluster, scene.namespace, version, tmp_path / "log") as keda:
        scene.apply(name, autoscaling=KEDA)
        theirs = scene.cluster.wait_for(lambda: find(scene, "HorizontalPodAutoscaler", f"keda-hpa-{name}"), "KEDA's autoscaler")
        scene.until_settled(name)
        look(scene, name)
        now = find(scene, "HorizontalPodAutoscaler", f"keda-hpa-{name}")

    assert now
    assert uid(now) == uid(theirs)
    assert keda.num_made == {f"keda-hpa-{name}": 1}
    assert owners(now) == [("ScaledObject", uid(scene.get("scaledobject", name)))]
    copied = {key: value for key, value in labels_of(name).items() if now["metadata"]["labels"].get(key) == value}
    assert copied == (labels_of(name) if version == stub_keda.COPIES_ALL_LABELS else {})
    scene.kubectl("delete", "specm", name)


def test_the_autoscaler_changes_hands_both_ways(scene: Scene, tmp_path: Path):
    """Ours goes before KEDA takes over, and KEDA's goes with the ScaledObject that ours takes over from."""
    ours, theirs = ("HorizontalPodAutoscaler", "handed"), ("HorizontalPodAutoscaler", "keda-hpa-handed")
    scene.apply("handed", autoscaling={"maxReplicas": 2})
    scene.cluster.wait_for(lambda: find(scene, *ours), "our autoscaler")
    with stub_keda.running(scene.cluster, scene.namespace, stub_keda.COPIES_ALL_LABELS, tmp_path / "log") as keda:
        scene.apply("handed", autoscaling=KEDA)
        scene.cluster.wait_for(lambda: find(scene, *theirs), "KEDA's autoscaler")
        assert find(scene, *ours) is None
        scene.apply("handed", autoscaling={"maxReplicas": 2})
        scene.cluster.wait_for(lambda: find(scene, *ours), "our autoscaler again")
        assert find(scene, "ScaledObject", "handed") is None
        # A garbage collector learns of a new kind every 30 s.
        scene.cluster.wait_for(lambda: not find(scene, *theirs), "KEDA's is gone", 60)
    assert keda.num_made == {"keda-hpa-handed": 1}
    scene.kubectl("delete", "specm", "handed")


@pytest.fixture(scope="module")
def looked(scene: Scene) -> Scene:
    """The model `base` is served and was looked at since."""
    scene.apply("base")
    scene.until_settled("base")
    look(scene, "base")
    return scene


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("kind", SPECS)
def test_strays_with_our_labels_survive(looked: Scene, strays: dict[tuple[str, str], str], kind: str, owner: str):
    """Whoever owns them: the model did not ask for them, and that makes them nobody's to delete."""
    found = find(looked, kind, f"stray-{owner}")

    assert found
    assert uid(found) == strays[kind, owner]
    assert "deletionTimestamp" not in found["metadata"]


@pytest.fixture(scope="module")
def namesakes(scene: Scene) -> dict[tuple[str, str], str]:
    """(kind, owner) -> uid of an object that has the labels and the name of a model's child; the models are made after that."""
    made = {}
    for kind in SPECS:
        for owner in OWNERS:
            model = model_beside(kind, owner)
            name = child_name(scene.resource(model, **ASKING.get(kind, {})), kind)
            made[kind, owner] = foreign(scene, kind, name, model, owner)
            scene.apply(model, **ASKING.get(kind, {}))
    return made


@pytest.mark.parametrize("owner", OWNERS)
@pytest.mark.parametrize("kind", SPECS)
def test_no_namesake_is_written_over(scene: Scene, namesakes: dict[tuple[str, str], str], kind: str, owner: str):
    """The condition names it; no field of it is ours, and what needs it is not made."""
    model = model_beside(kind, owner)
    name = child_name(scene.resource(model, **ASKING.get(kind, {})), kind)
    scene.until(model, "Progressing", "False", "ApplyFailed", words=f"{kind} {name} exists and was not made for", timeout_s=120)
    found = find(scene, kind, name)

    assert found
    assert uid(found) == namesakes[kind, owner]
    assert "paceline-operator" not in [entry["manager"] for entry in found["metadata"]["managedFields"]]
    assert [kind for kind, _ in owners(found)] == ([] if owner == "nobody" else ["ConfigMap"])
    if kind in ("Job", "PersistentVolumeClaim", "NetworkPolicy"):
        assert not [one for one in scene.children(model) if one == f"deployment.apps/{model}"]


def test_pods_of_others_are_not_counted_and_not_asked(scene: Scene):
    """A Deployment of somebody else's makes pods with the labels of serving ones, that answer figures of their own."""
    labels = labels_of("idle")
    security = {"runAsNonRoot": True, "runAsUser": 10001, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
    pod = {"securityContext": security, "containers": [{"name": "server", "image": STUB, "securityContext": container}]}
    spec = {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": pod}}
    scene.cluster.apply(json.dumps(document("Deployment", "impostor", {}, spec)), "-n", scene.namespace)
    scene.cluster.wait_for(lambda: scene.get("deployment", "impostor")["status"].get("readyReplicas"), "its pod is ready")
    scene.apply("idle", replicas=0, speculation={"algorithm": "ngram"})
    scene.until("idle", "Available", "False", "ScaledToZero")
    look(scene, "idle")

    found = {type_: reason for type_, (_, reason, _) in scene.conditions("idle").items()}
    assert (found["Scheduled"], found["AcceptanceHealthy"]) == ("NoPods", "TooFewTokens")
    assert (scene.model("idle")["status"]["replicas"], scene.model("idle")["status"].get("acceptance")) == (0, None)
    scene.kubectl("delete", "deployment", "impostor", "--wait=false")


def test_a_model_made_again_at_once_gets_children_of_its_own(scene: Scene):
    """What is left of the earlier one goes with it, and is neither adopted nor taken for the new one's."""
    scene.apply("again")
    scene.until_settled("again")
    scene.kubectl("delete", "specm", "again")
    scene.apply("again")
    scene.until_settled("again", 120)

    model = uid(scene.model("again"))
    kinds = ("deployment", "service", "poddisruptionbudget")
    assert [[("SpeculativeModel", model)]] * 3 == [owners(scene.get(kind, "again")) for kind in kinds]
    assert scene.get("deployment", "again")["metadata"]["ownerReferences"][0]["controller"] is True


def test_children_that_were_orphaned_are_left_and_named(scene: Scene):
    """Somebody wanted them to outlive their model; they are made anew once that was settled."""
    scene.apply("orphaned")
    scene.until_settled("orphaned")
    before = uid(scene.get("deployment", "orphaned"))
    scene.kubectl("delete", "specm", "orphaned", "--cascade=orphan")
    scene.apply("orphaned")
    scene.until("orphaned", "Progressing", "False", "ApplyFailed", words="exists and was not made for this SpeculativeModel")

    left = scene.get("deployment", "orphaned")
    assert (uid(left), owners(left)) == (before, [])
    scene.kubectl("delete", "job,service,pdb,deployment", "-l", "paceline.dev/model=orphaned")
    scene.until_settled("orphaned", 120)
    assert owners(scene.get("deployment", "orphaned")) == [("SpeculativeModel", uid(scene.model("orphaned")))]


def test_a_retained_claim_outlives_its_model_and_passes_to_the_next(scene: Scene):
    """It names the uid of the model that retains it; one that would not retain it is refused."""
    retaining = {**OFF, "cache": {"size": "1Gi", "retain": True}}
    scene.apply("kept", **retaining)
    claim = scene.cluster.wait_for(lambda: find(scene, "PersistentVolumeClaim", "kept-cache"), "the claim", 60)
    first = uid(scene.model("kept"))
    assert (owners(claim), claim["metadata"]["annotations"][MODEL_UID]) == ([], first)

    scene.kubectl("delete", "specm", "kept")
    scene.apply("kept", **{**OFF, "cache": {"size": "1Gi"}})
    scene.until("kept", "Progressing", "False", "ApplyFailed", words="set spec.cache.retain to take it over", timeout_s=120)
    left = scene.get("pvc", "kept-cache")
    assert (uid(left), owners(left), left["metadata"]["annotations"][MODEL_UID]) == (uid(claim), [], first)

    scene.apply("kept", **retaining)
    second = uid(scene.model("kept"))

    def is_taken_over() -> bool:
        return bool(scene.get("pvc", "kept-cache")["metadata"]["annotations"][MODEL_UID] == second)

    scene.cluster.wait_for(is_taken_over, "the claim is taken over", 90)
    taken = scene.get("pvc", "kept-cache")
    assert (uid(taken), owners(taken), first == second) == (uid(claim), [], False)


def look(scene: Scene, name: str) -> None:
    """Make the operator look once more, and wait for what it did."""
    scene.kubectl("patch", "specm", name, "--type=merge", "-p", '{"spec": {"disruption": {"maxUnavailable": 0}}}')
    scene.cluster.wait_for(lambda: scene.get("pdb", name)["spec"].get("maxUnavailable") == 0, "another look")


def model_beside(kind: str, owner: str) -> str:
    """Name of the model whose child's name is taken."""
    return f"{owner}-{kind.lower()[:20]}"


def child_name(resource: dict[str, Any], kind: str) -> str:
    model = parse(resource)
    return {"Job": job_name(model), "PersistentVolumeClaim": f"{model.name}-cache"}.get(kind, model.name)


def labels_of(model: str) -> dict[str, str]:
    return {**LABELS, "paceline.dev/model": model, "paceline.dev/component": "server"}


def document(kind: str, name: str, metadata: dict[str, Any], spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": BY_NAME[kind].api_version, "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


def foreign(scene: Scene, kind: str, name: str, model: str, owner: str) -> str:
    """Make somebody else's object with all labels of a child of the model; its uid."""
    owner_of: dict[str, Any] = {}
    if owner == "another":
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "another", "uid": uid(scene.get("configmap", "another"))}
        owner_of = {"ownerReferences": [reference]}
    body = document(kind, name, {"labels": labels_of(model), **owner_of}, SPECS[kind])
    answer = scene.cluster.api.request("POST", path_of(BY_NAME[kind], scene.namespace), body)
    assert answer.status == 201, answer.text
    return uid(answer.json())


def find(scene: Scene, kind: str, name: str) -> dict[str, Any] | None:
    """The object, None when there is none."""
    return scene.cluster.api.get(path_of(BY_NAME[kind], scene.namespace, name))


def uid(found: dict[str, Any]) -> str:
    return str(found["metadata"]["uid"])


def owners(found: dict[str, Any]) -> list[tuple[str, str]]:
    return [(one["kind"], one["uid"]) for one in found["metadata"].get("ownerReferences", [])]


def test_every_kind_of_child_was_tried():
    """A new kind needs a row above."""
    assert {kind.kind for kind in CHILDREN} == set(SPECS)
