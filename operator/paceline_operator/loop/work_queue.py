"""The models that are to be looked at, and when: each at most once at a time, repeated requests merged, failures later.

Handlers, timers and `resync` fill the queue, and the workers of `operator` empty it. The queue does not know what a key means.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
FIRST_BACKOFF_S = 0.5
MAX_BACKOFF_S = 60.0


class WorkQueue(Generic[K]):
    """An ordered set of keys with delays. `call_later` is the event loop's, or a test's."""

    def __init__(self, call_later: Callable[[float, Callable[[], None]], asyncio.TimerHandle]) -> None:
        self._call_later = call_later
        self._ready: deque[K] = deque()
        self._queued: set[K] = set()
        self._in_work: set[K] = set()
        self._again: set[K] = set()
        self._timers: dict[K, asyncio.TimerHandle] = {}
        self._num_failures: dict[K, int] = {}
        self._arrival = asyncio.Event()

    def __len__(self) -> int:
        return len(self._ready)

    def add(self, key: K) -> None:
        """Ask for a look now; while a worker has the key, ask for another look afterwards."""
        self._cancel_timer(key)
        if key in self._in_work:
            self._again.add(key)
        elif key not in self._queued:
            self._queued.add(key)
            self._ready.append(key)
            self._arrival.set()

    def add_later(self, key: K, delay_s: float) -> None:
        """Ask for a look after some time. An earlier look that was asked for already stays."""
        timer = self._timers.get(key)
        if timer is None:
            self._timers[key] = self._call_later(delay_s, lambda: self.add(key))
        elif timer.when() > asyncio.get_running_loop().time() + delay_s:
            self._cancel_timer(key)
            self.add_later(key, delay_s)

    def add_failed(self, key: K, at_least_s: float = 0.0) -> float:
        """Ask for another look after a failure, later with each failure in a row; returns the delay in seconds."""
        failures = self._num_failures.get(key, 0)
        self._num_failures[key] = failures + 1
        delay_s = max(at_least_s, min(MAX_BACKOFF_S, FIRST_BACKOFF_S * 2.0 ** min(failures, 16)))
        self.add_later(key, delay_s)
        return delay_s

    def num_failures(self, key: K) -> int:
        """Failures in a row."""
        return self._num_failures.get(key, 0)

    def succeeded(self, key: K) -> None:
        """Forget the key's failures."""
        self._num_failures.pop(key, None)

    def forget(self, key: K) -> None:
        """Drop the key's timer and failures: the key is gone."""
        self._cancel_timer(key)
        self.succeeded(key)

    async def get(self) -> K:
        """The next key; the caller owes `done`."""
        while not self._ready:
            self._arrival.clear()
            await self._arrival.wait()
        key = self._ready.popleft()
        self._queued.discard(key)
        self._in_work.add(key)
        return key

    def done(self, key: K) -> None:
        """End the work on a key. The key comes back at once if somebody asked for it meanwhile."""
        self._in_work.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def check_integrity(self) -> None:
        """A key is queued once, or in work once, and asked for again only while in work."""
        assert len(self._ready) == len(set(self._ready))
        assert set(self._ready) == self._queued
        assert not self._queued & self._in_work
        assert self._again <= self._in_work

    def _cancel_timer(self, key: K) -> None:
        if timer := self._timers.pop(key, None):
            timer.cancel()
