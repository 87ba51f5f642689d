"""`/healthz`, `/readyz` and `/metrics` of the operator, on a port of their own. `operator` starts the server.

Alive: the watches deliver and no task has died. Ready: the webhook answers a real review, since a listening port alone
refuses every resource while kopf has not found its kind.
"""

from __future__ import annotations

import asyncio
from typing import Protocol

import aiohttp
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from paceline_operator.admission.sample import WEBHOOK_ID, sample_review
from paceline_operator.cluster.watchdog import Watchdog
from paceline_operator.config import OperatorConfig
from paceline_operator.loop.metrics import Metrics

TIMEOUT = aiohttp.ClientTimeout(total=2.0)


class Operator(Protocol):
    """The part of the running operator that the probes look at."""

    config: OperatorConfig
    metrics: Metrics
    watchdog: Watchdog
    tasks: list[asyncio.Task[None]]
    is_leading: bool
    is_synced: asyncio.Event
    knows_leader: asyncio.Event


class Health:
    """A small HTTP server about one operator."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        app = web.Application()
        app.add_routes([web.get("/healthz", self._alive), web.get("/readyz", self._ready), web.get("/metrics", self._metrics)])
        self._runner = web.AppRunner(app, handle_signals=False, access_log=None)

    async def start(self) -> None:
        await self._runner.setup()
        self._session = aiohttp.ClientSession(timeout=TIMEOUT)
        await web.TCPSite(self._runner, None, self._operator.config.health_port).start()

    async def stop(self) -> None:
        await self._session.close()
        await self._runner.cleanup()

    async def _alive(self, request: web.Request) -> web.Response:
        return _answer(self.why_not_alive())

    async def _ready(self, request: web.Request) -> web.Response:
        return _answer(await self.why_not_ready())

    async def _metrics(self, request: web.Request) -> web.Response:
        body = generate_latest(self._operator.metrics.registry)
        return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})

    def why_not_alive(self) -> str:
        """A reason to restart the process, or nothing."""
        if dead := [task.get_name() for task in self._operator.tasks if task.done()]:
            return f"ended: {', '.join(dead)}"
        overdue = self._operator.watchdog.overdue() if self._operator.is_leading else []
        return f"the watch is silent about {', '.join(overdue[:5])}" if overdue else ""

    async def why_not_ready(self) -> str:
        """A reason to send no requests here, or nothing."""
        config = self._operator.config
        if config.webhook_certificates is None:
            # A replica that stands by lists nothing: it is ready once it knows that it stands by.
            return "" if self._operator.knows_leader.is_set() else "it is not known yet which replica leads"
        url = f"https://127.0.0.1:{config.webhook_port}/{WEBHOOK_ID}"
        try:
            # The certificate is the operator's own, and it does not name this address.
            async with self._session.post(url, json=sample_review("pvc://probe"), ssl=False) as response:
                return "" if response.status == 200 else f"the webhook answers {response.status}"
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            return f"the webhook does not answer: {error}"


def _answer(problem: str) -> web.Response:
    return web.Response(text=f"{problem or 'ok'}\n", status=503 if problem else 200)
