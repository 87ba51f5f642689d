"""The serving pods' metrics over HTTP: whole however they come, and left out where they do not come whole."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web

from paceline_operator.cluster import scrape
from paceline_operator.names import METRIC_ACCEPTED, METRIC_DRAFTED, METRIC_STEPS, PATH_METRICS
from paceline_operator.status.acceptance import Counters

POD = {"status": {"podIP": "127.0.0.1", "conditions": [{"type": "Ready", "status": "True"}]}}
NOISE = "".join(f'another_metric{{le="{index}"}} {index}\n' for index in range(200))
TEXT = f'{NOISE}{METRIC_DRAFTED}{{position="0"}} 1234\n{METRIC_STEPS} 567\n{NOISE}{METRIC_ACCEPTED} 890\n{NOISE}'


@asynccontextmanager
async def scraped(monkeypatch: pytest.MonkeyPatch, pieces: Iterator[bytes], num_bytes: int) -> AsyncIterator[list[Counters]]:
    """What the operator makes of a pod that sends the pieces one after another, having promised so many bytes."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": str(num_bytes)})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            for _ in range(3):  # turns of the loop, in which the reader sees what has come so far
                await asyncio.sleep(0)
        return response

    app = web.Application()
    app.router.add_get(PATH_METRICS, answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    monkeypatch.setattr(scrape, "PORT_HTTP", runner.addresses[0][1])
    scraper = scrape.Scraper()
    try:
        yield await scraper.counters([POD])
    finally:
        await scraper.close()
        await runner.cleanup()


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    return (data[begin : begin + size] for begin in range(0, len(data), size))


@pytest.mark.parametrize("size", [50, 1000, 100_000])
async def test_metrics_that_come_in_pieces_are_counted_whole(monkeypatch, size):
    """As a network carries them: what came first alone lacks a counter, or ends inside a number."""
    data = TEXT.encode()
    async with scraped(monkeypatch, pieces(data, size), len(data)) as counters:
        assert [Counters(drafted=1234, accepted=890, steps=567)] == counters


@pytest.mark.parametrize("text", [TEXT[: TEXT.index("1234") + 2], TEXT[: TEXT.index("1234") - 1]])
async def test_metrics_that_break_off_count_for_nothing(monkeypatch, text):
    """Inside a number, or before it, a pod ends while it answers."""
    async with scraped(monkeypatch, pieces(text.encode(), 1000), len(TEXT)) as counters:
        assert [] == counters


@pytest.mark.parametrize("number", ["", "many", "NaN", "+Inf"])
async def test_metrics_without_a_number_count_for_nothing(monkeypatch, number):
    data = f'{METRIC_STEPS} 5\n{METRIC_DRAFTED}{{position="0"}} {number}\n'.encode()
    async with scraped(monkeypatch, pieces(data, 1000), len(data)) as counters:
        assert [] == counters


async def test_metrics_without_end_count_for_nothing(monkeypatch):
    num_bytes = scrape.MAX_BYTES + 1
    async with scraped(monkeypatch, pieces(bytes(num_bytes), 1 << 20), num_bytes) as counters:
        assert [] == counters
