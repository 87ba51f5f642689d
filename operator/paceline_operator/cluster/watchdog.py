"""Notices a watch that is open and silent. Every write of the operator must come back through a watch within a while.

`reconcile` and `resync` say what a watch must show, the handlers say what a watch has shown, and `/healthz` asks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from paceline_operator.cluster.store import version_of

Object = dict[str, Any]
PATIENCE_S = 60.0


class Watchdog:
    """The versions that the watches owe, by object. `clock` is a monotonic clock."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._expected: dict[str, tuple[int, float, str]] = {}

    def expect(self, written: Object) -> None:
        """Expect a watch to show this object at this version or a later one."""
        uid, version = str(written["metadata"].get("uid", "")), version_of(written)
        known = self._expected.get(uid)
        if uid and version and known is None:
            self._expected[uid] = (version, self._clock(), f"{written['kind']}/{written['metadata']['name']}")

    def heard(self, found: Object) -> None:
        """Note that a watch delivered this object."""
        uid = str(found["metadata"].get("uid", ""))
        expected = self._expected.get(uid)
        if expected and version_of(found) >= expected[0]:
            del self._expected[uid]

    def forget_all(self) -> None:
        """Expect nothing any more: the watches were paused meanwhile."""
        self._expected.clear()

    def overdue(self) -> list[str]:
        """The objects that a working watch would have shown long ago."""
        limit = self._clock() - PATIENCE_S
        return [name for _, since, name in self._expected.values() if since < limit]
