"""Grouped dynamic causal convolution of DFlash 2, in plain torch.

The face calls it. It refuses to know about layers: the caller projects the dynamic part and hands in the block as its own axis,
so no row sees the rows of another request.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def grouped_conv(x: torch.Tensor, delta: torch.Tensor, base: torch.Tensor) -> torch.Tensor:
    """The operation, tap by tap in the dtype of x."""
    num_groups = delta.shape[-1]
    grouped, kernel = x.view(*x.shape[:-1], num_groups, -1), base.view(-1, num_groups, x.shape[-1] // num_groups)
    out = torch.zeros_like(grouped)
    for tap in range(base.shape[0]):
        out = out + (kernel[tap] + delta[:, :, tap, :, None]) * _delayed(grouped, tap)
    return out.flatten(-2)


def _delayed(rows: torch.Tensor, num_rows: int) -> torch.Tensor:
    """Rows [B, W, G, C] moved down by `num_rows`, zeros moving in."""
    width = rows.shape[1]
    num_rows = min(num_rows, width)
    return functional.pad(rows[:, : width - num_rows], (0, 0, 0, 0, num_rows, 0))
