"""What both Jobs have in common: no GPU, restricted, retried, cleaned up. `inspect` and `cache` call `job`."""

from __future__ import annotations

from paceline_operator.objects.common import Object, child, labels, without_none
from paceline_operator.objects.pod import pod_security
from paceline_operator.spec.model import Model

# Long enough to read the Job's logs; the verdict lives on in the model's status.
TTL_S = 3600


def job(
    model: Model,
    component: str,
    name: str,
    pod: Object,
    *,
    backoff_limit: int,
    deadline_s: int | None = None,
    final_exit_codes: tuple[int, ...] = (),
) -> Object:
    """A Job around a pod spec.

    A pod that is evicted or preempted does not count as a failure; `final_exit_codes` are failures that no retry mends.
    """
    rules: list[Object] = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}]
    if final_exit_codes:
        rules.append({"action": "FailJob", "onExitCodes": {"operator": "In", "values": list(final_exit_codes)}})
    spec = {
        "backoffLimit": backoff_limit,
        "ttlSecondsAfterFinished": TTL_S,
        **without_none(activeDeadlineSeconds=deadline_s),
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
    return child(model, "batch/v1", "Job", component, {"spec": spec}, name=name)


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
