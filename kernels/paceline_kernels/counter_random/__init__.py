"""Counter-based randomness: every draw is a pure function of (key, position, purpose, index).

The sampler, the verify and the proposers draw with it. It keeps no state and knows no batch.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend, runs_kernel
from paceline_kernels.counter_random import reference
from paceline_kernels.counter_random.reference import ACCEPT, DRAW, PROPOSAL, mix_seed

__all__ = ["ACCEPT", "DRAW", "PROPOSAL", "gumbel", "mix_seed", "uniform"]


def uniform(
    keys: torch.Tensor,
    positions: torch.Tensor,
    purpose: int,
    index: torch.Tensor | None = None,
    *,
    backend: Backend = Backend.AUTO,
) -> torch.Tensor:
    """Uniform numbers in (0, 1), float64, of the broadcast shape of `keys`, `positions` and `index` (all int64).

    `positions` is the absolute position of the token being decided; `index` (a token id) separates draws at one position.
    """
    if runs_kernel(backend, keys.device):
        from paceline_kernels.counter_random import kernel

        return kernel.uniform(keys, positions, purpose, index)
    return reference.uniform(keys, positions, purpose, index)


def gumbel(
    keys: torch.Tensor, positions: torch.Tensor, purpose: int, index: torch.Tensor, *, backend: Backend = Backend.AUTO
) -> torch.Tensor:
    """Standard Gumbel noise, float64: argmax over `index` of log p + gumbel is a draw from p, in whatever order p is listed."""
    if runs_kernel(backend, keys.device):
        from paceline_kernels.counter_random import kernel

        return kernel.gumbel(keys, positions, purpose, index)
    return reference.gumbel(keys, positions, purpose, index)
