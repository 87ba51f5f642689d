"""From an attention's projected rows to queries and pages: norms on heads, rotary positions, K/V written in place.

The attention layers call it. It refuses to know which page belongs to whom.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.place_heads import reference
from paceline_kernels.place_heads.reference import HeadLayout, HeadNorms, KvCells, gates, split_heads
from paceline_kernels.rotary import RotaryTable

__all__ = ["HeadLayout", "HeadNorms", "KvCells", "gates", "place_heads", "split_heads"]


def place_heads(
    projected: torch.Tensor,
    layout: HeadLayout,
    norms: HeadNorms | None,
    rotary: RotaryTable,
    kv: KvCells,
    *,
    backend: Backend = Backend.AUTO,
) -> torch.Tensor:
    """Write K/V of N projected rows to the pages, and give their queries [N, Hq, D], normed and rotated."""
    if runs_kernel(backend, projected.device, projected.dtype):
        from paceline_kernels.place_heads import kernel

        return kernel.place_heads(projected, layout, norms, rotary, kv)
    return reference.place_heads(projected, layout, norms, rotary, kv)
