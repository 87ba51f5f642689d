"""A SpeculativeModel as frozen values: parsed from the API server's JSON, checked for what the CRD cannot check.

`reconcile` and `admission` call `parse`. The CRD guarantees shapes, bounds and its CEL rules; `parse` still refuses what does
not fit, since a resource may be older than its CRD.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from paceline_operator.errors import Problem, SpecError
from paceline_operator.names import LABEL_COMPONENT, LABEL_MODEL
from paceline_operator.spec.fields import (
    Auth,
    Autoscaling,
    Cache,
    Disruption,
    Drain,
    Metrics,
    NetworkPolicy,
    Resources,
    Rollout,
    Runtime,
    Scheduling,
    Service,
    Speculation,
    Value,
)
from paceline_operator.spec.source import Draft, Source, Target

ALGORITHMS_WITH_DRAFT = frozenset({"dflash"})
RESERVED_LABELS = frozenset({LABEL_MODEL, LABEL_COMPONENT})


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
    def fewest_pods(self) -> int:
        """The number of pods that there are at least, when nothing is wrong."""
        if self.autoscaling:
            return self.autoscaling.min_replicas
        return 1 if self.replicas is None else self.replicas

    @property
    def num_replicas(self) -> int | None:
        """Pods wanted, or None where an autoscaler decides."""
        if self.autoscaling:
            return None
        return 1 if self.replicas is None else self.replicas


class Model(Value, frozen=True):
    """A SpeculativeModel: its identity, and what it asks for."""

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
    """The problems that neither the schema nor CEL can find: fields against each other and against Kubernetes."""
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
