"""Rotary position embeddings on the leading part of each head.

The rotary layer makes the table; attention layers and `place_heads` apply it. It knows no kind of rope.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.rotary import reference
from paceline_kernels.rotary.reference import RotaryTable, apply_rotary

__all__ = ["RotaryTable", "apply_rotary", "rotary_table"]


def rotary_table(
    positions: torch.Tensor,
    inverse_frequencies: torch.Tensor,
    scaling: float,
    dtype: torch.dtype,
    *,
    backend: Backend = Backend.AUTO,
) -> RotaryTable:
    """Table of positions int64 [N] for inverse frequencies float32 [R / 2]; `scaling` is put on cosines and sines."""
    if runs_kernel(backend, positions.device, dtype):
        from paceline_kernels.rotary import kernel

        return kernel.rotary_table(positions, inverse_frequencies, scaling, dtype)
    return reference.rotary_table(positions, inverse_frequencies, scaling, dtype)
