"""AWS Signature Version 4 for GET and HEAD requests to S3-compatible stores, header form, empty body.

Source: the "Authenticating Requests (AWS Signature Version 4)" chapter of the S3 API reference, whose worked examples are
our tests. S3 differs from other services in signing the path as it is sent, encoded once.
"""

import hashlib
import hmac
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from datetime import UTC, datetime

import httpx

_EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True)
class Credentials:
    """Keys of an account. `session_token` comes with temporary ones."""

    access_key_id: str
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True)
class SigV4Auth(httpx.Auth):
    """Signs each request at the moment it is sent."""

    credentials: Credentials
    region: str
    now: Callable[[], datetime] = lambda: datetime.now(UTC)

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        request.headers["x-amz-date"] = self.now().strftime("%Y%m%dT%H%M%SZ")
        request.headers["x-amz-content-sha256"] = _EMPTY_SHA256
        if self.credentials.session_token:
            request.headers["x-amz-security-token"] = self.credentials.session_token
        request.headers["authorization"] = authorization(request, self.credentials, self.region)
        yield request


def authorization(request: httpx.Request, credentials: Credentials, region: str) -> str:
    """The Authorization header for a request that carries `x-amz-date`; signs host, range and every x-amz header."""
    names = sorted(name for name in request.headers if name in ("host", "range") or name.startswith("x-amz-"))
    date = request.headers["x-amz-date"]
    scope = f"{date[:8]}/{region}/s3/aws4_request"
    text = "\n".join(("AWS4-HMAC-SHA256", date, scope, hashlib.sha256(_canonical(request, names).encode()).hexdigest()))
    signature = _hmac(_signing_key(credentials.secret_access_key, scope), text).hex()
    signed = ";".join(names)
    return f"AWS4-HMAC-SHA256 Credential={credentials.access_key_id}/{scope},SignedHeaders={signed},Signature={signature}"


def _canonical(request: httpx.Request, names: list[str]) -> str:
    path, _, query = request.url.raw_path.decode().partition("?")
    pairs = sorted(pair if "=" in pair else f"{pair}=" for pair in query.split("&") if pair)
    headers = "".join(f"{name}:{' '.join(request.headers[name].split())}\n" for name in names)
    return "\n".join((request.method, path, "&".join(pairs), headers, ";".join(names), _EMPTY_SHA256))


def _signing_key(secret: str, scope: str) -> bytes:
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = _hmac(key, part)
    return key


def _hmac(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()
