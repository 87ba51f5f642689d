"""The Job that reads both checkpoints' headers and says whether they fit. `desired` calls `inspect_job`.

The Job runs on the CPU from the operator's own image. It reads remote sources in ranges and mounts claims read-only. The
verdict is the pod's termination message (see `paceline_operator.inspect`).
"""

from __future__ import annotations

from paceline_operator.config import OperatorConfig
from paceline_operator.names import COMPONENT_INSPECT, CONTAINER_INSPECT, ENV_DRAFT_HUB_TOKEN, ENV_HUB_TOKEN, TERMINATION_LOG
from paceline_operator.objects import weights
from paceline_operator.objects.common import Object, without_none
from paceline_operator.objects.job import Retries, job
from paceline_operator.spec.model import Model
from paceline_operator.spec.source import Source, digest_of

BACKOFF_LIMIT = 3
# The deadline covers a pod that never schedules as well: the model says why, and another Job is made.
DEADLINE_S = 900


def inspect_key(model: Model) -> str:
    """Hash of everything that the verdict depends on."""
    speculation = model.spec.speculation
    locations = [source.location for source in model.spec.sources]
    return digest_of(*locations, speculation.algorithm, str(speculation.depth), str(model.spec.resources.gpu.count))


def job_name(model: Model) -> str:
    return f"{model.name}-inspect-{inspect_key(model)}"


def inspect_job(model: Model, config: OperatorConfig) -> Object:
    """The Job; its name carries the key, since a Job cannot change."""
    claims = [source for source in model.spec.sources if source.is_claim]
    container = {
        "name": CONTAINER_INSPECT,
        "image": config.operator_image,
        "imagePullPolicy": config.image_pull_policy,
        "command": ["python", "-m", "paceline_operator.inspect"],
        "args": arguments(model),
        "env": _environment(model, config),
        "volumeMounts": [*weights.mounts(claims, read_only=True), {"name": "tmp", "mountPath": "/tmp"}],
        "resources": {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "512Mi"}},
        "securityContext": weights.container_security(read_only_root=True),
        "terminationMessagePath": TERMINATION_LOG,
        "terminationMessagePolicy": "File",
    }
    volumes = [*weights.volumes(model, claims, read_only=True), {"name": "tmp", "emptyDir": {}}]
    secrets = list(model.spec.runtime.image_pull_secrets)
    pod = {"containers": [container], "volumes": volumes, **without_none(imagePullSecrets=secrets)}
    name = job_name(model)
    return job(model, COMPONENT_INSPECT, name, pod, Retries(BACKOFF_LIMIT, deadline_s=DEADLINE_S))


def arguments(model: Model) -> list[str]:
    """The command line: where the pod finds each checkpoint, and what speculation is asked for."""
    speculation = model.spec.speculation
    line = ["--algorithm", speculation.algorithm, "--num-gpus", str(model.spec.resources.gpu.count)]
    for source in model.spec.sources:
        line += [f"--{source.role}", location_in_pod(source)]
    if speculation.depth is not None:
        line += ["--num-steps", str(speculation.depth)]
    return line


def location_in_pod(source: Source) -> str:
    """A claim's mounted folder, else the URI itself without its digest, which only a fetch can check."""
    return source.path if source.is_claim else source.location.partition("#")[0]


def _environment(model: Model, config: OperatorConfig) -> list[Object]:
    """Both sources' variables. Where the tokens lie in different Secrets, the draft's token has a variable of its own."""
    found: dict[str, Object] = {}
    for source in model.spec.sources:
        for variable in weights.source_environment(source, config) if source.scheme == "hf" else ():
            name = variable["name"]
            if name == ENV_HUB_TOKEN and found.get(name, variable) != variable:
                name = ENV_DRAFT_HUB_TOKEN
            found[name] = {**variable, "name": name}
    return list(found.values())
