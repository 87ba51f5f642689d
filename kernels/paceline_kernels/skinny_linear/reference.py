"""Products of few rows with a large matrix, in plain torch: `x W^T + b`, and the gated activation of interleaved rows.

The face calls it. It refuses to know what the rows are. A gated weight holds gate and up in turn: row 2i is gate i,
row 2i + 1 is up i, so that one read of the matrix gives both halves of a product.
"""

from __future__ import annotations

import torch
from torch.nn import functional


def skinny_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [M, K], weight [N, K], bias [N] or None: [M, N] in x's dtype, summed in at least float32."""
    return functional.linear(x, weight, bias)


def linear_parts(x: torch.Tensor, weight: torch.Tensor, parts: int) -> torch.Tensor:
    """`x W^T` as `parts` sums over equal runs of columns, the last one shorter: [parts, M, N] in at least float32.

    The next reader of the product adds the parts: a matrix with few rows is read faster in parts, and the sum takes no launch.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    run = -(-x.shape[1] // parts)
    return torch.stack(
        [x[:, i * run : i * run + run].to(wide) @ weight[:, i * run : i * run + run].to(wide).T for i in range(parts)]
    )


def skinny_gated_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """`silu(gate) * up` of a gated weight [2 I, K] and bias [2 I]: x [M, K] to [M, I]."""
    both = functional.linear(x, weight, bias)
    wide = both.to(torch.promote_types(both.dtype, torch.float32))
    return (functional.silu(wide[:, 0::2]) * wide[:, 1::2]).to(x.dtype)
