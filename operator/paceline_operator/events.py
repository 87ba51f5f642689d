"""Kubernetes Events out of conditions that turned. Pure; `reconcile` sends them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from paceline_operator import names
from paceline_operator.status import Change

# What is a warning when its condition is False; Progressing False is how a rollout ends well.
ALARMING = frozenset({names.ACCEPTED, names.COMPATIBLE, names.SCHEDULED, names.ACCEPTANCE_HEALTHY})
MAX_MESSAGE = 1000


def event(resource: dict[str, Any], change: Change, reporter: str, now: datetime) -> dict[str, Any]:
    """The Event of one change, about the model."""
    metadata = resource["metadata"]
    is_warning = (change.status == "False" and change.type in ALARMING) or change.reason.endswith("Failed")
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
