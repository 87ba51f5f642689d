"""HTTP for every source: one pooled client, retries with backoff, errors that name the place and no secret.

Addresses appear in messages without their query, headers never: both can carry credentials.
"""

import random
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Self

import httpx

from paceline_runtime.fetch.errors import InterruptedFetch, RefusedError, RequestError, TransientError, UnavailableError

_TRANSIENT_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504})
_MAX_BACKOFF_S = 60.0
_MAX_RETRY_AFTER_S = 600.0
_MAX_REPLY_BYTES = 64 << 20
_MAX_ERROR_BYTES = 4 << 10


@dataclass(frozen=True)
class Reply:
    """A whole small response."""

    headers: httpx.Headers
    body: bytes


class Attempts:
    """Failures in a row of one piece of work: waits after each, gives up after `max_retries` without progress."""

    def __init__(self, max_retries: int, wait: Callable[[float], bool]) -> None:
        self._max_retries, self._wait = max_retries, wait
        self._num_failures = 0

    def progressed(self) -> None:
        self._num_failures = 0

    def failed(self, error: TransientError) -> None:
        """Sleep before the next attempt; UnavailableError when there is none, InterruptedFetch when asked to stop."""
        self._num_failures += 1
        if self._num_failures > self._max_retries:
            raise UnavailableError(f"{error} (gave up after {self._num_failures} attempts)") from error
        # Full jitter: eight pods that were refused together must not come back together.
        backoff_s = random.uniform(0.5, 1.0) * min(_MAX_BACKOFF_S, 2.0 ** (self._num_failures - 1))
        asked_s = min(error.retry_after_s or 0.0, _MAX_RETRY_AFTER_S)
        if self._wait(max(backoff_s, asked_s)):
            raise InterruptedFetch("interrupted while waiting to retry")


class Client:
    """`wait(seconds)` sleeps and returns True when the fetch is to stop (`threading.Event.wait`)."""

    def __init__(self, *, max_retries: int, timeout_s: float, num_connections: int, wait: Callable[[float], bool]) -> None:
        self._max_retries, self._wait = max_retries, wait
        try:
            self._http = httpx.Client(
                timeout=timeout_s,
                follow_redirects=True,
                limits=httpx.Limits(max_connections=num_connections),
                headers={"User-Agent": "paceline-fetch", "Accept-Encoding": "identity"},
                event_hooks={"response": [_check_redirect]},
            )
        except (ValueError, ImportError, OSError, httpx.InvalidURL) as error:
            # The error's text may quote a proxy's password.
            raise RequestError(
                "one of the variables HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, NO_PROXY, SSL_CERT_FILE and SSL_CERT_DIR cannot be"
                " used: proxies read http(s)://host:port, NO_PROXY takes names and addresses but no IPv6 network or brackets,"
                f" and certificates must be there ({type(error).__name__})"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def attempts(self) -> Attempts:
        return Attempts(self._max_retries, self._wait)

    def get(self, url: str, auth: httpx.Auth | None = None, headers: Mapping[str, str] | None = None) -> Reply:
        """A small document, retried."""
        attempts = self.attempts()
        while True:
            try:
                with self.stream("GET", url, auth, headers) as response:
                    return Reply(response.headers, _bounded(response))
            except TransientError as error:
                attempts.failed(error)

    @contextmanager
    def stream(
        self, method: str, url: str, auth: httpx.Auth | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        """One attempt. Yields a 2xx or 416 response; TransientError when trying again may help, RefusedError when not."""
        try:
            with self._http.stream(method, url, auth=auth, headers=dict(headers or {})) as response:
                _check_status(response)
                yield response
        except (httpx.LocalProtocolError, httpx.UnsupportedProtocol, httpx.InvalidURL) as error:
            # The error's text may quote a header.
            raise RefusedError(f"{place(url)}: cannot be asked for ({type(error).__name__})") from error
        except httpx.TransportError as error:
            raise TransientError(f"{place(url)}: {type(error).__name__}: {error or 'connection broke off'}") from error
        except httpx.HTTPError as error:
            raise RefusedError(f"{place(url)}: {type(error).__name__}") from error


def place(url: str | httpx.URL) -> str:
    """An address for messages: no user, no query, no fragment."""
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL:
        return "a malformed address"
    return f"{parsed.scheme}://{parsed.netloc.decode()}{parsed.path}"


def retry_after_s(value: str | None, now: datetime) -> float | None:
    """Seconds that a Retry-After header asks for (RFC 9110 section 10.2.3: a number or a date)."""
    if value is None:
        return None
    if value.strip().isdecimal():  # isdigit takes superscripts too, of which float makes nothing
        return float(value)
    try:
        return max(0.0, (parsedate_to_datetime(value) - now).total_seconds())
    except (ValueError, TypeError, OverflowError):
        return None


def _bounded(response: httpx.Response) -> bytes:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > _MAX_REPLY_BYTES:
            raise RefusedError(f"{place(response.url)}: the answer is larger than {_MAX_REPLY_BYTES} bytes")
    return bytes(body)


def _check_redirect(response: httpx.Response) -> None:
    """Refuse to leave TLS, and to carry a signed request to another address."""
    if not response.has_redirect_location:
        return
    target = response.request.url.join(response.headers["location"])
    if target.scheme not in ("http", "https") or (response.request.url.scheme, target.scheme) == ("https", "http"):
        raise RefusedError(f"{place(response.request.url)}: redirects to {target.scheme}://, which is not followed")
    if "x-amz-content-sha256" in response.request.headers:
        raise RefusedError(
            f"{place(response.request.url)}: the object store redirects; set AWS_ENDPOINT_URL and AWS_REGION to the bucket's"
        )


def check_not_busy(response: httpx.Response) -> None:
    """TransientError when the server says that trying again may help."""
    if response.status_code in _TRANSIENT_STATUSES:
        wait_s = retry_after_s(response.headers.get("retry-after"), datetime.now(UTC))
        raise TransientError(f"{place(response.request.url)}: answered {response.status_code}", wait_s)


def _check_status(response: httpx.Response) -> None:
    status, where = response.status_code, place(response.request.url)
    if response.is_success or status == 416:
        return
    check_not_busy(response)
    answer = f"{where}: answered {status}{_store_code(response)}"
    if status in (401, 403):
        raise RefusedError(f"{answer}: not permitted; give credentials that may read it")
    if status in (404, 410):
        raise RefusedError(f"{answer}: no such thing there")
    raise RefusedError(answer)


def _store_code(response: httpx.Response) -> str:
    """What an object store calls its refusal: a wrong clock, key or region are all 403 or 400. Empty for other servers."""
    match = re.search(rb"<Code>(\w{1,64})</Code>", next(response.iter_bytes(_MAX_ERROR_BYTES), b""), re.ASCII)
    return f" {match[1].decode()}" if match else ""
