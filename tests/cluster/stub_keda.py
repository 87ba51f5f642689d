"""KEDA as the operator meets it: a controller that makes a HorizontalPodAutoscaler of every ScaledObject.

It does what KEDA's own controller does to that object: named `keda-hpa-NAME`, owned by the ScaledObject, with the
ScaledObject's annotations and labels, and made again whenever it is gone. From 2.18 on KEDA leaves out the labels that an
annotation lists. It asks no Prometheus, so nothing is scaled.

`python stub_keda.py KUBECONFIG NAMESPACE VERSION` prints the name of each autoscaler that it makes, until it is ended.
"""

import asyncio
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from processcluster import Cluster
from processcluster.api import Api, ApiError

SCALED_OBJECTS = "/apis/keda.sh/v1alpha1/namespaces/{}/scaledobjects"
AUTOSCALERS = "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"
KINDS = (
    ("keda.sh", "v1alpha1", "ScaledObject", "scaledobjects"),
    ("monitoring.coreos.com", "v1", "PodMonitor", "podmonitors"),
)
EXCLUDED_LABELS = "scaledobject.keda.sh/hpa-excluded-labels"
COPIES_ALL_LABELS, EXCLUDES_LABELS = "2.17", "2.18"


class StubKeda:
    """A handle on the running controller. `num_made` counts the autoscalers that it made, by name."""

    def __init__(self, log: Path) -> None:
        self._log = log

    @property
    def num_made(self) -> Counter[str]:
        return Counter(self._log.read_text().split())


@contextmanager
def running(cluster: Cluster, namespace: str, version: str, log: Path) -> Iterator[StubKeda]:
    """The controller in a process of its own, until the block ends."""
    command = [sys.executable, __file__, str(cluster.kubeconfig), namespace, version]
    with log.open("w") as output, subprocess.Popen(command, stdout=output) as process:
        try:
            yield StubKeda(log)
        finally:
            process.terminate()


def install(cluster: Cluster) -> None:
    """Both optional kinds of the operator, served."""
    items = [definition(*kind) for kind in KINDS]
    cluster.apply(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    for group, version, _, plural in KINDS:
        path = f"/apis/{group}/{version}/namespaces/default/{plural}"
        cluster.wait_for(lambda path=path: cluster.api.request("GET", path).status == 200, f"{plural} are served")


def uninstall(cluster: Cluster) -> None:
    """The kinds, and every object of theirs."""
    cluster.kubectl("delete", "crd", "scaledobjects.keda.sh", "podmonitors.monitoring.coreos.com", "--ignore-not-found")


def definition(group: str, version: str, kind: str, plural: str) -> dict[str, Any]:
    """A CustomResourceDefinition that takes any spec."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    names = {"kind": kind, "plural": plural, "singular": kind.lower(), "listKind": f"{kind}List"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [served]},
    }


def autoscaler(found: dict[str, Any], version: str) -> dict[str, Any]:
    """What KEDA makes of a ScaledObject."""
    metadata, spec = found["metadata"], found["spec"]
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    excluded = annotations.get(EXCLUDED_LABELS, "").split(",") if version == EXCLUDES_LABELS else []
    name = f"keda-hpa-{metadata['name']}"
    own = {"app.kubernetes.io/name": name, "app.kubernetes.io/managed-by": "keda-operator"}
    owner = {key: found[key] for key in ("apiVersion", "kind")} | {key: metadata[key] for key in ("name", "uid")}
    metric = {"name": "s0-prometheus", "selector": {"matchLabels": {"scaledobject.keda.sh/name": metadata["name"]}}}
    target = {"type": "AverageValue", "averageValue": spec["triggers"][0]["metadata"]["threshold"]}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {
            "name": name,
            "labels": own | {key: value for key, value in labels.items() if key not in excluded},
            "annotations": annotations,
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": {
            "scaleTargetRef": spec["scaleTargetRef"],
            "minReplicas": max(1, spec.get("minReplicaCount", 1)),
            "maxReplicas": spec["maxReplicaCount"],
            "metrics": [{"type": "External", "external": {"metric": metric, "target": target}}],
        },
    }


async def main(kubeconfig: Path, namespace: str, version: str) -> None:
    """Look at all ScaledObjects whenever one of them or an autoscaler changes."""
    changed = asyncio.Event()
    async with Api(kubeconfig) as api, asyncio.TaskGroup() as tasks:
        for path in (SCALED_OBJECTS, AUTOSCALERS):
            tasks.create_task(follow(api, path.format(namespace), changed))
        while True:
            await changed.wait()
            changed.clear()
            for found in (await api.call("GET", SCALED_OBJECTS.format(namespace)))["items"]:
                if "maxReplicaCount" in found["spec"] and "deletionTimestamp" not in found["metadata"]:
                    await make(api, namespace, autoscaler(found, version))


async def follow(api: Api, path: str, changed: asyncio.Event) -> None:
    async for _ in api.follow(path):
        changed.set()


async def make(api: Api, namespace: str, wanted: dict[str, Any]) -> None:
    """Unless it is there."""
    try:
        await api.call("POST", AUTOSCALERS.format(namespace), wanted)
    except ApiError as error:
        if error.code != 409:
            raise
    else:
        print(wanted["metadata"]["name"], flush=True)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), *sys.argv[2:]))
