"""One Gated DeltaNet layer of a verify between its two projections: convolution, delta rule with a journal, gated norm.

The Gated DeltaNet layers call it. It moves the states on by the rows of the last verify that were accepted, and journals the
new rows. Device tensors, which nobody reads back, say which states and how many rows.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.delta_step import reference
from paceline_kernels.delta_step.reference import DeltaMemory, DeltaWeights, decays_and_betas, delta_rows, gated_norm
from paceline_kernels.replay import Replay

__all__ = ["DeltaMemory", "DeltaWeights", "decays_and_betas", "delta_rows", "delta_step", "gated_norm"]


def delta_step(
    projected: torch.Tensor,
    width: int,
    weights: DeltaWeights,
    memory: DeltaMemory,
    replay: Replay,
    *,
    backend: Backend = Backend.AUTO,
) -> torch.Tensor:
    """Rows [B * width, sum of `weights.widths`] of B requests to the output projection's rows [B * width, Hv * Dv]."""
    if runs_kernel(backend, projected.device, projected.dtype):
        from paceline_kernels.delta_step import kernel
        from paceline_kernels.gated_delta.kernel import takes

        # The journal keeps the configured depth while an adaptive one verifies less.
        if takes(width, memory.conv_journal.shape[1]):
            return kernel.delta_step(projected, width, weights, memory, replay)
    return reference.delta_step(projected, width, weights, memory, replay)
