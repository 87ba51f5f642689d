"""Registry tokens: a 401 challenge is answered once, then the token is sent (OCI distribution spec, Docker token flow)."""

import base64
import json
import re
from collections.abc import Generator, Mapping
from pathlib import Path

import httpx

from paceline_runtime.fetch.client import check_not_busy
from paceline_runtime.fetch.errors import RefusedError, RequestError

_SCHEME = re.compile(r"(?:^|,)\s*(bearer|basic)(?=[\s,]|$)", re.IGNORECASE)
_PARAMETER = re.compile(r'(\w+)=(?:"([^"]*)"|([^\s",]+))')


class RegistryAuth(httpx.Auth):
    """`basic` is the registry's `user:password` in base64 as a Docker config holds it, None for anonymous pulls."""

    def __init__(self, basic: str | None) -> None:
        self._basic = basic
        self._header: str | None = None

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        if self._header:
            request.headers["authorization"] = self._header
        response = yield request
        challenges = _challenges(response)
        # A storage host behind a redirect has no business with the registry's credentials.
        if response.status_code != 401 or response.url.host != request.url.host:
            return
        if "bearer" in challenges:
            answer = yield self._token_request(request, challenges["bearer"])
            check_not_busy(answer)
            answer.read()
            self._header = f"Bearer {_token(answer)}"
        elif "basic" in challenges and self._basic:
            self._header = f"Basic {self._basic}"
        else:
            return
        request.headers["authorization"] = self._header
        yield request

    def _token_request(self, request: httpx.Request, challenge: Mapping[str, str]) -> httpx.Request:
        try:
            realm = httpx.URL(challenge.get("realm", ""))
        except httpx.InvalidURL as error:
            raise RefusedError("the registry names a token service at a malformed address") from error
        if realm.scheme != "https" and realm.scheme != request.url.scheme:
            raise RefusedError("the registry names a token service without TLS; nothing was sent there")
        query = {name: challenge[name] for name in ("service", "scope") if name in challenge}
        headers = {"authorization": f"Basic {self._basic}"} if self._basic else {}
        return httpx.Request("GET", realm.copy_merge_params(query), headers=headers)


def docker_credentials(registry: str, environment: Mapping[str, str]) -> str | None:
    """The registry's entry in `$DOCKER_CONFIG/config.json` (the form of an image pull secret), None where there is none."""
    folder = environment.get("DOCKER_CONFIG")
    if not folder:
        return None
    path = Path(folder) / "config.json"
    try:
        auths = json.loads(path.read_bytes()).get("auths", {})
        entry = auths.get(registry) or auths.get(f"https://{registry}") or {}
        if "auth" in entry:
            return base64.b64encode(base64.b64decode(entry["auth"], validate=True)).decode()
        pair = f"{entry['username']}:{entry['password']}" if "username" in entry else ""
    except (OSError, ValueError, AttributeError, KeyError, TypeError) as error:
        raise RequestError(f"DOCKER_CONFIG: {path} is not a readable Docker config ({type(error).__name__})") from error
    return base64.b64encode(pair.encode()).decode() if pair else None


def _challenges(response: httpx.Response) -> dict[str, dict[str, str]]:
    """Parameters by scheme. A server may offer several, in one header or in many (RFC 9110 section 11.6.1)."""
    parts = _SCHEME.split(response.headers.get("www-authenticate", ""))[1:]
    return {
        scheme.lower(): {name: quoted or plain for name, quoted, plain in _PARAMETER.findall(rest)}
        for scheme, rest in zip(parts[::2], parts[1::2], strict=True)
    }


def _token(answer: httpx.Response) -> str:
    try:
        body = answer.json() if answer.is_success else {}
        token = body.get("token") or body.get("access_token")
    except (ValueError, AttributeError):
        token = None
    if not token or not (str(token).isascii() and str(token).isprintable()):
        raise RefusedError(f"the registry's token service answered {answer.status_code} and gave no token")
    return str(token)
