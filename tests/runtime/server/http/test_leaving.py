"""Clients that leave: whatever they asked for ends at once, nothing stays behind, and others do not notice."""

import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from urllib.parse import urlsplit

import httpx
import pytest
from fake_engine import NUM_PAGES, FakeEngine
from live_server import MODEL, LiveServer

NUM_CLIENTS = 200
COMPLETIONS = "/v1/completions"


def _ask(server: LiveServer, prompt: str, **fields: object) -> socket.socket:
    """A raw connection with one request on it, to be closed without any farewell."""
    address = urlsplit(server.url)
    body = json.dumps({"model": MODEL, "prompt": prompt, "max_tokens": 500, **fields}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    connection = socket.create_connection((address.hostname, address.port), timeout=60)
    connection.sendall(head + body)
    return connection


@pytest.fixture
def engine(server: LiveServer) -> Iterator[FakeEngine]:
    """The engine, idle before and after."""
    server.engine.until(lambda: not server.engine.running)
    server.engine.aborted.clear()
    yield server.engine
    assert server.engine.running == {}


def test_200_clients_that_leave_in_the_middle_of_a_stream_leak_nothing(server: LiveServer, engine: FakeEngine) -> None:
    """Each is aborted exactly once, and every page is free again."""
    for _ in range(NUM_CLIENTS):
        with closing(_ask(server, "linger", stream=True)) as connection:
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    engine.until(lambda: len(engine.aborted) == NUM_CLIENTS)

    assert len(set(engine.aborted)) == NUM_CLIENTS
    assert engine.stats().num_free_pages == NUM_PAGES
    assert server.service.client.num_open == 0


def test_leaving_a_request_that_does_not_stream_ends_it_too(server: LiveServer, engine: FakeEngine) -> None:
    """Nothing is generated for nobody, however many choices were asked for."""
    with closing(_ask(server, "hang", n=3)):
        engine.until(lambda: len(engine.running) == 3)
    engine.until(lambda: len(engine.aborted) == 3)

    assert engine.stats().num_free_pages == NUM_PAGES


def test_leaving_before_the_first_token_of_a_stream_ends_it(server: LiveServer, engine: FakeEngine) -> None:
    """During a long prefill no byte has been sent yet."""
    with closing(_ask(server, "hang", stream=True)):
        engine.until(lambda: len(engine.running) == 1)
    engine.until(lambda: len(engine.aborted) == 1)


@pytest.mark.parametrize("stream", [False, True])
def test_leaving_while_the_prompt_is_tokenized_ends_that(
    server: LiveServer, http: httpx.Client, engine: FakeEngine, stream: bool
) -> None:
    """It takes seconds where contexts are large; nothing of it gets to the engine, and others have the threads."""
    tokenizer, num_added, num_left = server.service.tokenizer, engine.num_added, _num_left(http)
    with closing(_ask(server, "endless", stream=stream)), tokenizer.changed:
        before = tokenizer.num_advances
        assert tokenizer.changed.wait_for(lambda: tokenizer.num_advances > before + 10, 60)
    while _num_left(http) == num_left:
        pass
    nums_advances = []
    for _ in range(3):
        http.post(COMPLETIONS, json={"model": MODEL, "prompt": "x", "max_tokens": 1}).raise_for_status()
        nums_advances.append(tokenizer.num_advances)

    assert num_left + 1 == _num_left(http)
    assert list(range(nums_advances[0], nums_advances[0] + 3)) == nums_advances
    assert num_added + 3 == engine.num_added


def _num_left(http: httpx.Client) -> float:
    (count,) = re.findall(r'^paceline_requests_total{outcome="disconnected"} (.*)$', http.get("/metrics").text, re.MULTILINE)
    return float(count)


def test_others_get_their_answers_while_clients_leave(server: LiveServer, http: httpx.Client, engine: FakeEngine) -> None:
    """Same text as ever, between two that stay silent and are left."""
    body = {"model": MODEL, "prompt": "x", "max_tokens": 30}
    before = http.post(COMPLETIONS, json=body).json()["choices"]
    with closing(_ask(server, "linger", stream=True)), closing(_ask(server, "hang")):
        engine.until(lambda: len(engine.running) == 2)
        beside = http.post(COMPLETIONS, json=body).json()["choices"]
    engine.until(lambda: len(engine.aborted) == 2)

    assert before == beside == http.post(COMPLETIONS, json=body).json()["choices"]


def test_an_answer_that_ended_is_not_aborted(http: httpx.Client, engine: FakeEngine) -> None:
    """Aborts are for what still runs."""
    http.post(COMPLETIONS, json={"model": MODEL, "prompt": "x", "max_tokens": 3, "n": 2}).raise_for_status()

    assert engine.aborted == []
