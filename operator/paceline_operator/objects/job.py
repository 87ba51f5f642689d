"""What both Jobs have in common: no GPU, restricted, retried, cleaned up. `inspect` and `cache` call `job`."""

from __future__ import annotations

from dataclasses import dataclass

from paceline_operator.objects.common import Object, child, labels, without_none
from paceline_operator.objects.pod import pod_security
from paceline_operator.spec.model import Model

# Long enough to read the Job's logs; the verdict lives on in the model's status.
TTL_S = 3600


@dataclass(frozen=True)
class Retries:
    """How often and how long a Job tries; no retry mends a failure with one of `final_exit_codes`."""

    backoff_limit: int
    deadline_s: int | None = None
    final_exit_codes: tuple[int, ...] = ()


def job(model: Model, component: str, name: str, pod: Object, retries: Retries) -> Object:
    """A Job around a pod spec. A pod that is evicted or preempted does not count as a failure."""
    rules: list[Object] = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    if retries.final_exit_codes:
        rules.append({"action": "FailJob", "onExitCodes": {"operator": "In", "values": list(retries.final_exit_codes)}})
    spec = {
        "backoffLimit": retries.backoff_limit,
        "ttlSecondsAfterFinished": TTL_S,
        **without_none(activeDeadlineSeconds=retries.deadline_s),
        "podFailurePolicy": {"rules": rules},
        "template": {
            "metadata": {"labels": labels(model, component)},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "enableServiceLinks": False,
                "securityContext": pod_security(),
                **placement(model),
                **pod,
            },
        },
    }
    return child(model, component, {"apiVersion": "batch/v1", "kind": "Job", "spec": spec}, name=name)


def placement(model: Model) -> Object:
    """Where a Job's pod may run: where the serving pods may.

    The pod may be the first to use a claim, and a volume of a zone stays in the zone of its first pod. What keeps serving
    pods apart (spread, anti-affinity) is left out: beside one of them a Job's pod would wait for ever.
    """
    wanted = model.spec.scheduling
    return without_none(
        nodeSelector=wanted.node_selector,
        tolerations=list(wanted.tolerations),
        affinity={name: rule for name, rule in wanted.affinity.items() if name != "podAntiAffinity"},
        priorityClassName=wanted.priority_class_name,
        schedulerName=wanted.scheduler_name,
    )
