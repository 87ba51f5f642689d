"""The residual addition and the norm that follows it, in plain torch.

The face calls it. It refuses to know what was added.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def add_norm(
    residual: torch.Tensor, added: torch.Tensor, weight: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """`residual + added` [N, H] in the residual's dtype, and its RMS norm with `weight` [H], in at least the weight's dtype.

    `added` may come as parts [P, N, H] that are summed first (`skinny_partial_linear`). A weight wider than the rows (the
    zero-centred norms keep theirs in float32) is not rounded to them.
    """
    hidden = add(residual, added)
    return hidden, norm(hidden, weight, eps)


def add(residual: torch.Tensor, added: torch.Tensor) -> torch.Tensor:
    """The sum alone."""
    return residual + (added.sum(0).to(residual.dtype) if added.dim() == 3 else added)


def norm(hidden: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """The RMS norm (Zhang and Sennrich 2019, arXiv 1910.07467) of rows [N, H], in their dtype."""
    wide = torch.promote_types(hidden.dtype, weight.dtype)
    return functional.rms_norm(hidden.to(wide), (hidden.shape[-1],), weight, eps).to(hidden.dtype)
