"""The kinds that the operator makes or watches, with their places in the API. The module knows no objects."""

from __future__ import annotations

from dataclasses import dataclass

from paceline_operator import names


@dataclass(frozen=True)
class Kind:
    """One kind: `plural` as in the URL; `is_optional` where a cluster may not know it."""

    api_version: str
    kind: str
    plural: str
    is_optional: bool = False

    @property
    def group(self) -> str:
        return self.api_version.rpartition("/")[0]

    @property
    def version(self) -> str:
        return self.api_version.rpartition("/")[2]


MODEL = Kind(names.API_VERSION, names.KIND, names.PLURAL)
POD = Kind("v1", "Pod", "pods")
REPLICA_SET = Kind("apps/v1", "ReplicaSet", "replicasets")
EVENT = Kind("v1", "Event", "events")
JOB = Kind("batch/v1", "Job", "jobs")
CHILDREN = (
    JOB,
    Kind("v1", "PersistentVolumeClaim", "persistentvolumeclaims"),
    Kind("apps/v1", "Deployment", "deployments"),
    Kind("v1", "Service", "services"),
    Kind("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets"),
    Kind("networking.k8s.io/v1", "NetworkPolicy", "networkpolicies"),
    Kind("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers"),
    Kind("keda.sh/v1alpha1", "ScaledObject", "scaledobjects", is_optional=True),
    Kind("monitoring.coreos.com/v1", "PodMonitor", "podmonitors", is_optional=True),
)
# These are watched by the managed-by label. Optional kinds are only listed again: a watch of an absent kind fails.
WATCHED = (POD, REPLICA_SET, *(kind for kind in CHILDREN if not kind.is_optional))
OPTIONAL = tuple(kind for kind in CHILDREN if kind.is_optional)
BY_NAME = {kind.kind: kind for kind in (MODEL, POD, REPLICA_SET, *CHILDREN)}
