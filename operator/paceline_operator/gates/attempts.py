"""How far a Job has come, whatever it does: `inspection` and `caching` tell it under reasons of their own. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from paceline_operator.observed.conditions import condition
from paceline_operator.observed.containers import ending_of, is_held, own_end
from paceline_operator.observed.pods import last_words, no_pod, waiting
from paceline_operator.observed.times import instant
from paceline_operator.observed.waits import STALL_S, newest_of, stalled
from paceline_operator.observed.warnings import Warnings

Object = dict[str, Any]
FAILED, RETRYING, RUNNING = "Failed", "Retrying", ""


@dataclass(frozen=True)
class Attempt:
    """`state` is FAILED, RETRYING, RUNNING or the reason of a wait; `failed_at` is set when another Job is needed."""

    state: str
    message: str
    failed_at: str | None = None


def attempt(
    job: Object | None, pods: Sequence[Object], warnings: Warnings, before: Mapping[str, Any], now: datetime
) -> Attempt:
    """What a Job that has no result yet is about. `before` is the condition that told of the Job until now."""
    if failed := condition(job, "Failed"):
        why = last_words(pods) or _last_said(failed.get("message") or failed.get("reason", ""), before)
        return Attempt(FAILED, why, failed.get("lastTransitionTime", ""))
    held = [pod for pod in pods if is_held(pod)]
    if held and (end := own_end(held[-1])) and end.get("exitCode"):
        # The pod never ends, so its Job never tries again: containers of others go on.
        return Attempt(FAILED, ending_of(held[-1]), end.get("finishedAt") or "")
    said = _said(pods, job, warnings)
    # A pod that says nothing is under way: a large image takes long to come.
    if job and said.state != RUNNING and stalled(job, pods, now):
        name, minutes = job["metadata"]["name"], round(STALL_S / 60)
        message = f"nothing of Job {name} has started for {minutes} minutes; last: {said.message or 'no word'}"
        made_at = instant(newest_of(job, pods)["metadata"].get("creationTimestamp"))
        return Attempt(FAILED, message, (made_at + timedelta(seconds=STALL_S)).isoformat() if made_at else "")
    return said


def _said(pods: Sequence[Object], job: Object | None, warnings: Warnings) -> Attempt:
    if stuck := waiting(pods, warnings) or no_pod(job, pods, warnings):
        return Attempt(*stuck)
    if words := last_words(pods):
        return Attempt(RETRYING, words)
    return Attempt(RUNNING, "")


def _last_said(message: str, before: Mapping[str, Any]) -> str:
    """A deadline says nothing of what was waited for: the condition did, until now."""
    if before.get("reason", "").endswith(FAILED):
        return str(before.get("message", message))
    return f"{message}; last: {before['message']}" if before.get("message") else message
