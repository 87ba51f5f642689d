"""The residual addition and the norm that follows it, or the norm alone, over rows [N, H].

The norm layer calls it: the next part of a decoder layer adds what the part before it gave, in one pass over the rows. It
knows neither part.
"""

from __future__ import annotations

import torch

from paceline_kernels.add_norm import reference
from paceline_kernels.backend import Backend, runs_kernel

__all__ = ["add_norm", "norm"]


def add_norm(
    residual: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float, *, backend: Backend = Backend.AUTO
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual + added` [N, H] in the residual's dtype, and its RMS norm with `weight` [H], in at least the weight's dtype.

    `added` may come as parts [P, N, H] that are summed first (`skinny_partial_linear`).
    """
    if runs_kernel(backend, residual.device, residual.dtype):
        from paceline_kernels.add_norm import kernel

        return kernel.add_norm(residual, added, weight, eps)
    return reference.add_norm(residual, added, weight, eps)


def norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float, *, backend: Backend = Backend.AUTO) -> torch.Tensor:
    """The RMS norm of rows [N, H], in their dtype."""
    if runs_kernel(backend, hidden.device, hidden.dtype):
        from paceline_kernels.add_norm import kernel

        return kernel.norm(hidden, weight, eps)
    return reference.norm(hidden, weight, eps)
