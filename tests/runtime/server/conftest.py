"""The server that these tests talk to over real HTTP: the scripted engine of `fake_engine`, one server per test module.

Not faked: uvicorn, the application, the engine's loop, the socket between them.
"""

from collections.abc import Iterator

import httpx
import openai
import pytest
from live_server import LiveServer, running

ADMIN_KEY = "of the administrator"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    """A server that is ready."""
    with running(admin_keys=(ADMIN_KEY,)) as live:
        yield live


@pytest.fixture
def admin(server: LiveServer) -> Iterator[httpx.Client]:
    """An administrator's client."""
    with httpx.Client(base_url=server.url, timeout=60, headers={"authorization": f"Bearer {ADMIN_KEY}"}) as client:
        yield client


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
