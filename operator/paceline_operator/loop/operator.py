"""The running operator: workers that empty the queue, the resync, health. `handlers` start and stop it.

The operator owns every task and connection, so that a stop leaves nothing behind; `reconcile` makes the decisions.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Coroutine
from datetime import UTC, datetime
from typing import Any

from paceline_operator.admission.metadata import Metadata
from paceline_operator.cluster.client import Cluster
from paceline_operator.cluster.leadership import Leadership, Pulse, ensure_peering
from paceline_operator.cluster.resync import Resync
from paceline_operator.cluster.scrape import Scraper
from paceline_operator.cluster.store import Key, Store
from paceline_operator.cluster.territory import Territory
from paceline_operator.cluster.watchdog import Watchdog
from paceline_operator.config import OperatorConfig
from paceline_operator.errors import ApiError
from paceline_operator.loop.health import Health
from paceline_operator.loop.metrics import Metrics
from paceline_operator.loop.reconcile import Reconciler
from paceline_operator.loop.work_queue import WorkQueue
from paceline_operator.names import KIND

logger = logging.getLogger(__name__)
REFUSED_RETRY_S = 15.0
# So often a replica asks who leads and which installations there are.
LEADERSHIP_PERIOD_S = 3.0


def utc_now() -> datetime:
    """The wall clock."""
    return datetime.now(UTC)


class Operator:
    """Everything that lives as long as the process; one instance, handed to kopf as the handlers' memo."""

    def __init__(self, config: OperatorConfig, priority: int) -> None:
        self.config, self.priority = config, priority
        self.store = Store()
        self.watchdog = Watchdog(time.monotonic)
        self.metrics = Metrics(self.store, config)
        self.metadata = Metadata(config.hub_endpoint, config.admission_budget_s, time.monotonic)
        self.health = Health(self)
        self.is_leading = False
        self.knows_leader = asyncio.Event()
        self.is_synced = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Connect, then work in the background. Raises ApiError when the API server refuses one of the first steps."""
        self.queue: WorkQueue[Key] = WorkQueue(asyncio.get_running_loop().call_later)
        self.cluster = await Cluster.connect(lambda verb: self.metrics.api_calls.labels(verb).inc())
        self.scraper = Scraper()
        self.reconciler = Reconciler(self.config, self.cluster, self.store, self.scraper, self.watchdog, utc_now)
        self.resync = Resync(self.config, self.cluster, self.store, self.watchdog)
        self.leadership = Leadership(self.cluster, self.config, self.priority, Pulse(time.monotonic), time.monotonic, utc_now)
        self.territory = Territory(self.config, self.cluster, time.monotonic)
        await ensure_peering(self.cluster, self.config)
        await self.health.start()
        self._spawn("leadership", self._follow_leadership())
        for i in range(self.config.num_workers):
            self._spawn(f"worker {i}", self._work())

    async def stop(self) -> None:
        """Cancel the tasks, then close the connections that they used. kopf would wait 5 s for a task that is left running."""
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        with contextlib.suppress(ApiError):
            await self.leadership.resign()
        await self.health.stop()
        await self.scraper.close()
        await self.cluster.close()

    def seen(self, found: dict[str, Any], *, is_deleted: bool) -> None:
        """Remember an object that a watch delivered, and ask for a look at its model."""
        self.watchdog.heard(found)
        is_status_only = found["kind"] == KIND and not is_deleted and self.store.is_status_only(found)
        key = self.store.drop(found) if is_deleted else self.store.put(found)
        # A failure's text may differ each time (a port, an id): telling it must not end the wait for the next attempt.
        if key and not (is_status_only and self.queue.num_failures(key)):
            self.queue.add(key)

    def _spawn(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        self.tasks.append(asyncio.create_task(work, name=name))

    async def _work(self) -> None:
        """One worker. It reconciles nothing before the first list: half a view would undo what is there."""
        await self.is_synced.wait()
        while True:
            key = await self.queue.get()
            try:
                if self.is_leading and self._manages(key):
                    await self._reconcile(key)
                elif self.is_leading:
                    self.queue.add_later(key, LEADERSHIP_PERIOD_S)
            finally:
                self.queue.done(key)
                self.metrics.queue_depth.set(len(self.queue))

    def _manages(self, key: Key) -> bool:
        """Whether a model is this installation's, or gone."""
        status = (self.store.model(key) or {}).get("status") or {}
        return self.territory.manages(key.namespace, status.get("manager", ""))

    async def _reconcile(self, key: Key) -> None:
        started = time.perf_counter()
        outcome = "error"
        try:
            result = await self.reconciler.reconcile(key, self.queue.num_failures(key))
            outcome = "refused" if result.trouble else "ok"
            self._follow_up(key, result.look_again_s, result.trouble)
        except ApiError as error:
            delay_s = self.queue.add_failed(key, error.retry_after_s or 0.0)
            logger.warning("model %s/%s: %s; again in %.1f s", key.namespace, key.name, error, delay_s)
        except Exception:
            # A bug that one model brings out must not end the worker that serves all others.
            delay_s = self.queue.add_failed(key)
            logger.exception("model %s/%s: reconcile failed; again in %.1f s", key.namespace, key.name, delay_s)
        finally:
            self.metrics.reconciles.labels(outcome).inc()
            self.metrics.reconcile_seconds.observe(time.perf_counter() - started)

    def _follow_up(self, key: Key, look_again_s: float | None, trouble: str) -> None:
        if trouble:
            self.queue.add_failed(key, REFUSED_RETRY_S)
            return
        self.queue.succeeded(key)
        if self.store.model(key) is None:
            self.queue.forget(key)
        elif look_again_s is not None:
            self.queue.add_later(key, look_again_s)

    async def _follow_leadership(self) -> None:
        """Ask who leads, and list everything anew on becoming the leader and from time to time."""
        listed_at, heard_at = 0.0, time.monotonic()
        while True:
            try:
                leads = await self.leadership.leads()
                if leads:
                    await self.territory.look()
                if leads and (not self.is_leading or time.monotonic() - listed_at > self.config.resync_s):
                    await self._list_all(became_leader=not self.is_leading)
                    listed_at = time.monotonic()
                self.is_leading, heard_at = leads, time.monotonic()
                self.knows_leader.set()
            except ApiError as error:
                logger.warning("peering: %s", error)
                # The others took this replica for dead meanwhile.
                self.is_leading = self.is_leading and time.monotonic() - heard_at < self.config.peering_lifetime_s
            self.metrics.leading.set(self.is_leading)
            await asyncio.sleep(LEADERSHIP_PERIOD_S)

    async def _list_all(self, *, became_leader: bool) -> None:
        if became_leader:
            self.watchdog.forget_all()
        known = set(self.store.models())
        self.reconciler.known_kinds = await self.resync.run()
        self.is_leading = True
        self.is_synced.set()
        # Models that went unseen are among these, so that nothing is kept of them.
        for key in known | set(self.store.models()):
            self.queue.add(key)
