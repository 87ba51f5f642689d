"""Which replica works: the living one of the highest priority, which is the newest. All others stand by.

Replicas keep an entry each in the peering object of their installation. An entry lives while it changes: no replica compares
another machine's clock with its own, so a wrong clock neither makes two leaders nor keeps a dead one. The entries are those
of kopf's peering, which earlier versions used, so that both understand each other during an upgrade.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from paceline_operator.cluster.client import Cluster
from paceline_operator.cluster.kinds import Kind
from paceline_operator.config import OperatorConfig
from paceline_operator.errors import ApiError, GoneError

Object = dict[str, Any]
CLUSTER_PEERING = Kind("kopf.dev/v1", "ClusterKopfPeering", "clusterkopfpeerings")
NAMESPACED_PEERING = Kind("kopf.dev/v1", "KopfPeering", "kopfpeerings")
# An entry that was silent for so many lifetimes is taken out.
LIFETIMES_KEPT = 3.0
# A replica says so often within its lifetime that it lives.
SIGNS_PER_LIFETIME = 3.0


class Pulse:
    """What lives, as seen from here. `clock` is a monotonic clock; what is seen for the first time is taken for alive."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[tuple[str, str], tuple[str, float]] = {}

    def silent_s(self, place: str, name: str, entry: Mapping[str, Any]) -> float:
        """Seconds since the entry was last seen to change."""
        sign, now = str(entry.get("lastseen", "")), self._clock()
        known = self._seen.get((place, name))
        if known is None or known[0] != sign:
            self._seen[place, name] = (sign, now)
            return 0.0
        return now - known[1]

    def silences(self, place: str, peering: Object) -> dict[str, float]:
        """Silence of each entry of a peering object, in lifetimes of the entry: below 1 it lives."""
        peers = {name: peer for name, peer in (peering.get("status") or {}).items() if peer}
        for known in [known for known in self._seen if known[0] == place and known[1] not in peers]:
            del self._seen[known]
        return {name: self.silent_s(place, name, peer) / (peer.get("lifetime") or 60) for name, peer in peers.items()}


@dataclass
class Leadership:
    """This replica's place among those of its installation."""

    cluster: Cluster
    config: OperatorConfig
    priority: int
    pulse: Pulse
    clock: Callable[[], float]
    now: Callable[[], datetime]
    _said_at: float = float("-inf")

    async def leads(self) -> bool:
        """Say that this replica lives, when it is time to, and whether no living one has a higher priority. One request."""
        name = self.config.pod_name
        peering = await self._look()
        silences = self.pulse.silences("", peering)
        peers = peering.get("status") or {}
        gone = {one: None for one, silence in silences.items() if silence > LIFETIMES_KEPT and one != name}
        if gone:
            await self._say(gone)
        living = [peers[one] for one, silence in silences.items() if silence < 1 and one != name]
        return all(peer.get("priority", 0) <= self.priority for peer in living)

    async def resign(self) -> None:
        """Take this replica's entry out, so that nobody waits for it to fall silent."""
        await self._say({self.config.pod_name: None})

    async def _look(self) -> Object:
        if self.clock() - self._said_at < self.config.peering_lifetime_s / SIGNS_PER_LIFETIME:
            return await self.cluster.get(*_place(self.config))
        entry = {
            "priority": self.priority,
            "lifetime": self.config.peering_lifetime_s,
            "lastseen": self.now().isoformat(),
        }
        peering = await self._say({self.config.pod_name: entry})
        self._said_at = self.clock()
        return peering

    async def _say(self, entries: Mapping[str, Any]) -> Object:
        try:
            return await self.cluster.merge({"status": entries}, *_place(self.config))
        except GoneError:
            await ensure_peering(self.cluster, self.config)
            return await self.cluster.merge({"status": entries}, *_place(self.config))


def peering_kind(config: OperatorConfig) -> Kind:
    """The kind of an installation's peering object: a clusterwide operator has another one than a namespaced one."""
    return CLUSTER_PEERING if config.clusterwide else NAMESPACED_PEERING


async def ensure_peering(cluster: Cluster, config: OperatorConfig) -> None:
    """Make the peering object. The chart cannot make it: Helm would need the kind before it has installed the kind."""
    kind, namespace, name = _place(config)
    metadata = {"name": name, **({"namespace": namespace} if namespace else {})}
    try:
        await cluster.get(kind, namespace, name)
    except GoneError:
        try:
            await cluster.create({"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}, kind)
        except ApiError as error:
            # Another replica was faster.
            if error.status != 409:
                raise


def _place(config: OperatorConfig) -> tuple[Kind, str | None, str]:
    return peering_kind(config), config.watch_namespace or None, config.peering_name
