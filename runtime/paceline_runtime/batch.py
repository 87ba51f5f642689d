"""The tensors of one target forward, handed from the device's programs to models, layers, proposers and caches.

Everything is a device tensor except what the host knows for certain (a verify's width, the bounds of prefill chunks); this
module reads no tensor back. Seat 0, page 0 and state slot 0 are dummies: inert rows point at them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Chunk:
    """One request's rows in a prefill forward: rows `offset : offset + num_tokens` are positions `start ...` of the request.

    `snapshot_tokens` of the chunk (a boundary on the page grid; 0 for none) are followed by a copy of the recurrent state
    into `snapshot_slot`. Up to two snapshots a chunk: (tokens, slot) pairs, in order of position.
    """

    offset: int
    num_tokens: int
    start: int
    snapshots: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class StateBatch:
    """Recurrent-state inputs of the B requests in a forward; absent for targets without such state.

    slots:          int64 [B], live slot of each request
    replay_rows:    int64 [B], leading rows of the request's journal to apply before anything else (0 when none)
    snapshot_rows:  int64 [B], rows of that replay after which a second state is written (0: none)
    snapshot_slots: int64 [B], where it is written (0: the dummy)
    seats:          int64 [B], seat of each request: where its journal is kept (snapshots have none, so slots would be too many)
    """

    slots: torch.Tensor
    replay_rows: torch.Tensor
    snapshot_rows: torch.Tensor
    snapshot_slots: torch.Tensor
    seats: torch.Tensor


@dataclass(frozen=True, kw_only=True)
class _Batch:
    """N token rows of B requests.

    ids:        int64 [N], token ids
    positions:  int64 [N], rope positions
    cells:      int64 [N], cell (page * PAGE_TOKENS + offset) that each row's K/V go to; inert rows: those of the dummy page
    active:     bool  [N], False for rows that must not route to experts nor write state
    seats:      int64 [B], seat of each request in per-request buffers (rings, histories); 0 is the dummy
    page_table: int64 [B, P], pages of each request in order, padded with the dummy page
    lengths:    int64 [B], tokens of each request in the cache before this forward
    """

    ids: torch.Tensor
    positions: torch.Tensor
    cells: torch.Tensor
    active: torch.Tensor
    seats: torch.Tensor
    page_table: torch.Tensor
    lengths: torch.Tensor
    state: StateBatch | None = None


@dataclass(frozen=True, kw_only=True)
class VerifyBatch(_Batch):
    """`width` rows per request, N = B * width: row j of request b is its token at position lengths[b] + j."""

    width: int


@dataclass(frozen=True, kw_only=True)
class PrefillBatch(_Batch):
    """One host-known chunk of each request, one after the other."""

    chunks: tuple[Chunk, ...]


ForwardBatch = VerifyBatch | PrefillBatch
"""What a target forward takes."""
