"""The parts of a SpeculativeModel's spec as frozen values, defaults as in the CRD. `model` puts them together."""

from __future__ import annotations

from typing import Any

import msgspec

from paceline_operator.spec.source import SecretRef


class Value(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Base of the spec's values: JSON names are camelCase, and unknown fields, which a newer CRD has, are ignored."""


class Adaptive(Value, frozen=True):
    max_steps: int | None = None


class Speculation(Value, frozen=True):
    """`num_steps` and `adaptive` exclude each other; with neither, the runtime chooses the depth."""

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
    """The pod gets these fields as they are; `spread` gets the pods' labels."""

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
