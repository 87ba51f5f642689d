"""A SpeculativeModel as frozen values: parsed from the API server's JSON, checked for what the CRD cannot check.

Called by `reconcile` and `admission`. The CRD already guarantees shapes, bounds and its CEL rules; parsing still refuses
what does not fit, since a resource may be older than its CRD. Nothing here does I/O or knows of children.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from paceline_operator.errors import Problem, SpecError
from paceline_operator.names import LABEL_COMPONENT, LABEL_MODEL
from paceline_operator.source import Draft, SecretRef, Source, Target

ALGORITHMS_WITH_DRAFT = frozenset({"dflash"})
RESERVED_LABELS = frozenset({LABEL_MODEL, LABEL_COMPONENT})


class Value(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the spec's values: JSON names are camelCase, unknown fields are a newer CRD's and ignored."""


class Adaptive(Value, frozen=True):
    max_steps: int | None = None


class Speculation(Value, frozen=True):
    """`num_steps` and `adaptive` exclude each other; with neither, the runtime's default depth."""

    algorithm: str = "off"
    num_steps: int | None = None
    adaptive: Adaptive | None = None

    @property
    def depth(self) -> int | None:
        """The most tokens that are drafted a step, when the resource says so."""
        return self.adaptive.max_steps if self.adaptive else self.num_steps


class Keda(Value, frozen=True):
    prometheus_address: str


class Autoscaling(Value, frozen=True):
    max_replicas: int
    min_replicas: int = 1
    metric: str = "WaitingRequests"
    target: int = 4
    keda: Keda | None = None


class Gpu(Value, frozen=True):
    resource_name: str = "nvidia.com/gpu"
    count: int = 1


class Resources(Value, frozen=True):
    gpu: Gpu = Gpu()
    cpu: str = "2"
    memory: str = "8Gi"
    ephemeral_storage: str | None = None
    shared_memory: str = "1Gi"


class Spread(Value, frozen=True):
    topology_key: str
    max_skew: int = 1
    when_unsatisfiable: str = "ScheduleAnyway"


class Scheduling(Value, frozen=True):
    """Passed on to the pod as it is; `spread` gets the pods' labels."""

    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    affinity: dict[str, Any] = {}
    spread: tuple[Spread, ...] = ()
    priority_class_name: str | None = None
    runtime_class_name: str | None = None
    scheduler_name: str | None = None
    resource_claims: tuple[dict[str, Any], ...] = ()


class Cache(Value, frozen=True):
    size: str
    storage_class_name: str | None = None
    access_modes: tuple[str, ...] = ("ReadWriteMany",)
    retain: bool = False


class Runtime(Value, frozen=True):
    image: str | None = None
    image_pull_policy: str = "IfNotPresent"
    image_pull_secrets: tuple[dict[str, str], ...] = ()
    args: tuple[str, ...] = ()
    env: tuple[dict[str, Any], ...] = ()
    read_only_root_filesystem: bool = True


class Rollout(Value, frozen=True):
    strategy: str = "RollingUpdate"
    max_surge: int = 0
    max_unavailable: int = 1
    min_ready_seconds: int = 0


class Service(Value, frozen=True):
    port: int = 8000
    annotations: dict[str, str] = {}


class NetworkPolicy(Value, frozen=True):
    enabled: bool = False
    from_namespaces: tuple[str, ...] = ()


class Auth(Value, frozen=True):
    api_key_secret_ref: SecretRef


class PodMonitor(Value, frozen=True):
    enabled: bool = False
    interval: str = "30s"
    labels: dict[str, str] = {}


class Metrics(Value, frozen=True):
    pod_monitor: PodMonitor = PodMonitor()


class Disruption(Value, frozen=True):
    min_available: int | None = None
    max_unavailable: int | None = None


class Drain(Value, frozen=True):
    seconds: int = 60


class ModelSpec(Value, frozen=True):
    """`.spec` of a SpeculativeModel, defaults as in the CRD."""

    target: Target
    draft: Draft | None = None
    speculation: Speculation = Speculation()
    served_model_name: str | None = None
    replicas: int | None = None
    autoscaling: Autoscaling | None = None
    resources: Resources = Resources()
    scheduling: Scheduling = Scheduling()
    cache: Cache | None = None
    runtime: Runtime = Runtime()
    rollout: Rollout = Rollout()
    startup_timeout_seconds: int = 1800
    service: Service = Service()
    network_policy: NetworkPolicy = NetworkPolicy()
    auth: Auth | None = None
    metrics: Metrics = Metrics()
    disruption: Disruption = Disruption()
    drain: Drain = Drain()
    paused: bool = False

    @property
    def sources(self) -> tuple[Source, ...]:
        """Target first, then the draft if there is one."""
        return (self.target, self.draft) if self.draft else (self.target,)

    @property
    def num_replicas(self) -> int | None:
        """Pods wanted, or None where an autoscaler decides."""
        if self.autoscaling:
            return None
        return 1 if self.replicas is None else self.replicas


class Model(Value, frozen=True):
    """A SpeculativeModel: who it is, and what it asks for."""

    name: str
    namespace: str
    uid: str
    generation: int
    spec: ModelSpec

    @property
    def served_model_name(self) -> str:
        return self.spec.served_model_name or self.name

    @property
    def selector(self) -> dict[str, str]:
        """The frozen two labels of the serving pods."""
        return {LABEL_MODEL: self.name, LABEL_COMPONENT: "server"}


def parse(resource: Mapping[str, Any]) -> Model:
    """The resource as a Model. Raises SpecError with every problem that is known."""
    metadata = resource["metadata"]
    try:
        spec = msgspec.convert(resource.get("spec", {}), ModelSpec)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `$")
        raise SpecError([Problem("spec" + path.rstrip("`"), message)]) from error
    if problems := check(spec):
        raise SpecError(problems)
    return Model(
        name=metadata["name"],
        namespace=metadata["namespace"],
        uid=metadata.get("uid", ""),
        generation=metadata.get("generation", 0),
        spec=spec,
    )


def check(spec: ModelSpec) -> list[Problem]:
    """What cannot work and neither the schema nor CEL can say: fields against each other and against Kubernetes."""
    problems = [problem for source in spec.sources for problem in source.problems()]
    if spec.speculation.algorithm in ALGORITHMS_WITH_DRAFT and spec.draft is None:
        problems.append(Problem("spec.draft", f"speculation.algorithm {spec.speculation.algorithm} needs draft.uri"))
    claims = [claim["name"] for claim in spec.scheduling.resource_claims]
    if claims and spec.resources.gpu.count:
        problems.append(Problem("spec.resources.gpu.count", "must be 0 with scheduling.resourceClaims: else both ask for GPUs"))
    for i, spread in enumerate(spec.scheduling.spread):
        if spread.topology_key in RESERVED_LABELS:
            problems.append(Problem(f"spec.scheduling.spread[{i}].topologyKey", "must be a label of nodes"))
    return problems
