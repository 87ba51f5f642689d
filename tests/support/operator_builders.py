"""Builders of the operator's inputs: SpeculativeModels, children and pods as the API server would show them."""

import copy
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from paceline_operator.config import OperatorConfig
from paceline_operator.gates.caching import Caching
from paceline_operator.gates.inspection import COMPATIBLE, Inspection
from paceline_operator.objects.inspect import inspect_key
from paceline_operator.observed.observed import Observed
from paceline_operator.observed.observed import observe as observe_model
from paceline_operator.planning.desired import desired, inherit
from paceline_operator.spec.model import Model, parse

UID = "uid-1"
NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
CONFIG = OperatorConfig(
    operator_image="paceline/operator:1",
    runtime_image="paceline/runtime:1",
    pod_name="operator-a",
    pod_namespace="paceline-system",
    hub_endpoint="https://hub.example",
    webhook_certificates=Path("/certificates"),
)
CLAIM = {"target": {"uri": "pvc://models/smollm2"}}
HUB_PAIR = {
    "target": {"uri": "hf://org/target", "revision": "abc123"},
    "draft": {"uri": "hf://org/draft"},
    "speculation": {"algorithm": "dflash", "numSteps": 7},
}


def make_resource(spec: dict[str, Any] | None = None, **metadata: Any) -> dict[str, Any]:
    """A SpeculativeModel; `spec` defaults to one target on a claim."""
    return {
        "apiVersion": "paceline.dev/v1alpha1",
        "kind": "SpeculativeModel",
        "metadata": {"name": "demo", "namespace": "ml", "uid": UID, "generation": 3, **metadata},
        "spec": copy.deepcopy(CLAIM if spec is None else spec),
    }


def make_model(**spec: Any) -> Model:
    """A parsed model: one target on a claim, and whatever fields are given."""
    return parse(make_resource({**copy.deepcopy(CLAIM), **spec}))


def fits(model: Model) -> Inspection:
    """The verdict that lets a model serve."""
    return Inspection(inspect_key(model), COMPATIBLE, "Compatible", "draft and target fit")


CACHED = Caching(True, "OnClaim", "every checkpoint is on a claim already")


def observe(objects: Iterable[dict[str, Any]]) -> Observed:
    """What of these objects belongs to the model `demo`; a child gets the uid that an API server would give it."""
    found = [copy.deepcopy(one) for one in objects]
    for one in found:
        one["metadata"].setdefault("uid", f"uid-{one['kind']}-{one['metadata']['name']}")
    return observe_model(found, UID)


def as_served(model: Model, config: OperatorConfig = CONFIG, *, num_ready: int = 1) -> Observed:
    """Everything applied and running: the documents themselves, with a Deployment status on top."""
    wanted = desired(model, config, inherit(model, {}, Observed({})), frozenset())
    objects = [copy.deepcopy(child) for child in (*wanted.caching, *wanted.serving)]
    for child in objects:
        child["metadata"]["generation"] = 1
        if child["kind"] == "Deployment":
            child["status"] = deployment_status(num_ready)
    return observe(objects)


def deployment_status(num_ready: int) -> dict[str, Any]:
    counts = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas", "availableReplicas"), num_ready)
    return {"observedGeneration": 1, **counts}


def make_pod(name: str, component: str = "server", job: str | None = None, **status: Any) -> dict[str, Any]:
    """A pod of the model `demo`, made by its Job of this name or by `make_replica_set`."""
    labels = {"paceline.dev/model": "demo", "paceline.dev/component": component}
    owner = {"kind": "Job", "uid": f"uid-Job-{job}"} if job else {"kind": "ReplicaSet", "uid": "uid-ReplicaSet-demo"}
    metadata = {"name": name, "labels": labels, "creationTimestamp": name, "ownerReferences": [owner]}
    return {"kind": "Pod", "metadata": metadata, "status": status}


def make_replica_set() -> dict[str, Any]:
    """The one of the Deployment `demo`."""
    owner = {"kind": "Deployment", "uid": "uid-Deployment-demo"}
    metadata = {"name": "demo", "labels": {"paceline.dev/model": "demo"}, "ownerReferences": [owner]}
    return {"kind": "ReplicaSet", "metadata": metadata}


def make_job(name: str, condition: str | None = None, *, made_at: str = "", **fields: Any) -> dict[str, Any]:
    """A Job of the model `demo`, ended with `condition` or still running."""
    ended = {"type": condition, "status": "True", "lastTransitionTime": "2026-11-29T12:00:00Z", **fields}
    return {
        "kind": "Job",
        "metadata": {
            "name": name,
            "labels": {"paceline.dev/model": "demo"},
            "ownerReferences": [{"kind": "SpeculativeModel", "name": "demo", "uid": UID}],
            "creationTimestamp": made_at,
        },
        "status": {"conditions": [ended]} if condition else {},
    }


def terminated(message: str, exit_code: int = 0) -> dict[str, Any]:
    """Pod status of a container that ended."""
    state = {"terminated": {"exitCode": exit_code, "message": message}}
    return {"containerStatuses": [{"name": "inspect", "state": state}]}
