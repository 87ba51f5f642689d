"""The policy: which requests run in the next step, with which pages, and what a step's results mean for them.

The engine calls it between steps: `plan` before a launch, `commit` after its results arrived (one step later when the
engine runs ahead). Plain integers and lists; it knows no tensor, no clock and no wire format. Host lengths are upper bounds:
a step in flight may add up to 1 + k tokens to a request, so pages are taken for all that every step in flight could write.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.scheduler.ends import Cut, cut_run
from paceline_runtime.scheduler.number_pool import NumberPool
from paceline_runtime.scheduler.pages import PagePool
from paceline_runtime.scheduler.prefix import PrefixCache
from paceline_runtime.scheduler.request import Phase, Request
from paceline_runtime.scheduler.room import Room, SchedulerConfig
from paceline_runtime.scheduler.seats import Seats
from paceline_runtime.scheduler.snapshots import Snapshots
from paceline_runtime.step import DecodeRow, PrefillRow, RowResult, Start, StepPlan, StepResult, Variant
from paceline_runtime.text.detokenizer import Decode
from paceline_runtime.text.stream import TextStream


@dataclass(frozen=True)
class Commit:
    """What a step's results changed for one request: those of a verify, or of its prompt's last chunk."""

    request: Request
    token_ids: tuple[int, ...]
    cut: Cut
    result: RowResult
    is_verify: bool


class MustDrainError(Exception):
    """A request must be preempted, but steps in flight still write for it: collect them, then plan again."""


class Scheduler:
    """Queue, running set and everything they own."""

    def __init__(self, config: SchedulerConfig, decode: Decode | None = None) -> None:
        self.config = config
        self.pages = PagePool(config.num_pages)
        state_slots = NumberPool(max(config.num_state_slots, 1))
        self.prefix = PrefixCache(self.pages, state_slots)
        self.room = Room(config, self.pages, self.prefix)
        self.snapshots = Snapshots(self.prefix, state_slots, enabled=config.num_state_slots > 0)
        self.seats = Seats(config, self.pages, self.prefix, self.room, self.snapshots)
        self.waiting: deque[Request] = deque()
        self.num_preemptions = 0
        self.decode = decode
        self._by_id: dict[str, Request] = {}
        self._last_plan = 0

    def count_from(self, before: Scheduler) -> None:
        """Go on with the counts of the scheduler that this one replaces: they only grow."""
        self.num_preemptions = before.num_preemptions
        self.prefix.num_evicted = before.prefix.num_evicted

    def add(self, request: Request) -> None:
        """Queue a request that `refusal` let pass."""
        assert request.id not in self._by_id, f"request id {request.id!r} is in use"
        if request.params.stop:
            assert self.decode is not None, "stop strings need a tokenizer"
            request.text = TextStream(self.decode, request.tokens, request.params.stop)
        self._by_id[request.id] = request
        self.waiting.append(request)

    def abort(self, request_id: str) -> Request | None:
        """End a request wherever it is; its pages are free at once, since later steps are launched after those in flight."""
        request = self._by_id.get(request_id)
        if request is not None:
            self._finish(request)
        return request

    @property
    def running(self) -> list[Request]:
        """Requests that have a seat, oldest first."""
        return self.seats.running

    @property
    def has_work(self) -> bool:
        """Whether a plan could still be made."""
        return bool(self.waiting or self.running or self.snapshots.has_flushes)

    @property
    def num_decoding(self) -> int:
        """Requests past their prompt."""
        return sum(request.phase is Phase.DECODE for request in self.running)

    @property
    def has_prompts(self) -> bool:
        """Whether any request still has prompt tokens to compute."""
        return bool(self.waiting) or self.num_decoding < len(self.running)

    def plan(self, prefill_budget: int, depth: int | None = None) -> StepPlan:
        """The next step: all decoding requests with `depth` drafts each (None: as configured), and up to `prefill_budget`
        prompt tokens of the others.

        Raises MustDrainError (nothing changed) when pages ran out while steps are in flight.
        """
        self._last_plan += 1
        decode = self._plan_decode()
        starts, prefill = self._plan_prefill(prefill_budget)
        for request, _ in decode:
            request.num_in_flight += 1
        for request, chunk in prefill:
            _launch_chunk(request, chunk)
        return StepPlan(
            number=self._last_plan,
            flushes=self.snapshots.take_flushes(),
            released=self.seats.take_released(),
            starts=tuple(starts),
            pages=self.seats.tell_pages(request for request, _ in (*decode, *prefill)),
            decode=tuple(row for _, row in decode),
            prefill=tuple(chunk for _, chunk in prefill),
            depth=self.config.num_drafts if depth is None else depth,
            decode_variant=Variant.together(request.variant for request, _ in decode),
            draw_variant=Variant.together(request.variant for request, chunk in prefill if chunk.samples),
        )

    def _plan_decode(self) -> list[tuple[Request, DecodeRow]]:
        decoding = [request for request in self.running if request.phase is Phase.DECODE]
        planned: list[tuple[Request, DecodeRow]] = []
        for request in decoding:  # oldest first: the newest give way
            if request.phase is not Phase.DECODE:
                continue
            while not self.room.reserve(request, self.room.decode_upper(request)):
                self._preempt_newest()
                if request.phase is not Phase.DECODE:
                    break
            else:
                target = self.snapshots.decode_target(request)
                planned.append((request, DecodeRow(request.seat, len(request.pages), target)))
        return [(request, row) for request, row in planned if request.phase is Phase.DECODE]

    def _plan_prefill(self, budget: int) -> tuple[list[Start], list[tuple[Request, PrefillRow]]]:
        starts: list[Start] = []
        chunks: list[tuple[Request, PrefillRow]] = []
        for request in self._prefillable(starts):
            if budget <= 0:
                break
            chunk = self._next_chunk(request, budget)
            if chunk is None:
                break
            chunks.append((request, chunk))
            budget -= chunk.num_tokens
        return starts, chunks

    def _prefillable(self, starts: list[Start]) -> Iterator[Request]:
        """Running requests with prompt tokens left, then waiting ones as seats and pages allow, first come first served."""
        yield from [request for request in self.running if request.phase is Phase.PREFILL]
        while self.waiting and self.seats.can_enter:
            start = self.seats.enter(self.waiting[0], self._last_plan)
            if start is None:
                return
            request = self.waiting.popleft()
            starts.append(start)
            if request.phase is Phase.PREFILL:
                yield request

    def _next_chunk(self, request: Request, budget: int) -> PrefillRow | None:
        start, total = request.num_computed, request.num_to_prefill
        end = min(total, start + budget, self.room.affordable_end(request))
        if end < total:
            end -= end % PAGE_TOKENS  # on the grid of snapshots and of the chunked recurrence
        if end <= start or not self.room.reserve(request, end):
            return None
        return PrefillRow(
            seat=request.seat,
            start=start,
            num_tokens=end - start,
            is_last=end == total,
            samples=end == total and not request.num_outputs,
            num_pages=len(request.pages),
            snapshots=self.snapshots.in_chunk(request, start, end),
        )

    def _preempt_newest(self) -> None:
        victim = self.running[-1]
        if any(request.num_in_flight for request in self.running):
            raise MustDrainError
        victim.num_preemptions += 1
        self.num_preemptions += 1
        self.seats.leave(victim)
        victim.phase = Phase.WAITING
        victim.num_computed = 0
        self.waiting.appendleft(victim)

    def _finish(self, request: Request) -> None:
        if request.phase is Phase.WAITING:
            self.waiting.remove(request)
        self.seats.leave(request)
        request.phase = Phase.FINISHED
        del self._by_id[request.id]

    def commit(self, plan: StepPlan, result: StepResult) -> list[Commit]:
        """Take a step's results in the order of its rows; results for requests that are over are dropped."""
        commits: list[Commit] = []
        for row, row_result in zip(plan.decode, result.decode, strict=True):
            if request := self.seats.owner(row.seat, plan.number):
                request.num_in_flight -= 1
                request.num_computed += len(row_result.token_ids)
                commits.append(self._append(request, row_result, is_verify=True))
        for chunk, row_result in zip(plan.prefill, result.prefill, strict=True):
            if request := self.seats.owner(chunk.seat, plan.number):
                request.num_in_flight -= 1
                commits += self._commit_chunk(request, chunk, row_result)
        return commits

    def _commit_chunk(self, request: Request, chunk: PrefillRow, result: RowResult) -> list[Commit]:
        self.seats.publish(request, chunk.start + chunk.num_tokens)
        self.snapshots.attach_chunk(request, chunk.start + chunk.num_tokens)
        return [self._append(request, result, is_verify=False)] if result.token_ids else []

    def _append(self, request: Request, result: RowResult, *, is_verify: bool) -> Commit:
        room = request.max_tokens - request.num_outputs
        cut = cut_run(result.token_ids, request.params, room, self.config.eos_ids, request.text)
        kept = result.token_ids[: cut.num_tokens]
        request.tokens += kept
        self.seats.publish(request, len(request.tokens) - 1)
        if is_verify:
            num_rows = len(result.token_ids)
            self.snapshots.on_decode_commit(request, request.num_computed - num_rows, num_rows, is_over=cut.reason is not None)
        if cut.reason is not None:
            self._finish(request)
        return Commit(request, kept, cut, result, is_verify)

    def check_integrity(self) -> None:
        """What is running owns what it should, what waits owns nothing, and nobody is lost."""
        self.seats.check_integrity()
        assert all(request.seat == 0 and not request.pages for request in self.waiting), "a waiting request owns something"
        assert set(self._by_id) == {r.id for r in (*self.waiting, *self.running)}, "a request is lost"


def _launch_chunk(request: Request, chunk: PrefillRow) -> None:
    request.num_computed = chunk.start + chunk.num_tokens
    request.num_in_flight += 1
    if chunk.is_last:
        request.phase = Phase.DECODE
