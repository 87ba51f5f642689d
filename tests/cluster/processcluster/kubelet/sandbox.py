"""A pod's network namespace: a pause process that holds it, a veth pair on the bridge, one address.

Each pod needs its own, since two pods that share a loopback cannot both listen on 0.0.0.0:8080. Called by the pod
worker; knows nothing of containers.
"""

import asyncio
from dataclasses import dataclass

from processcluster.layout import BRIDGE, BRIDGE_ADDRESS, POD_RANGE_PREFIX

# `cat` ends when the kubelet, which holds the other end of its standard input, does. Ports below 1024 are open to
# every user, as container runtimes have it.
PAUSE = "echo 0 > /proc/sys/net/ipv4/ip_unprivileged_port_start; echo ready; exec cat"


class Addresses:
    """The pod addresses of one node, 10.244.N.2 to 254, the least recently used one first."""

    def __init__(self, node_address: str) -> None:
        prefix = node_address.rpartition(".")[0]
        self._free = [f"{prefix}.{i}" for i in range(2, 255)]

    def take(self, wanted: str | None = None) -> str:
        """`wanted` when it is free (a restarted kubelet must keep a pod's address), else any."""
        if wanted in self._free:
            self._free.remove(wanted)
            return wanted
        return self._free.pop(0)

    def give_back(self, address: str) -> None:
        self._free.append(address)


@dataclass(frozen=True)
class Sandbox:
    """A live network namespace."""

    address: str
    pause: asyncio.subprocess.Process

    @property
    def pid(self) -> int:
        return self.pause.pid

    async def remove(self) -> None:
        """Ends the namespace; its end of the veth pair goes, and so does the other."""
        self.pause.kill()
        await self.pause.wait()
        await _ip([f"link delete {_veth(self.address)}"], check=False)


async def create_sandbox(address: str) -> Sandbox:
    """A namespace with `address` on eth0 and a route to everything through the bridge. Raises RuntimeError."""
    pipe = asyncio.subprocess.PIPE
    pause = await asyncio.create_subprocess_exec("unshare", "-n", "sh", "-c", PAUSE, stdin=pipe, stdout=pipe)
    assert pause.stdout is not None
    await pause.stdout.readline()
    veth = _veth(address)
    await _ip([f"link delete {veth}"], check=False)
    await _ip([f"link add {veth} type veth peer name eth0 netns {pause.pid}", f"link set {veth} master {BRIDGE} up"])
    inside = [
        "link set lo up",
        f"address add {address}/{POD_RANGE_PREFIX} dev eth0",
        "link set eth0 up",
        f"route add default via {BRIDGE_ADDRESS}",
    ]
    await _ip(inside, enter=("nsenter", "-t", str(pause.pid), "-n"))
    return Sandbox(address, pause)


def _veth(address: str) -> str:
    return "veth" + "-".join(address.split(".")[2:])


async def _ip(commands: list[str], enter: tuple[str, ...] = (), check: bool = True) -> None:
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*enter, "ip", "-batch", "-", stdin=pipe, stderr=pipe)
    _, errors = await process.communicate("\n".join(commands).encode())
    if check and process.returncode:
        raise RuntimeError(f"ip refused {commands}: {errors.decode()}")
