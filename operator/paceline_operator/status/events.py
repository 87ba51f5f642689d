"""Kubernetes Events out of conditions that turned. Pure; `reconcile` sends the Events."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from paceline_operator import names
from paceline_operator.status.status import Change

# With these reasons a condition is False on the way, or by somebody's will; every other reason makes a warning.
CALM = frozenset({"Inspecting", "Fetching", "NotDeployed", "Loading", "Settled", "Paused", "ScaledToZero"})
MAX_MESSAGE = 1000


def event(resource: dict[str, Any], change: Change, reporter: str, now: datetime) -> dict[str, Any]:
    """The Event of one change, about the model."""
    metadata = resource["metadata"]
    is_warning = change.status == "False" and change.reason not in CALM
    stamp = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{metadata['name']}.", "namespace": metadata["namespace"]},
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
