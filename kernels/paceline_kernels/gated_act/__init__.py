"""The gated activation of a feed-forward layer over rows that hold gate and up in turn.

The products of `skinny_linear` call it for many rows; for few rows the product itself computes it.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.gated_act import reference

__all__ = ["gated_act"]


def gated_act(both: torch.Tensor, *, backend: Backend = Backend.AUTO) -> torch.Tensor:
    """`silu(gate) * up` of rows [N, 2 I], column 2i gate i and column 2i + 1 up i: [N, I] in their dtype."""
    if runs_kernel(backend, both.device, both.dtype):
        from paceline_kernels.gated_act import kernel

        return kernel.gated_act(both)
    return reference.gated_act(both)
