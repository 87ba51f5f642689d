"""Non-causal window attention of a draft block over a ring of context keys and values, and over itself.

The layers of the draft call it. A ring of R entries holds the context of position p in entry p mod R. The request's length
alone says which positions those are, so nothing is ever reset: what earlier positions, rejected drafts or an earlier request
left behind is out of every window, whatever it holds.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.window_attention import reference
from paceline_kernels.window_attention.reference import Rings, ring_positions

__all__ = ["Rings", "ring_positions", "window_attention"]


def window_attention(
    q: torch.Tensor,
    rings: Rings,
    block_keys: torch.Tensor,
    block_values: torch.Tensor,
    window: int,
    *,
    backend: Backend = Backend.AUTO,
) -> torch.Tensor:
    """Attention of the W rows of each block over context and block, without causality: [B, W, Hq, D].

    Row j of a block stands j positions after its context and sees the keys less than `window` positions away, so the first
    row sees `window` - 1 context rows and itself. Scores are scaled by 1 / sqrt(D).

    q: [B, W, Hq, D]; block_keys, block_values: [B, W, Hkv, D], never kept: a block's own keys depend on its masks
    """
    if runs_kernel(backend, q.device, q.dtype):
        from paceline_kernels.window_attention import kernel

        return kernel.window_attention(q, rings, block_keys, block_values, window)
    return reference.window_attention(q, rings, block_keys, block_values, window)
