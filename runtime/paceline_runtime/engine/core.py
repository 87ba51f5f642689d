"""The engine: queue in, tokens out. Plans a step, launches it, and collects the step before it.

The engine process (`process.py`) and `LLM` drive it; both call `add`, `abort` and `step`. Running one step ahead
(lag 1) hides the host's work behind the device's; at lag 0 every step is collected before the next is planned. It knows no
socket and no HTTP.
"""

from __future__ import annotations

import random
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from paceline_kernels.counter_random import mix_seed
from paceline_runtime.device.executor import Executor
from paceline_runtime.device.results import Handle
from paceline_runtime.engine.budget import PrefillBudget
from paceline_runtime.engine.counters import Counters
from paceline_runtime.engine.depth import AdaptiveDepth, FixedDepth
from paceline_runtime.engine.memory import SizeError
from paceline_runtime.messages import Rebuild, Rebuilt, Refused, Stats, Submit, TokenLogprobs, Tokens
from paceline_runtime.scheduler.prefix import PrefixCache
from paceline_runtime.scheduler.request import Request, make_request
from paceline_runtime.scheduler.scheduler import Commit, MustDrainError, Scheduler
from paceline_runtime.step import StepPlan, StepResult


@dataclass(frozen=True)
class EngineInfo:
    """What a client may want to know of a loaded engine."""

    model_type: str
    vocab_size: int
    max_model_len: int
    plan: str


Resize = Callable[["Engine", Rebuild], None]
"""Replaces the caches of an idle engine; SizeError when the new sizes cannot be."""


@dataclass(frozen=True)
class Pace:
    """How an engine goes on: what a step may prefill, how many drafts it verifies, and by which clock both are learned.

    `lag` is how many steps may be in flight when a plan is made.
    """

    budget: PrefillBudget
    depth: FixedDepth | AdaptiveDepth
    lag: int
    clock: Callable[[], float] = time.perf_counter


@dataclass(frozen=True)
class _InFlight:
    handle: Handle
    launched_s: float


class Engine:
    """One target, its proposer, and the requests they serve.

    Requests without a seed get their streams from `seed`. `last_launch_s` is what the host took for the last launch.
    """

    def __init__(
        self, scheduler: Scheduler, executor: Executor, info: EngineInfo, pace: Pace, resize: Resize, *, seed: int = 0
    ) -> None:
        self.scheduler = scheduler
        self.executor = executor
        self.info = info
        self.counters = Counters(executor.num_drafts)
        self._budget, self._depth, self._lag, self._clock = pace.budget, pace.depth, pace.lag, pace.clock
        self._resize = resize
        self._seeds = random.Random(seed)
        self._in_flight: deque[_InFlight] = deque()
        self._last_results_s = 0.0
        self.last_launch_s = 0.0

    def add(self, submit: Submit) -> Refused | None:
        """Queue a request, or say why it can never run; nothing is kept of a refused one."""
        problems = submit.params.problems(self.info.vocab_size)
        if problems:
            text = "; ".join(f"{name} {message}" for name, message in problems)
            return Refused(request_id=submit.request_id, code="invalid_value", message=text, param=problems[0][0])
        ids, size = submit.prompt_ids, self.info.vocab_size
        if ids and not 0 <= min(ids) <= max(ids) < size:  # far faster than a loop over 100,000 ids
            bad = next(token for token in ids if not 0 <= token < size)
            text = f"prompt token id {bad} is outside the vocabulary of {size}"
            return Refused(request_id=submit.request_id, code="invalid_value", message=text, param="prompt")
        refusal = self.scheduler.room.refusal(len(submit.prompt_ids), submit.params.max_tokens)
        if refusal is not None:
            param = "max_tokens" if self.scheduler.room.refusal(len(submit.prompt_ids), None) is None else "prompt"
            return Refused(request_id=submit.request_id, code="context_length_exceeded", message=refusal, param=param)
        seed = submit.params.seed if submit.params.seed is not None else self._seeds.getrandbits(63)
        root = PrefixCache.root_name(submit.cache_salt)
        self.scheduler.add(make_request(submit, self.info.max_model_len, mix_seed(seed, submit.choice), root))
        return None

    def abort(self, request_id: str) -> None:
        """End a request and free all it holds; ids that are not (or no longer) known are ignored."""
        self.scheduler.abort(request_id)

    @property
    def depths(self) -> tuple[int, ...]:
        """The numbers of drafts that steps may verify, the likeliest first."""
        return self._depth.depths

    @property
    def has_work(self) -> bool:
        """Whether `step` would do anything."""
        return self.scheduler.has_work or bool(self._in_flight)

    def step(self) -> list[Tokens]:
        """Launch the next step, if there is one, and collect those that are due."""
        outputs: list[Tokens] = []
        plan = self._plan(outputs)
        if not plan.is_empty:
            launched_s = self._clock()  # before the launch, which on a CPU is the whole step
            self._in_flight.append(_InFlight(self.executor.launch(plan), launched_s))
            self.last_launch_s = self._clock() - launched_s
        while self._in_flight and (plan.is_empty or len(self._in_flight) > self._lag):
            outputs += self._collect()
        return outputs

    def _plan(self, outputs: list[Tokens]) -> StepPlan:
        decoding, prompts = self.scheduler.num_decoding, self.scheduler.has_prompts
        tokens = self._budget.take(num_decoding=decoding, has_prompts=prompts)
        depth = self._depth.choose(decoding) if decoding else None
        try:
            plan = self.scheduler.plan(tokens, depth)
        except MustDrainError:
            while self._in_flight:
                outputs += self._collect()
            plan = self.scheduler.plan(tokens, depth)
        if plan.decode and plan.prefill:
            self._budget.spent(sum(chunk.num_tokens for chunk in plan.prefill))
        for start in plan.starts:
            request = self.scheduler.seats.at(start.seat)
            if not request.num_outputs and not request.num_preemptions:
                self.counters.admitted(request.num_prompt, start.num_cached)
        return plan

    def _collect(self) -> list[Tokens]:
        flight = self._in_flight.popleft()
        plan = flight.handle.plan
        result = self.executor.collect(flight.handle)
        now = self._clock()
        seconds = now - max(flight.launched_s, self._last_results_s)
        self._learn(plan, result, seconds if flight.handle.is_steady else None)
        self._last_results_s = now
        return [self._tokens(commit) for commit in self.scheduler.commit(plan, result)]

    def _learn(self, plan: StepPlan, result: StepResult, seconds: float | None) -> None:
        """Tell the policies how long a step took, None where that says nothing of the next one, and what it gave."""
        num_prefill_tokens = sum(chunk.num_tokens for chunk in plan.prefill)
        if seconds is not None:
            self._budget.measured(seconds, num_decoding=len(plan.decode), num_prefill_tokens=num_prefill_tokens)
        accepted = [len(row.token_ids) - 1 for row in result.decode]
        self._depth.observed(plan.depth, len(plan.decode), None if num_prefill_tokens else seconds, accepted)

    def _tokens(self, commit: Commit) -> Tokens:
        drafted, accepted = self.counters.committed(commit)
        request = commit.request
        return Tokens(
            request_id=request.id,
            token_ids=list(commit.token_ids),
            finish_reason=commit.cut.reason,
            stop_text=commit.cut.stop_text,
            cached_tokens=request.num_cached or 0,
            drafted=drafted,
            accepted=accepted,
            steps=int(commit.is_verify),
            logprobs=_logprobs(request, commit),
        )

    def stats(self) -> Stats:
        """Counters and gauges as of now."""
        scheduler, counters = self.scheduler, self.counters
        return Stats(
            num_running=len(scheduler.running),
            num_waiting=len(scheduler.waiting),
            num_free_pages=scheduler.pages.num_free,
            num_cached_pages=scheduler.prefix.num_unused,
            num_pages=scheduler.config.num_pages - 1,
            preemptions=scheduler.num_preemptions,
            prefix_query_tokens=counters.prefix_query_tokens,
            prefix_hit_tokens=counters.prefix_hit_tokens,
            evicted_pages=scheduler.prefix.num_evicted,
            prompt_tokens=counters.prompt_tokens,
            generated_tokens=counters.generated_tokens,
            steps=counters.verify_steps,
            drafted_by_position=list(counters.drafted),
            accepted_by_position=list(counters.accepted),
        )

    def rebuild(self, sizes: Rebuild) -> Rebuilt:
        """Give the idle engine another cache; cached prefixes are lost. Whatever is wrong leaves it as large as it was."""
        error, param, is_busy = None, None, bool(self.scheduler.waiting or self.scheduler.running)
        try:
            if is_busy:
                raise ValueError("the cache can only be rebuilt while no request runs: wait until they are answered")
            while self._in_flight:  # launched before it was known that the last request had ended
                self._collect()
            self._resize(self, sizes)
        except ValueError as problem:
            error, param = str(problem), problem.field if isinstance(problem, SizeError) else None
        num_pages = self.scheduler.config.num_pages - 1
        return Rebuilt(num_pages=num_pages, plan=self.info.plan, error=error, param=param, is_busy=is_busy)

    def forget(self) -> None:
        """Forget what was counted and how long steps took so far (the warm-up)."""
        self.counters = Counters(self.executor.num_drafts)
        self._budget.forget()
        self._depth.forget()

    def check_integrity(self) -> None:
        """Every store adds up; with nothing running, nothing is held but the prefix cache."""
        self.scheduler.check_integrity()


def _logprobs(request: Request, commit: Commit) -> list[TokenLogprobs] | None:
    if request.params.logprobs is None or commit.result.logprobs is None:
        return None
    wanted = request.params.logprobs
    return [
        TokenLogprobs(token, chosen, list(ids[:wanted]), list(values[:wanted]))
        for token, (chosen, ids, values) in zip(commit.token_ids, commit.result.logprobs, strict=False)
    ]
