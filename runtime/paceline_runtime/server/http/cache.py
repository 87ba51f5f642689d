"""The cache's endpoint: resize K/V pages and recurrent-state slots of a server that answers nobody just now.

`app` mounts it. It asks for an admin key: who may generate text may not take the cache from everyone else.
"""

from __future__ import annotations

from fastapi import APIRouter, Depends, Request, Response

from paceline_runtime import messages
from paceline_runtime.errors import Problem, RequestError
from paceline_runtime.server.api.bodies import RebuildBody
from paceline_runtime.server.api.parsing import parse
from paceline_runtime.server.http.keys import Administrators
from paceline_runtime.server.http.responses import json_response
from paceline_runtime.server.http.routes import read_body
from paceline_runtime.server.service import Service


def cache_router(service: Service) -> APIRouter:
    """`POST /v1/cache/rebuild`: 200 with the new plan, 409 while requests run, 400 for sizes that cannot be; 401, 403."""
    router = APIRouter(dependencies=[Depends(Administrators(service.config.admin_keys))])

    @router.post("/v1/cache/rebuild")
    async def rebuild(request: Request) -> Response:
        content = await read_body(request, service.config.max_body_bytes)
        service.loaded()
        body = parse(content, RebuildBody)
        done = await service.client.rebuild(messages.Rebuild(**body.model_dump()))
        if done.error is not None:
            code = "cache_busy" if done.is_busy else "invalid_value"
            raise RequestError([Problem(done.param, done.error, code)], status=409 if done.is_busy else 400)
        return json_response({"num_pages": done.num_pages, "plan": done.plan.splitlines()})

    return router
