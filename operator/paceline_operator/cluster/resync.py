"""Lists everything anew: at the start, when this replica becomes the leader, and from time to time.

A list mends what a watch has missed. Each list is compared with what the watches said, so that a dead watch is found even
where the operator changes nothing.
"""

from __future__ import annotations

from typing import Any

from paceline_operator.cluster.client import Cluster
from paceline_operator.cluster.kinds import MODEL, OPTIONAL, WATCHED, Kind
from paceline_operator.cluster.store import Store, version_of
from paceline_operator.cluster.watchdog import Watchdog
from paceline_operator.config import OperatorConfig
from paceline_operator.errors import GoneError
from paceline_operator.names import LABEL_MANAGED_BY, MANAGED_BY

Object = dict[str, Any]
SELECTOR = f"{LABEL_MANAGED_BY}={MANAGED_BY}"


class Resync:
    """Brings the store up to date by lists."""

    def __init__(self, config: OperatorConfig, cluster: Cluster, store: Store, watchdog: Watchdog) -> None:
        self._config, self._cluster, self._store, self._watchdog = config, cluster, store, watchdog

    async def run(self) -> frozenset[str]:
        """List all kinds; returns the optional kinds that the cluster knows. Raises ApiError."""
        known = frozenset([kind.kind for kind in OPTIONAL if await self._cluster.knows(kind)])
        for kind in (*WATCHED, *(kind for kind in OPTIONAL if kind.kind in known)):
            await self._list(kind, SELECTOR)
        for kind in OPTIONAL:
            if kind.kind not in known:
                self._store.replace(self._store.known(kind), ())
        # Models come last: whoever sees a model finds all of its children in the store.
        await self._list(MODEL, None)
        return known

    async def _list(self, kind: Kind, selector: str | None) -> None:
        known = self._store.known(kind)
        try:
            found = await self._cluster.list(kind, self._config.watch_namespace or None, selector)
        except GoneError:
            found = []
        if kind in (MODEL, *WATCHED):
            for one in found:
                self._compare(one)
        self._store.replace(known, found)

    def _compare(self, listed: Object) -> None:
        """Expect an event for a listed object that is newer than what is known: the watch owes it."""
        known = self._store.known_of(listed)
        if known and version_of(listed) > version_of(known):
            self._watchdog.expect(listed)
