"""Grouped dynamic causal convolution over the rows of a draft block, as DFlash 2 has it.

The layers of the draft call it. It knows no request: a block is an axis.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.grouped_conv import reference

__all__ = ["grouped_conv"]


def grouped_conv(x: torch.Tensor, delta: torch.Tensor, base: torch.Tensor, *, backend: Backend = Backend.AUTO) -> torch.Tensor:
    """`out[b, i, c] = sum over taps t of (base[t, c] + delta[b, i, t, g(c)]) * x[b, i - t, c]`, rows before the block 0.

    x: [B, W, H]; delta: [B, W, T, G]; base: [T, H], with G groups of H / G neighbouring channels. Returns [B, W, H].
    """
    if runs_kernel(backend, x.device, x.dtype):
        from paceline_kernels.grouped_conv import kernel

        return kernel.grouped_conv(x, delta, base)
    return reference.grouped_conv(x, delta, base)
