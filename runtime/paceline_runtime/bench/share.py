"""`paceline bench share`: what a long prompt does to those who are decoding already.

The bench's command calls it. The inter-token time of a request is the time between the results that brought it tokens; the
law is that the mean stays within twice what it is alone. The decoding requests' contexts grow by thousands of tokens while a
long prompt is prefilled on a slow device, so "alone" is measured before and after it.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from paceline_runtime.bench.drive import WARM_UP_STEPS, Sizes, drain, make_engine, random_prompt, start_decoding, submit
from paceline_runtime.bench.report import device_text, table, write_json
from paceline_runtime.bench.subjects import subject
from paceline_runtime.engine.core import Engine
from paceline_runtime.errors import ConfigError

_LONG = "long-prompt"
_PREFILL_CHUNK = 2048
_HEAD = ("", "samples", "median ms", "mean ms", "p99 ms")


@dataclass(frozen=True)
class InterToken:
    """Seconds between the tokens of one request, over all decoding requests."""

    num_samples: int
    median_s: float
    mean_s: float
    p99_s: float


@dataclass(frozen=True)
class Share:
    """Decoding alone, before and after, and beside a prefill of `prompt_tokens` that took `prefill_s` to its first token."""

    before: InterToken
    beside: InterToken
    after: InterToken
    prompt_tokens: int
    prefill_s: float

    @property
    def ratio(self) -> float:
        """Mean inter-token time beside the prefill, in units of the mean of those alone."""
        return 2.0 * self.beside.mean_s / (self.before.mean_s + self.after.mean_s)


def run(args: argparse.Namespace) -> int:
    """Measure, print and write what the flags ask for."""
    max_model_len = int(max(args.prompt_tokens + 1, args.context_tokens + _room(args)))
    with subject(args, max_model_len) as one:
        engine = make_engine(one, None, Sizes(args.requests + 1, max_model_len, _PREFILL_CHUNK))
        share = measure_share(engine, args.requests, args.context_tokens, args.prompt_tokens, args.steps)
        print(f"{one.shape.name}, {args.requests} decoding requests of {args.context_tokens} tokens")
        print(device_text(one.target.device))
        rows = (("alone, before", share.before), ("beside the prefill", share.beside), ("alone, after", share.after))
        print(table(_HEAD, [_cells(name, times) for name, times in rows]))
        print(f"{share.prompt_tokens} prompt tokens in {share.prefill_s:.2f} s; mean ratio {share.ratio:.2f} (to be within 2)")
        if args.json:
            write_json(args.json, one.target.device, {"shape": one.shape.name, **asdict(share), "ratio": share.ratio})
    return 0 if share.ratio <= 2.0 else 1


def measure_share(engine: Engine, num_requests: int, context_tokens: int, prompt_tokens: int, num_steps: int) -> Share:
    """Decode alone for `num_steps` steps, on while a prompt of `prompt_tokens` is prefilled, and alone again."""
    names = start_decoding(engine, num_requests, context_tokens)
    for _ in range(WARM_UP_STEPS):
        engine.step()
    clock = _Gaps(names)
    for _ in range(num_steps):
        clock.step(engine)
    before, begin = clock.take(), time.perf_counter()
    submit(engine, _LONG, random_prompt(engine, prompt_tokens, num_requests), max_tokens=1)
    while not clock.step(engine):
        pass
    prefill_s = time.perf_counter() - begin
    beside = clock.take()
    for _ in range(num_steps):
        clock.step(engine)
    drain(engine, names)
    return Share(before, beside, clock.take(), prompt_tokens, prefill_s)


class _Gaps:
    """Times between the tokens of each of the named requests."""

    def __init__(self, names: Sequence[str]) -> None:
        self._last_s = dict.fromkeys(names, 0.0)
        self._gaps: list[float] = []

    def step(self, engine: Engine) -> bool:
        """One engine step; whether it brought the long prompt's token."""
        outputs, now = engine.step(), time.perf_counter()
        for tokens in outputs:
            if before := self._last_s.get(tokens.request_id):
                self._gaps.append(now - before)
            if tokens.request_id in self._last_s:
                self._last_s[tokens.request_id] = now
        return any(tokens.request_id == _LONG for tokens in outputs)

    def take(self) -> InterToken:
        """What was seen since the last call."""
        gaps, self._gaps = sorted(self._gaps), []
        if not gaps:
            raise ConfigError(["no token came while it was timed: raise --prompt-tokens"])
        p99 = gaps[min(len(gaps) - 1, int(0.99 * len(gaps)))]
        return InterToken(len(gaps), statistics.median(gaps), statistics.fmean(gaps), p99)


def _room(args: argparse.Namespace) -> int:
    """Positions for all decode steps; beside the prefill there are fewer than prompt tokens, since each step takes some."""
    return int(WARM_UP_STEPS + 2 * args.steps + args.prompt_tokens)


def _cells(name: str, times: InterToken) -> tuple[str, ...]:
    milliseconds = (f"{seconds * 1e3:.2f}" for seconds in (times.median_s, times.mean_s, times.p99_s))
    return (name, str(times.num_samples), *milliseconds)
