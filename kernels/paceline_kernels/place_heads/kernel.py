"""From an attention's projected rows to queries and pages as one Triton kernel: one program for one head of a row.

The face calls it on a GPU, where plain torch makes some fifteen launches of it in every layer.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.place_heads.reference import HeadLayout, HeadNorms, KvCells
from paceline_kernels.rotary.reference import RotaryTable


def place_heads(
    projected: torch.Tensor,
    layout: HeadLayout,
    norms: HeadNorms | None,
    rotary: RotaryTable,
    kv: KvCells,
) -> torch.Tensor:
    """`place_heads` of the reference; float32 inside, rounded once."""
    num_rows, dim = len(projected), layout.head_dim
    keys, values = kv.keys, kv.values
    q = torch.empty((num_rows, layout.num_heads, dim), dtype=projected.dtype, device=projected.device)
    cos, sin = rotary.cos, rotary.sin
    assert projected.stride(1) == 1, "a row's columns are neighbours"
    assert keys.stride() == values.stride(), "keys and values lie alike"
    assert keys.stride(3) == 1, "a head's values are neighbours"
    assert cos.is_contiguous(), "the rotary table is dense"
    assert sin.is_contiguous(), "the rotary table is dense"
    _place_heads[(num_rows, layout.num_heads + 2 * layout.num_kv_heads)](
        x_ptr=projected,
        x_stride=projected.stride(0),
        q_norm_ptr=norms.q if norms else None,
        k_norm_ptr=norms.k if norms else None,
        eps=norms.eps if norms else 0.0,
        cos_ptr=cos,
        sin_ptr=sin,
        rotary_dim=cos.shape[-1],
        cells_ptr=kv.cells,
        keys_ptr=keys,
        values_ptr=values,
        page_stride=keys.stride(0),
        token_stride=keys.stride(1),
        head_stride=keys.stride(2),
        page_size=keys.shape[1],
        q_ptr=q,
        num_heads=layout.num_heads,
        num_kv_heads=layout.num_kv_heads,
        head_dim=dim,
        Q_STEP=2 if layout.gated else 1,
        NORMS=norms is not None,
        BLOCK=triton.next_power_of_2(dim),
        num_warps=1,
    )
    return q


@triton.jit
def _place_heads(
    x_ptr,
    x_stride,
    q_norm_ptr,
    k_norm_ptr,
    eps,
    cos_ptr,
    sin_ptr,
    rotary_dim,
    cells_ptr,
    keys_ptr,
    values_ptr,
    page_stride,
    token_stride,
    head_stride,
    page_size,
    q_ptr,
    num_heads,
    num_kv_heads,
    head_dim,
    Q_STEP: tl.constexpr,
    NORMS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    i = tl.arange(0, BLOCK)
    inside = i < head_dim
    is_query = head < num_heads
    kv_head = head - num_heads
    source = tl.where(is_query, head * Q_STEP, num_heads * Q_STEP + kv_head)
    x_at = x_ptr + row * x_stride + source * head_dim
    x = tl.load(x_at + i, mask=inside, other=0.0).to(tl.float32)
    cell = tl.load(cells_ptr + row)
    kv_at = cell // page_size * page_stride + cell % page_size * token_stride

    if kv_head >= num_kv_heads:
        value_at = values_ptr + kv_at + (kv_head - num_kv_heads) * head_stride + i
        tl.store(value_at, x.to(values_ptr.dtype.element_ty), mask=inside)
        return
    rotated = i < rotary_dim
    partner = tl.where(i < rotary_dim // 2, i + rotary_dim // 2, i - rotary_dim // 2)
    other = tl.load(x_at + partner, mask=rotated, other=0.0).to(tl.float32)
    if NORMS:
        scale = tl.rsqrt(tl.sum(x * x) / head_dim + eps)
        norm_ptr = k_norm_ptr
        if is_query:
            norm_ptr = q_norm_ptr
        x *= scale * tl.load(norm_ptr + i, mask=inside, other=0.0).to(tl.float32)
        other *= scale * tl.load(norm_ptr + partner, mask=rotated, other=0.0).to(tl.float32)
    cos = tl.load(cos_ptr + row * rotary_dim + i, mask=rotated, other=1.0).to(tl.float32)
    sin = tl.load(sin_ptr + row * rotary_dim + i, mask=rotated, other=0.0).to(tl.float32)
    x = x * cos + other * sin
    if is_query:
        tl.store(q_ptr + (row * num_heads + head) * head_dim + i, x.to(q_ptr.dtype.element_ty), mask=inside)
    else:
        tl.store(keys_ptr + kv_at + kv_head * head_stride + i, x.to(keys_ptr.dtype.element_ty), mask=inside)
