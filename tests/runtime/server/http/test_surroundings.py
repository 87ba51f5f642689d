"""What is around every request: keys, ids, keep-alive, probes and metrics."""

import itertools
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlsplit

import httpx
import pytest
from live_server import MODEL, running
from prometheus_client.parser import text_string_to_metric_families

from paceline_runtime.config import EngineConfig, ServeConfig
from paceline_runtime.server.http.app import create_app
from paceline_runtime.server.service import Service

COMPLETIONS = "/v1/completions"
BODY = {"model": MODEL, "prompt": "x", "max_tokens": 7}


def _samples(http: httpx.Client) -> dict[str, float]:
    """Every sample of `/metrics`, labels in the name as they are written."""
    families = text_string_to_metric_families(http.get("/metrics").text)
    return {
        sample.name + "".join(f"{{{key}={value}}}" for key, value in sample.labels.items()): sample.value
        for family in families
        for sample in family.samples
    }


def test_with_keys_only_their_holders_get_answers() -> None:
    """Any of several keys; everything under /v1 is closed, probes and metrics are open."""
    with running(api_keys=("first", "schlüssel", "voilà")) as server, httpx.Client(base_url=server.url) as http:
        for key, status in [("first", 200), ("schlüssel", 200), ("voilà", 200), ("firs", 401), ("first2", 401)]:
            assert http.get("/v1/models", headers={"authorization": f"Bearer {key}".encode()}).status_code == status
        refused = http.post(COMPLETIONS, json=BODY)

        assert refused.status_code == 401
        assert refused.headers["www-authenticate"] == "Bearer"
        assert refused.json()["error"]["code"] == "invalid_api_key"
        for header in ("Basic first", "Bearer", "first"):
            assert http.get("/v1/models", headers={"authorization": header}).status_code == 401
        assert {http.get(path).status_code for path in ("/livez", "/readyz", "/metrics")} == {200}


def test_request_ids_are_echoed_or_made(http: httpx.Client) -> None:
    """Sane ones only: the id goes into logs."""
    given = http.get("/v1/models", headers={"x-request-id": "trace-1"}).headers["x-request-id"]
    made = http.get("/v1/models", headers={"x-request-id": "a b\tc" * 50}).headers["x-request-id"]

    assert given == "trace-1"
    assert made.isalnum()
    assert http.get("/nowhere").headers["x-request-id"] != made


def test_a_silent_stream_is_kept_alive(tmp_path: Path) -> None:
    """While the engine works on something long, empty chunks keep proxies from giving up; they parse like others."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    with running(keepalive_s=0.02) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        body = {**BODY, "prompt": f"gate:{gate}", "stream": True}
        with http.stream("POST", COMPLETIONS, json=body) as stream:
            lines = (line for line in stream.iter_lines() if line)
            for line in lines:
                if '"text":""' in line:
                    break
            gate.write_text("")
            rest = list(lines)

    assert rest[-1] == "data: [DONE]"
    assert '"finish_reason":"length"' in rest[-2]


def test_a_kept_alive_stream_says_nothing_of_an_answer_that_has_ended() -> None:
    """Of two answers the first is finished and the second silent: the empty chunks are the second's."""
    with running(keepalive_s=0.02) as server, httpx.Client(base_url=server.url, timeout=60) as http:
        body = {**BODY, "prompt": ["x", "linger"], "max_tokens": 12, "stream": True}
        with http.stream("POST", COMPLETIONS, json=body) as stream:
            chunks = (json.loads(line.removeprefix("data: ")) for line in stream.iter_lines() if line)
            choices = (chunk["choices"][0] for chunk in chunks)
            last = next(choice for choice in choices if choice["finish_reason"])
            empty = list(itertools.islice((choice for choice in choices if not choice["text"]), 3))

    assert last["index"] == 0
    assert [choice["index"] for choice in empty] == [1, 1, 1]


def test_metrics_count_requests_tokens_and_drafts() -> None:
    """One of each outcome; numbers follow from the script: a first token, then two runs of three."""
    with running() as server, httpx.Client(base_url=server.url) as http:
        http.post(COMPLETIONS, json=BODY).raise_for_status()
        http.post(COMPLETIONS, json={**BODY, "max_tokens": 0})
        # Neither asks for generation.
        assert http.get("/v1/models/other").status_code == 404
        assert http.post("/v1/cache/rebuild", json={"num_pages": 9}).status_code == 403
        with http.stream("POST", COMPLETIONS, json={**BODY, "prompt": "linger", "max_tokens": 99, "stream": True}):
            pass
        server.engine.until(lambda: bool(server.engine.aborted))
        while (samples := _samples(http))["paceline_requests_running"] or samples["paceline_prompt_tokens_total"] < 7:
            pass

    assert samples["paceline_requests_total{outcome=completed}"] == 1
    assert samples["paceline_requests_total{outcome=refused}"] == 1
    assert samples["paceline_requests_total{outcome=disconnected}"] == 1
    assert samples["paceline_requests_total{outcome=failed}"] == 0
    assert samples["paceline_request_seconds_count"] == 1
    assert samples["paceline_time_to_first_token_seconds_count"] == 2
    assert samples["paceline_inter_token_seconds_count"] >= 6
    assert samples["paceline_spec_tokens_per_step"] == 3
    assert samples["paceline_spec_steps_total"] >= 2
    assert samples["paceline_spec_accepted_tokens_total{position=1}"] <= samples["paceline_spec_steps_total"]
    assert samples["paceline_kv_pages{state=free}"] == 256
    assert samples["paceline_loading_fraction"] == 1


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_probes_of_a_ready_server_succeed(http: httpx.Client, path: str) -> None:
    """What Kubernetes asks."""
    assert http.get(path).status_code == 200


def test_the_server_process_has_no_torch() -> None:
    """Its memory stays small: nothing that the application imports pulls in torch or transformers."""

    imports = "import sys, paceline_runtime.server.command, paceline_runtime.text.tokenizer"
    code = f"{imports}; print('torch' in sys.modules, 'transformers' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert result.stdout.split() == ["False", "False"]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/cache/rebuild"])
async def test_a_refusal_that_closes_the_connection_waits_for_the_whole_body(path: str) -> None:
    """Bytes that nobody read would reset the connection, and the client might never see why."""
    client = SimpleNamespace(failure=None, ready=None, stats=None)
    service = Service(ServeConfig(engine=EngineConfig(model_path=MODEL), admin_keys=("key",)), client)
    service.draining = True
    parts = [{"type": "http.request", "body": part, "more_body": part == b"{"} for part in (b"{", b"}")]
    sent: list[dict] = []

    async def receive() -> dict:
        return parts.pop(0)

    async def send(message: dict) -> None:
        assert not parts, "answered before the body had come"
        sent.append(message)

    headers = [(b"authorization", b"Bearer key")]
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers, "query_string": b""}
    await create_app(service)(scope, receive, send)

    assert sent[0]["status"] == 503
    assert (b"connection", b"close") in sent[0]["headers"]


@pytest.mark.parametrize(
    ("path", "key", "status"),
    [(COMPLETIONS, "wrong", 401), (COMPLETIONS, "key", 413), ("/v1/nothing", "key", 404), ("/v1/models", "key", 405)],
)
def test_a_refusal_reaches_a_client_that_still_sends_on_a_connection_to_be_closed(path: str, key: str, status: int) -> None:
    """More than socket buffers hold, to a server that has no use for it: the client sends it all and then reads why."""
    body = b"x" * (32 << 20)
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nauthorization: Bearer {key}\r\ncontent-length: {len(body)}"
    with running(api_keys=("key",), max_body_bytes=1000) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            connection.sendall(f"{head}\r\n\r\n".encode() + body)
            answer = b"".join(iter(lambda: connection.recv(4096), b""))

    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    assert answer.endswith(b"}}")


def test_who_asks_before_sending_is_refused_without_being_told_to_send() -> None:
    """`Expect: 100-continue` is there to spare the upload of what is not wanted."""
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nexpect: 100-continue\r\ncontent-length: 99"
    with running(api_keys=("key",)) as server:
        address = urlsplit(server.url)
        with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
            connection.sendall(f"{head}\r\n\r\n".encode())
            answer = b"".join(iter(lambda: connection.recv(4096), b""))

    assert answer.startswith(b"HTTP/1.1 401 ")


def test_an_error_of_ours_tells_that_the_connection_ends() -> None:
    """It does end: a client that did not know would send its next request into a closed connection."""
    with running() as server, httpx.Client(base_url=server.url) as http:
        server.service.tokenizer = object()
        failed = http.post(COMPLETIONS, json=BODY)

    assert (failed.status_code, failed.headers["connection"]) == (500, "close")
