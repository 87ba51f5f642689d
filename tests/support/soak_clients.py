"""Clients of an engine process for the soak: each draws a request, streams it, and now and then leaves in the middle."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import msgspec

from paceline_runtime.config import EngineConfig
from paceline_runtime.messages import Failed, Refused, Submit, TokenLogprobs, Tokens
from paceline_runtime.sampling import SamplingParams
from paceline_runtime.server.engine_client import EngineClient
from paceline_runtime.server.engine_process import EngineProcess

ABORTED = 0.2
"""Share of requests that are left before their end."""
LEAST_REQUESTS = 3
"""Of each client, however short the soak."""


@dataclass
class Streamed:
    """What one request got."""

    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    accepted: int = 0
    stopped_inside_a_run: bool = False


@dataclass
class Tally:
    """What all clients saw together; `greedy` holds each greedy answer beside the name of its request."""

    counts: Counter[str] = field(default_factory=Counter)
    greedy: list[tuple[str, Streamed]] = field(default_factory=list)


@asynccontextmanager
async def engine_client(config: EngineConfig):
    """A client of a fresh engine process that is ready; the process is told to end afterwards."""
    process = EngineProcess(config)
    client = EngineClient(process.socket)
    await process.start()
    listener = asyncio.create_task(client.listen())
    watcher = asyncio.create_task(process.wait())
    try:
        ready = asyncio.create_task(client.until_ready())
        failed = asyncio.create_task(client.failed.wait())
        await asyncio.wait([ready, failed, watcher], return_when=asyncio.FIRST_COMPLETED)
        assert ready.done(), client.failure or "the engine process ended"
        failed.cancel()
        yield client
        client.shut_down()
        assert await watcher == 0
    finally:
        listener.cancel()
        await process.stop(10.0)


async def stream(client: EngineClient, name: str, submit: Submit, max_tokens: int | None = None) -> Streamed:
    """Run a request to its end, or leave once it has `max_tokens`."""
    answer = Streamed()
    with client.call([msgspec.structs.replace(submit, request_id=name)]) as call:
        while call.is_open:
            _, event = await call.next()
            assert not isinstance(event, Failed | Refused), event
            _extend(answer, event)
            if max_tokens is not None and len(answer.token_ids) >= max_tokens:
                break
    return answer


def _extend(answer: Streamed, event: Tokens) -> None:
    answer.token_ids += event.token_ids
    answer.logprobs += event.logprobs or []
    answer.accepted += event.accepted
    if event.finish_reason == "stop" and event.steps and event.accepted:
        answer.stopped_inside_a_run = True


async def soak(
    client: EngineClient, submits: Mapping[str, Submit], *, num_clients: int, seconds: float, seed: int = 0
) -> Tally:
    """`num_clients` clients that draw from `submits` until the time is over; every request but the aborted ones ends."""
    tally, end = Tally(), asyncio.get_running_loop().time() + seconds

    async def one(number: int) -> None:
        draw, count = random.Random(1000 * seed + number), 0
        while count < LEAST_REQUESTS or asyncio.get_running_loop().time() < end:
            name, count = draw.choice(sorted(submits)), count + 1
            leaves = draw.random() < ABORTED
            answer = await stream(client, f"{number}-{count}", submits[name], draw.randint(1, 8) if leaves else None)
            _tally(tally, name, answer, submits[name].params, leaves)

    async with asyncio.TaskGroup() as group:
        for number in range(num_clients):
            group.create_task(one(number))
    return tally


def _tally(tally: Tally, name: str, answer: Streamed, params: SamplingParams, leaves: bool) -> None:
    tally.counts["aborted" if leaves else "ended"] += 1
    tally.counts["sampled"] += not params.is_greedy
    tally.counts["accepted"] += answer.accepted
    tally.counts["stopped inside a run"] += answer.stopped_inside_a_run
    if params.is_greedy and not leaves:
        tally.greedy.append((name, answer))


def mixed_submits(vocab_size: int, stop_ids: tuple[int, ...], prompt_tokens: tuple[int, int]) -> dict[str, Submit]:
    """Two dozen requests: greedy and sampled, with penalties, bias, stops and seeds; half of them share a beginning.

    Prompts count upwards, as the target's text does: so there is something for prompt lookup to find.
    """
    draw = random.Random(7)
    system = [index % vocab_size for index in range(prompt_tokens[0])]
    submits = {}
    for index in range(24):
        start = draw.randrange(vocab_size)
        own = [(start + offset) % vocab_size for offset in range(draw.randint(5, prompt_tokens[1]))]
        prompt = system + own if index % 2 else own
        params = _params(index, draw.randint(20, 60), stop_ids)
        submits[f"{index:02}"] = Submit(request_id="", prompt_ids=prompt, params=params)
    return submits


def _params(index: int, max_tokens: int, stop_ids: tuple[int, ...]) -> SamplingParams:
    base = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    if index < 12:  # greedy: compared with the sequential run, whose two best logprobs say how near a tie was
        return msgspec.structs.replace(base, logprobs=2, stop_token_ids=stop_ids if index % 3 == 0 else ())
    sampled = dict(temperature=0.5 + 0.05 * index, top_k=(0, 20, 50)[index % 3], top_p=(1.0, 0.9)[index % 2])
    extra = ({}, dict(presence_penalty=0.5), dict(repetition_penalty=1.1, min_p=0.02), dict(logit_bias={3: 2.0}))[index % 4]
    return msgspec.structs.replace(base, seed=index if index % 2 else None, stop_token_ids=stop_ids, **sampled, **extra)
