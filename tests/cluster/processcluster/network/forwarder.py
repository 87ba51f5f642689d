"""TCP forwarding: one listener per service port, backends in turn.

Called by the network process with the current routes. Knows no Kubernetes objects.
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from processcluster.network.table import Address

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
CHUNK_BYTES = 1 << 16


async def pump(client: Streams, backend: Streams) -> None:
    """Copies both ways, passing each side's end on, until both have ended; closes both."""
    try:
        await asyncio.gather(_copy(client[0], backend[1]), _copy(backend[0], client[1]))
    finally:
        client[1].close()
        backend[1].close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
    with suppress(OSError):
        writer.write_eof()


class Forwarder:
    """Listeners for a changing set of routes."""

    def __init__(self) -> None:
        self._routes: dict[Address, list[Address]] = {}
        self._servers: dict[Address, asyncio.Server] = {}
        self._num_connections = 0

    async def update(self, routes: dict[Address, list[Address]]) -> None:
        """Opens and closes listeners so that exactly these routes are served."""
        self._routes = routes
        for address in self._servers.keys() - routes.keys():
            self._servers.pop(address).close()
        for address in routes.keys() - self._servers.keys():
            self._servers[address] = await asyncio.start_server(self._handler(address), address.ip, address.port)

    def _handler(self, address: Address) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            backends = self._routes.get(address, [])
            self._num_connections += 1
            # A backend that just went away refuses; the next one may not.
            for i in range(len(backends)):
                ip, port = backends[(self._num_connections + i) % len(backends)]
                with suppress(OSError):
                    await pump((reader, writer), await asyncio.open_connection(ip, port))
                    return
            writer.close()

        return handle
