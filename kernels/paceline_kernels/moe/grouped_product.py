"""Linear layers over rows sorted by expert, by torch's grouped product, which a CPU has too."""

from __future__ import annotations

import torch
from torch.nn import functional

_DTYPES = (torch.float32, torch.bfloat16, torch.float16)
_ALIGNED_BYTES = 16


def takes(x: torch.Tensor, weights: torch.Tensor) -> bool:
    """Whether torch's product takes this dtype and these sizes; it refuses float64 and odd rows."""
    return x.dtype in _DTYPES and not any(size * x.itemsize % _ALIGNED_BYTES for size in weights.shape[1:])


def grouped_linear(x: torch.Tensor, weights: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
    """The operation, in one product."""
    outside = torch.arange(len(x), device=x.device) >= ends[-1]
    out = functional.grouped_mm(x, weights.transpose(1, 2), offs=ends)
    # Torch leaves rows of no expert unwritten, and they may hold NaN.
    return out.masked_fill_(outside[:, None], 0.0)
