"""From who decodes to what a step reads as one Triton kernel: one program for a request, others for its pages.

The face calls it on a GPU, where plain torch makes some forty launches of it with nothing beside them to do.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.seat_tables import SeatTables
from paceline_kernels.step_inputs.reference import Choices, DraftRows, VerifyRows

_PAGES_AT_ONCE = 1024


def draft_inputs(seats: torch.Tensor, tables: SeatTables, choices: Choices, num_pages: int) -> DraftRows:
    """`draft_inputs` of the reference."""
    batch, num_pages = len(seats), min(num_pages, tables.page_table.shape[1])
    pending, lengths, keys = torch.empty((3, batch), dtype=torch.int64, device=seats.device).unbind()
    temperature = torch.empty(batch, dtype=torch.float64, device=seats.device)
    page_table = torch.empty((batch, num_pages), dtype=torch.int64, device=seats.device)
    _draft_inputs[(batch, 1 + triton.cdiv(num_pages, _PAGES_AT_ONCE))](
        seats_ptr=seats,
        history_ptr=tables.history,
        history_stride=tables.history.stride(0),
        pages_ptr=tables.page_table,
        pages_stride=tables.page_table.stride(0),
        lengths_ptr=tables.lengths,
        keys_ptr=choices.keys,
        greedy_ptr=choices.greedy,
        temperature_ptr=choices.temperature,
        row_pending_ptr=pending,
        row_lengths_ptr=lengths,
        row_keys_ptr=keys,
        row_temperature_ptr=temperature,
        row_pages_ptr=page_table,
        num_pages=num_pages,
        BLOCK_PAGES=_PAGES_AT_ONCE,
    )
    return DraftRows(pending, lengths, keys, temperature, page_table)


def verify_inputs(
    seats: torch.Tensor, drafts: torch.Tensor, num_tokens: torch.Tensor | None, tables: SeatTables, num_pages: int
) -> VerifyRows:
    """`verify_inputs` of the reference."""
    batch, width, device = len(seats), 1 + drafts.shape[1], seats.device
    num_pages = min(num_pages, tables.page_table.shape[1])
    ids, positions, cells = torch.empty((3, batch * width), dtype=torch.int64, device=device).unbind()
    lengths, num_verified, slots, replay, snapshot_rows = torch.empty((5, batch), dtype=torch.int64, device=device).unbind()
    active = torch.empty(batch * width, dtype=torch.bool, device=device)
    page_table = torch.empty((batch, num_pages), dtype=torch.int64, device=device)
    _verify_inputs[(batch, 1 + triton.cdiv(num_pages, _PAGES_AT_ONCE))](
        seats_ptr=seats,
        drafts_ptr=drafts,
        drafts_stride=drafts.stride(0),
        drafts_step=drafts.stride(1),
        num_tokens_ptr=num_tokens,
        history_ptr=tables.history,
        history_stride=tables.history.stride(0),
        pages_ptr=tables.page_table,
        pages_stride=tables.page_table.stride(0),
        lengths_ptr=tables.lengths,
        replay_ptr=tables.replay,
        slots_ptr=tables.state_slots,
        max_model_len=tables.max_model_len,
        ids_ptr=ids,
        positions_ptr=positions,
        cells_ptr=cells,
        active_ptr=active,
        row_lengths_ptr=lengths,
        num_verified_ptr=num_verified,
        row_slots_ptr=slots,
        row_replay_ptr=replay,
        snapshot_rows_ptr=snapshot_rows,
        row_pages_ptr=page_table,
        num_pages=num_pages,
        PAGE=tables.page_size,
        WIDTH=width,
        BLOCK_WIDTH=triton.next_power_of_2(width),
        BLOCK_PAGES=_PAGES_AT_ONCE,
    )
    return VerifyRows(ids, positions, cells, active, lengths, num_verified, slots, replay, snapshot_rows, page_table)


@triton.jit
def _copy_pages(pages_at, out_at, part, num_pages, BLOCK_PAGES: tl.constexpr):
    column = part * BLOCK_PAGES + tl.arange(0, BLOCK_PAGES)
    tl.store(out_at + column, tl.load(pages_at + column, mask=column < num_pages), mask=column < num_pages)


@triton.jit
def _draft_inputs(
    seats_ptr,
    history_ptr,
    history_stride,
    pages_ptr,
    pages_stride,
    lengths_ptr,
    keys_ptr,
    greedy_ptr,
    temperature_ptr,
    row_pending_ptr,
    row_lengths_ptr,
    row_keys_ptr,
    row_temperature_ptr,
    row_pages_ptr,
    num_pages,
    BLOCK_PAGES: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    seat = tl.load(seats_ptr + row)
    if part > 0:
        _copy_pages(pages_ptr + seat * pages_stride, row_pages_ptr + row * num_pages, part - 1, num_pages, BLOCK_PAGES)
        return
    length, is_greedy = tl.load(lengths_ptr + seat), tl.load(greedy_ptr + seat) > 0
    temperature = tl.load(temperature_ptr + seat)
    tl.store(row_pending_ptr + row, tl.load(history_ptr + seat * history_stride + length))
    tl.store(row_lengths_ptr + row, length)
    tl.store(row_keys_ptr + row, tl.load(keys_ptr + seat))
    tl.store(row_temperature_ptr + row, tl.where(is_greedy, 0.0, temperature))


@triton.jit
def _verify_inputs(
    seats_ptr,
    drafts_ptr,
    drafts_stride,
    drafts_step,
    num_tokens_ptr,
    history_ptr,
    history_stride,
    pages_ptr,
    pages_stride,
    lengths_ptr,
    replay_ptr,
    slots_ptr,
    max_model_len,
    ids_ptr,
    positions_ptr,
    cells_ptr,
    active_ptr,
    row_lengths_ptr,
    num_verified_ptr,
    row_slots_ptr,
    row_replay_ptr,
    snapshot_rows_ptr,
    row_pages_ptr,
    num_pages,
    PAGE: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_WIDTH: tl.constexpr,
    BLOCK_PAGES: tl.constexpr,
):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    seat = tl.load(seats_ptr + row)
    pages_at = pages_ptr + seat * pages_stride
    if part > 0:
        _copy_pages(pages_at, row_pages_ptr + row * num_pages, part - 1, num_pages, BLOCK_PAGES)
        return
    length, replay = tl.load(lengths_ptr + seat), tl.load(replay_ptr + seat)
    num_verified = tl.minimum(tl.maximum(max_model_len - 1 - length, 0), WIDTH - 1)
    if num_tokens_ptr is not None:
        num_verified = tl.minimum(num_verified, tl.load(num_tokens_ptr + row))
    num_verified = tl.where(seat > 0, num_verified, 0)
    column = tl.arange(0, BLOCK_WIDTH)
    inside = column < WIDTH
    pending = tl.load(history_ptr + seat * history_stride + length)
    drafts_at = drafts_ptr + row * drafts_stride + (column - 1) * drafts_step
    draft = tl.load(drafts_at, mask=inside & (column > 0), other=0)
    position = length + column
    active = (column <= num_verified) & (position < max_model_len) & (seat > 0)
    page = tl.load(pages_at + tl.minimum(position // PAGE, num_pages - 1), mask=inside, other=0)
    at = row * WIDTH + column
    tl.store(ids_ptr + at, tl.where(column == 0, pending, draft), mask=inside)
    tl.store(positions_ptr + at, tl.minimum(position, max_model_len - 1), mask=inside)
    # Inert rows go to the dummy page, each column to a place of its own.
    tl.store(cells_ptr + at, tl.where(active, page * PAGE, 0) + position % PAGE, mask=inside)
    tl.store(active_ptr + at, active, mask=inside)
    tl.store(row_lengths_ptr + row, length)
    tl.store(num_verified_ptr + row, num_verified)
    tl.store(row_slots_ptr + row, tl.load(slots_ptr + seat))
    tl.store(row_replay_ptr + row, replay)
    tl.store(snapshot_rows_ptr + row, tl.maximum(replay - length % PAGE, 0))
