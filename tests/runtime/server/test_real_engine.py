"""The whole of it on a tiny random checkpoint: HTTP, both processes, the real engine with n-gram speculation."""

import json
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from served import Served, served_model
from tiny_served import save_served

NUM_CLIENTS = 200
NUM_PAGES = 32
COMPLETIONS = "/v1/completions"
ADMIN = {"authorization": "Bearer chief"}
FLAGS = ["--dtype", "float64", "--num-pages", str(NUM_PAGES), "--speculative-algorithm", "ngram"]
FLAGS += ["--served-model-name", "tiny", "--admin-key", "chief"]
GREEDY = {"model": "tiny", "prompt": "to be or not to be", "temperature": 0, "max_tokens": 60, "ignore_eos": True}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`paceline serve` with a tiny llama."""
    model: Path = save_served(tmp_path_factory.mktemp("model"))
    with served_model(model, *FLAGS) as server:
        yield server
        server.terminate()
        status, said = server.ended()
        assert status == 0
        assert "Fatal" not in said


@pytest.fixture
def http(server: Served) -> Iterator[httpx.Client]:
    """A client of that server."""
    with httpx.Client(base_url=server.url, timeout=60) as http:
        yield http


def _text(http: httpx.Client, **fields: object) -> str:
    return http.post(COMPLETIONS, json={**GREEDY, **fields}).raise_for_status().json()["choices"][0]["text"]


def _streamed(http: httpx.Client, **fields: object) -> str:
    with http.stream("POST", COMPLETIONS, json={**GREEDY, **fields, "stream": True}) as response:
        events = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    return "".join(json.loads(event)["choices"][0]["text"] for event in events[:-1])


def _metric(http: httpx.Client, name: str, label: str) -> dict[str, float]:
    """The samples of one family by the value of one label."""
    families = {family.name: family for family in text_string_to_metric_families(http.get("/metrics").text)}
    return {sample.labels[label]: sample.value for sample in families[name].samples if sample.name != f"{name}_created"}


def test_streamed_text_equals_whole_text(http: httpx.Client) -> None:
    """With accepted drafts in it: confined to four tokens, a random model repeats itself."""
    few = {"logit_bias": {str(token): 100 for token in (40, 50, 60, 70)}}
    usage = http.post(COMPLETIONS, json={**GREEDY, **few}).json()["usage"]

    assert _streamed(http) == _text(http) != ""
    assert _streamed(http, **few) == _text(http, **few) != ""
    assert usage["completion_tokens_details"]["accepted_prediction_tokens"] > 0
    assert usage["completion_tokens_details"]["decode_steps"] < usage["completion_tokens"] == 60


def test_text_ends_where_a_stop_string_begins(http: httpx.Client) -> None:
    """A string from the middle of the answer, whole and streamed; the engine and the server agree on the place."""
    text = _text(http)
    stop = text[len(text) // 2 :][:7]
    expected = text[: text.find(stop)]

    assert _text(http, stop=stop) == _streamed(http, stop=stop) == expected


def test_a_chat_goes_through_the_template(http: httpx.Client) -> None:
    """The rendered conversation as a plain prompt gives the same answer."""
    chat = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "temperature": 0, "max_tokens": 9}
    answer = http.post("/v1/chat/completions", json=chat).raise_for_status().json()

    assert answer["choices"][0]["message"]["content"] == _text(
        http, prompt="<user>hi<assistant>", max_tokens=9, ignore_eos=False
    )


def test_a_repeated_prompt_is_found_in_the_cache(http: httpx.Client) -> None:
    """And its answer is the same."""
    body = {**GREEDY, "prompt": "a long prompt " * 12, "max_tokens": 8}
    first, second = (http.post(COMPLETIONS, json=body).raise_for_status().json() for _ in range(2))

    assert first["usage"]["prompt_tokens_details"]["cached_tokens"] == 0
    assert second["usage"]["prompt_tokens_details"]["cached_tokens"] == 128
    assert first["choices"] == second["choices"]


def test_200_clients_that_leave_in_the_middle_leak_no_page(server: Served, http: httpx.Client) -> None:
    """Afterwards nothing runs, every page is free or cached, and answers are what they were."""
    before = _text(http)
    address = urlsplit(server.url)
    body = json.dumps({**GREEDY, "max_tokens": 400, "stream": True}).encode()
    head = f"POST {COMPLETIONS} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode()
    for _ in range(NUM_CLIENTS):
        with closing(socket.create_connection((address.hostname, address.port), timeout=60)) as connection:
            connection.sendall(head + body)
            assert connection.recv(4096).startswith(b"HTTP/1.1 200")
    after = _text(http)
    while (pages := _metric(http, "paceline_kv_pages", "state"))["used"]:
        pass

    assert before == after
    assert pages["free"] + pages["cached"] == NUM_PAGES
    assert _metric(http, "paceline_requests", "outcome")["disconnected"] == NUM_CLIENTS


@pytest.mark.parametrize(
    "sizes", [{"memory_bytes": 1 << 50, "num_pages": 10**7}, {"memory_bytes": 1 << 62}, {"num_pages": 10**9}, {"num_pages": 1}]
)
def test_a_rebuild_that_cannot_be_leaves_an_engine_that_answers(http: httpx.Client, sizes: dict[str, int]) -> None:
    """Far more than there is, or too little: a 400 that names the field, the same process, the same pages, the same text."""
    before, pages = _text(http), sum(_metric(http, "paceline_kv_pages", "state").values())
    refused = http.post("/v1/cache/rebuild", json=sizes, headers=ADMIN)
    after = _text(http)

    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == next(iter(sizes))
    assert refused.json()["error"]["type"] == "invalid_request_error"
    assert before == after
    assert pages == sum(_metric(http, "paceline_kv_pages", "state").values()) == NUM_PAGES


def test_a_rebuilt_cache_gives_the_same_text(http: httpx.Client) -> None:
    """Smaller, then as it was."""
    before = _text(http)
    for num_pages in (NUM_PAGES // 2, NUM_PAGES):
        rebuilt = http.post("/v1/cache/rebuild", json={"num_pages": num_pages}, headers=ADMIN).raise_for_status().json()

        assert num_pages == rebuilt["num_pages"]
        assert before == _text(http)


def test_a_request_that_can_never_fit_is_refused(http: httpx.Client) -> None:
    """More than the 512 positions of the model, though not more than the pages hold."""
    refused = http.post(COMPLETIONS, json={**GREEDY, "max_tokens": 500})

    assert refused.status_code == 400
    assert refused.json()["error"]["code"] == "context_length_exceeded"


def test_a_file_that_is_no_model_is_explained(tmp_path: Path) -> None:
    """Before the server says that it is ready, and without a traceback."""
    (tmp_path / "bad.gguf").write_bytes(b"PK" * 100)

    with (
        pytest.raises(AssertionError, match=r"cannot start: .*it is not a GGUF file") as said,
        served_model(tmp_path / "bad.gguf"),
    ):
        pass
    assert "Traceback" not in str(said.value)
