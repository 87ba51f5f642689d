"""Which models this installation manages, where several installations see them. `operator` asks before every look.

The rule: a namespace is managed by the installation that is for this namespace alone, else by the cluster-wide one; of
several alike by the one whose peering object is oldest. Installations are seen by their peering objects. A model names its
manager in `status.manager`: an installation takes a model over from another one only when the other one has been gone, or
outranked, for a while. Whoever does not manage a model writes nothing about it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from paceline_operator.cluster.client import Cluster
from paceline_operator.cluster.leadership import CLUSTER_PEERING, NAMESPACED_PEERING, Pulse
from paceline_operator.config import OperatorConfig
from paceline_operator.errors import ApiError

Object = dict[str, Any]
logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Installation:
    """One installation, by its peering object. `namespace` is the only one that it serves, empty where it serves all."""

    namespace: str
    name: str
    made_at: str = ""

    @property
    def title(self) -> str:
        """As `status.manager` names it."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name


def manager_of(namespace: str, installations: Iterable[Installation]) -> Installation | None:
    """Who manages a namespace, out of the living installations."""
    able = [one for one in installations if one.namespace in ("", namespace)]
    return min(able, key=lambda one: (not one.namespace, one.made_at, one.name), default=None)


class Territory:
    """What is known of other installations. `clock` is a monotonic clock."""

    def __init__(self, config: OperatorConfig, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._config, self._cluster, self._clock = config, cluster, clock
        self._own_title, self._started_at = config.installation, clock()
        self._pulse = Pulse(clock)
        self._alive: tuple[Installation, ...] = ()
        self._alive_at: dict[str, float] = {}

    async def look(self) -> None:
        """Learn which installations live. Raises ApiError."""
        kinds = [NAMESPACED_PEERING, *([CLUSTER_PEERING] if self._config.clusterwide else [])]
        peerings = [one for kind in kinds for one in await self._listed(kind)]
        alive = tuple(sorted((one for one in map(self._living, peerings) if one), key=lambda one: one.title))
        if {one.title for one in alive} != {one.title for one in self._alive}:
            logger.info("installations that live: %s", ", ".join(one.title for one in alive))
        self._alive = alive
        self._alive_at |= {one.title: self._clock() for one in alive}

    def manages(self, namespace: str, named: str) -> bool:
        """Whether a model of this namespace, whose status names a manager, or none yet, is ours to act on."""
        manager = manager_of(namespace, self._alive)
        if manager is not None and manager.title != self._own_title:
            return False
        if named in ("", self._own_title):
            return True
        is_alive = any(one.title == named for one in self._alive)
        since = self._started_at if is_alive else self._alive_at.get(named, self._started_at)
        return self._clock() - since >= self._config.takeover_s

    async def _listed(self, kind: Any) -> list[Object]:
        try:
            return await self._cluster.list(kind, self._config.watch_namespace or None)
        except ApiError as error:
            # A role that was written by hand may not know of this, and a cluster may not have the kind.
            if error.status in (403, 404):
                return []
            raise

    def _living(self, peering: Object) -> Installation | None:
        metadata = peering["metadata"]
        found = Installation(metadata.get("namespace", ""), metadata["name"], metadata.get("creationTimestamp", ""))
        lives = any(silence < 1 for silence in self._pulse.silences(found.title, peering).values())
        return found if lives or found.title == self._own_title else None
