"""Process 1 of a cluster's namespaces: starts the parts, obeys the control socket, and takes all down with it.

Run by `Cluster.start` under `unshare`; as process 1 its end kills whatever is left inside. It knows the order of
starts and stops; what a part is called with is `controlplane`'s, what a pod is the kubelet's.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp

from processcluster import controlplane, layout
from processcluster.api import Api, ApiError
from processcluster.layout import Layout
from processcluster.part import Part

POLL_S = 0.05
START_LIMIT_S = 90
LINE_LIMIT_BYTES = 1 << 20


class Supervisor:
    """The parts of one cluster, by name, in the order they start."""

    def __init__(self, files: Layout, api_fd: int, gate_fd: int) -> None:
        self._files = files
        self._ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.stopping = asyncio.Event()
        self._num_nodes = 0
        network = [sys.executable, "-m", "processcluster.network", str(files.root), str(api_fd), str(gate_fd)]
        self._parts = {
            "etcd": Part("etcd", controlplane.etcd(files), files.log("etcd")),
            "api-server": Part("api-server", controlplane.api_server(files), files.log("api-server")),
            "network": Part("network", network, files.log("network"), (api_fd, gate_fd)),
            "controller-manager": Part(
                "controller-manager", controlplane.controller_manager(files), files.log("controller-manager")
            ),
            "scheduler": Part("scheduler", controlplane.scheduler(files), files.log("scheduler")),
        }
        self._actions: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "wait-ready": self._wait_ready,
            "status": self._status,
            "add-node": self._add_node,
            "start": self._start,
            "stop": self._stop,
            "restart-api-server": self._restart_api_server,
            "down": self._down,
        }

    async def start_all(self) -> None:
        """Control plane up: API ready, default service account and storage class there. `wait-ready` tells of it."""
        try:
            await _ip(_bridge_commands())
            for name in self._parts:
                if name == "controller-manager":
                    await self._api_ready()
                await self._parts[name].start()
            async with Api(self._files.inner_kubeconfig) as api:
                await api.call("POST", "/apis/storage.k8s.io/v1/storageclasses", _storage_class())
                await self._until(lambda: api.call("GET", "/api/v1/namespaces/default/serviceaccounts/default"))
            self._ready.set_result(None)
        except Exception as error:
            self._ready.set_exception(error)

    async def stop_all(self) -> None:
        """Kubelets first, so that pods end; the API server before etcd, without which it never ends."""
        for name in reversed(list(self._parts)):
            is_kubelet = name.startswith("kubelet-")
            await self._parts[name].stop(signal.SIGTERM if is_kubelet else signal.SIGKILL)

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One control connection: a JSON line in, a JSON line out."""
        request = json.loads(await reader.readline())
        try:
            reply = await self._actions[request["do"]](request)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        writer.write(json.dumps(reply).encode() + b"\n")
        await writer.drain()
        writer.close()

    async def _wait_ready(self, _: dict[str, Any]) -> dict[str, Any]:
        await asyncio.shield(self._ready)
        return {}

    async def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        return {name: part.state for name, part in self._parts.items()}

    async def _down(self, _: dict[str, Any]) -> dict[str, Any]:
        self.stopping.set()
        return {}

    async def _start(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._parts[request["part"]].start()
        if request["part"] == "api-server":
            await self._api_ready()
        return {}

    async def _stop(self, request: dict[str, Any]) -> dict[str, Any]:
        await self._parts[request["part"]].stop(signal.Signals[request["signal"]])
        return {}

    async def _restart_api_server(self, _: dict[str, Any]) -> dict[str, Any]:
        # SIGTERM takes 60 s while watches are open; scheduler and controller manager stay stale for 40 s by themselves.
        await self._parts["api-server"].stop()
        await self._parts["api-server"].start()
        await self._api_ready()
        for name in ("controller-manager", "scheduler"):
            await self._parts[name].stop()
            await self._parts[name].start()
        return {}

    async def _add_node(self, request: dict[str, Any]) -> dict[str, Any]:
        self._num_nodes += 1
        address = f"10.244.{self._num_nodes}.1"
        await _ip([f"address add {address}/{layout.POD_RANGE_PREFIX} dev {layout.BRIDGE}"])
        name = f"kubelet-{request['name']}"
        options = [f"--name={request['name']}", f"--address={address}", f"--gpus={request['gpus']}"]
        argv = [sys.executable, "-m", "processcluster.kubelet", str(self._files.root), *options]
        self._parts[name] = Part(name, argv, self._files.log(name))
        await self._parts[name].start()
        async with Api(self._files.inner_kubeconfig) as api:
            await self._until(lambda: api.call("GET", f"/api/v1/nodes/{request['name']}"))
        return {"address": address}

    async def _api_ready(self) -> None:
        async with Api(self._files.inner_kubeconfig) as api:
            await self._until(lambda: api.text("/readyz"))

    async def _until(self, attempt: Callable[[], Awaitable[object]]) -> None:
        """Repeats a call until the API server grants it. Raises when a part has ended or time is up."""
        deadline = asyncio.get_running_loop().time() + START_LIMIT_S
        while True:
            try:
                await attempt()
                return
            except (aiohttp.ClientError, ApiError, TimeoutError) as error:
                ended = {name: part.state for name, part in self._parts.items() if part.state.startswith("ended")}
                if ended or asyncio.get_running_loop().time() > deadline:
                    raise RuntimeError(f"the control plane does not come up: {ended or error!r}") from error
            await asyncio.sleep(POLL_S)


def _storage_class() -> dict[str, Any]:
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    metadata = {"name": layout.STORAGE_CLASS, "annotations": default}
    return {"metadata": metadata, "provisioner": f"processcluster/{layout.STORAGE_CLASS}", "reclaimPolicy": "Delete"}


def _bridge_commands() -> list[str]:
    return [
        "link set lo up",
        # Makes the whole service range local, so that a forwarder can listen on any of its addresses.
        f"address add {layout.API_ADDRESS}/{layout.SERVICE_RANGE.partition('/')[2]} dev lo",
        f"link add {layout.BRIDGE} type bridge",
        f"link set {layout.BRIDGE} address {layout.BRIDGE_MAC}",
        f"address add {layout.BRIDGE_ADDRESS}/{layout.POD_RANGE_PREFIX} dev {layout.BRIDGE}",
        f"link set {layout.BRIDGE} up",
    ]


async def _ip(commands: list[str]) -> None:
    process = await asyncio.create_subprocess_exec(
        "ip", "-batch", "-", stdin=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    _, errors = await process.communicate("\n".join(commands).encode())
    if process.returncode:
        raise RuntimeError(f"ip refused {commands}: {errors.decode()}")


async def _serve(arguments: argparse.Namespace) -> None:
    files = Layout(arguments.root)
    supervisor = Supervisor(files, arguments.api_fd, arguments.gate_fd)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, supervisor.stopping.set)
    if arguments.until_eof:
        # Nobody writes to it, so readable means that the holder of the other end is gone.
        loop.add_reader(sys.stdin.fileno(), supervisor.stopping.set)
    server = await asyncio.start_unix_server(supervisor.answer, files.control, limit=LINE_LIMIT_BYTES)
    starting = asyncio.create_task(supervisor.start_all())
    await supervisor.stopping.wait()
    starting.cancel()
    server.close()
    await supervisor.stop_all()
    # Its absence tells whoever asked for the end that all is gone.
    files.control.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(prog="processcluster.supervisor")
    parser.add_argument("root", type=Path)
    parser.add_argument("--api-fd", type=int, required=True, help="listening socket that leads to the API server")
    parser.add_argument("--gate-fd", type=int, required=True, help="listening socket of the CONNECT proxy")
    parser.add_argument("--until-eof", action="store_true", help="end when standard input does")
    asyncio.run(_serve(parser.parse_args()))


if __name__ == "__main__":
    main()
