"""The network process: follows Services and EndpointSlices, keeps forwarders and resolver up to date.

Called as `python -m processcluster.network ROOT API_FD GATE_FD` by the supervisor.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

from processcluster.api import Api, Event
from processcluster.layout import DNS_ADDRESS, Layout
from processcluster.network.dns import Resolver
from processcluster.network.forwarder import Forwarder
from processcluster.network.gate import open_gates
from processcluster.network.table import names, routes

Objects = dict[str, dict[str, Any]]


class Network:
    """The current services and what was derived from them."""

    def __init__(self) -> None:
        self._services: Objects = {}
        self._slices: Objects = {}
        self._forwarder = Forwarder()
        self._update = asyncio.Lock()
        self.names: dict[str, list[str]] = {}

    async def follow_services(self, api: Api) -> None:
        async for event in api.follow("/api/v1/services"):
            await self._apply(self._services, event)

    async def follow_slices(self, api: Api) -> None:
        async for event in api.follow("/apis/discovery.k8s.io/v1/endpointslices"):
            await self._apply(self._slices, event)

    async def _apply(self, known: Objects, event: Event) -> None:
        if event.kind == "LISTED":
            known.clear()
        for item in event.objects:
            known[item["metadata"]["uid"]] = item
            if event.kind == "DELETED":
                del known[item["metadata"]["uid"]]
        async with self._update:
            self.names = names(self._services.values(), self._slices.values())
            await self._forwarder.update(routes(self._services.values(), self._slices.values()))


async def _main(root: Path, api_fd: int, gate_fd: int) -> None:
    network = Network()
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(lambda: Resolver(lambda: network.names), local_addr=(DNS_ADDRESS, 53))
    async with Api(Layout(root).inner_kubeconfig) as api:
        await asyncio.gather(
            open_gates(api_fd, gate_fd, lambda: network.names),
            network.follow_services(api),
            network.follow_slices(api),
        )


if __name__ == "__main__":
    asyncio.run(_main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
