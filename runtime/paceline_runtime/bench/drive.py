"""Driving an engine for a measurement: requests in, times out.

`step` and `share` call it. The clock is the wall's: what a step takes is the time between the results of one step and
those of the next, with the engine one step ahead of the device as it serves.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.bench.pretend import pretended
from paceline_runtime.bench.subjects import Subject
from paceline_runtime.bench.timing import synchronize
from paceline_runtime.bench.trace import StepTrace, trace_steps
from paceline_runtime.config import EngineConfig
from paceline_runtime.engine.budget import PrefillBudget
from paceline_runtime.engine.build import assemble
from paceline_runtime.engine.core import Engine
from paceline_runtime.errors import ConfigError
from paceline_runtime.messages import Submit
from paceline_runtime.params import SamplingParams
from paceline_runtime.sampling.judge import Accept, judge
from paceline_runtime.speculative.base import Proposer

WARM_UP_STEPS = 4
HOST_STEPS = 16
TRACED_STEPS = 8
_PREFILL_REPEATS = 3


@dataclass(frozen=True)
class StepTimes:
    """Decode steps of a steady batch whose requests hold `context_tokens` on average; medians.

    step_s:   from results to results, the engine one step ahead of the device as it serves
    launch_s: of it the launch, which on a CPU is the work itself
    host_s:   plan, launch, collect and commit of a step in which nothing has to be waited for; None on a CPU, where host and
              device are one
    trace:    what the device did; None on a CPU
    """

    context_tokens: float
    step_s: float
    launch_s: float
    host_s: float | None
    trace: StepTrace | None


@dataclass(frozen=True)
class Sizes:
    """Room for `num_requests` whole contexts, and the prompt tokens of a step.

    `pretends`: no prompt is computed, and a step takes up as many tokens as there are.
    """

    num_requests: int
    max_model_len: int
    prefill_chunk: int
    decode_prefill_tokens: int | None = None
    pretends: bool = False


def make_engine(one: Subject, proposer: Proposer | None, sizes: Sizes, accept: Accept = judge) -> Engine:
    """An engine of these sizes without a prefix cache: a hit would be no prefill."""
    config = EngineConfig(
        model_path=str(one.path),
        max_running_req=sizes.num_requests,
        max_model_len=sizes.max_model_len,
        max_prefill_tokens=sizes.prefill_chunk,
        decode_prefill_tokens=sizes.decode_prefill_tokens,
        num_pages=sizes.num_requests * -(-sizes.max_model_len // PAGE_TOKENS),
        cache_type="naive",
    )
    if not sizes.pretends:
        return assemble(config, one.target, proposer, accept=accept)
    everything = sizes.num_requests * sizes.max_model_len
    budget = PrefillBudget(everything, fixed_tokens=everything)
    return assemble(config, one.target, proposer, accept=accept, prefill=pretended, budget=budget)


@contextmanager
def released(engine: Engine) -> Iterator[Engine]:
    """The engine, whose caches and graphs are let go of afterwards."""
    try:
        yield engine
    finally:
        engine.executor.release()
        if engine.executor.target.device.type == "cuda":
            torch.cuda.empty_cache()  # a graph's memory is of no use to the next engine's tensors


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


def decode_times(engine: Engine, num_requests: int, context_tokens: int, num_steps: int) -> StepTimes:
    """Times of `num_requests` that decode from a prompt of `context_tokens` on; the engine is idle before and after."""
    device = engine.executor.target.device
    names = start_decoding(engine, num_requests, context_tokens)
    for _ in range(WARM_UP_STEPS):
        engine.step()
    before, step_s, launch_s = mean_context(engine), [], []
    for _ in range(num_steps):
        step_s.append(_wall_s(engine))
        launch_s.append(engine.last_launch_s)
    context = (before + mean_context(engine)) / 2
    host_s = measure_host_s(engine, device) if device.type == "cuda" else None
    trace = trace_steps(lambda: [engine.step() for _ in range(TRACED_STEPS)], TRACED_STEPS, device)
    drain(engine, names)
    return StepTimes(context, statistics.median(step_s), statistics.median(launch_s), host_s, trace)


def mean_context(engine: Engine) -> float:
    """Tokens of a running request, on average."""
    return statistics.fmean(len(request.tokens) for request in engine.scheduler.running)


def _wall_s(engine: Engine) -> float:
    begin = time.perf_counter()
    engine.step()
    return time.perf_counter() - begin


def measure_host_s(engine: Engine, device: torch.device) -> float:
    """Median seconds of the host's part of a step.

    The engine launches a step and collects the one before. With the device at rest that one is over, so nothing is waited for.
    """
    times = []
    for _ in range(HOST_STEPS):
        synchronize(device)
        times.append(_wall_s(engine))
    return statistics.median(times)


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
