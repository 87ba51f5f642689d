"""Clients of a server for the soak: each draws a request, streams it over HTTP, and now and then leaves in the middle."""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import tokenizers
from prometheus_client.parser import text_string_to_metric_families
from tokenizers import models

MODEL = "soak"
ABORTED = 0.2
"""Share of requests that are left before their end."""
LEAST_REQUESTS = 3
"""Of each client, however short the soak."""
Body = dict[str, Any]


@dataclass
class Streamed:
    """What one request got. `tokens`, their logprobs and the gaps to the second best are there for greedy requests."""

    text: str = ""
    tokens: list[str] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    finish_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)

    @property
    def accepted(self) -> int:
        return self.usage["completion_tokens_details"]["accepted_prediction_tokens"] if self.usage else 0

    @property
    def stopped_inside_a_run(self) -> bool:
        """Whether a stop cut off tokens that the last step had committed; the first token comes from no decode step."""
        if self.finish_reason != "stop" or not self.usage:  # none comes to who hangs up
            return False
        committed = 1 + self.accepted + self.usage["completion_tokens_details"]["decode_steps"]
        return self.usage["completion_tokens"] < committed


@dataclass
class Tally:
    """What all clients saw together; `greedy` holds each greedy answer beside the name of its request."""

    counts: Counter[str] = field(default_factory=Counter)
    greedy: list[tuple[str, Streamed]] = field(default_factory=list)


def save_words(folder: Path, vocab_size: int) -> None:
    """A tokenizer whose every id has a word of its own, beside a checkpoint."""
    words = {f"w{index}": index for index in range(vocab_size)}
    tokenizers.Tokenizer(models.WordLevel(words, unk_token="w0")).save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text("{}")


async def stream(http: httpx.AsyncClient, body: Body, max_chunks: int | None = None) -> Streamed:
    """Run a request to its end, or hang up once `max_chunks` have come."""
    answer, num_chunks = Streamed(), 0
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with http.stream("POST", "/v1/completions", json=request) as response:
        assert response.status_code == 200, await response.aread()
        async for event in _events(response):
            _extend(answer, event)
            num_chunks += 1
            if max_chunks is not None and num_chunks >= max_chunks:
                return answer
    assert answer.usage, "the stream ended early"
    return answer


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    async for line in response.aiter_lines():
        if line and line != "data: [DONE]":
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            yield event


def _extend(answer: Streamed, event: dict[str, Any]) -> None:
    answer.usage = event.get("usage") or answer.usage
    for choice in event["choices"]:
        answer.text += choice["text"]
        answer.finish_reason = choice["finish_reason"] or answer.finish_reason
        if found := choice["logprobs"]:
            answer.tokens += found["tokens"]
            answer.logprobs += found["token_logprobs"]
            ranked = [sorted(alternatives.values(), reverse=True) for alternatives in found["top_logprobs"]]
            answer.gaps += [best - second for best, second in ranked]


async def soak(
    http: httpx.AsyncClient, bodies: Mapping[str, Body], *, num_clients: int, seconds: float, seed: int = 0
) -> Tally:
    """`num_clients` clients that draw from `bodies` until the time is over; every request but the aborted ones ends."""
    tally, end = Tally(), asyncio.get_running_loop().time() + seconds

    async def one(number: int) -> None:
        draw, count = random.Random(1000 * seed + number), 0
        while count < LEAST_REQUESTS or asyncio.get_running_loop().time() < end:
            name, count = draw.choice(sorted(bodies)), count + 1
            leaves = draw.random() < ABORTED
            _tally(tally, name, await stream(http, bodies[name], draw.randint(1, 8) if leaves else None), bodies[name], leaves)

    async with asyncio.TaskGroup() as group:
        for number in range(num_clients):
            group.create_task(one(number))
    return tally


def _tally(tally: Tally, name: str, answer: Streamed, body: Body, leaves: bool) -> None:
    tally.counts["aborted" if leaves else "ended"] += 1
    tally.counts["sampled"] += not is_greedy(body)
    tally.counts["accepted"] += answer.accepted
    tally.counts["stopped inside a run"] += answer.stopped_inside_a_run
    if is_greedy(body) and not leaves:
        tally.greedy.append((name, answer))


async def metric(http: httpx.AsyncClient, name: str) -> dict[str, float]:
    """The samples of one family of `/metrics`, by their labels' values joined."""
    text = (await http.get("/metrics")).raise_for_status().text
    (family,) = [family for family in text_string_to_metric_families(text) if family.name == name]
    samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    return {" ".join(sample.labels.values()): sample.value for sample in samples}


def is_greedy(body: Body) -> bool:
    """Whether the answer must repeat."""
    return bool(body["temperature"] == 0)


def mixed_bodies(vocab_size: int, stop_ids: list[int], prompt_tokens: tuple[int, int]) -> dict[str, Body]:
    """Two dozen requests: greedy and sampled, with penalties, bias, stops and seeds; half of them share a beginning.

    Prompts count upwards, as the target's text does: so there is something for prompt lookup to find.
    """
    draw = random.Random(7)
    system = [index % vocab_size for index in range(prompt_tokens[0])]
    bodies = {}
    for index in range(24):
        start = draw.randrange(vocab_size)
        own = [(start + offset) % vocab_size for offset in range(draw.randint(5, prompt_tokens[1]))]
        bodies[f"{index:02}"] = {
            "model": MODEL,
            "prompt": system + own if index % 2 else own,
            "max_tokens": draw.randint(20, 60),
            "ignore_eos": True,
            **_params(index, stop_ids),
        }
    return bodies


def _params(index: int, stop_ids: list[int]) -> Body:
    """Greedy for the first dozen: compared with the sequential run, whose two best logprobs say how near a tie was."""
    if index < 12:
        stops: Body = ({"stop_token_ids": stop_ids}, {}, {"stop": f"w{stop_ids[0]}"})[index % 3]
        return {"temperature": 0, "logprobs": 2, **stops}
    sampled: Body = dict(temperature=0.5 + 0.05 * index, top_k=(0, 20, 50)[index % 3], top_p=(1.0, 0.9)[index % 2])
    extra: Body = ({}, dict(presence_penalty=0.5), dict(repetition_penalty=1.1, min_p=0.02), dict(logit_bias={"3": 2.0}))[
        index % 4
    ]
    return {"stop_token_ids": stop_ids, **({"seed": index} if index % 2 else {}), **sampled, **extra}
