"""The contract between the engine and whatever drafts tokens.

The device's programs call a proposer during `launch`, where nothing may be read back to the host: all methods take and give
device tensors. A proposer sees every target row (prefill and verify alike), owns its state per seat and per page, and never
decides what is committed. A rejection needs no undoing: rows are addressed by position, so the next block overwrites what was
rejected.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from paceline_compat.memory.layout import Buffer
from paceline_runtime.batch import ForwardBatch
from paceline_runtime.models.base import FeatureSink


@dataclass(frozen=True)
class Proposal:
    """Drafts of B requests, k tokens each.

    tokens:     int64 [B, k]
    candidates: int64 [B, k, C], ids that the draft's distribution q is supported on; None for a point mass on `tokens`
    q:          float [B, k, C], their probabilities; rows of greedy requests are not read
    num_tokens: int64 [B], how many leading drafts of each row to verify (0..k); None for all k
    """

    tokens: torch.Tensor
    candidates: torch.Tensor | None = None
    q: torch.Tensor | None = None
    num_tokens: torch.Tensor | None = None

    def part(self, start: int, end: int) -> Proposal:
        """The rows from `start` to before `end`."""
        others = (None if part is None else part[start:end] for part in (self.candidates, self.q, self.num_tokens))
        return Proposal(self.tokens[start:end], *others)

    def first(self, depth: int) -> Proposal:
        """The first `depth` drafts of each row."""
        return Proposal(
            self.tokens[:, :depth],
            None if self.candidates is None else self.candidates[:, :depth],
            None if self.q is None else self.q[:, :depth],
            self.num_tokens,
        )


@dataclass(frozen=True)
class DraftInputs:
    """What B requests give a proposer at the start of a step.

    seats:       int64 [B], seats of the requests; 0 is inert
    pending:     int64 [B], last committed token of each, whose K/V do not exist yet (the block's anchor)
    lengths:     int64 [B], position of the pending token = tokens in the cache
    history:     int64 [S, max_len] over all seats S: committed ids, history[seat, lengths] is the pending token
    page_table:  int64 [B, P]
    temperature: float [B], 0 for greedy rows
    seeds:       int64 [B], key of each request's random streams (seed and choice already mixed)
    """

    seats: torch.Tensor
    pending: torch.Tensor
    lengths: torch.Tensor
    history: torch.Tensor
    page_table: torch.Tensor
    temperature: torch.Tensor
    seeds: torch.Tensor


class Proposer(Protocol):
    """Drafts up to `num_drafts` tokens per request and step.

    Life of a seat: `on_restore` once its request's cached prefix is in the page table (length 0 included: the request is
    new), `on_rows` after every target forward, `propose` before every verify, `on_release` when the seat is given back.
    """

    name: str
    num_drafts: int
    kept_row_bytes: int
    """What each row of a target forward leaves with the sink until `on_rows`."""

    @property
    def buffers(self) -> tuple[Buffer, ...]:
        """What it keeps beside its weights: by token or page in planes of the pages, and by seat."""
        ...

    def bind(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take the allocated buffers, by name; others may be among them."""
        ...

    def unbind(self) -> None:
        """Let go of them, before others are allocated in their place."""
        ...

    def sink(self, batch: ForwardBatch) -> FeatureSink | None:
        """A sink for the target forward of this batch, or None when no layer is tapped."""
        ...

    def on_rows(self, batch: ForwardBatch, sink: FeatureSink | None, hidden: torch.Tensor) -> None:
        """After a target forward: keep what the rows give. `hidden` [N, H] is what goes to the head (final norm applied)."""
        ...

    def on_restore(self, seat: int, pages: torch.Tensor, num_tokens: int) -> None:
        """The request in `seat` starts with `num_tokens` cached tokens in `pages` (int64 [P], device)."""
        ...

    def on_release(self, seat: int) -> None:
        """The request in `seat` has ended or was preempted; the next one there must not see its state."""
        ...

    def propose(self, inputs: DraftInputs) -> Proposal:
        """Draft `num_drafts` tokens for each of the B requests."""
        ...

    def memory_bytes(self) -> int:
        """Bytes of weights."""
        ...
