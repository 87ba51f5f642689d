"""The gate into the namespace: listening sockets that were opened outside of it before it existed.

A socket stays in the network namespace of its birth, whoever holds it; so connections that arrive on the host's
127.0.0.1 are carried on inside. One socket leads to the API server, the other is a CONNECT proxy to any address or
service name. Nothing inside can reach out through it.
"""

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping

from processcluster.layout import API_ADDRESS, API_PORT, CLUSTER_DOMAIN
from processcluster.network.forwarder import Streams, pump


async def open_gates(api_fd: int, gate_fd: int, current: Callable[[], Mapping[str, list[str]]]) -> None:
    """Serves both sockets until cancelled."""

    async def to_api(client: Streams) -> None:
        await pump(client, await asyncio.open_connection(API_ADDRESS, API_PORT))

    async def to_target(client: Streams) -> None:
        await _connect(client, current())

    await asyncio.gather(_serve(api_fd, to_api), _serve(gate_fd, to_target))


async def _serve(fd: int, carry: Callable[[Streams], Awaitable[None]]) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await carry((reader, writer))
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    server = await asyncio.start_server(handle, sock=socket.socket(fileno=fd))
    await server.serve_forever()


async def _connect(client: Streams, names: Mapping[str, list[str]]) -> None:
    """One CONNECT request: 200 and a tunnel, or 502 with the reason."""
    reader, writer = client
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    method, target, *_ = head.split()
    host, _, port = target.rpartition(":")
    try:
        if method != "CONNECT":
            raise OSError(f"the gate takes CONNECT only, not {method}")
        backend = await asyncio.open_connection(resolve(host, names), int(port))
    except OSError as error:
        writer.write(f"HTTP/1.1 502 {error}\r\n\r\n".encode())
        await writer.drain()
        raise
    writer.write(b"HTTP/1.1 200 connected\r\n\r\n")
    await pump(client, backend)


def resolve(host: str, names: Mapping[str, list[str]]) -> str:
    """An address for an address, `NAME.NAMESPACE.svc` or the full service name. OSError when there is none."""
    if host.replace(".", "").isdigit():
        return host
    for name in (host, f"{host}.{CLUSTER_DOMAIN}"):
        if names.get(name):
            return names[name][0]
    raise OSError(f"no service is called {host}")
