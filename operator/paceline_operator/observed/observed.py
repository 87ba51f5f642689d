"""What exists of one model, as the API server last said: the model's children, and the pods that the children made.

`store` makes an `Observed`, and the pure parts read it. An object that only carries the model's labels is not in it: see
`ownership`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline_operator.observed.ownership import has_owner, is_child
from paceline_operator.observed.warnings import Warnings

Object = dict[str, Any]
MADE_BY_CHILDREN = frozenset({"Pod", "ReplicaSet"})


@dataclass(frozen=True)
class Observed:
    """Children by (kind, name), the Deployment's pods, and the Jobs' pods by the name of the Job. Pods come oldest first.

    `warnings` are about those of them that do not say themselves why they wait.
    """

    children: Mapping[tuple[str, str], Object] = field(default_factory=dict)
    serving_pods: Sequence[Object] = ()
    job_pods: Mapping[str, Sequence[Object]] = field(default_factory=dict)
    warnings: Warnings = field(default_factory=Warnings)

    def get(self, kind: str, name: str) -> Object | None:
        return self.children.get((kind, name))

    def pods_of_job(self, name: str) -> Sequence[Object]:
        return self.job_pods.get(name, ())


def observe(objects: Iterable[Object], uid: str) -> Observed:
    """What belongs to the model with this uid, out of all objects that carry its labels.

    A pod's owner is a child: a Job, or the Deployment by way of a ReplicaSet.
    """
    found = sorted(objects, key=lambda one: str(one["metadata"].get("creationTimestamp", "")))
    children = [one for one in found if one["kind"] not in MADE_BY_CHILDREN and is_child(one, uid)]
    jobs = {one["metadata"]["name"]: _owned(found, "Pod", [one]) for one in children if one["kind"] == "Job"}
    sets = _owned(found, "ReplicaSet", [one for one in children if one["kind"] == "Deployment"])
    by_place = {(one["kind"], one["metadata"]["name"]): one for one in children}
    return Observed(by_place, _owned(found, "Pod", sets), jobs)


def _owned(objects: Iterable[Object], kind: str, owners: Iterable[Object]) -> list[Object]:
    uids = {owner["metadata"]["uid"] for owner in owners}
    return [one for one in objects if one["kind"] == kind and has_owner(one, uids)]
