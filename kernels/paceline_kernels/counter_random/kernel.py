"""Noise from counters as one Triton kernel, where plain torch makes a pass over all numbers for each of some sixty operations.

The face calls it on a GPU.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.counter_random import jitted

_BLOCK = 512


def uniform(keys: torch.Tensor, positions: torch.Tensor, purpose: int, index: torch.Tensor | None = None) -> torch.Tensor:
    """`uniform` of the reference, to the bit."""
    return _launch(keys, positions, purpose, index, is_gumbel=False)


def gumbel(keys: torch.Tensor, positions: torch.Tensor, purpose: int, index: torch.Tensor) -> torch.Tensor:
    """`gumbel` of the reference, up to the logarithm's rounding."""
    return _launch(keys, positions, purpose, index, is_gumbel=True)


def _launch(
    keys: torch.Tensor, positions: torch.Tensor, purpose: int, index: torch.Tensor | None, *, is_gumbel: bool
) -> torch.Tensor:
    shape = torch.broadcast_shapes(keys.shape, positions.shape, index.shape if index is not None else ())
    out = torch.empty(shape, dtype=torch.float64, device=keys.device)
    width = shape[-1] if shape else 1
    num_rows = out.numel() // width if width else 0
    if not num_rows:
        return out
    keys, positions = (part.expand(shape).reshape(num_rows, width) for part in (keys, positions))
    index = index.expand(shape).reshape(num_rows, width) if index is not None else None
    _noise[(num_rows, triton.cdiv(width, _BLOCK))](
        keys_ptr=keys,
        keys_stride=keys.stride(0),
        keys_step=keys.stride(1),
        positions_ptr=positions,
        positions_stride=positions.stride(0),
        positions_step=positions.stride(1),
        index_ptr=index,
        index_stride=index.stride(0) if index is not None else 0,
        index_step=index.stride(1) if index is not None else 0,
        out_ptr=out,
        width=width,
        PURPOSE=purpose,
        GUMBEL=is_gumbel,
        BLOCK=_BLOCK,
    )
    return out


@triton.jit
def _noise(
    keys_ptr,
    keys_stride,
    keys_step,
    positions_ptr,
    positions_stride,
    positions_step,
    index_ptr,
    index_stride,
    index_step,
    out_ptr,
    width,
    PURPOSE: tl.constexpr,
    GUMBEL: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < width
    key = tl.load(keys_ptr + row * keys_stride + column * keys_step, mask=inside, other=0)
    position = tl.load(positions_ptr + row * positions_stride + column * positions_step, mask=inside, other=0)
    if index_ptr is None:
        noise = jitted.uniform_noise(key, position, PURPOSE)
    else:
        index = tl.load(index_ptr + row * index_stride + column * index_step, mask=inside, other=0)
        if GUMBEL:
            noise = jitted.gumbel_noise(key, position, index, PURPOSE)
        else:
            noise = jitted.indexed_uniform_noise(key, position, index, PURPOSE)
    tl.store(out_ptr + row * width + column, noise, mask=inside)
