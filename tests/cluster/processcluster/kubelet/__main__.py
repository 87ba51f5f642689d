"""The kubelet process of one node; started by the supervisor.

It must be a process of its own: bubblewrap's --die-with-parent follows the thread that starts a container, which here
is the main one.
"""

import argparse
import asyncio
import logging
import signal
from contextlib import suppress
from pathlib import Path

import aiohttp

from processcluster.api import Api
from processcluster.kubelet.context import Node
from processcluster.kubelet.logs import serve_logs
from processcluster.kubelet.manager import PodManager
from processcluster.kubelet.node import keep_registered
from processcluster.kubelet.sandbox import Addresses
from processcluster.kubelet.storage import provision, reclaim
from processcluster.layout import Layout


async def _main(arguments: argparse.Namespace) -> None:
    files = Layout(arguments.root)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    # A probe must open a connection of its own: a kept one would pass after the listener is gone.
    connector = aiohttp.TCPConnector(force_close=True, limit=0)
    async with Api(files.inner_kubeconfig) as api, aiohttp.ClientSession(connector=connector) as probes:
        node = Node(arguments.name, arguments.address, files, api, probes, Addresses(arguments.address))
        manager = PodManager(node)
        logs = await serve_logs(manager, files, arguments.address)
        work = asyncio.gather(
            keep_registered(api, arguments.name, arguments.address, arguments.gpus),
            manager.follow(),
            provision(api, files.claims),
            reclaim(api),
        )
        stopping = asyncio.create_task(stopped.wait())
        # Whatever of the work fails ends the kubelet, with its traceback in the log.
        await asyncio.wait((work, stopping), return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        await manager.stop()
        await logs.cleanup()
        with suppress(asyncio.CancelledError):
            await work


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="processcluster.kubelet")
    parser.add_argument("root", type=Path)
    parser.add_argument("--name", required=True)
    parser.add_argument("--address", required=True)
    parser.add_argument("--gpus", type=int, default=0)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    asyncio.run(_main(parser.parse_args()))
