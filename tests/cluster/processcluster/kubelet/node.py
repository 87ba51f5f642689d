"""The node object: registered once, then its lease and status renewed.

The builders are pure. Processor and memory are generous, since nothing here is enforced; the GPUs are a number.
"""

import asyncio
import logging
from datetime import UTC, datetime
from typing import Any

import aiohttp

from processcluster.api import MERGE, STRATEGIC_MERGE, Api, ApiError
from processcluster.kubelet.context import timestamp
from processcluster.kubelet.environment import NODE_LIMITS
from processcluster.layout import KUBELET_PORT

GPU_RESOURCE = "nvidia.com/gpu"
# Below the 253 addresses that a node has.
NUM_PODS = 200
RENEW_S = 10
LEASE_S = 40
VERSION = "v1.36.3"
log = logging.getLogger(__name__)


def node_object(name: str) -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    return {"metadata": {"name": name, "labels": labels}}


def node_status(name: str, address: str, num_gpus: int, now: str) -> dict[str, Any]:
    """Capacity, addresses and a Ready condition."""
    capacity = {**NODE_LIMITS, "pods": str(NUM_PODS), GPU_RESOURCE: str(num_gpus)}
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": KUBELET_PORT}},
        "nodeInfo": _node_info(),
        "conditions": [
            {
                "type": "Ready",
                "status": "True",
                "reason": "KubeletReady",
                "message": "the process kubelet runs",
                "lastHeartbeatTime": now,
                "lastTransitionTime": now,
            }
        ],
    }


async def keep_registered(api: Api, name: str, address: str, num_gpus: int) -> None:
    """Registers the node and renews it without end, through outages."""
    while True:
        try:
            await _create("/api/v1/nodes", node_object(name), api)
            status = {"status": node_status(name, address, num_gpus, timestamp())}
            await api.call("PATCH", f"/api/v1/nodes/{name}/status", status, STRATEGIC_MERGE)
            await _renew_lease(api, name)
            await asyncio.sleep(RENEW_S)
        except (aiohttp.ClientError, ApiError, TimeoutError) as error:
            log.warning("node not renewed: %r", error)
            await asyncio.sleep(0.5)


async def _renew_lease(api: Api, name: str) -> None:
    path = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
    renewed = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    spec = {"holderIdentity": name, "leaseDurationSeconds": LEASE_S, "renewTime": renewed}
    await _create(path, {"metadata": {"name": name}, "spec": spec}, api)
    await api.call("PATCH", f"{path}/{name}", {"spec": spec}, MERGE)


async def _create(path: str, document: dict[str, Any], api: Api) -> None:
    try:
        await api.call("POST", path, document)
    except ApiError as error:
        if error.code != 409:
            raise


def _node_info() -> dict[str, str]:
    unknown = ("bootID", "kernelVersion", "machineID", "osImage", "systemUUID", "kubeProxyVersion")
    known = {"architecture": "amd64", "operatingSystem": "linux", "kubeletVersion": VERSION}
    return known | {"containerRuntimeVersion": "process://1"} | dict.fromkeys(unknown, "")
