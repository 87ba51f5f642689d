"""Window attention of a draft block in Triton: it reads each ring in place, where plain torch gathers the ring first.

The face calls it on a GPU. A program holds all of a block's queries of one key head and streams a part of the ring past them
(online softmax, Milakov and Gimelshein 2018, arXiv 1805.02867); a second launch joins the parts, without which one request
would keep 8 of an H200's 132 processors busy (149 us a layer). Sums are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.window_attention.reference import Rings

_BLOCK_N = 64
_MAX_SPLITS = 64
"""Parts of a ring that run at the same time: one tile each, so that none waits for another (a window of 2,048 on an H200: 17 us
a layer in 11 parts of three tiles). The ring's size fixes their number, so a row's sums do not depend on its batch."""


def window_attention(
    q: torch.Tensor, rings: Rings, block_keys: torch.Tensor, block_values: torch.Tensor, window: int
) -> torch.Tensor:
    """The operation; D must be a power of two of at least 16."""
    batch, width, num_heads, head_dim = q.shape
    ring_size, num_kv_heads = rings.keys.shape[1:3]
    group = num_heads // num_kv_heads
    block_m, num_splits = max(16, triton.next_power_of_2(width * group)), min(triton.cdiv(ring_size, _BLOCK_N), _MAX_SPLITS)
    parts = torch.empty((batch, num_kv_heads, num_splits, block_m, head_dim), dtype=torch.float32, device=q.device)
    stats = torch.empty((2, batch, num_kv_heads, num_splits, block_m), dtype=torch.float32, device=q.device)
    out = torch.empty((batch, width, num_heads, head_dim), dtype=q.dtype, device=q.device)
    _attend_part[(batch, num_kv_heads, num_splits)](
        q_ptr=q.contiguous(),
        ring_keys_ptr=rings.keys,
        ring_values_ptr=rings.values,
        seats_ptr=rings.seats,
        lengths_ptr=rings.lengths,
        block_keys_ptr=block_keys.contiguous(),
        block_values_ptr=block_values.contiguous(),
        parts_ptr=parts,
        highest_ptr=stats[0],
        total_ptr=stats[1],
        scale=head_dim**-0.5,
        width=width,
        ring_size=ring_size,
        window=window,
        GROUP=group,
        D=head_dim,
        BLOCK_M=block_m,
        BLOCK_W=max(16, triton.next_power_of_2(width)),
        BLOCK_N=_BLOCK_N,
    )
    _join_parts[(batch, num_kv_heads, width * group)](
        parts_ptr=parts,
        highest_ptr=stats[0],
        total_ptr=stats[1],
        out_ptr=out,
        width=width,
        num_splits=num_splits,
        GROUP=group,
        D=head_dim,
        BLOCK_M=block_m,
        PADDED_SPLITS=triton.next_power_of_2(num_splits),
    )
    return out


@triton.jit
def _attend_part(
    q_ptr,
    ring_keys_ptr,
    ring_values_ptr,
    seats_ptr,
    lengths_ptr,
    block_keys_ptr,
    block_values_ptr,
    parts_ptr,
    highest_ptr,
    total_ptr,
    scale,
    width,
    ring_size,
    window,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    batch, head, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    num_kv_heads, num_splits = tl.num_programs(1), tl.num_programs(2)
    length = tl.load(lengths_ptr + batch)
    ring = tl.load(seats_ptr + batch) * ring_size
    m, d, w = tl.arange(0, BLOCK_M), tl.arange(0, D), tl.arange(0, BLOCK_W)
    place = tl.minimum(m // GROUP, width - 1)
    q_at = ((batch * width + place) * num_kv_heads * GROUP + head * GROUP + m % GROUP)[:, None] * D + d[None, :]
    q = tl.load(q_ptr + q_at)
    highest = tl.full([BLOCK_M], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_M], tl.float32)
    out = tl.zeros([BLOCK_M, D], tl.float32)

    # The block's own keys belong to the first part; every row sees itself there, so the joined maximum is finite.
    in_part = w < tl.where(split == 0, width, 0)
    block_at = ((batch * width + w) * num_kv_heads + head)[:, None] * D + d[None, :]
    block_keys = tl.load(block_keys_ptr + block_at, mask=in_part[:, None], other=0.0)
    block_values = tl.load(block_values_ptr + block_at, mask=in_part[:, None], other=0.0)
    in_block = (tl.abs(place[:, None] - w[None, :]) < window) & in_part[None, :]
    highest, total, out = _attend(q, block_keys, block_values, in_block, scale, highest, total, out)

    part_size = tl.cdiv(tl.cdiv(ring_size, num_splits), BLOCK_N) * BLOCK_N
    start = split * part_size
    end = tl.minimum(tl.minimum(length, ring_size), start + part_size)
    while start < end:
        entry = start + tl.arange(0, BLOCK_N)
        # The last position before `length` that the entry can hold; the dividend is never negative.
        position = length - 1 - (length - 1 - entry + ring_size) % ring_size
        held = (entry < end) & (length - position < window)
        ring_at = ((ring + entry) * num_kv_heads + head)[:, None] * D + d[None, :]
        keys = tl.load(ring_keys_ptr + ring_at, mask=held[:, None], other=0.0)
        values = tl.load(ring_values_ptr + ring_at, mask=held[:, None], other=0.0)
        seen = held[None, :] & (length + place[:, None] - position[None, :] < window)
        highest, total, out = _attend(q, keys, values, seen, scale, highest, total, out)
        start += BLOCK_N
    part_at = ((batch * num_kv_heads + head) * num_splits + split) * BLOCK_M + m
    tl.store(highest_ptr + part_at, highest)
    tl.store(total_ptr + part_at, total)
    tl.store(parts_ptr + part_at[:, None] * D + d[None, :], out)


@triton.jit
def _attend(q, keys, values, seen, scale, highest, total, out):
    """The online softmax moved on by a tile of keys; a row that has seen none yet stays at weight 0."""
    scores = tl.where(seen, tl.dot(q, tl.trans(keys), input_precision="ieee") * scale, float("-inf"))
    new_highest = tl.maximum(highest, tl.max(scores, 1))
    finite = tl.where(new_highest == float("-inf"), 0.0, new_highest)
    fade = tl.exp(highest - finite)
    weights = tl.exp(scores - finite[:, None])
    total = total * fade + tl.sum(weights, 1)
    out = out * fade[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
    return new_highest, total, out


@triton.jit
def _join_parts(
    parts_ptr,
    highest_ptr,
    total_ptr,
    out_ptr,
    width,
    num_splits,
    GROUP: tl.constexpr,
    D: tl.constexpr,
    BLOCK_M: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
):
    """One query row: the parts' sums, each weighted by how far its maximum lies below the greatest."""
    batch, head, m = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    num_kv_heads = tl.num_programs(1)
    d, split = tl.arange(0, D), tl.arange(0, PADDED_SPLITS)
    real = split < num_splits
    part_at = ((batch * num_kv_heads + head) * num_splits + split) * BLOCK_M + m
    highest = tl.load(highest_ptr + part_at, mask=real, other=float("-inf"))
    weights = tl.exp(highest - tl.max(highest, 0))
    total = tl.sum(tl.load(total_ptr + part_at, mask=real, other=0.0) * weights, 0)
    parts = tl.load(parts_ptr + part_at[:, None] * D + d[None, :], mask=real[:, None], other=0.0)
    out = tl.sum(parts * weights[:, None], 0)
    row = (batch * width + m // GROUP) * num_kv_heads * GROUP + head * GROUP + m % GROUP
    tl.store(out_ptr + row * D + d, out / total)
