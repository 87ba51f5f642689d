"""From who decodes to what a step reads, in plain torch: some forty small operations, all of them on whole numbers.

The face calls it. It refuses to know who drafted, and what a row is for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from paceline_kernels.seat_tables import SeatTables


@dataclass(frozen=True)
class Choices:
    """What the tokens of S seats are chosen by: keys of their noise int64, greedy int64 (0 or 1), temperature float64."""

    keys: torch.Tensor
    greedy: torch.Tensor
    temperature: torch.Tensor


@dataclass(frozen=True)
class DraftRows:
    """A draft's inputs for B requests: pending, length, key int64 [B]; temperature float64 [B], 0 if greedy; pages [B, P]."""

    pending: torch.Tensor
    lengths: torch.Tensor
    keys: torch.Tensor
    temperature: torch.Tensor
    page_table: torch.Tensor


@dataclass(frozen=True)
class VerifyRows:
    """A verify's inputs for B requests, W = 1 + k rows each; rows past the drafts to verify, or of seat 0, are inert.

    ids, positions, cells: int64 [B * W], active bool [B * W]; an inert row's cell is in the dummy page 0
    lengths:               int64 [B], tokens in the cache
    num_verified:          int64 [B], leading drafts to verify: what was proposed, and what the context still holds
    state_slots, replay:   int64 [B], recurrent state of each request, and rows that it has yet to apply
    snapshot_rows:         int64 [B], of these, how many lie before a page's end that they cross; 0 where they cross none
    page_table:            int64 [B, P]
    """

    ids: torch.Tensor
    positions: torch.Tensor
    cells: torch.Tensor
    active: torch.Tensor
    lengths: torch.Tensor
    num_verified: torch.Tensor
    state_slots: torch.Tensor
    replay: torch.Tensor
    snapshot_rows: torch.Tensor
    page_table: torch.Tensor


def draft_inputs(seats: torch.Tensor, tables: SeatTables, choices: Choices, num_pages: int) -> DraftRows:
    """What a draft for the requests in `seats` int64 [B] reads, with the first `num_pages` columns of the page table."""
    lengths = tables.lengths[seats]
    return DraftRows(
        pending=tables.history[seats, lengths],
        lengths=lengths,
        keys=choices.keys[seats],
        temperature=torch.where(choices.greedy[seats] > 0, 0.0, choices.temperature[seats]),
        page_table=tables.page_table[seats, :num_pages],
    )


def verify_inputs(
    seats: torch.Tensor, drafts: torch.Tensor, num_tokens: torch.Tensor | None, tables: SeatTables, num_pages: int
) -> VerifyRows:
    """The rows of a verify of [pending, drafts] for the requests in `seats` int64 [B].

    drafts int64 [B, k]; num_tokens int64 [B]: how many leading drafts of each request to verify, None for all k;
    num_pages: see `draft_inputs`; more than there are mean all of them
    """
    lengths, replay, page_table = tables.lengths[seats], tables.replay[seats], tables.page_table[seats, :num_pages]
    page_size, limit = tables.page_size, tables.max_model_len
    num_verified = (limit - 1 - lengths).clamp(min=0, max=drafts.shape[1])
    if num_tokens is not None:
        num_verified = torch.minimum(num_verified, num_tokens)
    num_verified = torch.where(seats > 0, num_verified, 0)
    ids = torch.cat([tables.history[seats, lengths][:, None], drafts], dim=1)
    columns = torch.arange(ids.shape[1], device=seats.device)
    positions = lengths[:, None] + columns
    active = (columns <= num_verified[:, None]) & (positions < limit) & (seats > 0)[:, None]
    pages = page_table.gather(1, (positions // page_size).clamp(max=page_table.shape[1] - 1))
    # Inert rows go to the dummy page, each column to a place of its own.
    cells = torch.where(active, pages * page_size, 0) + positions % page_size
    return VerifyRows(
        ids=ids.flatten(),
        positions=positions.clamp(max=limit - 1).flatten(),
        cells=cells.flatten(),
        active=active.flatten(),
        lengths=lengths,
        num_verified=num_verified,
        state_slots=tables.state_slots[seats],
        replay=replay,
        snapshot_rows=(replay - lengths % page_size).clamp(min=0),
        page_table=page_table,
    )
