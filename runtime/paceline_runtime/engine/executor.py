"""Runs a step's plan on the device: `launch(plan) -> handle`, then `collect(handle)` brings the results to the host.

Called by the engine, which may launch the next step before it collects this one. Inside `launch` nothing is read back from
the device: lengths, pending tokens and accepted counts live in `Rows` and are read there by the next launch. It knows the
target and the proposer by their contracts only, and nothing of queues, stops or text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import torch

from paceline_compat.memory import PAGE_TOKENS
from paceline_runtime.batch import Chunk, ForwardBatch, StateBatch
from paceline_runtime.engine.results import Handle, Results, results_of
from paceline_runtime.engine.row_params import row_params
from paceline_runtime.engine.rows import Rows
from paceline_runtime.engine.transfer import Uploads, upload
from paceline_runtime.models.base import TargetMemory, TargetModel
from paceline_runtime.sampling.accept import Accepted
from paceline_runtime.sampling.judge import judge
from paceline_runtime.sampling.row_params import RowParams
from paceline_runtime.scheduler.request import DecodeRow, Flush, PrefillRow, Request, Start, StepPlan, StepResult
from paceline_runtime.speculative.base import DraftInputs, Proposal, Proposer


class Executor:
    """The device side of the engine."""

    def __init__(self, target: TargetModel, memory: TargetMemory, rows: Rows, proposer: Proposer | None) -> None:
        self.target = target
        self.memory = memory
        self.rows = rows
        self.proposer = proposer
        self.num_steps = proposer.num_steps if proposer else 0
        self._uploads = Uploads(rows.device)
        self._last_params: tuple[tuple[Request, ...], RowParams] | None = None

    @torch.inference_mode()
    def launch(self, plan: StepPlan) -> Handle:
        """Start the device work of a step and of the copies of its results; returns without waiting for either."""
        self._flush(plan.flushes)
        if self.proposer is not None:
            for row in plan.released:
                self.proposer.on_release(row)
        for start in plan.starts:
            self._start(start)
        decode = self._decode(plan.decode, plan.depth) if plan.decode else None
        prefill = self._prefill(plan.prefill) if plan.prefill else None
        return Handle(plan, decode, prefill)

    @property
    def has_caches(self) -> bool:
        """False between `release` and the caches that come in their place."""
        return hasattr(self, "memory")

    def release(self) -> None:
        """Let go of all caches, before others are allocated in their place; again after an attempt at that has failed."""
        if self.proposer is not None:
            self.proposer.unbind()
        with contextlib.suppress(AttributeError):
            del self.memory, self.rows

    def collect(self, handle: Handle) -> StepResult:
        """Wait for a launched step and bring its results to the host."""
        return handle.read()

    def _start(self, start: Start) -> None:
        self.rows.start(start.row, start.tokens, start.num_cached)
        if self.memory.states is not None:
            if start.restore_slot:
                self.memory.states.copy(start.restore_slot, start.state_slot)
            else:
                self.memory.states.clear(start.state_slot)
        if self.proposer is not None:
            self.proposer.on_restore(start.row, self._ints(start.pages), start.num_cached)

    def _flush(self, flushes: Sequence[Flush]) -> None:
        if flushes:
            assert self.memory.states is not None
            columns = ("state_slot", "replay_rows", "snapshot_rows", "snapshot_slot", "row")
            self.memory.states.flush(StateBatch(*(self._ints([getattr(f, name) for f in flushes]) for name in columns)))

    def _decode(self, planned: Sequence[DecodeRow], depth: int) -> Results:
        rows = self._uploads.ints("rows", [row.row for row in planned])
        lengths = self.rows.lengths[rows]
        table = self._uploads.padded("pages", [row.pages for row in planned])
        params = self._decode_params(planned)
        proposal = self._propose(depth, rows, lengths, table, params)
        num_drafts = (self.rows.max_model_len - 1 - lengths).clamp(min=0, max=depth)
        if proposal.num_tokens is not None:
            num_drafts = torch.minimum(num_drafts, proposal.num_tokens)
        batch = self._verify_batch(planned, rows, lengths, table, proposal, num_drafts)
        hidden = self._forward(batch)
        logits = self._logits(hidden).view(len(planned), 1 + depth, -1)
        verdict, adjusted = self._accept(logits, proposal, num_drafts, rows, lengths, params)
        self.rows.append(rows, verdict.run, verdict.num_tokens)
        return results_of(adjusted, verdict, num_drafts, params.num_logprobs)

    def _propose(
        self, depth: int, rows: torch.Tensor, lengths: torch.Tensor, table: torch.Tensor, params: RowParams
    ) -> Proposal:
        """The first `depth` drafts of each row; the proposer itself always drafts as wide as configured."""
        if self.proposer is None or not depth:
            return Proposal(torch.empty((len(rows), 0), dtype=torch.int64, device=self.rows.device))
        temperature = torch.where(params.greedy, 0.0, params.temperature)
        proposal = self.proposer.propose(
            DraftInputs(rows, self.rows.pending(rows), lengths, self.rows.history, table, temperature, params.keys)
        )
        return proposal if depth == self.num_steps else proposal.first(depth)

    def _verify_batch(
        self,
        planned: Sequence[DecodeRow],
        rows: torch.Tensor,
        lengths: torch.Tensor,
        table: torch.Tensor,
        proposal: Proposal,
        num_drafts: torch.Tensor,
    ) -> ForwardBatch:
        ids = torch.cat([self.rows.pending(rows)[:, None], proposal.tokens], dim=1)
        columns = torch.arange(ids.shape[1], device=self.rows.device)
        positions = lengths[:, None] + columns
        active = (columns <= num_drafts[:, None]) & (positions < self.rows.max_model_len)
        state = None
        if self.memory.states is not None:
            replay = self.rows.replay[rows]
            crossed = lengths - lengths % PAGE_TOKENS - (lengths - replay)
            slots = self._uploads.ints("slots", [row.state_slot for row in planned])
            targets = self._uploads.ints("targets", [row.snapshot_slot for row in planned])
            state = StateBatch(slots, replay, crossed.clamp(min=0), targets, rows)
        return ForwardBatch(
            ids=ids.flatten(),
            positions=positions.clamp(max=self.rows.max_model_len - 1).flatten(),
            slots=_cache_slots(table, positions, active).flatten(),
            active=active.flatten(),
            rows=rows,
            page_table=table,
            lengths=lengths,
            width=ids.shape[1],
            state=state,
        )

    def _accept(
        self,
        logits: torch.Tensor,
        proposal: Proposal,
        num_drafts: torch.Tensor,
        rows: torch.Tensor,
        lengths: torch.Tensor,
        params: RowParams,
    ) -> tuple[Accepted, torch.Tensor]:
        """The verdict on each request, and its logits [B, W, V] with penalties and bias."""
        return judge(logits, proposal, num_drafts, self.rows.history, rows, lengths, params), logits

    def _prefill(self, planned: Sequence[PrefillRow]) -> Results | None:
        batch = self._prefill_batch(planned)
        hidden = self._forward(batch)
        for row in planned:
            self.rows.prefilled(row.row, row.start + row.num_tokens)
        drawing = [(row, chunk) for row, chunk in zip(planned, batch.chunks, strict=True) if row.samples]
        if not drawing:
            return None
        rows = self._ints([row.row for row, _ in drawing])
        last = hidden[self._ints([chunk.offset + chunk.num_tokens - 1 for _, chunk in drawing])]
        params = self._params([row.request for row, _ in drawing])
        nothing = Proposal(torch.empty((len(drawing), 0), dtype=torch.int64, device=self.rows.device))
        none = torch.zeros_like(rows)
        lengths = self.rows.lengths[rows] - 1
        verdict, adjusted = self._accept(self._logits(last)[:, None], nothing, none, rows, lengths, params)
        self.rows.append_first(rows, verdict.run[:, 0])
        return results_of(adjusted, verdict, none, params.num_logprobs)

    def _prefill_batch(self, planned: Sequence[PrefillRow]) -> ForwardBatch:
        table = self._uploads.padded("chunk pages", [row.pages for row in planned])
        chunks: list[Chunk] = []
        owners: list[int] = []
        positions: list[int] = []
        for index, row in enumerate(planned):
            chunks.append(Chunk(len(positions), row.num_tokens, row.start, row.snapshots))
            owners += [index] * row.num_tokens
            positions += range(row.start, row.start + row.num_tokens)
        rows, where, owner = self._ints([row.row for row in planned]), self._ints(positions), self._ints(owners)
        state = None
        if self.memory.states is not None:
            zeros = torch.zeros_like(rows)
            state = StateBatch(self._ints([row.state_slot for row in planned]), zeros, zeros, zeros, rows)
        return ForwardBatch(
            ids=self.rows.history[rows[owner], where],
            positions=where,
            slots=table[owner, where // PAGE_TOKENS] * PAGE_TOKENS + where % PAGE_TOKENS,
            active=torch.ones_like(where, dtype=torch.bool),
            rows=rows,
            page_table=table,
            lengths=self._ints([row.start for row in planned]),
            width=0,
            chunks=tuple(chunks),
            state=state,
        )

    def _forward(self, batch: ForwardBatch) -> torch.Tensor:
        sink = self.proposer.sink(batch) if self.proposer else None
        hidden = self.target.forward(batch, self.memory, sink)
        if self.proposer is not None:
            self.proposer.on_rows(batch, sink, hidden)
        return hidden

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits = self.target.logits(hidden)
        return logits if logits.dtype == torch.float64 else logits.to(torch.float32)

    def _decode_params(self, planned: Sequence[DecodeRow]) -> RowParams:
        """Parameters of the decode batch, uploaded again only when its requests change."""
        requests = tuple(row.request for row in planned)
        if self._last_params is None or self._last_params[0] != requests:
            self._last_params = requests, self._params(requests)
        return self._last_params[1]

    def _params(self, requests: Sequence[Request]) -> RowParams:
        return row_params(
            [request.params for request in requests],
            [request.key for request in requests],
            [request.num_prompt for request in requests],
            self.rows.device,
        )

    def _ints(self, values: Sequence[int]) -> torch.Tensor:
        return upload(values, torch.int64, self.rows.device)


def _cache_slots(table: torch.Tensor, positions: torch.Tensor, active: torch.Tensor) -> torch.Tensor:
    """Cache slot of each row [B, W]; inert rows go to the dummy page, each column to a place of its own."""
    pages = table.gather(1, (positions // PAGE_TOKENS).clamp(max=table.shape[1] - 1))
    return torch.where(active, pages * PAGE_TOKENS, 0) + positions % PAGE_TOKENS
