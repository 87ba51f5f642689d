"""Which recurrent-state slot is live, which holds a snapshot, and at which page boundaries one is written.

The scheduler uses it for hybrid targets; for targets without recurrent state it answers "nothing to do". Live states and
snapshots share one pool. A decode step writes the state at a page boundary only when it replays the rows that crossed it,
one launch after they were verified, so a snapshot is attached to its page when that launch is known to exist.
"""

from __future__ import annotations

from collections.abc import Sequence

from paceline_compat.memory.parts import PAGE_TOKENS
from paceline_runtime.scheduler.number_pool import NumberPool
from paceline_runtime.scheduler.prefix import Node, PrefixCache
from paceline_runtime.scheduler.request import PendingSnapshot, Request
from paceline_runtime.step import Flush

KEPT_WHILE_DECODING = 2
"""Decode snapshots kept per running request; the older of the two makes room for the next."""


class Snapshots:
    """Slots of recurrent state: live ones by request, the others by page."""

    def __init__(self, prefix: PrefixCache, slots: NumberPool, *, enabled: bool) -> None:
        self._prefix = prefix
        self._slots = slots
        self._enabled = enabled
        self._flushes: list[Flush] = []

    @property
    def has_flushes(self) -> bool:
        """Whether a request that ended still has a snapshot to write."""
        return bool(self._flushes)

    @property
    def can_start(self) -> bool:
        """Whether a live slot can be had for one more request."""
        return not self._enabled or self._slots.num_free > 0 or bool(self._prefix.snapshot_slots())

    def cut_hit(self, matched: list[Node]) -> list[Node]:
        """The part of a K/V match that a request can start from: up to the deepest page with a snapshot."""
        if not self._enabled:
            return matched
        depth = max((index + 1 for index, node in enumerate(matched) if node.snapshot), default=0)
        return matched[:depth]

    def start(self, request: Request, num_matched: int, hit: Sequence[Node]) -> int:
        """Give the request a live slot; returns the snapshot to restore, 0 for none.

        With no other slot free, the snapshot itself may become the live slot: the restore is then a copy onto itself.
        """
        if not self._enabled:
            return 0
        restore = hit[-1].snapshot if hit else 0
        request.branch_boundary = num_matched * PAGE_TOKENS if num_matched > len(hit) else 0
        request.state_slot = self._prefix.take_snapshot_slot()
        assert request.state_slot, "can_start said that a slot can be had"
        return restore

    def in_chunk(self, request: Request, start: int, end: int) -> tuple[tuple[int, int], ...]:
        """Snapshots to write while tokens start..end are prefilled: (tokens into the chunk, slot), in order."""
        if not self._enabled:
            return ()
        history_end = request.num_prompt - request.num_generation_prompt
        ends = (min(history_end, request.num_to_prefill), request.num_to_prefill, request.branch_boundary)
        wanted = sorted({tokens - tokens % PAGE_TOKENS for tokens in ends})
        for boundary in wanted:
            if start < boundary <= end and (slot := self._prefix.take_snapshot_slot()):
                request.chunk_snapshots.append((boundary, slot))
        return tuple((boundary - start, slot) for boundary, slot in request.chunk_snapshots if start < boundary <= end)

    def attach_chunk(self, request: Request, end: int) -> None:
        """Hand the snapshots up to token `end`, now written and their pages published, to their pages."""
        due = [item for item in request.chunk_snapshots if item[0] <= end]
        request.chunk_snapshots = [item for item in request.chunk_snapshots if item[0] > end]
        for boundary, slot in due:
            self._attach(request, boundary, slot)

    def decode_target(self, request: Request) -> int:
        """The slot that the next decode step writes a boundary's state to, if the run it replays crossed one."""
        if not self._enabled:
            return 0
        pending = request.pending_snapshot
        if pending is not None and not pending.is_launched:
            request.pending_snapshot = PendingSnapshot(pending.boundary, pending.slot, pending.num_rows, is_launched=True)
            return pending.slot
        if not request.snapshot_target:
            request.snapshot_target = self._next_target(request)
        return request.snapshot_target

    def on_decode_commit(self, request: Request, before: int, num_rows: int, *, is_over: bool) -> None:
        """A decode step's run of `num_rows` tokens after `before` was committed (and its pages published)."""
        if not self._enabled:
            return
        self._settle(request)
        boundary = (before + num_rows) - (before + num_rows) % PAGE_TOKENS
        if boundary > before and request.snapshot_target:
            launched = request.num_in_flight > 0
            request.pending_snapshot = PendingSnapshot(boundary, request.snapshot_target, boundary - before, launched)
            request.snapshot_target = 0
        if is_over and request.pending_snapshot is not None:
            pending = request.pending_snapshot
            if not pending.is_launched and len(request.nodes) * PAGE_TOKENS >= pending.boundary:
                self._flushes.append(Flush(request.seat, request.state_slot, num_rows, pending.num_rows, pending.slot))
            self._settle(request)

    def leave(self, request: Request) -> None:
        """Take back every slot of a request that ends or is preempted; what is attached to pages stays."""
        held = [request.state_slot, request.snapshot_target, *(slot for _, slot in request.chunk_snapshots)]
        if request.pending_snapshot is not None:
            held.append(request.pending_snapshot.slot)
        for slot in held:
            if slot:
                self._slots.give_back(slot)
        request.state_slot = request.snapshot_target = request.branch_boundary = 0
        request.chunk_snapshots, request.pending_snapshot = [], None
        request.kept_snapshots.clear()

    def take_flushes(self) -> tuple[Flush, ...]:
        """Flushes due at the start of the next step, before anything else touches their slots."""
        flushes, self._flushes = tuple(self._flushes), []
        return flushes

    def check_integrity(self, running: Sequence[Request]) -> None:
        """Every slot is free, live, promised to one request, or attached to one page."""
        held: list[int] = self._prefix.snapshot_slots()
        for request in running:
            held += [slot for slot in (request.state_slot, request.snapshot_target) if slot]
            held += [slot for _, slot in request.chunk_snapshots]
            held += [request.pending_snapshot.slot] if request.pending_snapshot else []
        self._slots.check_integrity(held)

    def _settle(self, request: Request) -> None:
        pending, request.pending_snapshot = request.pending_snapshot, None
        if pending is not None:
            node = self._attach(request, pending.boundary, pending.slot)
            if node is not None:
                request.kept_snapshots.append(node)

    def _attach(self, request: Request, boundary: int, slot: int) -> Node | None:
        index = boundary // PAGE_TOKENS - 1
        if index < len(request.nodes) and self._prefix.attach_snapshot(request.nodes[index], slot):
            return request.nodes[index]
        self._slots.give_back(slot)
        return None

    def _next_target(self, request: Request) -> int:
        if len(request.kept_snapshots) >= KEPT_WHILE_DECODING:
            self._prefix.drop_snapshot(request.kept_snapshots.popleft())
        return self._prefix.take_snapshot_slot()
