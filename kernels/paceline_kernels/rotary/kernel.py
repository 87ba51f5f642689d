"""The rotary table as one Triton kernel: one program for one row, where plain torch makes eleven launches.

The face calls it once per forward on a GPU. A table of all positions would take 67 MB for a context of
262,144 and a rotary width of 64. Triton compiles `tl.cos` and `tl.sin` to the CUDA library's own, exact to two units in the
last place for any angle, not to the hardware's approximations (held by tests).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from paceline_kernels.rotary.reference import RotaryTable


def rotary_table(positions: torch.Tensor, inverse_frequencies: torch.Tensor, scaling: float, dtype: torch.dtype) -> RotaryTable:
    """`rotary_table` of the reference."""
    half = len(inverse_frequencies)
    cos, sin = torch.empty((2, len(positions), 1, 2 * half), dtype=dtype, device=positions.device).unbind()
    _rotary_table[(len(positions),)](
        positions_ptr=positions,
        positions_step=positions.stride(0),
        frequencies_ptr=inverse_frequencies,
        scaling=scaling,
        cos_ptr=cos,
        sin_ptr=sin,
        half=half,
        BLOCK=triton.next_power_of_2(half),
        num_warps=1,
    )
    return RotaryTable(cos, sin)


@triton.jit
def _rotary_table(
    positions_ptr,
    positions_step,
    frequencies_ptr,
    scaling,
    cos_ptr,
    sin_ptr,
    half,
    BLOCK: tl.constexpr,
):
    row, i = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    inside = i < half
    position = tl.load(positions_ptr + row * positions_step).to(tl.float32)
    angle = position * tl.load(frequencies_ptr + i, mask=inside, other=0.0)
    cos, sin = tl.cos(angle) * scaling, tl.sin(angle) * scaling
    first = row * 2 * half + i
    tl.store(cos_ptr + first, cos.to(cos_ptr.dtype.element_ty), mask=inside)
    tl.store(cos_ptr + first + half, cos.to(cos_ptr.dtype.element_ty), mask=inside)
    tl.store(sin_ptr + first, (-sin).to(sin_ptr.dtype.element_ty), mask=inside)
    tl.store(sin_ptr + first + half, sin.to(sin_ptr.dtype.element_ty), mask=inside)
