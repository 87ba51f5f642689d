"""Linear layers whose weights differ by group of rows: the experts of a mixture.

Stacks of weights call it. It refuses to know who routed the rows.
"""

from __future__ import annotations

import torch

from paceline_kernels.backend import Backend
from paceline_kernels.moe import grouped_product, reference

__all__ = ["grouped_linear"]


def grouped_linear(
    x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor, *, backend: Backend = Backend.AUTO
) -> torch.Tensor:
    """`x[i] W_e^T` for rows ends[e - 1] <= i < ends[e] of x [M, I]: [M, O]. Rows from ends[-1] on come out as 0.

    weights: [E, O, I]; ends: int32 [E], ascending. How many rows each expert has is known to the device only.
    """
    if backend is not Backend.REFERENCE and grouped_product.takes(x, weights):
        return grouped_product.grouped_linear(x, weights, ends)
    return reference.grouped_linear(x, weights, ends)
