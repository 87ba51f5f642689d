"""Attention of a verify over paged K/V as two Triton kernels: partial results per part of the context, then their sum.

The face calls it on a GPU. Few rows and a long context leave a GPU idle unless the context is split over programs
(Flash-Decoding, https://pytorch.org/blog/flash-decoding). The rows of all query heads that share a K/V head form one tile, so
each key is read once for all of them. Bounds come from `lengths` on the device: pages past a request's end are not read.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.paged_attention.contexts import VerifyContext

_MIN_TILE_ROWS = 16  # of tl.dot
_MAX_TILE_ROWS = 64
_MAX_SPLITS = 64
_TARGET_PROGRAMS = 264  # two per multiprocessor of a Hopper GPU
_LOG2_E = 1.4426950408889634


def verify_attention(
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    context: VerifyContext,
    scale: float,
    gate: torch.Tensor | None = None,
) -> torch.Tensor:
    """The operation, for float16, bfloat16 and float32.

    Scores, weights and sums are float32; shapes alone decide the grid, so a CUDA graph replays it at any lengths.
    """
    page_table = context.page_table
    batch, width, num_heads, dim = q.shape
    num_kv_heads, page_size, num_pages = keys.shape[2], keys.shape[1], page_table.shape[1]
    num_rows = width * (num_heads // num_kv_heads)
    tile_rows = min(max(triton.next_power_of_2(num_rows), _MIN_TILE_ROWS), _MAX_TILE_ROWS)
    tiles = triton.cdiv(num_rows, tile_rows)
    num_splits = min(num_pages, _MAX_SPLITS, max(1, _TARGET_PROGRAMS // (batch * num_kv_heads * tiles)))
    partial = torch.empty((batch, width, num_heads, num_splits, dim), dtype=torch.float32, device=q.device)
    statistics = torch.empty((batch, width, num_heads, num_splits, 2), dtype=torch.float32, device=q.device)
    out = torch.empty_like(q, memory_format=torch.contiguous_format)
    padded_dim = max(triton.next_power_of_2(dim), 16)
    _attend_part[(batch * tiles, num_kv_heads, num_splits)](
        q_ptr=q,
        key_ptr=keys,
        value_ptr=values,
        page_table_ptr=page_table,
        lengths_ptr=context.lengths,
        partial_ptr=partial,
        statistics_ptr=statistics,
        scale=scale * _LOG2_E,
        q_batch_stride=q.stride(0),
        q_row_stride=q.stride(1),
        q_head_stride=q.stride(2),
        page_stride=keys.stride(0),
        token_stride=keys.stride(1),
        kv_head_stride=keys.stride(2),
        table_stride=page_table.stride(0),
        num_pages=num_pages,
        first_seen=context.first,
        WIDTH=width,
        GROUP=num_heads // num_kv_heads,
        DIM=dim,
        PADDED_DIM=padded_dim,
        PAGE=page_size,
        TILE_ROWS=tile_rows,
        TILES=tiles,
        PRECISION="ieee" if q.dtype == torch.float32 else "tf32",
        num_warps=4,
        num_stages=2,
    )
    _sum_parts[(batch * width * num_heads,)](
        partial_ptr=partial,
        statistics_ptr=statistics,
        gate_ptr=gate,
        out_ptr=out,
        num_splits=num_splits,
        gate_batch_stride=gate.stride(0) if gate is not None else 0,
        gate_row_stride=gate.stride(1) if gate is not None else 0,
        gate_head_stride=gate.stride(2) if gate is not None else 0,
        width=width,
        num_heads=num_heads,
        GATED=gate is not None,
        DIM=dim,
        PADDED_DIM=padded_dim,
        PADDED_SPLITS=triton.next_power_of_2(num_splits),
    )
    return out


@triton.jit
def _attend_part(
    q_ptr,
    key_ptr,
    value_ptr,
    page_table_ptr,
    lengths_ptr,
    partial_ptr,
    statistics_ptr,
    scale,
    q_batch_stride,
    q_row_stride,
    q_head_stride,
    page_stride,
    token_stride,
    kv_head_stride,
    table_stride,
    num_pages,
    first_seen,
    WIDTH: tl.constexpr,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PAGE: tl.constexpr,
    TILE_ROWS: tl.constexpr,
    TILES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """One part of one request's context for a tile of rows of one K/V head: unnormalised sum, maximum, sum of weights."""
    batch = (tl.program_id(0) // TILES).to(tl.int64)
    kv_head = tl.program_id(1).to(tl.int64)
    split, num_splits = tl.program_id(2), tl.num_programs(2)
    row = tl.program_id(0) % TILES * TILE_ROWS + tl.arange(0, TILE_ROWS)
    step, head = row // GROUP, kv_head * GROUP + row % GROUP
    live = row < WIDTH * GROUP
    column, token = tl.arange(0, PADDED_DIM), tl.arange(0, PAGE)
    inside = column < DIM
    q_at = batch * q_batch_stride + step.to(tl.int64) * q_row_stride + head * q_head_stride
    q = tl.load(q_ptr + q_at[:, None] + column[None, :], mask=live[:, None] & inside[None, :], other=0.0)
    length = tl.load(lengths_ptr + batch)
    used_pages = tl.minimum((length + WIDTH + PAGE - 1) // PAGE, num_pages)
    pages_each = (used_pages + num_splits - 1) // num_splits
    first = split * pages_each
    last = tl.minimum(first + pages_each, used_pages)
    best = tl.full((TILE_ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((TILE_ROWS,), tl.float32)
    summed = tl.zeros((TILE_ROWS, PADDED_DIM), tl.float32)
    for index in range(first, last):
        page = tl.load(page_table_ptr + batch * table_stride + index)
        position = index * PAGE + token
        at = page * page_stride + token.to(tl.int64) * token_stride + kv_head * kv_head_stride
        mask = (position < length + WIDTH)[:, None] & inside[None, :]
        key = tl.load(key_ptr + at[:, None] + column[None, :], mask=mask, other=0.0)
        value = tl.load(value_ptr + at[:, None] + column[None, :], mask=mask, other=0.0)
        scores = tl.dot(q, tl.trans(key), input_precision=PRECISION) * scale
        seen = (position[None, :] <= length + step[:, None]) & (position >= tl.minimum(first_seen, length))[None, :]
        scores = tl.where(seen, scores, float("-inf"))
        new_best = tl.maximum(best, tl.max(scores, 1))
        # A row may see nothing of its first pages; -inf minus -inf would be NaN.
        base = tl.where(new_best == float("-inf"), 0.0, new_best)
        weights = tl.exp2(scores - base[:, None])
        decay = tl.exp2(best - base)
        total = total * decay + tl.sum(weights, 1)
        summed = summed * decay[:, None] + tl.dot(weights.to(value.dtype), value, input_precision=PRECISION)
        best = new_best
    num_heads = tl.num_programs(1) * GROUP
    out_row = ((batch * WIDTH + step) * num_heads + head) * num_splits + split
    out_at = partial_ptr + out_row[:, None] * DIM + column[None, :]
    tl.store(out_at, summed, mask=live[:, None] & inside[None, :])
    tl.store(statistics_ptr + out_row * 2, best, mask=live)
    tl.store(statistics_ptr + out_row * 2 + 1, total, mask=live)


@triton.jit
def _sum_parts(
    partial_ptr,
    statistics_ptr,
    gate_ptr,
    out_ptr,
    num_splits,
    gate_batch_stride,
    gate_row_stride,
    gate_head_stride,
    width,
    num_heads,
    GATED: tl.constexpr,
    DIM: tl.constexpr,
    PADDED_DIM: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
):
    """One row of one head: weigh the parts by their maxima, add, divide. A part that saw nothing has maximum -inf."""
    row = tl.program_id(0).to(tl.int64)
    split, column = tl.arange(0, PADDED_SPLITS), tl.arange(0, PADDED_DIM)
    real, inside = split < num_splits, column < DIM
    at = row * num_splits + split
    best = tl.load(statistics_ptr + at * 2, mask=real, other=float("-inf"))
    total = tl.load(statistics_ptr + at * 2 + 1, mask=real, other=0.0)
    weight = tl.exp2(best - tl.max(best, 0))
    mask = real[:, None] & inside[None, :]
    parts = tl.load(partial_ptr + at[:, None] * DIM + column[None, :], mask=mask, other=0.0)
    out = (tl.sum(parts * weight[:, None], 0) / tl.sum(total * weight, 0)).to(out_ptr.dtype.element_ty)
    if GATED:
        # Rounded where plain torch rounds, which gates a prefill.
        token, head = row // num_heads, row % num_heads
        gate_at = gate_ptr + token // width * gate_batch_stride + token % width * gate_row_stride + head * gate_head_stride
        opened = tl.sigmoid(tl.load(gate_at + column, mask=inside, other=0.0).to(tl.float32)).to(out_ptr.dtype.element_ty)
        out = (out.to(tl.float32) * opened.to(tl.float32)).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * DIM + column, out, mask=inside)
