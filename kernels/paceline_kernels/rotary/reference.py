"""Rotary embeddings (Su et al. 2021, arXiv 2104.09864) in the two-halves layout, in plain torch.

The rotary layer decides which frequencies a config means; here they are numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RotaryTable:
    """Cosines and sines of N rows, [N, 1, R] for rotary width R; `sin` is negated in its first half."""

    cos: torch.Tensor
    sin: torch.Tensor


def rotary_table(positions: torch.Tensor, inverse_frequencies: torch.Tensor, scaling: float, dtype: torch.dtype) -> RotaryTable:
    """Table of positions int64 [N] for inverse frequencies float32 [R / 2].

    Angles are float32 whatever `dtype` is: that is how checkpoints were trained and how transformers computes them.
    """
    angles = positions[:, None].to(torch.float32) * inverse_frequencies
    cos, sin = angles.cos() * scaling, angles.sin() * scaling
    return RotaryTable(torch.cat((cos, cos), -1).to(dtype)[:, None], torch.cat((-sin, sin), -1).to(dtype)[:, None])


def apply_rotary(x: torch.Tensor, table: RotaryTable) -> torch.Tensor:
    """Rotate the first R entries of each head of x [N, heads, D]; the others pass."""
    width = table.cos.shape[-1]
    if width < x.shape[-1]:
        return torch.cat((apply_rotary(x[..., :width], table), x[..., width:]), -1)
    return torch.addcmul(x * table.cos, x.roll(width // 2, -1), table.sin)
