"""Errors in OpenAI's shape: the one place where exceptions become HTTP status and JSON. Pure functions.

The exception handlers and middleware of `app` use them, and the routes do for errors in the middle of a stream.
"""

from __future__ import annotations

from typing import Any

from paceline_runtime.errors import PacelineError, RequestError, UnavailableError

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    503: "service_unavailable",
}

CHALLENGE = {"www-authenticate": "Bearer"}


def error_json(
    message: str, status: int, *, param: str | None = None, code: str | None = None, problems: list[Any] | None = None
) -> dict[str, Any]:
    """`{"error": {...}}`; `problems` lists all of them when there are several, the other fields tell the first."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "server_error")
    error: dict[str, Any] = {"message": message, "type": kind, "param": param, "code": code}
    if problems:
        error["problems"] = problems
    return {"error": error}


def describe(error: PacelineError) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Status, body and headers for an error of ours."""
    if isinstance(error, RequestError):
        first = error.problems[0]
        everything = [{"param": each.param, "message": each.message, "code": each.code} for each in error.problems]
        body = error_json(str(error), error.status, param=first.param, code=first.code, problems=everything)
        return error.status, body, CHALLENGE if error.status == 401 else {}
    if isinstance(error, UnavailableError):
        return 503, error_json(str(error), 503, code="unavailable"), {"retry-after": str(error.retry_after_s)}
    return 500, error_json(str(error), 500), {}
