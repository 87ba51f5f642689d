"""What containers say of their ends: which one ended, why, how often, and the line that tells. Pure; `pods` uses it.

A pod may hold containers of others (a mesh's proxy) that never end: what became of a Job's attempt is read from our own ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from paceline_operator.names import CONTAINER_FETCH, CONTAINER_INSPECT, CONTAINER_SERVER
from paceline_operator.observed.conditions import condition
from paceline_operator.observed.times import instant, seconds_since

Object = dict[str, Any]
OWN = frozenset({CONTAINER_SERVER, CONTAINER_INSPECT, f"{CONTAINER_FETCH}-target", f"{CONTAINER_FETCH}-draft"})
# From so many restarts on a container is in a crash loop, unless its last run was longer than that.
RESTARTS_OF_LOOP = 2
LONG_RUN_S = 600.0
# A pod that has been ready for so long has left its crash loop.
CALM_S = 60.0
MAX_LINE = 500
TELLING = re.compile(r"(error|exception)\b|\b(fatal|panic|failed|failure|cannot|refused|denied|no such)\b", re.IGNORECASE)


def container_statuses(pod: Object) -> list[Object]:
    """The statuses of init containers and containers alike, our own ones first."""
    status = pod.get("status", {})
    found = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    return sorted(found, key=lambda one: one["name"] not in OWN)


def own_end(pod: Object, num_containers: int = 1) -> Object | None:
    """The end of our own part of a Job's pod: of the container that failed, else of the last; None while one has not ended."""
    own = [one for one in container_statuses(pod) if one["name"] in OWN]
    ends = [end for one in own if (end := (one.get("state") or {}).get("terminated"))]
    if len(own) < num_containers or len(ends) < len(own):
        return None
    return max(ends, key=lambda end: (bool(end.get("exitCode")), end.get("finishedAt") or ""), default=None)


def is_held(pod: Object) -> bool:
    """Whether containers of others keep a Job's pod from ending: the Job would wait for ever."""
    others = [one for one in container_statuses(pod) if one["name"] not in OWN]
    is_running = any((one.get("state") or {}).get("running") is not None for one in others)
    return is_running and own_end(pod) is not None


def has_started(pod: Object) -> bool:
    """Whether any container of the pod runs or ran."""
    return any(set(one.get("state") or {}) & {"running", "terminated"} for one in container_statuses(pod))


def looping(pods: Iterable[Object], now: datetime) -> dict[str, Object]:
    """Pods in a crash loop, by name, each with the container that crashes."""
    found = {}
    for pod in pods:
        crashing = [one for one in container_statuses(pod) if _loops(one)]
        if crashing and not _is_calm(pod, now):
            found[pod["metadata"]["name"]] = crashing[0]
    return found


def ending_of(pod: Object) -> str:
    """How the pod's first container that failed ended; empty when none did."""
    return next(filter(None, map(ending, container_statuses(pod))), "")


def ending(status: Object) -> str:
    """How a container ended last, in one line; empty for one that never failed."""
    ended = _last_end(status)
    if not _is_failure(ended):
        return ""
    facts = [ended["reason"]] if ended.get("reason") not in (None, "", "Error") else []
    facts += [f"exit code {ended['exitCode']}"] if "exitCode" in ended else []
    if restarts := status.get("restartCount", 0):
        facts.append("1 restart" if restarts == 1 else f"{restarts} restarts")
    line = telling_line(str(ended.get("message") or ""))
    return ": ".join(part for part in (status["name"], ", ".join(facts), line) if part)


def telling_line(text: str) -> str:
    """The line of a program's last words that tells the error: the last one that speaks of one, else the last."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if len(lines) < 2:
        return "".join(lines)
    telling = [line for line in lines if TELLING.search(line)]
    line = (telling or lines)[-1]
    return line if len(line) <= MAX_LINE else f"{line[: MAX_LINE - 1]}…"


def _loops(status: Object) -> bool:
    ended = _last_end(status)
    return _is_failure(ended) and status.get("restartCount", 0) >= RESTARTS_OF_LOOP and _ran_s(ended) < LONG_RUN_S


def _is_failure(ended: Object) -> bool:
    return bool(ended) and ended.get("exitCode") != 0


def _last_end(status: Object) -> Object:
    """The present end of a container, else that of its run before."""
    for state in (status.get("state"), status.get("lastState")):
        if ended := (state or {}).get("terminated"):
            return dict(ended)
    return {}


def _ran_s(ended: Object) -> float:
    """0 where the times are not known."""
    finished = instant(ended.get("finishedAt"))
    return seconds_since(ended.get("startedAt"), finished) if finished else 0.0


def _is_calm(pod: Object, now: datetime) -> bool:
    ready = condition(pod, "Ready") or {}
    return ready.get("status") == "True" and seconds_since(ready.get("lastTransitionTime"), now) >= CALM_S
