"""Who may ask: bearer keys, those of clients and those of administrators. Middleware and admin routes ask it.

It knows headers and keys, nothing of what is asked for.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from fastapi import Request

from paceline_runtime.errors import Problem, RequestError


class Keys:
    """A set of keys; false when there is none."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def admit(self, authorization: str) -> bool:
        """Whether the header's value is `Bearer` and one of the keys."""
        scheme, _, key = authorization.partition(" ")
        # Header bytes arrive decoded as Latin-1, whatever the client meant; the last byte of "à" would be a space there.
        given = _digest(key.encode("latin-1").strip())
        # Every key is compared, and digests have one length: the time tells nothing.
        matches = [hmac.compare_digest(given, digest) for digest in self._digests]
        return scheme.lower() == "bearer" and any(matches)


class Administrators:
    """A dependency of every administrative route: lets through who shows an admin key, nobody when there is none."""

    def __init__(self, keys: Sequence[str]) -> None:
        self._keys = Keys(keys)

    async def __call__(self, request: Request) -> None:
        """Raises RequestError: 403 where administration is off, 401 without a valid key."""
        if not self._keys:
            message = "administration is off: start the server with --admin-key, --admin-key-file or PACELINE_ADMIN_KEY"
            raise RequestError([Problem(None, message, "administration_off")], status=403)
        if not self._keys.admit(request.headers.get("authorization", "")):
            message = "send a valid admin key as 'Authorization: Bearer KEY'; an API key is none"
            raise RequestError([Problem(None, message, "invalid_api_key")], status=401)


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
