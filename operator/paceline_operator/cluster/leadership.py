"""Tells which of the operator's replicas works. kopf pauses the watches of all others; our timers ask this module.

The peering object is kopf's: each replica keeps an entry with its priority alive. The newest replica has the highest
priority.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from paceline_operator.cluster.client import Cluster
from paceline_operator.cluster.kinds import Kind
from paceline_operator.config import OperatorConfig
from paceline_operator.errors import ApiError, GoneError

CLUSTER_PEERING = Kind("kopf.dev/v1", "ClusterKopfPeering", "clusterkopfpeerings")
NAMESPACED_PEERING = Kind("kopf.dev/v1", "KopfPeering", "kopfpeerings")


def peering_kind(config: OperatorConfig) -> Kind:
    """The peering kind that kopf reads: a clusterwide operator has another one than a namespaced one."""
    return CLUSTER_PEERING if config.clusterwide else NAMESPACED_PEERING


async def ensure_peering(cluster: Cluster, config: OperatorConfig) -> None:
    """Make the peering object. The chart cannot make it: Helm would need the kind before it has installed the kind."""
    kind, namespace = peering_kind(config), config.watch_namespace or None
    metadata = {"name": config.peering_name, **({"namespace": namespace} if namespace else {})}
    try:
        await cluster.get(kind, namespace, config.peering_name)
    except GoneError:
        try:
            await cluster.create({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}, kind)
        except ApiError as error:
            # Another replica was faster.
            if error.status != 409:
                raise


async def is_leading(cluster: Cluster, config: OperatorConfig, priority: int, now: datetime) -> bool:
    """Whether no living replica has a higher priority. Costs one request."""
    peering = await cluster.get(peering_kind(config), config.watch_namespace or None, config.peering_name)
    return not outranked(peering.get("status") or {}, config.pod_name, priority, now)


def outranked(peers: Mapping[str, Any], identity: str, priority: int, now: datetime) -> bool:
    """Whether another entry is alive and of higher priority."""
    return any(
        peer.get("priority", 0) > priority and _is_alive(peer, now) for name, peer in peers.items() if name != identity and peer
    )


def _is_alive(peer: Mapping[str, Any], now: datetime) -> bool:
    seen = datetime.fromisoformat(peer["lastseen"])
    return seen + timedelta(seconds=peer.get("lifetime", 60)) > now
