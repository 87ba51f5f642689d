"""Products of few rows in Triton's language: a program reads weight rows once, in tiles, past all rows of x, which stay cached.

`streaming.py` launches it. The rows are padded to a tile of 16, 32 or 64 for the matrix unit; weights are marked as the first
to leave the cache.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def stream(
    x_ptr,
    weight_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    num_outputs,
    num_columns,
    x_stride,
    weight_stride,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    PARTIAL: tl.constexpr,
    IS_EVEN: tl.constexpr,
    WEIGHTS_LEFT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    block, split = tl.program_id(0), tl.program_id(1)
    n, m, i = block * BLOCK_N + tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_K)
    in_rows, in_outputs = m < num_rows, n < num_outputs
    steps = tl.cdiv(num_columns, BLOCK_K * tl.num_programs(1))
    x_at = x_ptr + m.to(tl.int64)[:, None] * x_stride
    # Rows past the end read the last one: a mask on the weights would cost the loop more than they do.
    weight_at = weight_ptr + tl.minimum(n, num_outputs - 1).to(tl.int64)[:, None] * weight_stride
    total = tl.zeros((BLOCK_N, BLOCK_M) if WEIGHTS_LEFT else (BLOCK_M, BLOCK_N), tl.float32)
    for step in range(steps):
        k = (split * steps + step) * BLOCK_K + i
        if IS_EVEN:
            x = tl.load(x_at + k[None, :], mask=in_rows[:, None], other=0.0)
            weight = tl.load(weight_at + k[None, :], eviction_policy="evict_first")
        else:
            inside = k < num_columns
            x = tl.load(x_at + k[None, :], mask=in_rows[:, None] & inside[None, :], other=0.0)
            weight = tl.load(weight_at + k[None, :], mask=inside[None, :], other=0.0, eviction_policy="evict_first")
        total = tl.dot(weight, tl.trans(x), total) if WEIGHTS_LEFT else tl.dot(x, tl.trans(weight), total)
    if WEIGHTS_LEFT:
        total = tl.trans(total)
    if PARTIAL:
        place = (split * num_rows + m.to(tl.int64)[:, None]) * num_outputs + n[None, :]
        tl.store(out_ptr + place, total, mask=in_rows[:, None] & in_outputs[None, :])
        return
    if HAS_BIAS:
        total += tl.load(bias_ptr + n, mask=in_outputs, other=0.0).to(tl.float32)[None, :]
    if GATED:
        # Gate and up are rounded as where the activation has a launch of its own: many rows go there, and must give the same.
        rounded = total.to(out_ptr.dtype.element_ty).to(tl.float32)
        gate, up = tl.split(tl.reshape(rounded, (BLOCK_M, BLOCK_N // 2, 2)))
        half = block * (BLOCK_N // 2) + tl.arange(0, BLOCK_N // 2)
        value = gate * tl.sigmoid(gate) * up
        place = m.to(tl.int64)[:, None] * (num_outputs // 2) + half[None, :]
        inside = in_rows[:, None] & (half < num_outputs // 2)[None, :]
        tl.store(out_ptr + place, value.to(out_ptr.dtype.element_ty), mask=inside)
    else:
        place = m.to(tl.int64)[:, None] * num_outputs + n[None, :]
        tl.store(out_ptr + place, total.to(out_ptr.dtype.element_ty), mask=in_rows[:, None] & in_outputs[None, :])


@triton.jit
def sum_splits(
    partial_ptr,
    bias_ptr,
    out_ptr,
    num_rows,
    width,
    HAS_BIAS: tl.constexpr,
    GATED: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    c = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = c < width
    step = 2 if GATED else 1
    first = tl.zeros((BLOCK,), tl.float32)
    second = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        place = partial_ptr + (split * num_rows + row) * width * step + c * step
        first += tl.load(place, mask=inside, other=0.0)
        if GATED:
            second += tl.load(place + 1, mask=inside, other=0.0)
    if HAS_BIAS:
        first += tl.load(bias_ptr + c * step, mask=inside, other=0.0).to(tl.float32)
        if GATED:
            second += tl.load(bias_ptr + c * step + 1, mask=inside, other=0.0).to(tl.float32)
    value = first
    if GATED:
        gate = first.to(out_ptr.dtype.element_ty).to(tl.float32)
        value = gate * tl.sigmoid(gate) * second.to(out_ptr.dtype.element_ty).to(tl.float32)
    tl.store(out_ptr + row * width + c, value.to(out_ptr.dtype.element_ty), mask=inside)
