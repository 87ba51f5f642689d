"""Carries out a step's plan on the device: `launch(plan) -> handle`, then `collect(handle)` brings the results to the host.

The engine calls it, and may launch the next step before it collects this one. Inside `launch` nothing is read back from the
device: lengths, pending tokens and accepted counts live in `SeatBuffers`, where the next launch reads them. It knows
nothing of requests, queues, stops or text: a plan is all that it is told.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from paceline_runtime.batch import StateBatch
from paceline_runtime.device.decode import Decoder, EagerDecoder
from paceline_runtime.device.inputs import EXACT, Buckets, InputBuffers
from paceline_runtime.device.parts import Parts
from paceline_runtime.device.prefill import Prefill, prefill
from paceline_runtime.device.results import Handle, Results
from paceline_runtime.device.seats import SeatBuffers
from paceline_runtime.device.transfer import upload
from paceline_runtime.models.base import TargetMemory, TargetModel
from paceline_runtime.sampling.judge import Accept, judge
from paceline_runtime.speculative.base import Proposer
from paceline_runtime.step import Flush, Start, StepPlan, StepResult, Variant


class Executor:
    """The device side of the engine.

    `accept` decides what a verify commits, `buckets` how far decode batches are padded, `decoder` how their steps are run,
    `prefill` what becomes of prompts.
    """

    def __init__(
        self,
        target: TargetModel,
        proposer: Proposer | None,
        *,
        accept: Accept = judge,
        buckets: Buckets = EXACT,
        decoder: Decoder | None = None,
        prefill: Prefill = prefill,
    ) -> None:
        self.target = target
        self.proposer = proposer
        self.num_drafts = proposer.num_drafts if proposer else 0
        self._accept = accept
        self._decoder = decoder or EagerDecoder()
        self._prefill = prefill
        self._inputs = InputBuffers(buckets, target.device)
        self._parts: Parts | None = None

    def bind(self, memory: TargetMemory, seats: SeatBuffers) -> None:
        """Take caches and buffers, before the first launch or after a `release`."""
        self._parts = Parts(self.target, memory, seats, self.proposer, self._accept)

    def release(self) -> None:
        """Let go of all caches, before others are allocated in their place; again after an attempt at that has failed."""
        if self.proposer is not None:
            self.proposer.unbind()
        self._decoder.forget()
        self._parts = None

    @property
    def has_caches(self) -> bool:
        """False between `release` and the caches that come in their place."""
        return self._parts is not None

    @property
    def parts(self) -> Parts:
        """What the programs run over."""
        assert self._parts is not None, "bind comes first"
        return self._parts

    @property
    def memory(self) -> TargetMemory:
        """The caches."""
        return self.parts.memory

    @property
    def seats(self) -> SeatBuffers:
        """The buffers by seat."""
        return self.parts.seats

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Handle:
        """Start the device work of a step and of the copies of its results; returns without waiting for either."""
        self._flush(plan.flushes)
        if self.proposer is not None:
            for seat in plan.released:
                self.proposer.on_release(seat)
        for start in plan.starts:
            self._start(start)
        self.seats.change_pages(plan.pages)
        decode = self._decode(plan) if plan.decode else None
        drawn = self._prefill(self.parts, plan.prefill, plan.draw_variant) if plan.prefill else None
        return Handle(plan, decode, Results(drawn) if drawn else None, is_steady=decode is None or self._decoder.is_steady)

    @torch.inference_mode()
    def rehearse(self, num_rows: int, depth: int, variant: Variant) -> None:
        """Run a decode step of inert rows, so that its kernels are loaded when requests need it."""
        self._decoder(self.parts, self._inputs.inert(num_rows), depth, variant)

    def collect(self, handle: Handle) -> StepResult:
        """Wait for a launched step and bring its results to the host."""
        return handle.read()

    def _start(self, start: Start) -> None:
        pages, states = self.seats.start(start), self.memory.states
        if states is not None:
            if start.restore_slot:
                states.copy(start.restore_slot, start.state_slot)
            else:
                states.clear(start.state_slot)
        if self.proposer is not None:
            self.proposer.on_restore(start.seat, pages, start.num_cached)

    def _flush(self, flushes: Sequence[Flush]) -> None:
        if flushes:
            assert self.memory.states is not None
            names = ("state_slot", "replay_rows", "snapshot_rows", "snapshot_slot", "seat")
            columns = upload([[getattr(flush, name) for flush in flushes] for name in names], torch.int64, self.seats.device)
            self.memory.states.flush(StateBatch(*columns))

    def _decode(self, plan: StepPlan) -> Results:
        depth = plan.depth if self.proposer is not None else 0
        return Results(self._decoder(self.parts, self._inputs.decode(plan.decode), depth, plan.decode_variant))
