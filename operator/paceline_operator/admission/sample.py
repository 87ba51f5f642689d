"""Admission reviews that the operator sends to itself: for `/readyz` and for `helm test`."""

from __future__ import annotations

import uuid
from typing import Any

from paceline_operator import names

# The path of the webhook, in the chart too.
WEBHOOK_ID = "validate"
# No user can have this name: the API server fills in who made a request.
PROBE_USER = "paceline.dev:probe"


def sample_review(uri: str) -> dict[str, Any]:
    """A request to review a new model with this target."""
    resource = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": "probe", "namespace": "probe", "uid": str(uuid.uuid4())},
        "spec": {"target": {"uri": uri}},
    }
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": str(uuid.uuid4()),
            "operation": "CREATE",
            "userInfo": {"username": PROBE_USER},
            "resource": {"group": names.GROUP, "version": names.VERSION, "resource": names.PLURAL},
            "kind": {"group": names.GROUP, "version": names.VERSION, "kind": names.KIND},
            "object": resource,
        },
    }
