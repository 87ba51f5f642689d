"""The ASGI application: routes, middleware, and the one place where errors become responses.

`lifecycle` and the tests make it. It starts nothing: the service that it is given does.
"""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from paceline_runtime.errors import PacelineError, RequestError, UnavailableError
from paceline_runtime.server.http.cache import cache_router
from paceline_runtime.server.http.health import health_router
from paceline_runtime.server.http.middleware import ApiKeys, InFlight, RequestId, UnreadBody
from paceline_runtime.server.http.problems import describe, error_json
from paceline_runtime.server.http.responses import json_response
from paceline_runtime.server.http.routes import GENERATION_PATHS, openai_router
from paceline_runtime.server.metrics import Outcome
from paceline_runtime.server.service import Service

logger = logging.getLogger(__name__)
CLIENT_CLOSED_REQUEST = 499


def create_app(service: Service) -> FastAPI:
    """The application for one service."""
    # Bodies are parsed by hand, for errors in OpenAI's shape, so generated API docs would have nothing to say.
    app = FastAPI(title="Paceline", openapi_url=None)
    app.include_router(health_router(service))
    app.include_router(openai_router(service))
    app.include_router(cache_router(service))
    _handle_errors(app, service)
    # The last one added is the outermost: even a refused key gets a request id.
    app.add_middleware(InFlight, service=service)
    app.add_middleware(ApiKeys, keys=service.config.api_keys)
    app.add_middleware(RequestId)
    app.add_middleware(UnreadBody)
    return app


def _handle_errors(app: FastAPI, service: Service) -> None:
    def count(request: Request, outcome: Outcome) -> None:
        if request.url.path in GENERATION_PATHS:
            service.metrics.ended(outcome)

    @app.exception_handler(PacelineError)
    async def of_ours(request: Request, error: PacelineError) -> Response:
        count(request, _outcome(error))
        status, body, headers = describe(error)
        # A client on a kept-alive connection would come back here instead of to another replica.
        return json_response(body, status, headers | ({"connection": "close"} if service.draining else {}))

    @app.exception_handler(HTTPException)
    async def of_routing(request: Request, error: HTTPException) -> Response:
        message = f"{request.method} {request.url.path}: {error.detail.lower()}"
        return json_response(error_json(message, error.status_code), error.status_code, dict(error.headers or {}))

    @app.exception_handler(ClientDisconnect)
    async def of_leaving(request: Request, error: ClientDisconnect) -> Response:
        count(request, "disconnected")
        return Response(status_code=CLIENT_CLOSED_REQUEST)

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        count(request, "failed")
        logger.exception("%s %s failed", request.method, request.url.path, exc_info=error)
        # uvicorn closes the connection when it sees the exception; a client that knew nothing of it would use it again.
        return json_response(error_json("the server failed; its log says how", 500), 500, {"connection": "close"})


def _outcome(error: PacelineError) -> Outcome:
    if isinstance(error, RequestError):
        return "refused"
    return "unavailable" if isinstance(error, UnavailableError) else "failed"
