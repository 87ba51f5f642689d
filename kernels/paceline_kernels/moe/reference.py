"""Linear layers over rows sorted by expert. Called by the mixture-of-experts layer.

Torch's grouped product does the work where it exists; how many rows each expert has is known to the device only.
"""

from __future__ import annotations

import torch
from torch.nn import functional

_GROUPED_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ALIGNED_BYTES = 16


def grouped_linear(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """`x[i] W_e^T` for rows ends[e - 1] <= i < ends[e] of x [M, I]: [M, O]. Rows from ends[-1] on come out as 0.

    weights: [E, O, I]; ends: int32 [E], ascending
    """
    outside = torch.arange(len(x), device=x.device) >= ends[-1]
    if x.dtype in _GROUPED_DTYPES and not any(size * x.itemsize % _ALIGNED_BYTES for size in weights.shape[1:]):
        out = functional.grouped_mm(x, weights.transpose(1, 2), offs=ends)
    else:
        out = _gathered_linear(x, weights, ends)
    # Rows of no expert are left unwritten by torch, and may hold NaN.
    return out.masked_fill_(outside[:, None], 0.0)


def _gathered_linear(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The same with each row's own copy of its weights, for dtypes (float64) and odd sizes that torch's product refuses."""
    experts = torch.searchsorted(ends, torch.arange(len(x), device=x.device, dtype=ends.dtype), right=True)
    return torch.bmm(weights[experts.clamp(max=len(weights) - 1)], x[:, :, None])[:, :, 0]
