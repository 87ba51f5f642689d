"""Grouped dynamic causal convolution in Triton: one pass over a block where plain torch makes several of its size.

The face calls it on a GPU. It gives the same result as `reference.py` up to rounding, computed in float32.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

_BLOCK_H = 256


def grouped_conv(x: torch.Tensor, delta: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The operation; rows of delta may be strided."""
    batch, width, hidden = x.shape
    taps, groups = delta.shape[2:]
    x, base = x.contiguous(), base.contiguous()
    if delta.stride()[2:] != (groups, 1) or delta.stride(0) != width * delta.stride(1):
        delta = delta.contiguous()
    out = torch.empty_like(x)
    grid = (batch * width, triton.cdiv(hidden, _BLOCK_H))
    _grouped_conv[grid](
        x_ptr=x,
        delta_ptr=delta,
        base_ptr=base,
        out_ptr=out,
        width=width,
        hidden=hidden,
        groups=groups,
        group_size=hidden // groups,
        delta_stride=delta.stride(1),
        TAPS=taps,
        BLOCK_H=_BLOCK_H,
    )
    return out


@triton.jit
def _grouped_conv(
    x_ptr,
    delta_ptr,
    base_ptr,
    out_ptr,
    width,
    hidden,
    groups,
    group_size,
    delta_stride,
    TAPS: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    inside = channel < hidden
    place = row % width
    total = tl.zeros([BLOCK_H], tl.float32)
    for tap in tl.static_range(TAPS):
        # A bound, not a scalar truth value: Triton 3.9 interprets those as int32, which is no mask.
        reach = tl.where(place >= tap, hidden, 0)
        x = tl.load(x_ptr + (row - tap) * hidden + channel, mask=channel < reach, other=0.0).to(tl.float32)
        delta = tl.load(delta_ptr + row * delta_stride + tap * groups + channel // group_size, mask=inside, other=0.0)
        base = tl.load(base_ptr + tap * hidden + channel, mask=inside, other=0.0)
        total += (base.to(tl.float32) + delta.to(tl.float32)) * x
    tl.store(out_ptr + row * hidden + channel, total, mask=inside)
