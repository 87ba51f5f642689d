"""JSON over HTTP, encoded by msgspec. The server uses it wherever it writes a response that is not a stream."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response


def json_response(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """`value` as the body."""
    return Response(msgspec.json.encode(value), status, headers, media_type="application/json")
