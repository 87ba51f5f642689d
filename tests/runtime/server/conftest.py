"""The server that these tests talk to over real HTTP: the scripted engine of `fake_engine`, one server per test module.

Not faked: uvicorn, the application, the engine's loop, the socket between them.
"""

from collections.abc import Iterator

import httpx
import openai
import pytest
from live_server import LiveServer, running


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """A server that is ready."""
    with running() as live:
        yield live


@pytest.fixture
def http(server: LiveServer) -> Iterator[httpx.Client]:
    """Plain HTTP, for what the OpenAI client would not send."""
    with httpx.Client(base_url=server.url, timeout=60) as client:
        yield client


@pytest.fixture
def client(server: LiveServer) -> Iterator[openai.OpenAI]:
    """What users have."""
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", max_retries=0) as client:
        yield client
