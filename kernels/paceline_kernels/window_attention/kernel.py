"""Window attention of a draft block in Triton: reads each ring in place, where plain torch gathers it first.

Called by the draft on a GPU. One program per request and key head holds all of the block's queries of that head and streams
the ring past them (online softmax, Milakov and Gimelshein 2018, arXiv 1805.02867). Sums are float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK_N = 64


def window_attention_kernel(
    q: torch.Tensor,
    ring_keys: torch.Tensor,
    ring_values: torch.Tensor,
    rows: torch.Tensor,
    lengths: torch.Tensor,
    block_keys: torch.Tensor,
    block_values: torch.Tensor,
    window: int,
) -> torch.Tensor:
    """`window_attention` of the reference; D must be a power of two of at least 16."""
    batch, width, num_heads, head_dim = q.shape
    ring_size, num_kv_heads = ring_keys.shape[1:3]
    group = num_heads // num_kv_heads
    out = torch.empty((batch, width, num_heads, head_dim), dtype=q.dtype, device=q.device)
    _window_attention[(batch, num_kv_heads)](
        q.contiguous(),
        ring_keys,
        ring_values,
        rows,
        lengths,
        block_keys.contiguous(),
        block_values.contiguous(),
        out,
        head_dim**-0.5,
        width,
        ring_size,
        window,
        GROUP=group,
        D=head_dim,
        BLOCK_M=max(16, triton.next_power_of_2(width * group)),
        BLOCK_W=max(16, triton.next_power_of_2(width)),
        BLOCK_N=_BLOCK_N,
    )
    return out


@triton.jit
def _window_attention(
    q_ptr,
    ring_keys_ptr,
    ring_values_ptr,
    rows_ptr,
    lengths_ptr,
    block_keys_ptr,
    block_values_ptr,
    out_ptr,
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
    batch, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    num_kv_heads = tl.num_programs(1)
    length = tl.load(lengths_ptr + batch)
    ring = tl.load(rows_ptr + batch) * ring_size
    m, d, w = tl.arange(0, BLOCK_M), tl.arange(0, D), tl.arange(0, BLOCK_W)
    # Rows past the block repeat its last place, so that they too see a key and stay finite.
    place = tl.minimum(m // GROUP, width - 1)
    is_row = m < width * GROUP
    q_at = ((batch * width + place) * num_kv_heads * GROUP + head * GROUP + m % GROUP)[:, None] * D + d[None, :]
    q = tl.load(q_ptr + q_at, mask=is_row[:, None], other=0.0)

    block_at = ((batch * width + w) * num_kv_heads + head)[:, None] * D + d[None, :]
    keys = tl.load(block_keys_ptr + block_at, mask=(w < width)[:, None], other=0.0)
    values = tl.load(block_values_ptr + block_at, mask=(w < width)[:, None], other=0.0)
    distance = tl.abs(place[:, None] - w[None, :])
    seen = (distance < window) & (w < width)[None, :]
    scores = tl.where(seen, tl.dot(q, tl.trans(keys), input_precision="ieee") * scale, float("-inf"))
    highest = tl.max(scores, 1)
    weights = tl.exp(scores - highest[:, None])
    total = tl.sum(weights, 1)
    out = tl.dot(weights.to(values.dtype), values, input_precision="ieee")

    start = 0
    num_slots = tl.minimum(length, ring_size)
    while start < num_slots:
        slot = start + tl.arange(0, BLOCK_N)
        # The last position before `length` that the slot can hold; the dividend is never negative.
        position = length - 1 - (length - 1 - slot + ring_size) % ring_size
        held = (slot < num_slots) & (length - position < window)
        ring_at = ((ring + slot) * num_kv_heads + head)[:, None] * D + d[None, :]
        keys = tl.load(ring_keys_ptr + ring_at, mask=held[:, None], other=0.0)
        values = tl.load(ring_values_ptr + ring_at, mask=held[:, None], other=0.0)
        seen = held[None, :] & (length + place[:, None] - position[None, :] < window)
        scores = tl.where(seen, tl.dot(q, tl.trans(keys), input_precision="ieee") * scale, float("-inf"))
        new_highest = tl.maximum(highest, tl.max(scores, 1))
        fade = tl.exp(highest - new_highest)
        weights = tl.exp(scores - new_highest[:, None])
        total = total * fade + tl.sum(weights, 1)
        out = out * fade[:, None] + tl.dot(weights.to(values.dtype), values, input_precision="ieee")
        highest = new_highest
        start += BLOCK_N
    tl.store(out_ptr + q_at, out / total[:, None], mask=is_row[:, None])
