"""One prefill and a few decode steps before the first request, so that readiness means that tokens can be made.

`build` calls it. It knows requests only as `Engine.add` takes them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from paceline_runtime.device.executor import Executor
from paceline_runtime.engine.core import Engine
from paceline_runtime.messages import Submit
from paceline_runtime.params import SamplingParams
from paceline_runtime.step import SMALL_TOP_K, Variant

Clock = Callable[[], float]
_REQUEST_ID = "warm-up"


_REHEARSAL_S = 20.0
"""How long a start may take for rehearsals; steps that were not rehearsed are captured when they come up."""
_VARIANTS = (Variant(), Variant(is_sampled=True), Variant(is_sampled=True, support=SMALL_TOP_K))
"""Greedy; drawn from the whole vocabulary; drawn under a top-k, as most model cards ask."""


def rehearse(
    executor: Executor,
    depths: Sequence[int],
    max_rows: int,
    *,
    budget_s: float = _REHEARSAL_S,
    clock: Clock = time.perf_counter,
) -> None:
    """Run and capture the decode steps that are likely to come, the likeliest first, for as long as the budget lasts."""
    end = clock() + budget_s
    sizes = [size for size in (1, 2, 4, 8, 16, 32, 64, 128, 256) if size < max_rows] + [max_rows]
    kinds = [(size, variant, depth) for variant in _VARIANTS for size in sizes for depth in depths]
    for size, variant, depth in kinds:
        for _ in range(2):  # a step runs as it is before it is captured
            if clock() >= end:
                return
            executor.rehearse(size, depth, variant)


def warm_up(engine: Engine) -> None:
    """Run a greedy and a sampled request, then forget their counts and times; RuntimeError when too little comes out."""
    limit = engine.info.max_model_len
    prompt = [token % engine.info.vocab_size for token in range(1, min(8, limit))]
    for temperature in (0.0, 1.0):
        params = SamplingParams(max_tokens=min(4, limit - len(prompt)), temperature=temperature, ignore_eos=True, seed=0)
        refused = engine.add(Submit(request_id=_REQUEST_ID, prompt_ids=prompt, params=params))
        if refused is not None:
            raise RuntimeError(f"the warm-up request was refused: {refused.message}")
        produced = 0
        while engine.has_work:
            produced += sum(len(tokens.token_ids) for tokens in engine.step())
        if produced != params.max_tokens:
            raise RuntimeError(f"the warm-up made {produced} tokens instead of {params.max_tokens}")
    engine.forget()
