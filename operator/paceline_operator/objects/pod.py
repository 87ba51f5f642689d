"""The serving pod's template: arguments, probes, mounts, security. Only `deployment` calls it.

Nothing in the template may depend on the operator's version or on the time: its bytes decide whether pods are replaced.
"""

from __future__ import annotations

import math
from typing import Any

from paceline_operator.config import OperatorConfig
from paceline_operator.names import (
    COMPONENT_SERVER,
    CONTAINER_SERVER,
    ENV_API_KEY,
    PATH_LIVE,
    PATH_READY,
    POD_USER,
    PORT_HTTP,
    PORT_HTTP_NAME,
)
from paceline_operator.objects import weights
from paceline_operator.objects.common import Object, labels, without_none
from paceline_operator.spec.fields import Resources, Scheduling
from paceline_operator.spec.model import Model

# A pod goes on listening for so long after its end began: every proxy has to learn that it leaves the endpoints.
PRE_STOP_S = 5
# The server's own shutdown takes so long after the drain.
SHUTDOWN_S = 15
STARTUP_PERIOD_S = 2
# Tokenizer, configuration, logs and kernel caches lie beside the weights.
SMALL_FILES_BYTES = 1 << 30
ENV_VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
DEFAULT_API_KEY = "api-key"


def template(model: Model, config: OperatorConfig, image: str, fetched_bytes: int) -> Object:
    """The Deployment's pod template. `fetched_bytes` is what a pod downloads when nothing is cached; 0 when unknown."""
    spec, sources = model.spec, list(model.spec.sources)
    pull = spec.runtime.image_pull_policy
    fetches = [] if spec.cache else weights.fetched(model)
    pod = {
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": pod_security(),
        "terminationGracePeriodSeconds": PRE_STOP_S + spec.drain.seconds + SHUTDOWN_S,
        "containers": [server_container(model, image, fetched_bytes if fetches else 0)],
        "volumes": [*weights.volumes(model, sources, read_only=True), *_scratch(spec.resources)],
        **without_none(
            initContainers=[weights.fetch_container(source, config, image, pull) for source in fetches],
            imagePullSecrets=list(spec.runtime.image_pull_secrets),
        ),
        **scheduling(model),
    }
    return {"metadata": {"labels": labels(model, COMPONENT_SERVER)}, "spec": pod}


def server_container(model: Model, image: str, fetched_bytes: int) -> Object:
    """The container that runs `paceline serve` with everything that the resource says."""
    spec = model.spec
    return {
        "name": CONTAINER_SERVER,
        "image": image,
        "imagePullPolicy": spec.runtime.image_pull_policy,
        "args": arguments(model),
        "env": environment(model),
        "ports": [{"name": PORT_HTTP_NAME, "containerPort": PORT_HTTP, "protocol": "TCP"}],
        "resources": resources(spec.resources, spec.scheduling, fetched_bytes),
        "securityContext": weights.container_security(read_only_root=spec.runtime.read_only_root_filesystem),
        "volumeMounts": [
            *weights.mounts(list(spec.sources), read_only=True),
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "shared-memory", "mountPath": "/dev/shm"},
        ],
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(PRE_STOP_S)]}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        **probes(spec.startup_timeout_seconds),
    }


def arguments(model: Model) -> list[str]:
    """The command line of the runtime image, whose entry point is `paceline`."""
    spec, speculation = model.spec, model.spec.speculation
    line = ["serve", "--model", spec.target.path, "--served-model-name", model.served_model_name]
    line += ["--host", "0.0.0.0", "--port", str(PORT_HTTP), "--drain-timeout-s", str(spec.drain.seconds)]
    line += ["--speculative-algorithm", speculation.algorithm]
    if spec.draft:
        line += ["--speculative-draft-model-path", spec.draft.path]
    if speculation.depth is not None:
        line += ["--speculative-num-steps", str(speculation.depth)]
    if speculation.adaptive is not None:
        line += ["--speculative-adaptive"]
    return [*line, *spec.runtime.args]


def environment(model: Model) -> list[Object]:
    """The variables: libraries of the hub stay offline, writable paths are under /tmp, the API key is a reference."""
    named = {one["name"] for one in model.spec.runtime.env}
    own: list[Object] = [
        {"name": "HOME", "value": "/tmp"},
        {"name": "HF_HUB_OFFLINE", "value": "1"},
        {"name": "TRANSFORMERS_OFFLINE", "value": "1"},
    ]
    # CUDA images ask for every GPU of the node, and a container runtime for GPUs gives them to pods that were given none.
    if not (model.spec.resources.gpu.count or model.spec.scheduling.resource_claims or ENV_VISIBLE_DEVICES in named):
        own.append({"name": ENV_VISIBLE_DEVICES, "value": "void"})
    if model.spec.auth:
        ref = model.spec.auth.api_key_secret_ref
        key = {"name": ref.name, "key": ref.key or DEFAULT_API_KEY}
        own.append({"name": ENV_API_KEY, "valueFrom": {"secretKeyRef": key}})
    return [*own, *model.spec.runtime.env]


def probes(startup_timeout_s: int) -> Object:
    """The probes. One budget covers the start, and no other probe looks before the start is over, so none needs a delay."""
    ready = {"httpGet": {"path": PATH_READY, "port": PORT_HTTP_NAME}}
    live = {"httpGet": {"path": PATH_LIVE, "port": PORT_HTTP_NAME}}
    attempts = math.ceil(startup_timeout_s / STARTUP_PERIOD_S)
    return {
        "startupProbe": {**ready, "periodSeconds": STARTUP_PERIOD_S, "timeoutSeconds": 2, "failureThreshold": attempts},
        "readinessProbe": {**ready, "periodSeconds": 5, "timeoutSeconds": 3, "failureThreshold": 2},
        "livenessProbe": {**live, "periodSeconds": 10, "timeoutSeconds": 5, "failureThreshold": 3},
    }


def resources(wanted: Resources, scheduling: Scheduling, fetched_bytes: int) -> Object:
    """Requests and limits. Memory is capped at its request, the processor is not; GPUs cannot be overcommitted.

    A pod that downloads more than it asked for is the first that a full disk evicts, so a pod asks for what it fetches.
    """
    requests: Object = {"cpu": wanted.cpu, "memory": wanted.memory}
    limits: Object = {"memory": wanted.memory}
    if wanted.ephemeral_storage or fetched_bytes:
        requests["ephemeral-storage"] = wanted.ephemeral_storage or str(fetched_bytes + SMALL_FILES_BYTES)
    if wanted.gpu.count:
        requests[wanted.gpu.resource_name] = limits[wanted.gpu.resource_name] = str(wanted.gpu.count)
    claims = [{"name": claim["name"]} for claim in scheduling.resource_claims]
    return {"requests": requests, "limits": limits, **without_none(claims=claims)}


def scheduling(model: Model) -> Object:
    """The pod's placement. Spread constraints get the pods' own labels."""
    wanted = model.spec.scheduling
    spread: list[dict[str, Any]] = [
        {
            "topologyKey": one.topology_key,
            "maxSkew": one.max_skew,
            "whenUnsatisfiable": one.when_unsatisfiable,
            "labelSelector": {"matchLabels": model.selector},
        }
        for one in wanted.spread
    ]
    return without_none(
        nodeSelector=wanted.node_selector,
        tolerations=list(wanted.tolerations),
        affinity=wanted.affinity,
        topologySpreadConstraints=spread,
        priorityClassName=wanted.priority_class_name,
        runtimeClassName=wanted.runtime_class_name,
        schedulerName=wanted.scheduler_name,
        resourceClaims=list(wanted.resource_claims),
    )


def pod_security() -> Object:
    """What Pod Security `restricted` asks of a pod. The group makes a fresh claim writable for the fetch."""
    return {
        "runAsNonRoot": True,
        "runAsUser": POD_USER,
        "runAsGroup": POD_USER,
        "fsGroup": POD_USER,
        "fsGroupChangePolicy": "OnRootMismatch",
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _scratch(resources: Resources) -> list[Object]:
    return [
        {"name": "tmp", "emptyDir": {}},
        {"name": "shared-memory", "emptyDir": {"medium": "Memory", "sizeLimit": resources.shared_memory}},
    ]
