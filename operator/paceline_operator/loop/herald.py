"""Tells of models in Events, and reads what the Events of others tell of a model's objects.

`reconcile` calls it. What is told again counts up the Event that is there. An Event that is refused is given up: the status
says the same. Warnings are read only about objects that do not say themselves why they wait, and not more often than needed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from paceline_operator.cluster.client import Cluster
from paceline_operator.cluster.kinds import EVENT
from paceline_operator.cluster.store import Key
from paceline_operator.errors import ApiError
from paceline_operator.observed.warnings import Warning, Warnings, newest, warnings_of
from paceline_operator.status.events import again

Object = dict[str, Any]
logger = logging.getLogger(__name__)
# Refusals of an Event that a retry does not mend; a namespace that is being deleted takes none (403).
REFUSALS = frozenset({400, 403, 405, 422})
CONFLICT = 409
# Looks come in bursts; one answer serves all of a burst.
FRESH_S = 5.0


class Herald:
    """Events that are still to be told, by model, and the warnings that were read last. `clock` is a monotonic clock."""

    def __init__(self, cluster: Cluster, clock: Callable[[], float]) -> None:
        self._cluster, self._clock = cluster, clock
        self._untold: dict[Key, list[Object]] = {}
        self._read: dict[Key, dict[str, tuple[float, Warning | None]]] = {}

    def forget(self, key: Key) -> None:
        """The model is gone."""
        self._untold.pop(key, None)
        self._read.pop(key, None)

    async def tell(self, key: Key, events: Sequence[Object]) -> None:
        """Tell these, and what is left from before: no later look would make them again. Raises ApiError, to be tried again."""
        self._untold[key] = [*self._untold.get(key, ()), *events]
        while untold := self._untold[key]:
            try:
                await self._send(untold[0])
            except ApiError as error:
                if error.status not in REFUSALS:
                    raise
                logger.warning("model %s/%s: an Event is refused: %s", key.namespace, key.name, error)
            untold.pop(0)
        del self._untold[key]

    async def warnings(self, key: Key, silent: Sequence[Object]) -> Warnings:
        """What Events tell of these objects; nothing where Events cannot be read: the next look asks again."""
        before, now = self._read.get(key, {}), self._clock()
        answers: dict[str, tuple[float, Warning | None]] = {}
        for found in silent:
            uid = str(found["metadata"].get("uid", ""))
            known = before.get(uid)
            answers[uid] = known if known and now - known[0] < FRESH_S else (now, await self._ask(found, uid))
        self._read[key] = answers
        return warnings_of({uid: warning for uid, (_, warning) in answers.items() if warning}, silent)

    async def _ask(self, found: Object, uid: str) -> Warning | None:
        selector = f"involvedObject.uid={uid},type=Warning"
        try:
            return newest(await self._cluster.list(EVENT, found["metadata"]["namespace"], field_selector=selector))
        except ApiError as error:
            logger.debug("Events cannot be read: %s", error)
            return None

    async def _send(self, event: Object) -> None:
        """Make the Event; one that is there already is counted up."""
        namespace, name = event["metadata"]["namespace"], event["metadata"]["name"]
        try:
            await self._cluster.create(event, EVENT)
        except ApiError as error:
            if error.status != CONFLICT:
                raise
            known = await self._cluster.get(EVENT, namespace, name)
            await self._cluster.merge(again(event, known), EVENT, namespace, name)
