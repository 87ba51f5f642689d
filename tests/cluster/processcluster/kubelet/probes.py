"""Startup, readiness and liveness probes, and the HTTP part of preStop hooks.

`Checker` does one check; `outcomes` turns a row of checks into changes by the thresholds. Called by the container
runner, which decides what a change means.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp

from processcluster.kubelet.process import ContainerProcess


class Checker:
    """Checks of one running container at `address`."""

    def __init__(
        self, session: aiohttp.ClientSession, address: str, container: dict[str, Any], process: ContainerProcess
    ) -> None:
        self._session = session
        self._address = address
        self._ports = {port["name"]: port["containerPort"] for port in container.get("ports", []) if "name" in port}
        self._process = process

    async def passes(self, probe: dict[str, Any]) -> bool:
        """One check within the probe's timeoutSeconds."""
        timeout_s = probe.get("timeoutSeconds", 1)
        try:
            if "exec" in probe:
                code, _ = await self._process.execute(probe["exec"]["command"], timeout_s)
                return code == 0
            if "tcpSocket" in probe:
                return await self._connects(probe["tcpSocket"], timeout_s)
            return 200 <= await self.request(probe["httpGet"], timeout_s) < 400
        except (OSError, TimeoutError, aiohttp.ClientError):
            return False

    async def request(self, action: dict[str, Any], timeout_s: float) -> int:
        """The status of an httpGet action; certificates are not verified. Raises aiohttp.ClientError, TimeoutError."""
        host = action.get("host") or self._address
        scheme = action.get("scheme", "HTTP").lower()
        url = f"{scheme}://{host}:{self._port(action)}{action.get('path', '/')}"
        headers = {header["name"]: header["value"] for header in action.get("httpHeaders", [])}
        limit = aiohttp.ClientTimeout(total=timeout_s)
        async with self._session.get(url, headers=headers, timeout=limit, ssl=False, allow_redirects=False) as response:
            return response.status

    async def _connects(self, action: dict[str, Any], timeout_s: float) -> bool:
        host = action.get("host") or self._address
        # Not wait_for: in Python 3.11 it swallows a cancellation that meets the end of what it waits for, and the end of
        # a container then waits for ever for its probes to end.
        async with asyncio.timeout(timeout_s):
            _, writer = await asyncio.open_connection(host, self._port(action))
        writer.close()
        return True

    def _port(self, action: dict[str, Any]) -> int:
        port = action["port"]
        return int(port) if isinstance(port, int) or port.isdigit() else self._ports[port]


async def outcomes(probe: dict[str, Any], check: Callable[[dict[str, Any]], Awaitable[bool]]) -> AsyncIterator[bool]:
    """True each time successThreshold checks in a row passed, False each time failureThreshold in a row failed.

    The first check comes after initialDelaySeconds, the next ones every periodSeconds.
    """
    await asyncio.sleep(probe.get("initialDelaySeconds", 0))
    thresholds = {True: probe.get("successThreshold", 1), False: probe.get("failureThreshold", 3)}
    last, num_equal = None, 0
    while True:
        passed = await check(probe)
        num_equal = num_equal + 1 if passed == last else 1
        last = passed
        if num_equal >= thresholds[passed]:
            yield passed
        await asyncio.sleep(probe.get("periodSeconds", 10))
