"""Probes and metrics: is the process alive, does it want requests, what has it done. Open to everyone.

`app` mounts them. `/livez` fails only when a restart is the remedy; loading and draining are `/readyz`'s business.
"""

from __future__ import annotations

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST

from paceline_runtime.server.http.responses import json_response
from paceline_runtime.server.service import Service


def health_router(service: Service) -> APIRouter:
    """The routes that Kubernetes and Prometheus ask."""
    router = APIRouter()

    @router.get("/livez")
    async def livez() -> Response:
        failure = service.client.failure
        return json_response(
            {"status": "failed", "error": failure} if failure else {"status": "alive"}, 503 if failure else 200
        )

    @router.get("/readyz")
    async def readyz() -> Response:
        is_ready, detail = service.readiness()
        return json_response(detail, 200 if is_ready else 503)

    @router.get("/metrics")
    async def metrics() -> Response:
        service.metrics.loading.set(service.fraction)
        return Response(service.metrics.render(), media_type=CONTENT_TYPE_LATEST)

    return router
