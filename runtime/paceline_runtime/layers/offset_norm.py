"""The zero-centred norm of the hybrid families: stored is what the weight has beyond 1."""

from __future__ import annotations

import torch

from paceline_kernels.rms_norm import rms_norm
from paceline_runtime.layers.parameters import Parameters


class OffsetRmsNorm:
    """`x / rms(x) * weight` with weight = 1 + stored, kept in at least float32: 1 + w rounded to bf16 loses w's digits."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight, self.eps = weight, eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x.to(self.weight.dtype), self.weight, self.eps).to(x.dtype)


def offset_norm(parameters: Parameters, name: str, size: int, eps: float) -> OffsetRmsNorm:
    """A zero-centred norm stored as `name.weight`."""
    wide = torch.promote_types(parameters.dtype, torch.float32)
    weight = parameters.tensor(f"{name}.weight", size, dtype=wide, convert=lambda stored: stored.to(wide) + 1)
    return OffsetRmsNorm(weight, eps)
