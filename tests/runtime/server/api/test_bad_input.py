"""Requests that must not run: each gets a 4xx in OpenAI's shape that names the field, and none reaches the engine."""

import json
from typing import Any

import httpx
import pytest
from fake_engine import CONTEXT
from live_server import MODEL, LiveServer, running

from paceline_runtime.params import MAX_STOP_STRING_CHARS, MAX_STOP_STRINGS, MAX_STOP_TOKEN_IDS

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SAY = [{"role": "user", "content": "hi"}]
PART = {"type": "text", "text": "hi"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:"}}
SCHEMA = {"type": "json_schema", "json_schema": {}}
TOOL = {"type": "function", "function": {"name": "f"}}

# (fields that spoil an otherwise good request, the field that the error must name)
BAD_IN_BOTH = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -1}, "top_k"),
    ({"top_k": 2**63}, "top_k"),
    ({"top_k": 2**70}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": 1000}, "n"),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**64}, "seed"),
    ({"stop": ""}, "stop"),
    ({"stop": 5}, "stop"),
    ({"stop": ["a", 5]}, "stop.1"),
    ({"stop": ["x"] * (MAX_STOP_STRINGS + 1)}, "stop"),
    ({"stop": "x" * (MAX_STOP_STRING_CHARS + 1)}, "stop"),
    ({"stop_token_ids": [10**6]}, "stop_token_ids"),
    ({"stop_token_ids": ["a"]}, "stop_token_ids.0"),
    ({"stop_token_ids": [5] * (MAX_STOP_TOKEN_IDS + 1)}, "stop_token_ids"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 1e-320}, "repetition_penalty"),
    ({"logit_bias": {"hello": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": {"9999": 1}}, "logit_bias"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
    ({"logit_bias": {"5": "x"}}, "logit_bias.5"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"continuous_usage_stats": True}}, "stream_options.continuous_usage_stats"),
    ({"temprature": 1.0}, "temprature"),
    ({"guided_json": {}}, "guided_json"),
    ({"best_of": 2}, "best_of"),
    ({"echo": True}, "echo"),
    ({"suffix": "!"}, "suffix"),
    ({"tools": [TOOL]}, "tools"),
    ({"response_format": SCHEMA}, "response_format"),
    ({"model": 5}, "model"),
    ({"max_tokens": CONTEXT}, None),
    ({"max_tokens": 2**70}, None),
]
BAD_CHATS = [
    ({"messages": []}, "messages"),
    ({"messages": None}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": [{"role": "user"}]}, "messages.0.content"),
    ({"messages": [{"role": "king", "content": "hi"}]}, "messages.0.role"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages.0.content"),
    ({"messages": [{"role": "user", "content": [IMAGE]}]}, "messages.0.content.0.type"),
    ({"messages": [{"role": "user", "content": [PART, "hi"]}]}, "messages.0.content.1"),
    (
        {"messages": [*SAY, {"role": "user", "content": [PART, {**PART, "cache_control": {}}]}]},
        "messages.1.content.1.cache_control",
    ),
    ({"messages": [*SAY, {"role": "user", "content": [{**PART, "text": 5}]}]}, "messages.1.content.0.text"),
    ({"messages": [{"role": "user", "content": "hi", "weight": 2}]}, "messages.0.weight"),
    ({"messages": [{"role": "assistant", "content": "", "tool_calls": [TOOL]}]}, "messages.0.tool_calls"),
    ({"messages": [{"role": "user", "content": "x" * CONTEXT}]}, "messages"),
    ({"messages": [*SAY, {"role": "system", "content": "too late"}]}, "messages"),
    ({"chat_template_kwargs": {"messages": "x"}}, "chat_template_kwargs.messages"),
    ({"chat_template_kwargs": {"self": 1}}, "chat_template_kwargs.self"),
    ({"logprobs": 1}, "logprobs"),
    ({"top_logprobs": 3}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"chat_template_kwargs": {"x": [1]}}, "chat_template_kwargs.x"),
    ({"chat_template_kwargs": 5}, "chat_template_kwargs"),
    ({"max_tokens": 5, "max_completion_tokens": 6}, "max_tokens"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
]
BAD_COMPLETIONS = [
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": []}, "prompt"),
    ({"prompt": ""}, "prompt"),
    ({"prompt": [[]]}, "prompt.0"),
    ({"prompt": ["a", 5]}, "prompt.1"),
    ({"prompt": [[1], [2, 3, "x"]]}, "prompt.1.2"),
    ({"prompt": [1, 2, True]}, "prompt.2"),
    ({"prompt": ["a", ""]}, "prompt.1"),
    ({"prompt": [[1], [260]]}, "prompt.1"),
    ({"prompt": ["a", "x" * CONTEXT]}, "prompt.1"),
    ({"prompt": [[1], [1] * (CONTEXT + 1)]}, "prompt.1"),
    ({"prompt": [1.5]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [260]}, "prompt"),
    ({"prompt": ["a"] * 100, "n": 2}, "n"),
    ({"prompt": "x" * CONTEXT}, "prompt"),
    ({"logprobs": -1}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"messages": SAY}, "messages"),
]
MANY = 20_000
BAD_BY_THE_THOUSAND = [
    {"stop_token_ids": [10**6] * 1000},
    {"stop_token_ids": ["a"] * MANY},
    {"logit_bias": {f"a{number}": 1 for number in range(MANY)}},
    {"logit_bias": {str(number): 1 for number in range(10**6, 10**6 + MANY)}},
    {"logit_bias": {str(number): 101 for number in range(MANY)}},
    {"prompt": [""] * MANY},
    {"prompt": [[]] * MANY},
    {"prompt": [1.5] * MANY},
    {f"field{number}": 1 for number in range(MANY)},
]
BAD_BODIES = [b"", b"{", b"[]", b'"hi"', b'{"model": "\xff"}', b'{"model": "\\ud800"}', b'{"temperature": NaN}', b"[" * 9999]


def _error(response: httpx.Response, status: int) -> dict[str, Any]:
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert error["message"]
    return error


def _refused(http: httpx.Client, server: LiveServer, path: str, body: dict[str, Any], param: str | None) -> dict[str, Any]:
    num_added = server.engine.num_added
    error = _error(http.post(path, json=body), 400)
    assert param in [problem["param"] for problem in error["problems"]] or param is None, error
    assert server.engine.num_added == num_added
    return error


@pytest.mark.parametrize(("fields", "param"), BAD_IN_BOTH, ids=lambda value: repr(value)[:60])
def test_both_endpoints_refuse(http: httpx.Client, server: LiveServer, fields: dict[str, Any], param: str | None) -> None:
    """Wrong types, values out of range, and fields that would change the meaning if they were ignored."""
    _refused(http, server, COMPLETIONS, {"model": MODEL, "prompt": "hi", **fields}, param)
    _refused(http, server, CHAT, {"model": MODEL, "messages": SAY, **fields}, param)


@pytest.mark.parametrize(("fields", "param"), BAD_CHATS, ids=lambda value: repr(value)[:60])
def test_chat_refuses(http: httpx.Client, server: LiveServer, fields: dict[str, Any], param: str) -> None:
    """Conversations that cannot be rendered, and options that contradict each other."""
    _refused(http, server, CHAT, {"model": MODEL, "messages": SAY, **fields}, param)


@pytest.mark.parametrize(("fields", "param"), BAD_COMPLETIONS, ids=lambda value: repr(value)[:60])
def test_completions_refuse(http: httpx.Client, server: LiveServer, fields: dict[str, Any], param: str) -> None:
    """Prompts of the wrong kind, empty ones, ids outside the vocabulary."""
    _refused(http, server, COMPLETIONS, {"model": MODEL, "prompt": "hi", **fields}, param)


@pytest.mark.parametrize("body", BAD_BODIES, ids=lambda body: repr(body[:20]))
@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
def test_bodies_that_are_not_json_objects_are_refused(http: httpx.Client, path: str, body: bytes) -> None:
    """Broken JSON, invalid UTF-8, half a surrogate pair, NaN, absurd nesting."""
    assert _error(http.post(path, content=body), 400)["code"] == "invalid_json"


@pytest.mark.parametrize("fields", BAD_BY_THE_THOUSAND, ids=lambda fields: repr(fields)[:30])
def test_a_thousand_problems_are_told_in_a_few_words(http: httpx.Client, server: LiveServer, fields: dict[str, Any]) -> None:
    """No answer is larger than its question, and nothing is tokenized or listed a thousand times to find that out."""
    answer = http.post(COMPLETIONS, json={"model": MODEL, "prompt": "hi", **fields})

    assert _error(answer, 400)
    assert len(answer.content) < 1000


def test_messages_that_are_wrong_by_the_thousand_are_counted_only(http: httpx.Client) -> None:
    """Listing them would keep the server from everyone else for seconds."""
    error = _error(http.post(CHAT, json={"model": MODEL, "messages": [1] * MANY}), 400)

    assert str(MANY) in error["message"]


def test_all_problems_come_at_once(http: httpx.Client, server: LiveServer) -> None:
    """A user mends a request in one go."""
    fields = {"temperature": "x", "tools": [TOOL], "n": 0, "stop": 3}
    error = _refused(http, server, CHAT, {"messages": SAY, **fields}, "model")

    assert {problem["param"] for problem in error["problems"]} == {"model", *fields}


def test_ranges_and_context_are_reported_together(http: httpx.Client, server: LiveServer) -> None:
    """What needs the model is checked in one pass too."""
    body = {"model": MODEL, "prompt": "x" * CONTEXT, "top_p": 7, "min_p": -1}
    error = _refused(http, server, COMPLETIONS, body, "prompt")

    assert [problem["param"] for problem in error["problems"]] == ["top_p", "min_p", "prompt"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_prompt_that_leaves_no_room_says_by_how_much(http: httpx.Client, server: LiveServer, stream: bool) -> None:
    """The code that clients look for, the numbers, and the way out."""
    body = {"model": MODEL, "prompt": "x" * 100, "max_tokens": CONTEXT - 99, "stream": stream}
    error = _refused(http, server, COMPLETIONS, body, "prompt")

    assert error["code"] == "context_length_exceeded"
    assert f"{CONTEXT + 1}" in error["message"]
    assert "--max-model-len" in error["message"]


def test_a_prompt_that_just_fits_runs(http: httpx.Client) -> None:
    """The limit is exact."""
    body = {"model": MODEL, "prompt": "x" * 100, "max_tokens": CONTEXT - 100}

    assert http.post(COMPLETIONS, json=body).json()["usage"]["total_tokens"] == CONTEXT


@pytest.mark.parametrize("stream", [False, True])
def test_what_the_engine_refuses_is_a_400_too(http: httpx.Client, stream: bool) -> None:
    """Also for a stream, whose headers wait for the first event; the field is called as in the request."""
    text = "too big for the cache"
    prompts = {COMPLETIONS: {"prompt": text}, CHAT: {"messages": [{"role": "user", "content": text}]}}
    for path, prompt in prompts.items():
        error = _error(http.post(path, json={"model": MODEL, "stream": stream, **prompt}), 400)

        assert (error["code"], error["param"]) == ("context_length_exceeded", *prompt)


def test_fields_that_ask_for_nothing_are_accepted(http: httpx.Client) -> None:
    """Clients send defaults along; refusing those would help nobody."""
    fields = {"tools": None, "tool_choice": "none", "response_format": {"type": "text"}, "store": False, "user": "u"}
    turns = [*SAY, {"role": "assistant", "content": "yes?", "refusal": None, "tool_calls": None}, *SAY]
    body = {"model": MODEL, "messages": turns, "stop": None, "n": None, "max_tokens": 2, **fields}

    assert http.post(CHAT, json=body).status_code == 200


def test_an_unknown_model_is_named(http: httpx.Client) -> None:
    """404, with the model that there is."""
    error = _error(http.post(COMPLETIONS, json={"model": "gpt", "prompt": "hi"}), 404)

    assert error["code"] == "model_not_found"
    assert MODEL in error["message"]


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/v1/nothing", 404), ("GET", CHAT, 405)])
def test_unknown_routes_and_methods_answer_in_the_same_shape(http: httpx.Client, method: str, path: str, status: int) -> None:
    """Clients parse one kind of error."""
    _error(http.request(method, path), status)


def test_a_body_that_is_too_large_is_refused() -> None:
    """By its declared length, and by what has arrived when none is declared."""
    with running(max_body_bytes=1000) as small, httpx.Client(base_url=small.url) as http:
        body = json.dumps({"model": MODEL, "prompt": "x" * 2000}).encode()

        assert _error(http.post(COMPLETIONS, content=body), 413)["code"] == "body_too_large"
        assert _error(http.post(COMPLETIONS, content=iter([body[:900], body[900:]])), 413)["code"] == "body_too_large"
