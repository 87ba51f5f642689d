"""What the operator says of its webhook: ready only while it answers reviews, and when its certificate ends."""

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest
import trustme
from aiohttp import web
from operator_builders import CONFIG

from paceline_operator.cluster.store import Store
from paceline_operator.loop.health import Health
from paceline_operator.loop.metrics import Metrics
from paceline_operator.loop.operator import Operator

LEAF = trustme.CA().issue_cert("operator.space.svc")


@asynccontextmanager
async def webhook(status: int) -> AsyncIterator[int]:
    """A TLS server that answers every review with this status; its port."""

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=status)

    app, context = web.Application(), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    app.add_routes([web.post("/validate", answer)])
    LEAF.configure_cert(context)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=context).start()
    yield runner.addresses[0][1]
    await runner.cleanup()


async def why_not_ready(port: int) -> str:
    """Of an operator whose webhook is to listen there."""
    health = Health(Operator(replace(CONFIG, webhook_port=port, health_port=0), priority=1))
    await health.start()
    reason = await health.why_not_ready()
    await health.stop()
    return reason


@pytest.mark.parametrize("status, reason", [(200, ""), (404, "the webhook answers 404"), (500, "the webhook answers 500")])
async def test_ready_is_what_answers_reviews(status: int, reason: str):
    """A listener alone is not enough: before kopf knows its kind it answers 404, and every resource would be refused."""
    async with webhook(status) as port:
        assert await why_not_ready(port) == reason


async def test_without_a_listener_it_is_not_ready():
    """No request is sent to a pod whose webhook has not started."""
    async with webhook(200) as port:
        pass

    assert (await why_not_ready(port)).startswith("the webhook does not answer")


def test_the_end_of_the_certificate_is_a_metric(tmp_path):
    """One can be told before it has ended; a Secret that is not there yet is no error."""
    metrics = Metrics(Store(), replace(CONFIG, webhook_certificates=tmp_path))
    name = "paceline_operator_webhook_certificate_expiry_timestamp_seconds"
    assert metrics.registry.get_sample_value(name) is None
    LEAF.cert_chain_pems[0].write_to_path(str(tmp_path / "tls.crt"))

    assert metrics.registry.get_sample_value(name) > 1_700_000_000
