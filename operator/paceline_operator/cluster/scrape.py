"""Reads the serving pods' metrics for `status.acceptance`. The module leaves out a pod that does not answer."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import aiohttp

from paceline_operator.names import PATH_METRICS, PORT_HTTP
from paceline_operator.observed.conditions import is_true
from paceline_operator.status.acceptance import Counters, parse_counters

TIMEOUT = aiohttp.ClientTimeout(total=2.0)
MAX_BYTES = 4 << 20


class Scraper:
    """One HTTP session for all pods."""

    def __init__(self) -> None:
        self._session = aiohttp.ClientSession(timeout=TIMEOUT)

    async def close(self) -> None:
        await self._session.close()

    async def counters(self, pods: Iterable[dict[str, Any]]) -> list[Counters]:
        """Counters of the ready pods that answered."""
        addresses = [pod["status"]["podIP"] for pod in pods if is_true(pod, "Ready") and pod["status"].get("podIP")]
        answers = await asyncio.gather(*(self._read(address) for address in addresses))
        return [answer for answer in answers if answer is not None]

    async def _read(self, address: str) -> Counters | None:
        host = f"[{address}]" if ":" in address else address
        try:
            async with self._session.get(f"http://{host}:{PORT_HTTP}{PATH_METRICS}") as response:
                response.raise_for_status()
                return parse_counters((await _body(response)).decode(errors="replace"))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError, OverflowError):
            return None


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """The whole body; ValueError where the body is too large. `read(n)` gives what has come so far, at times half a number."""
    body = bytearray()
    async for piece in response.content.iter_any():
        body += piece
        if len(body) > MAX_BYTES:
            raise ValueError(f"more than {MAX_BYTES} bytes of metrics")
    return bytes(body)
