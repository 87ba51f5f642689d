"""Kubernetes Events out of conditions that turned. Pure; `herald` sends the Events.

An Event's name is made of what it tells: what is told again counts up the Event that is there.
"""

from __future__ import annotations

import hashlib
from datetime import datetime
from typing import Any

from paceline_operator import names
from paceline_operator.status.readiness import CALM
from paceline_operator.status.status import Change

MAX_MESSAGE = 1000


def event(resource: dict[str, Any], change: Change, reporter: str, now: datetime) -> dict[str, Any]:
    """The Event of one change, about the model, as it is told for the first time."""
    metadata = resource["metadata"]
    is_warning = change.status == "False" and change.reason not in CALM
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": f"{metadata['name']}.{_digest(resource, change)}", "namespace": metadata["namespace"]},
        "involvedObject": {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "name": metadata["name"],
            "namespace": metadata["namespace"],
            "uid": metadata.get("uid", ""),
        },
        "type": "Warning" if is_warning else "Normal",
        "reason": change.reason,
        "message": f"{change.type} is {change.status}: {change.message}"[:MAX_MESSAGE],
        "source": {"component": names.FIELD_MANAGER, "host": reporter},
        "firstTimestamp": stamp,
        "lastTimestamp": stamp,
        "count": 1,
    }


def again(first: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """The change of a known Event that tells of the same once more: a merge patch."""
    newest = {name: first[name] for name in ("message", "lastTimestamp", "source")}
    return {**newest, "count": (known.get("count") or 1) + 1}


def _digest(resource: dict[str, Any], change: Change) -> str:
    told = (resource["metadata"].get("uid", ""), change.type, change.status, change.reason)
    return hashlib.sha256("\0".join(told).encode()).hexdigest()[:16]
