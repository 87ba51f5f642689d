"""What the operator's account may do, asked of the API server; and the chart under the restricted standard, namespaced.

The release lies in the models' own namespace here: scope Namespace, CRDs from elsewhere, one replica.
"""

from collections.abc import Iterator

import pytest
from operator_scene import OPERATOR, Scene, installed, models_namespace
from processcluster import Cluster, ClusterError
from source_tree import ROOT

ACCOUNT = "system:serviceaccount:guarded:" + OPERATOR
FOREIGN = "foreign"


@pytest.fixture(scope="module")
def scene(cluster: Cluster) -> Iterator[Scene]:
    """A namespaced release in a restricted namespace, and another namespace beside it."""
    cluster.kubectl("apply", "--server-side", "--force-conflicts", "-f", str(ROOT / "crds"))
    settings = ("scope=Namespace", "replicas=1")
    with (
        models_namespace(cluster, "guarded") as namespace,
        models_namespace(cluster, FOREIGN),
        installed(cluster, *settings, release_namespace=namespace, crds=False),
    ):
        yield Scene(cluster, namespace, namespace)


def may(scene: Scene, verb: str, resource: str, namespace: str) -> bool:
    """A SubjectAccessReview of the operator's account."""
    group, _, plural = resource.rpartition("/")
    attributes = {"namespace": namespace, "verb": verb, "group": group, "resource": plural}
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": ACCOUNT, "groups": ["system:serviceaccounts"], "resourceAttributes": attributes},
    }
    answer = scene.cluster.api.request("POST", "/apis/authorization.k8s.io/v1/subjectaccessreviews", review)
    return bool(answer.json()["status"]["allowed"])


@pytest.mark.parametrize("verb", ["get", "list", "watch", "create", "update", "patch", "delete"])
def test_secrets_are_out_of_reach(scene: Scene, verb: str):
    """In its own namespace as anywhere: tokens reach pods by name, through the kubelet."""
    assert not may(scene, verb, "secrets", "guarded")
    assert not may(scene, verb, "secrets", FOREIGN)


@pytest.mark.parametrize("resource", ["paceline.dev/speculativemodels", "apps/deployments", "batch/jobs", "pods", "services"])
def test_foreign_namespaces_are_out_of_reach(scene: Scene, resource: str):
    """What it may do at home it may not do elsewhere."""
    assert may(scene, "list", resource, "guarded")
    assert not any(may(scene, verb, resource, FOREIGN) for verb in ("get", "list", "watch", "create", "patch", "delete"))


@pytest.mark.parametrize(
    "verb, resource",
    [
        ("create", "pods"),
        ("create", "pods/exec"),
        ("create", "serviceaccounts/token"),
        ("update", "paceline.dev/speculativemodels"),
        ("delete", "paceline.dev/speculativemodels"),
        ("create", "rbac.authorization.k8s.io/rolebindings"),
    ],
)
def test_rights_that_an_operator_does_not_need_are_not_there(scene: Scene, verb: str, resource: str):
    """No pod of its own, no token of others, no change of what users asked for, no rights to give away."""
    assert not may(scene, verb, resource, "guarded")


def test_models_are_served_at_home_under_the_restricted_standard(scene: Scene):
    """All pods (the operator's, the Job's, the model's) pass, with a key from a Secret that the operator never reads."""
    scene.kubectl("create", "secret", "generic", "keys", "--from-literal=api-key=s3cret")
    scene.fill_claim()
    scene.apply("homely", auth={"apiKeySecretRef": {"name": "keys"}}, networkPolicy={"enabled": True})
    scene.until_settled("homely")
    endpoint = scene.model("homely")["status"]["endpoint"]
    answer = scene.cluster.http(f"{endpoint}/chat/completions", {"messages": []})

    assert '\\"has_key\\": true' in answer.text
    assert "s3cret" not in scene.kubectl("get", "deployments,pods,specm", "-o", "yaml")


def test_models_elsewhere_are_not_touched(scene: Scene):
    """Neither reviewed nor served: the other namespace is somebody else's."""
    elsewhere = Scene(scene.cluster, FOREIGN)
    elsewhere.apply("ignored", scheduling={"spread": [{"topologyKey": "paceline.dev/model"}]})
    with pytest.raises(ClusterError, match="must be a label of nodes"):
        scene.apply("refused", scheduling={"spread": [{"topologyKey": "paceline.dev/model"}]})
    scene.apply("later")
    scene.until_settled("later")

    assert elsewhere.children("ignored") == []
    assert "status" not in elsewhere.model("ignored")
