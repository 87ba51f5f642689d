"""Checkpoints from a hub, as they come in a cluster: reviewed, inspected, fetched into a cache, served from it.

The hub is a pod; the pairs on it are headers of tiny checkpoints. Fetch and inspection are the real ones, the model server
is the stub.
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from headers_builder import write_checkpoint
from operator_scene import STUB, Scene, installed, models_namespace
from processcluster import Cluster, ClusterError
from processcluster.images import Image
from released_pairs import TINY_TARGET_CONFIG, draft_shapes, target_shapes, tiny_draft_config
from stub_hub import COMMIT

HUB = "stub/hub:test"
PAIR = {
    "target": {"uri": "hf://org/target"},
    "draft": {"uri": "hf://org/draft"},
    "speculation": {"algorithm": "dflash", "numSteps": 7},
    "cache": {"size": "1Gi"},
}
SHAPES = (target_shapes(TINY_TARGET_CONFIG), draft_shapes(tiny_draft_config()))
MISFIT = {**PAIR, "draft": {"uri": "hf://org/misfit"}}


@pytest.fixture(scope="module")
def scene(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """The chart, told where the hub is, and a namespace with the hub in it."""
    folder = tmp_path_factory.mktemp("hub")
    for name, config, shapes in (
        ("target", TINY_TARGET_CONFIG, target_shapes(TINY_TARGET_CONFIG)),
        ("draft", tiny_draft_config(), draft_shapes(tiny_draft_config())),
        ("misfit", tiny_draft_config(vocab_size=128), draft_shapes(tiny_draft_config(vocab_size=128))),
    ):
        write_checkpoint(folder / name, config, {tensor: ("BF16", shape) for tensor, shape in shapes.items()})
    # pytest's folders are the user's own; the pod runs as another one.
    for part in (folder, *folder.parents):
        if str(part).startswith("/tmp/") and part.owner() == Path.home().owner():
            part.chmod(0o755)
    with models_namespace(cluster, "sources") as namespace:
        cluster.add_images({HUB: hub_image(cluster.images["python:test"], folder)})
        scene = Scene(cluster, namespace)
        start_hub(scene)
        with installed(cluster, f"hub.endpoint=http://hub.{namespace}.svc:8080"):
            yield scene


def hub_image(python: Image, folder: Path) -> Image:
    binds = python.binds | {str(Path(__file__).parent): "/opt/stub", str(folder): "/srv"}
    return Image(("python", "/opt/stub/stub_hub.py"), binds, python.env, python.user)


def start_hub(scene: Scene) -> None:
    """The hub's pod and Service; returns when it answers."""
    security = {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {"name": "hub", "image": HUB, "securityContext": security}
    spec = {"terminationGracePeriodSeconds": 1, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "hub", "labels": {"app": "hub"}}, "spec": spec}
    ports = {"selector": {"app": "hub"}, "ports": [{"port": 8080}]}
    service = {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hub"}, "spec": ports}
    scene.cluster.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": [pod, service]}), "-n", scene.namespace)
    scene.cluster.wait_for(lambda: hub_answers(scene), "the hub answers")


def hub_answers(scene: Scene) -> bool:
    try:
        return scene.cluster.http(f"http://hub.{scene.namespace}.svc:8080/org/target/resolve/main/config.json").status == 200
    except OSError:
        return False


def test_a_pair_that_does_not_fit_is_denied_when_it_is_applied(scene: Scene):
    """With field and remedy, before anything exists."""
    with pytest.raises(ClusterError, match=r"spec\.draft\.uri: is 128, and the target's is 96"):
        scene.apply("misfit", **MISFIT)


def test_weights_are_cached_before_anything_serves(scene: Scene):
    """Inspected by ranged reads, fetched by a Job into a claim, mounted read-only by the pods: in this order."""
    scene.apply("pair", **PAIR)
    order: list[str] = []

    def all_true() -> bool:
        conditions = scene.conditions("pair")
        for type_ in ("Compatible", "WeightsCached", "Available"):
            if conditions.get(type_, ("",))[0] == "True" and type_ not in order:
                order.append(type_)
        return len(order) == 3

    scene.cluster.wait_for(all_true, "the pair is available", 120)
    status = scene.model("pair")["status"]
    (job,) = [name.partition("/")[2] for name in scene.children("pair") if name.startswith("job.batch/pair-cache")]
    folders = {path.name for path in scene.claim_folder("pair-cache").iterdir()}
    arguments = scene.get("deployment", "pair")["spec"]["template"]["spec"]["containers"][0]["args"]
    made_at = scene.get("deployment", "pair")["metadata"]["creationTimestamp"]
    paths = [argument for argument in arguments if argument.startswith("/models/weights/")]

    # The end of the fetch, which the operator believes; the Job's own end is noticed later.
    assert _fetched_at(scene, job) <= made_at
    assert order == ["Compatible", "WeightsCached", "Available"]
    assert status["model"] == {
        "architecture": "Qwen3ForCausalLM",
        "blockSize": 8,
        "fetchedBytes": sum(2 * math.prod(shape) for shapes in SHAPES for shape in shapes.values()),
        "targetRevision": COMMIT,
        "draftRevision": COMMIT,
    }
    assert {path.rpartition("/")[2] for path in paths} <= folders
    assert len(paths) == 2


def test_a_claim_that_was_deleted_is_filled_again(scene: Scene):
    """Once no pod holds it: the finished Job filled the old one, and is not believed about the new one."""
    folders, old = _folders(scene, ""), _uid(scene)
    scene.kubectl("scale", "specm", "pair", "--replicas=0")
    pods = ("get", "pods", "-o", "name", "-l", "paceline.dev/model=pair,paceline.dev/component=server")
    scene.cluster.wait_for(lambda: not scene.kubectl(*pods), "no pod holds the claim")
    # Even a pod that has ended protects its claim; nodes take theirs along.
    scene.kubectl("delete", "pods", "-l", "paceline.dev/model=pair,paceline.dev/component=cache")
    scene.kubectl("delete", "pvc", "pair-cache")
    scene.cluster.wait_for(lambda: folders and _folders(scene, old) == folders, "the new claim holds the weights", 60)

    scene.until("pair", "WeightsCached", "True", "Cached")


def _fetched_at(scene: Scene, job: str) -> str:
    """When the last container of a Job's one pod ended."""
    (pod,) = json.loads(scene.kubectl("get", "pods", "-o", "json", "-l", f"batch.kubernetes.io/job-name={job}"))["items"]
    statuses = [*pod["status"].get("initContainerStatuses", ()), *pod["status"]["containerStatuses"]]
    return max(one["state"]["terminated"]["finishedAt"] for one in statuses)


def _folders(scene: Scene, old: str) -> set[str]:
    """What lies in the cache; nothing while its claim is the old one, or has no volume."""
    uid = _uid(scene)
    folder = scene.cluster.files.claims / f"{scene.namespace}_pair-cache_{uid[:8]}"
    return set() if uid in ("", old) or not folder.exists() else {path.name for path in folder.iterdir()}


def _uid(scene: Scene) -> str:
    return scene.kubectl("get", "pvc", "pair-cache", "--ignore-not-found", "-o", "jsonpath={.metadata.uid}")


def test_the_same_words_when_only_the_job_can_tell(scene: Scene):
    """The webhook cannot use a Secret, the Job can: what it finds is the Compatible condition, and no pod is made."""
    scene.kubectl("create", "secret", "generic", "hub", "--from-literal=HF_TOKEN=any")
    draft = {"uri": "hf://org/misfit", "secretRef": {"name": "hub"}}
    scene.apply("late", **{**PAIR, "draft": draft})
    message = scene.until("late", "Compatible", "False", "VocabMismatch")

    assert "spec.draft.uri: is 128, and the target's is 96" in message
    assert not [child for child in scene.children("late") if child.startswith("deployment")]


def test_a_source_that_is_not_there_fails_the_fetch_at_once(scene: Scene):
    """A no is no: its words are in WeightsCached, and no attempts are wasted on it."""
    scene.apply("absent", target={"uri": "s3://bucket/nothing"}, cache={"size": "1Gi"}, runtime={"image": STUB})

    scene.until("absent", "WeightsCached", "False", "FetchFailed", words="AWS_ENDPOINT_URL")


def test_applying_works_while_the_hub_is_down(scene: Scene):
    """It is admitted, told to be unknown, and nothing is served that was not inspected."""
    scene.kubectl("delete", "pod", "hub")
    scene.cluster.wait_for(lambda: not hub_answers(scene), "the hub is down")
    scene.apply("blind", **{**PAIR, "target": {"uri": "hf://org/target", "revision": "other"}})
    scene.until("blind", "Compatible", "Unknown", "InspectionRetrying")

    assert not [child for child in scene.children("blind") if child.startswith("deployment")]
