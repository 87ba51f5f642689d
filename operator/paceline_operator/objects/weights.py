"""How checkpoints get into a pod: claims mounted read-only, a cache claim, or a fetch into an emptyDir.

The builders of the Deployment and of both Jobs use it. It says what to mount and which command fetches, and fetches nothing.
"""

from __future__ import annotations

from paceline_operator.config import OperatorConfig
from paceline_operator.names import (
    CONTAINER_FETCH,
    ENV_HUB_ENDPOINT,
    ENV_HUB_TOKEN,
    MOUNT_CLAIMS,
    MOUNT_WEIGHTS,
    VOLUME_WEIGHTS,
)
from paceline_operator.objects.common import Object, without_none
from paceline_operator.spec.model import Model
from paceline_operator.spec.source import Source

# The variables that `paceline fetch` reads, and whether a source's Secret may leave them out.
SECRET_KEYS = {
    "hf": {ENV_HUB_TOKEN: False},
    "s3": {
        "AWS_ACCESS_KEY_ID": False,
        "AWS_SECRET_ACCESS_KEY": False,
        "AWS_SESSION_TOKEN": True,
        "AWS_REGION": True,
        "AWS_ENDPOINT_URL": True,
    },
}
# Where the operator's settings have a variable too, the Secret's value has the name that the fetch reads first.
PREFERRED_NAMES = {"AWS_ENDPOINT_URL": "AWS_ENDPOINT_URL_S3"}
REGISTRY_FOLDER = "/registry-credentials"


def cache_claim(model: Model) -> str:
    """Name of the claim that `spec.cache` makes."""
    return f"{model.name}-cache"


def fetched(model: Model) -> list[Source]:
    """The sources that have to be downloaded."""
    return [source for source in model.spec.sources if not source.is_claim]


def volumes(model: Model, sources: list[Source], *, read_only: bool) -> list[Object]:
    """Volumes for these sources: one for each claim, and one for all that is fetched."""
    found: list[Object] = [
        {"name": name, "persistentVolumeClaim": {"claimName": claim, "readOnly": True}}
        for claim, name in _claim_volumes(sources).items()
    ]
    if any(not source.is_claim for source in sources):
        claim = {"claimName": cache_claim(model), **({"readOnly": True} if read_only else {})}
        found.append(
            {"name": VOLUME_WEIGHTS, "persistentVolumeClaim": claim}
            if model.spec.cache
            else {"name": VOLUME_WEIGHTS, "emptyDir": {}}
        )
    return found + registry_volumes(sources)


def _claim_volumes(sources: list[Source]) -> dict[str, str]:
    """Claim -> its volume, named after the first source that lies on it.

    Two volumes of one claim leave a pod in ContainerCreating for ever: kubernetes/kubernetes#127004.
    """
    found: dict[str, str] = {}
    for source in sources:
        if source.is_claim:
            found.setdefault(source.claim_name, source.role)
    return found


def mounts(sources: list[Source], *, read_only: bool) -> list[Object]:
    """Mounts of `volumes` in one container. A source's claim is never writable."""
    names = _claim_volumes(sources)
    found: list[Object] = [
        {"name": names[source.claim_name], "mountPath": f"{MOUNT_CLAIMS}/{source.role}", "readOnly": True}
        for source in sources
        if source.is_claim
    ]
    if any(not source.is_claim for source in sources):
        found.append({"name": VOLUME_WEIGHTS, "mountPath": MOUNT_WEIGHTS, **({"readOnly": True} if read_only else {})})
    return found


def fetch_container(source: Source, config: OperatorConfig, image: str, pull_policy: str) -> Object:
    """A container that fetches one source into its folder. A fetch resumes what an earlier run left there."""
    revision = ["--revision", source.revision] if source.revision else []
    return {
        "name": f"{CONTAINER_FETCH}-{source.role}",
        "image": image,
        "imagePullPolicy": pull_policy,
        "args": ["fetch", source.uri, source.folder, *revision],
        "env": source_environment(source, config),
        "volumeMounts": [*mounts([source], read_only=False), *_registry_mounts(source), {"name": "tmp", "mountPath": "/tmp"}],
        "resources": {"requests": {"cpu": "500m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": container_security(read_only_root=True),
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def source_environment(source: Source, config: OperatorConfig) -> list[Object]:
    """Addresses come from the operator's settings unless the source's Secret has its own; credentials are references to it."""
    plain = {
        "hf": {ENV_HUB_ENDPOINT: config.hub_endpoint},
        "s3": {"AWS_ENDPOINT_URL": config.s3_endpoint, "AWS_DEFAULT_REGION": config.s3_region},
        "oci": {"DOCKER_CONFIG": REGISTRY_FOLDER if source.secret_ref else ""},
    }.get(source.scheme, {})
    given = {name: value for name, value in plain.items() if value}
    found: list[Object] = [{"name": "HOME", "value": "/tmp"}]
    found += [{"name": name, "value": value} for name, value in given.items()]
    if source.secret_ref:
        found += [
            {
                "name": PREFERRED_NAMES[key] if key in given else key,
                "valueFrom": {"secretKeyRef": _key_ref(source.secret_ref.name, key, optional)},
            }
            for key, optional in SECRET_KEYS.get(source.scheme, {}).items()
        ]
    return found


def _key_ref(name: str, key: str, optional: bool) -> Object:
    return without_none(name=name, key=key, optional=optional or None)


def registry_volumes(sources: list[Source]) -> list[Object]:
    """Volumes of registry credentials: a file with the Secret's .dockerconfigjson, under the name that clients look for."""
    items = [{"key": ".dockerconfigjson", "path": "config.json"}]
    return [
        {"name": f"{source.role}-registry", "secret": {"secretName": source.secret_ref.name, "items": items}}
        for source in sources
        if source.scheme == "oci" and source.secret_ref
    ]


def _registry_mounts(source: Source) -> list[Object]:
    if source.scheme != "oci" or source.secret_ref is None:
        return []
    return [{"name": f"{source.role}-registry", "mountPath": REGISTRY_FOLDER, "readOnly": True}]


def container_security(*, read_only_root: bool) -> Object:
    """What Pod Security `restricted` asks of a container, and a read-only root."""
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": read_only_root,
        "capabilities": {"drop": ["ALL"]},
    }
