"""Driving an engine for a measurement: requests in, times out.

Called by `step` and `share`. The clock is the wall's: what a step takes is the time between the results of one step and
those of the next, with the engine one step ahead of the device as it serves.
"""

from __future__ import annotations

import statistics
import time

import torch

from paceline_compat.memory import PAGE_TOKENS
from paceline_runtime.bench.subjects import Subject
from paceline_runtime.bench.timing import synchronize
from paceline_runtime.config import EngineConfig
from paceline_runtime.engine.build import assemble
from paceline_runtime.engine.core import Engine
from paceline_runtime.errors import ConfigError
from paceline_runtime.messages import Submit
from paceline_runtime.params import SamplingParams
from paceline_runtime.sampling.judge import Accept, judge
from paceline_runtime.speculative.base import Proposer

WARM_UP_STEPS = 4
_PREFILL_REPEATS = 3


def make_engine(
    one: Subject,
    proposer: Proposer | None,
    *,
    num_requests: int,
    max_model_len: int,
    prefill_chunk: int,
    decode_prefill_tokens: int | None = None,
    accept: Accept = judge,
) -> Engine:
    """An engine with room for `num_requests` whole contexts, and no prefix cache: a hit would be no prefill."""
    config = EngineConfig(
        model_path=str(one.path),
        max_running_req=num_requests,
        max_model_len=max_model_len,
        max_prefill_tokens=prefill_chunk,
        decode_prefill_tokens=decode_prefill_tokens,
        num_pages=num_requests * -(-max_model_len // PAGE_TOKENS),
        cache_type="naive",
    )
    return assemble(config, one.target, proposer, accept=accept)


def submit(engine: Engine, name: str, prompt: list[int], max_tokens: int | None = None) -> None:
    """Queue a greedy request that no token ends. Raises ConfigError when it can never run."""
    params = SamplingParams(max_tokens=max_tokens, ignore_eos=True)
    refused = engine.add(Submit(request_id=name, prompt_ids=prompt, params=params))
    if refused is not None:
        raise ConfigError([refused.message])


def random_prompt(engine: Engine, num_tokens: int, seed: int) -> list[int]:
    """Token ids that differ from seed to seed."""
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(0, engine.info.vocab_size, (num_tokens,), generator=generator).tolist()
    return ids


def start_decoding(engine: Engine, num_requests: int, context_tokens: int) -> list[str]:
    """Prefill `num_requests` random prompts; returns their names once all of them decode."""
    names = [f"decode-{index}" for index in range(num_requests)]
    for index, name in enumerate(names):
        submit(engine, name, random_prompt(engine, context_tokens, index))
    while engine.scheduler.num_decoding < num_requests:
        if not engine.has_work:
            raise ConfigError(["some requests came to their end before the last one decoded: give them longer contexts"])
        engine.step()
    return names


def drain(engine: Engine, names: list[str]) -> None:
    """Abort requests and collect what is still in flight."""
    for name in names:
        engine.abort(name)
    while engine.has_work:
        engine.step()


def decode_times(engine: Engine, num_requests: int, context_tokens: int, num_steps: int) -> tuple[float, float]:
    """Median seconds from results to results of a steady batch, and of the host's share of it, the launch."""
    names = start_decoding(engine, num_requests, context_tokens)
    step_s, launch_s = [], []
    for _ in range(WARM_UP_STEPS + num_steps):
        begin = time.perf_counter()
        engine.step()
        step_s.append(time.perf_counter() - begin)
        launch_s.append(engine.last_launch_s)
    drain(engine, names)
    return statistics.median(step_s[WARM_UP_STEPS:]), statistics.median(launch_s[WARM_UP_STEPS:])


def prefill_s(engine: Engine, num_tokens: int, device: torch.device) -> float:
    """Median seconds from a prompt's arrival to its first token, nothing else running."""
    times = []
    for seed in range(1 + _PREFILL_REPEATS):
        prompt = random_prompt(engine, num_tokens, seed)
        synchronize(device)
        begin = time.perf_counter()
        submit(engine, f"prefill-{seed}", prompt, max_tokens=1)
        while engine.has_work:
            engine.step()
        times.append(time.perf_counter() - begin)
    return statistics.median(times[1:])
