"""The API server as the cluster's own parts see it: JSON calls, and a list-and-watch that survives outages.

Used by the supervisor, the kubelets and the network process. Knows no resource kinds; paths are the caller's.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import aiohttp

JSON = "application/json"
STRATEGIC_MERGE = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
RETRY_S = 0.2
# A single watch line holds a whole object.
MAX_LINE_BYTES = 8 << 20


class ApiError(Exception):
    """The API server said no; `code` is the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class Event(NamedTuple):
    """One step of `Api.follow`: LISTED with all objects, or ADDED, MODIFIED, DELETED with one."""

    kind: str
    objects: list[dict[str, Any]]


class Api:
    """A client of one API server, from a kubeconfig in JSON."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        self._server = config["clusters"][0]["cluster"]["server"]
        authority = config["clusters"][0]["cluster"]["certificate-authority"]
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {config['users'][0]['user']['token']}"},
            connector=aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=authority), limit=0),
            read_bufsize=MAX_LINE_BYTES,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def text(self, path: str) -> str:
        """GET as text, for health endpoints. Raises ApiError or aiohttp.ClientError."""
        async with self._session.get(self._server + path, timeout=aiohttp.ClientTimeout(2)) as response:
            if response.status >= 400:
                raise ApiError(response.status, await response.text())
            return await response.text()

    async def call(
        self, method: str, path: str, body: object = None, content_type: str = JSON, timeout_s: float = 15
    ) -> dict[str, Any]:
        """One request with a JSON body and answer. Raises ApiError, aiohttp.ClientError or TimeoutError."""
        data = None if body is None else json.dumps(body)
        headers = {"Content-Type": content_type}
        url = self._server + path
        limit = aiohttp.ClientTimeout(timeout_s)
        async with self._session.request(method, url, data=data, headers=headers, timeout=limit) as response:
            if response.status >= 400:
                raise ApiError(response.status, (await response.text())[:500])
            answer: dict[str, Any] = await response.json()
            return answer

    async def get_or_none(self, path: str) -> dict[str, Any] | None:
        """The object, or None when there is none."""
        try:
            return await self.call("GET", path)
        except ApiError as error:
            if error.code == 404:
                return None
            raise

    async def follow(self, path: str, params: Mapping[str, str] | None = None) -> AsyncIterator[Event]:
        """Lists and watches without end; after any break it lists again, so that no deletion is missed."""
        query = "".join(f"&{key}={value}" for key, value in (params or {}).items())
        while True:
            try:
                listed = await self.call("GET", f"{path}?{query}")
                yield Event("LISTED", listed["items"])
                version = listed["metadata"]["resourceVersion"]
                async for event in self._watch(f"{path}?watch=1&resourceVersion={version}{query}"):
                    yield event
            except (aiohttp.ClientError, ApiError, TimeoutError):
                pass
            await asyncio.sleep(RETRY_S)

    async def _watch(self, path: str) -> AsyncIterator[Event]:
        limit = aiohttp.ClientTimeout(total=None)
        async with self._session.get(self._server + path, timeout=limit) as response:
            if response.status >= 400:
                raise ApiError(response.status, await response.text())
            async for line in response.content:
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise ApiError(event["object"].get("code", 500), event["object"].get("message", ""))
                yield Event(event["type"], [event["object"]])
