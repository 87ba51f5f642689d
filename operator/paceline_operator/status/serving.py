"""What the Deployment and its pods show, as verdicts for conditions. Pure; `status` uses it.

A Deployment's own word is not enough: with one replica and maxUnavailable 1 a Deployment without pods calls itself available.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple

from paceline_operator.observed.conditions import condition, is_true
from paceline_operator.observed.containers import ending, ending_of, looping
from paceline_operator.observed.pods import GATED, last_words, waiting
from paceline_operator.observed.warnings import Warnings
from paceline_operator.spec.model import Model

Object = dict[str, Any]


class Verdict(NamedTuple):
    """One condition's answer: `status` is True, False or Unknown."""

    status: str
    reason: str
    message: str


NO_DEPLOYMENT = Verdict("Unknown", "NotDeployed", "no pods are asked for yet")


def scheduled(model: Model, deployment: Object | None, pods: Sequence[Object], warnings: Warnings) -> Verdict:
    """Condition Scheduled: whether nodes take the pods, and if not, why in the scheduler's words.

    The scheduler does not look at a pod that is gated: somebody else, a queue perhaps, lets it go when its time has come.
    """
    if deployment is None:
        return NO_DEPLOYMENT
    refused = [one for pod in pods if (one := condition(pod, "PodScheduled")) and one["status"] == "False"]
    if refused:
        first = min(refused, key=lambda one: one.get("reason") == GATED)
        message = first.get("message", "no node takes the pod")
        if first.get("reason") == GATED:
            return Verdict("False", GATED, message)
        return Verdict("False", _scheduling_reason(message, model), warnings.with_claims(message))
    if not pods:
        return Verdict("Unknown", "NoPods", "the Deployment has no pods")
    return Verdict("True", "Scheduled", "every pod has a node")


def available(deployment: Object | None, pods: Sequence[Object], warnings: Warnings, now: datetime) -> Verdict:
    """Condition Available: at least one pod is available, however many the rollout allows to be missing.

    A pod in a crash loop is not, also while it answers for a moment: else the condition would turn with each crash.
    """
    if deployment is None:
        return Verdict("False", "NotDeployed", "no pods are asked for yet")
    loops = looping(pods, now)
    num_moments = sum(is_true(pod, "Ready") for pod in pods if pod["metadata"]["name"] in loops)
    num = deployment.get("status", {}).get("availableReplicas", 0) - num_moments
    if num > 0:
        return Verdict("True", "PodsAvailable", "1 pod answers" if num == 1 else f"{num} pods answer")
    if deployment["spec"].get("replicas") == 0:
        return Verdict("False", "ScaledToZero", "replicas is 0")
    if loops:
        return Verdict("False", "CrashLoopBackOff", ending(next(iter(loops.values()))))
    if stuck := waiting(pods, warnings):
        return Verdict("False", *stuck)
    if refused := _refused_pods(deployment):
        return refused
    # Evicted and rejected pods stay beside the one that took their place.
    if words := last_words(pods[-1:]):
        return Verdict("False", "PodFailed", words)
    crash = next(filter(None, map(ending_of, pods)), "")
    return Verdict("False", "Loading", f"no pod has finished loading{crash and f'; last end: {crash}'}")


def progressing(
    model: Model, deployment: Object | None, trouble: str, before_pods: Verdict | None, *, is_looping: bool = False
) -> Verdict:
    """Condition Progressing: True while pods are being replaced or added, False when settled or stuck.

    `before_pods` is what the Deployment still waits for: until then the Deployment shows what was asked for earlier.
    """
    if model.spec.paused:
        return Verdict("False", "Paused", "spec.paused is set: children are left as they are")
    if trouble:
        return Verdict("False", "ApplyFailed", trouble)
    if before_pods:
        return before_pods
    if deployment is None:
        return Verdict("True", "Deploying", "the Deployment is being made")
    if (stuck := condition(deployment, "Progressing")) and stuck["status"] == "False":
        return Verdict("False", stuck["reason"], stuck.get("message", ""))
    if refused := _refused_pods(deployment):
        return refused
    if is_rolled_out(deployment) and not is_looping:
        return Verdict("False", "Settled", "every pod runs what the resource asks for")
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    return Verdict("True", "RollingOut", f"{status.get('updatedReplicas', 0)} of {wanted} pods are up to date")


def is_rolled_out(deployment: Object) -> bool:
    """Whether all pods are of the newest template. Counts lag behind, so the newest generation has to be the observed one."""
    status, wanted = deployment.get("status", {}), deployment["spec"].get("replicas", 1)
    is_seen = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")}
    return is_seen and counts == {wanted}


def _refused_pods(deployment: Object) -> Verdict | None:
    """A verdict where a quota or a policy refuses the pods, of which only the Deployment hears."""
    failed = condition(deployment, "ReplicaFailure")
    if failed is None or failed["status"] != "True":
        return None
    return Verdict("False", failed["reason"], failed.get("message", ""))


def _scheduling_reason(message: str, model: Model) -> str:
    if f"Insufficient {model.spec.resources.gpu.resource_name}" in message:
        return "InsufficientGPU"
    if "persistentvolumeclaim" in message.lower():
        return "ClaimUnbound"
    return "Unschedulable"
